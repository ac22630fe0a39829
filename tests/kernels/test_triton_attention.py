"""The attention kernel in Triton's interpreter against float64, and its machine code for sm_90 and sm_80."""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
from pathlib import Path

from offers import why_not

# the kernels are made for the interpreter when their module is imported
os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from torch import Tensor

from interpreted import interpret
from ridgeline.base.spec import EPSILON, Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.attention import attention_ref
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.kernels.triton.sass import tool
from ridgeline.tactics.cuda.triton_attention import (
    Blocks,
    TritonAttention,
    arguments,
    grid_of,
    kernel_of,
    rank_blocks,
)
from ridgeline.tactics.read.attention import read_attention

H, D = 2, 24
MARGIN = 96  # elements of NaN on both sides of every tensor
FP32, FP16 = "float32", "float16"
SMALL = Blocks(16, 32, 4, 2)


def site_of(ops, inputs, made, *, dtype=FP16, arch="sm_80", mask_dtype="") -> Site:
    """Shapes of the region's inputs and of what its ops make; `y` is the output."""
    specs = {name: TensorSpec(dtype, shape) for name, shape in {**inputs, **made}.items()}
    if mask_dtype:
        specs["m"] = TensorSpec(mask_dtype, inputs["m"])
    body = Body(tuple(inputs), ("y",), tuple(ops))
    return Site(body, specs, frozenset(), {}, Target("cuda", arch))


def merged(batch, length, *, heads=H, width=D, dtype=FP16, arch="sm_80", **attrs) -> Site:
    """One projection [B, S, 3 · H · D], split into q, k and v inside the region."""
    columns = heads * width
    split = Op("Split", ("x",), ("q", "k", "v"), {"axis": -1, "num_outputs": 3})
    attrs |= {"q_num_heads": heads, "kv_num_heads": heads}
    ops = [split, Op("Attention", ("q", "k", "v"), ("y",), attrs)]
    made = dict.fromkeys("qkvy", (batch, length, columns))
    return site_of(ops, {"x": (batch, length, 3 * columns)}, made, dtype=dtype, arch=arch)


def apart(
    batch, queries, keys, *, heads=H, kv_heads=H, width=D, value_width=D, mask=None, mask_dtype="",
    dtype=FP16, arch="sm_80", **attrs,
) -> Site:  # fmt: skip
    """q, k and v as [B, H, S, D], each a tensor of its own."""
    inputs = {"q": (batch, heads, queries, width), "k": (batch, kv_heads, keys, width)}
    inputs["v"] = (batch, kv_heads, keys, value_width)
    if mask is not None:
        inputs["m"] = mask
    ops = [Op("Attention", tuple(inputs), ("y",), attrs)]
    made = {"y": (batch, heads, queries, value_width)}
    return site_of(ops, inputs, made, dtype=dtype, arch=arch, mask_dtype=mask_dtype)


def between_nans(tensor: Tensor) -> Tensor:
    """The same values in the middle of a buffer of NaN (True for bool), so that a stray read shows."""
    flat = torch.full((tensor.numel() + 2 * MARGIN,), math.nan).to(tensor.dtype)
    inner = flat[MARGIN:-MARGIN].view(tensor.shape)
    return inner.copy_(tensor)


def run(site: Site, tensors, blocks: Blocks = SMALL) -> Tensor:
    """Interpret the kernel; nothing around the output may be written."""
    attention = read_attention(site)
    out = between_nans(torch.full(site.outputs[0].shape, math.nan, dtype=getattr(torch, attention.dtype)))
    inputs = [between_nans(tensors[name]) for name in site.body.inputs]
    interpret(
        kernel_of(attention, blocks, site.target),
        grid_of(attention, blocks),
        arguments(attention, inputs, [out]),
    )
    whole = torch.as_strided(out, (out.numel() + 2 * MARGIN,), (1,), 0)
    assert whole[:MARGIN].isnan().all()
    assert whole[-MARGIN:].isnan().all()
    return out


def check(site: Site, *, blocks: Blocks = SMALL, mask: Tensor | None = None) -> Tensor:
    assert why_not(TritonAttention(), site) is None
    attention = read_attention(site)
    dtype = getattr(torch, attention.dtype)
    tensors = {name: torch.randn(site.specs[name].shape).to(dtype) for name in site.body.inputs}
    if mask is not None:
        tensors["m"] = mask if mask.dtype == torch.bool else mask.to(dtype)
    got = run(site, tensors, blocks)
    inputs = [tensors[name] for name in site.body.inputs]

    def reference(kind: torch.dtype) -> Tensor:
        def attend(*operands: Tensor | None) -> Tensor:
            cast = (x.to(kind) if x is not None and x.is_floating_point() else x for x in operands)
            return attention_ref(*cast, scale=attention.scale, is_causal=attention.is_causal)

        return attention.launch(attend).run(inputs, ())[0].double()

    exact, narrow = reference(torch.float64), reference(dtype)
    allowed = 2 * (narrow - exact).abs().max() + 2 * EPSILON[attention.dtype] * exact.abs().max()
    off = (got.double() - exact).abs().max()
    assert off <= allowed, f"off by {off:.3g}, allowed {allowed:.3g}"
    return got


@pytest.mark.parametrize("dtype", [FP32, FP16])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_merged_projection(dtype, is_causal):
    check(merged(2, 37, dtype=dtype, is_causal=is_causal))


@pytest.mark.parametrize("sizes", [(21, 50), (50, 21), (64, 64), (1, 33), (33, 1)], ids=str)
@pytest.mark.parametrize("is_causal", [0, 1])
def test_lengths(sizes, is_causal):
    check(apart(1, *sizes, dtype=FP32, is_causal=is_causal))


@pytest.mark.parametrize(
    "blocks", [Blocks(16, 64, 4, 1), Blocks(32, 32, 4, 2), Blocks(64, 128, 4, 1)], ids=str
)
@pytest.mark.parametrize("is_causal", [0, 1])
def test_block_shapes(blocks, is_causal):
    check(merged(1, 60, dtype=FP32, is_causal=is_causal), blocks=blocks)


@pytest.mark.parametrize("widths", [(8, 8), (16, 40), (128, 80)], ids=str)
def test_head_widths(widths):
    check(apart(1, 18, 34, width=widths[0], value_width=widths[1]))


@pytest.mark.parametrize("is_causal", [0, 1])
def test_lengths_that_are_arguments(is_causal):
    site = apart(1, 20, 300, heads=1, kv_heads=1, dtype=FP32, is_causal=is_causal)
    assert dict(kernel_of(read_attention(site), SMALL, site.target).signature)["T"] == "i32"
    check(site, blocks=Blocks(16, 128, 4, 2))


def test_shared_key_heads():
    check(apart(2, 20, 40, heads=6, kv_heads=2, dtype=FP32, scale=0.7))


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_scales_that_are_not_positive(scale):
    check(apart(1, 20, 40, dtype=FP32, scale=scale))


@pytest.mark.parametrize("shape", [(20, 40), (H, 20, 40), (2, 1, 1, 40), (2, H, 20, 40)], ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_masks(shape, kind, is_causal):
    mask = torch.rand(shape) < 0.6 if kind == "bool" else torch.randn(shape)
    mask_dtype = "bool" if kind == "bool" else FP32
    check(apart(2, 20, 40, dtype=FP32, mask=shape, mask_dtype=mask_dtype, is_causal=is_causal), mask=mask)


@pytest.mark.parametrize("blocks", [SMALL, Blocks(16, 64, 4, 1)], ids=["loop", "one block"])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_queries_that_see_no_key_get_zeros(kind, blocks):
    allowed = torch.rand(20, 40) < 0.5
    allowed[3] = False
    allowed[4, :32] = False  # a whole block of keys, then some
    mask = allowed if kind == "bool" else torch.where(allowed, 0.0, -math.inf)
    site = apart(1, 20, 40, mask=(20, 40), mask_dtype="bool" if kind == "bool" else FP16)
    got = check(site, mask=mask, blocks=blocks)
    assert (got[:, :, 3] == 0).all()
    assert (got[:, :, 4] != 0).any()


def test_keys_that_come_transposed():
    ops = [
        Op("Transpose", ("kt",), ("k",), {"perm": (0, 1, 3, 2)}),
        Op("Attention", ("q", "k", "v"), ("a",)),
        Op("Transpose", ("a",), ("t",), {"perm": (0, 2, 1, 3)}),
        Op("Reshape", ("t",), ("y",)),
    ]
    inputs = {"q": (1, H, 20, D), "kt": (1, H, D, 40), "v": (1, H, 40, D)}
    made = {"k": (1, H, 40, D), "a": (1, H, 20, D), "t": (1, 20, H, D), "y": (1, 20, H * D)}
    check(site_of(ops, inputs, made, dtype=FP32))


def test_rows_that_are_not_aligned():
    site = apart(1, 20, 33, width=8, value_width=8)
    ops = (Op("Slice", ("x", "from", "to", "axis"), ("q",)), *site.body.ops)
    constants = {"from": [3], "to": [11], "axis": [3]}
    body = Body(("x", "k", "v"), ("y",), ops, {n: torch.tensor(v).numpy() for n, v in constants.items()})
    specs = {**site.specs, "x": TensorSpec(FP16, (1, H, 20, 13))}
    moved = Site(body, specs, frozenset(), {}, site.target)
    kernel = kernel_of(read_attention(moved), SMALL, moved.target)
    assert kernel.unaligned == ("q_ptr",)
    assert dict(kernel.constants)["UNIT"] == 4  # 20 rows of 13 elements
    check(moved)


def machine_code(sites, *, shapes=1) -> list[tuple[Blocks, Compiled, str]]:
    """The best shapes of each site, compiled, with their instructions."""
    target = sites[0].target
    jobs = [(a, b) for a in map(read_attention, sites) for b in rank_blocks(a, target)[:shapes]]
    made = compile_kernels([kernel_of(*job, target) for job in jobs], target.arch, jobs=2)
    found = []
    for (_, blocks), compiled in zip(jobs, made, strict=True):
        assert isinstance(compiled, Compiled), compiled
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "attention.cubin"
            path.write_bytes(compiled.cubin)
            shown = subprocess.run([tool("nvdisasm"), path], capture_output=True, text=True, check=True)
        found.append((blocks, compiled, shown.stdout))
    return found


def test_machine_code_for_sm_90():
    sites = [
        merged(1, 128, heads=12, width=64, arch="sm_90"),
        merged(32, 128, heads=12, width=64, arch="sm_90", dtype="bfloat16"),
        merged(4, 2048, heads=16, width=128, arch="sm_90", is_causal=1),
    ]
    found = machine_code(sites)
    assert any(blocks.queries >= 64 for blocks, _, _ in found)
    for blocks, compiled, code in found:
        assert not compiled.spills, blocks
        assert compiled.shared <= 227 << 10, blocks
        assert ("HGMMA" in code) == (blocks.queries >= 64), blocks
        assert re.search(r"LDG(STS)?\.E\.(BYPASS\.)?(LTC128B\.)?128", code), blocks
        # nothing of other kernels is read, and nothing written, before the wait; dependents start after it
        waits, starts = code.index("ACQBULK"), code.index("PREEXIT")
        assert waits < min(starts, code.index("LDG"), code.index("STG"))
        assert starts < code.index("STG")


def test_machine_code_for_sm_80():
    for blocks, compiled, code in machine_code([merged(1, 128, heads=12, width=64)]):
        assert not compiled.spills, blocks
        assert "HMMA" in code
        assert not compiled.pdl
