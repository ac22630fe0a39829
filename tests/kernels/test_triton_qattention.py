"""Attention over codes of 8 bits: numbers in the interpreter, views, refusals, machine code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch
from product_cases import for_interpreter, machine_code
from quant_cases import UNIT32, codes, make_site, op, quantize, require_near, scales
from torch import Tensor

from interpreted import interpret
from offers import offered, why_not
from ridgeline.base.spec import Op, Site, Target
from ridgeline.kernels.triton.attention import attention_ref
from ridgeline.tactics.cuda.triton_attention import Blocks, arguments, grid_of, kernel_of
from ridgeline.tactics.cuda.triton_code_attention import TritonCodeAttention, read_code_attention

TACTIC = TritonCodeAttention()
HEADS, WIDTH = 2, 24
SMALL = Blocks(16, 32, 4, 2)
CODES = ["float8_e4m3fn", "int8"]
HALF_UNIT = 2.0**-11


def run(site: Site, tensors: Mapping[str, Tensor], blocks: Blocks = SMALL) -> Tensor:
    found = read_code_attention(site)
    weights = {name: tensors[name] for name in site.weights}
    spec = site.outputs[0]
    y = torch.full(spec.shape, 77.0).to(getattr(torch, spec.dtype))
    inputs = [tensors[name] for name in site.body.inputs]
    kernel = kernel_of(found.attention, blocks, site.target, found.types)
    args = arguments(found.attention, inputs, [y], found.bind_scales(weights, "cpu"))
    interpret(for_interpreter(kernel), grid_of(found.attention, blocks), args)
    return y


def operands(dtype: str, queries: int = 21, keys: int = 37) -> dict[str, Tensor]:
    sizes = {"q": queries, "k": keys, "v": keys}
    made = {
        n: codes(2, size, HEADS * WIDTH, dtype=dtype, seed=i) for i, (n, size) in enumerate(sizes.items())
    }
    half = torch.float16
    unit = 1.0 if dtype != "int8" else 1 / 64
    return made | {f"{n}s": (scales(seed=i, dtype=half) * 64 * unit) for i, n in enumerate("qkv")}


def attention(*names: str, **attrs: Any) -> list[Op]:
    """q, k and v dequantised, then attended."""
    before = [op("DequantizeLinear", f"{n} {n}s", f"{n}d") for n in "qkv"]
    counts = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
    return [*before, op("Attention", " ".join(("qd", "kd", "vd", *names)), "p", **counts, **attrs)]


def check(site: Site, tensors: dict[str, Tensor], blocks: Blocks = SMALL, **attrs: Any) -> None:
    """Scores in float32 of exact products; p is rounded to half before it is multiplied."""
    assert why_not(TACTIC, site) is None
    q, k, v = (tensors[n].double() * tensors.get(f"{n}s", torch.ones(())).double() for n in "qkv")
    q, k, v = (x.view(2, -1, HEADS, WIDTH).transpose(1, 2) for x in (q, k, v))
    attrs = {"scale": WIDTH**-0.5} | attrs
    want = attention_ref(q, k, v, **attrs)
    bound = attention_ref(q, k, v.abs(), **attrs) * (2 * HALF_UNIT) + 64 * UNIT32 * v.abs().max()
    # Hopper's tensor cores keep 13 bits of a float8 sum, which an exponential makes relative
    off = (
        (q.abs() @ k.abs().mT).amax() * attrs["scale"] * 2.0**-12 if tensors["q"].is_floating_point() else 0.0
    )
    bound = bound + 2 * off * attention_ref(q, k, v.abs(), **attrs)
    want, bound = (x.transpose(1, 2).reshape(2, -1, HEADS * WIDTH) for x in (want, bound))
    if "ys" in tensors:
        want, bound = (x / tensors["ys"].double() for x in (want, bound))
    require_near(run(site, tensors, blocks), want, bound)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("blocks", [SMALL, Blocks(32, 64, 4, 1)], ids=["blocks of keys", "all keys at once"])
def test_codes_into_half(dtype: str, blocks: Blocks) -> None:
    tensors = operands(dtype)
    check(make_site(tensors, attention(), ("p",), inputs="q k v"), tensors, blocks)


@pytest.mark.parametrize("dtype", CODES)
def test_codes_into_codes(dtype: str) -> None:
    tensors = operands(dtype) | {"ys": scales(dtype=torch.float16)}
    check(make_site(tensors, [*attention(), quantize("p", "y", dtype)], inputs="q k v"), tensors)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_halves_into_codes(dtype: str, is_causal: int) -> None:
    generator = torch.Generator().manual_seed(4)
    sizes = {"q": 33, "k": 33, "v": 33}
    tensors = {n: torch.randn(2, s, HEADS * WIDTH, generator=generator).half() for n, s in sizes.items()}
    tensors["ys"] = torch.tensor(2.0**-6).half()
    counts = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "is_causal": is_causal}
    ops = [op("Attention", "q k v", "p", **counts), quantize("p", "y", dtype)]
    check(make_site(tensors, ops, inputs="q k v"), tensors, is_causal=bool(is_causal))


def test_causal_and_masked() -> None:
    tensors = operands("float8_e4m3fn", 33, 33)
    check(make_site(tensors, attention(is_causal=1), ("p",), inputs="q k v"), tensors, is_causal=True)
    mask = torch.rand(21, 37, generator=torch.Generator().manual_seed(5)) < 0.8
    tensors = operands("float8_e4m3fn") | {"m": mask}
    site = make_site(tensors, attention("m"), ("p",), inputs="q k v m")
    check(site, tensors, mask=mask)


def test_views_before_and_after() -> None:
    """Codes of a merged projection: split, cut into heads, dequantised, attended and joined again."""
    tensors = {
        "x": codes(2, 21, 3 * HEADS * WIDTH, dtype="int8"),
        **{f"{n}s": scales(dtype=torch.float16) for n in "qkv"},
    }
    split = Op("Split", ("x",), ("q", "k", "v"), {"axis": -1, "num_outputs": 3})
    cut = [op("Reshape", f"{n} heads", f"{n}r") for n in "qkv"]
    turned = [op("Transpose", f"{n}r", f"{n}t", perm=(0, 2, 1, 3)) for n in "qkv"]
    numbers = [op("DequantizeLinear", f"{n}t {n}s", f"{n}d") for n in "qkv"]
    after = [
        op("Attention", "qd kd vd", "o"),
        op("Transpose", "o", "ot", perm=(0, 2, 1, 3)),
        op("Reshape", "ot joined", "p"),
    ]
    shapes = {
        "heads": torch.tensor([0, 0, HEADS, WIDTH]).numpy(),
        "joined": torch.tensor([0, 0, HEADS * WIDTH]).numpy(),
    }
    site = make_site(tensors, [split, *cut, *turned, *numbers, *after], ("p",), inputs="x", constants=shapes)
    parts = dict(zip("qkv", tensors["x"].chunk(3, -1), strict=True))
    found = read_code_attention(site)
    assert found.attention.operands[1].place is not None
    q, k, v = (parts[n].double() * tensors[f"{n}s"].double() for n in "qkv")
    q, k, v = (x.reshape(2, -1, HEADS, WIDTH).transpose(1, 2) for x in (q, k, v))
    want = attention_ref(q, k, v, scale=WIDTH**-0.5).transpose(1, 2).reshape(2, -1, HEADS * WIDTH)
    require_near(run(site, tensors), want, 2 * HALF_UNIT * v.abs().max() * torch.ones_like(want))


def test_views_behind_the_codes_of_the_result() -> None:
    tensors = operands("int8") | {"ys": scales(dtype=torch.float16)}
    cut = [op("Reshape", f"{n} heads", f"{n}r") for n in "qkv"]
    turned = [op("Transpose", f"{n}r", f"{n}t", perm=(0, 2, 1, 3)) for n in "qkv"]
    numbers = [op("DequantizeLinear", f"{n}t {n}s", f"{n}d") for n in "qkv"]
    after = [
        op("Attention", "qd kd vd", "o"), quantize("o", "oq"), op("Transpose", "oq", "ot", perm=(0, 2, 1, 3)),
        op("Reshape", "ot joined", "y"),
    ]  # fmt: skip
    shapes = {"heads": np.array([0, 0, HEADS, WIDTH]), "joined": np.array([0, 0, HEADS * WIDTH])}
    site = make_site(tensors, [*cut, *turned, *numbers, *after], inputs="q k v", constants=shapes)
    check(site, tensors)


def with_scale(scale: Tensor) -> dict[str, Tensor]:
    return operands("int8") | {"ks": scale}


@pytest.mark.parametrize(
    ("tensors", "ops", "reason"),
    [
        (operands("int8") | {"k": operands("float8_e4m3fn")["k"]}, attention(), "codes are float8"),
        (with_scale(scales(HEADS * WIDTH, dtype=torch.float16)),
         [op("DequantizeLinear", "k ks", "kd", axis=2), *(o for o in attention() if o.outputs != ("kd",))],
         "several scales"),
        (operands("int8"), [op("Relu", "qs", "u"), *attention()], None),
    ],
)  # fmt: skip
def test_refuses(tensors: dict[str, Tensor], ops: list[Op], reason: str | None) -> None:
    found = why_not(TACTIC, make_site(tensors, ops, ("p",), inputs="q k v"))
    assert found is None if reason is None else reason in str(found)


def test_numbers_are_left_to_the_kernel_of_numbers() -> None:
    tensors = {n: torch.randn(2, 16, HEADS * WIDTH).half() for n in "qkv"}
    counts = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
    site = make_site(tensors, [op("Attention", "q k v", "y", **counts)], inputs="q k v")
    assert "is not dequantised" in str(why_not(TACTIC, site))


def test_machine_code() -> None:
    sizes = {n: codes(2, 128, 12 * 64, dtype="float8_e4m3fn") for n in "qkv"}
    tensors = sizes | {f"{n}s": scales(dtype=torch.float16) for n in "qkv"}
    ops = [op("DequantizeLinear", f"{n} {n}s", f"{n}d") for n in "qkv"]
    ops.append(op("Attention", "qd kd vd", "y", q_num_heads=12, kv_num_heads=12))
    site = make_site(tensors, ops, inputs="q k v", target=Target("cuda", "sm_90"))
    config = next(c for c in offered(TACTIC, site).configs if c["queries"] >= 64)
    ((compiled, code),) = machine_code(offered(TACTIC, site).kernels(config), "sm_90")
    assert "QGMMA" in code
    assert not compiled.spills
