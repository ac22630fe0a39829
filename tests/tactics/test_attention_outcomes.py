"""Attention at NaN and at queries that see no key: every kernel, and the floor, give what the op means."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence

from offers import offered, why_not

# the kernel is made for the interpreter when its module is imported
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch
from torch import Tensor

from interpreted import interpret
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.floor import call_floor
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cpu.sdpa import AttentionBmm, Sdpa
from ridgeline.tactics.cuda.triton_attention import (
    TritonAttention,
    arguments,
    grid_of,
    kernel_of,
    rank_blocks,
)
from ridgeline.tactics.read.attention import read_attention

B, H, S, T, D = 2, 2, 5, 7, 8
NAN = math.nan


def site_of(
    attrs: dict[str, int], mask: Tensor | None, *, is_guarded: bool, keys: int, target: Target
) -> Site:
    names = ("q", "k", "v") if mask is None else ("q", "k", "v", "m")
    ops = [Op("Attention", names, ("a",), attrs)]
    output = "a"
    specs = {"q": (B, H, S, D), "k": (B, H, keys, D), "v": (B, H, keys, D), "a": (B, H, S, D)}
    made = {name: TensorSpec("float32", shape) for name, shape in specs.items()}
    if mask is not None:
        made["m"] = TensorSpec(str(mask.dtype).removeprefix("torch."), tuple(mask.shape))
    constants = {}
    if is_guarded:
        ops += [
            Op("Mul", ("v", "zero"), ("none",)),
            Op("ReduceSum", ("none", "axes"), ("g",), {"keepdims": 1}),
        ]
        ops += [Op("IsNaN", ("a",), ("n",)), Op("Where", ("n", "g", "a"), ("y",))]
        constants = {"zero": np.zeros((), np.float32), "axes": np.array([2])}
        made |= {"g": TensorSpec("float32", (B, H, 1, D)), "y": made["a"]}
        made["n"] = TensorSpec("bool", specs["a"])
        made["none"] = made["v"]
        output = "y"
    return Site(Body(names, (output,), tuple(ops), constants), made, frozenset(), {}, target)


def results(
    inputs: Sequence[Tensor], mask: Tensor | None = None, *, guard: Tensor | None = None, is_causal: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """The same attention by everything that can compute it."""
    attrs = {"is_causal": is_causal}
    given = [*inputs, *([] if mask is None else [mask])]
    keys = inputs[1].shape[2]
    (y,) = call_floor(Op("Attention", ("q", "k", "v", "m")[: len(given)], ("a",), attrs), given)[:1]
    yield "floor", y if guard is None else torch.where(y.isnan(), guard, y)
    site = site_of(attrs, mask, is_guarded=guard is not None, keys=keys, target=Target())
    tactics: list[Tactic] = [Sdpa(), AttentionBmm()]
    for tactic in tactics:
        for config in offered(tactic, site).configs if why_not(tactic, site) is None else ():
            yield f"{tactic.name} {config}", offered(tactic, site).bind(config, {}).call(given, [])[0]
    gpu = site_of(attrs, mask, is_guarded=guard is not None, keys=keys, target=Target("cuda", "sm_80"))
    assert why_not(TritonAttention(), gpu) is None
    attention = read_attention(gpu)
    blocks = rank_blocks(attention, gpu.target)[0]
    out = torch.full((B, H, S, D), 77.0)
    args = arguments(attention, given, [out])
    with np.errstate(all="ignore"):
        interpret(kernel_of(attention, blocks, gpu.target), grid_of(attention, blocks), args)
    yield "triton", out


def random_inputs(keys: int = T) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(B, H, n, D) for n in (S, keys, keys)]


def check(want: Tensor, found: Iterator[tuple[str, Tensor]]) -> None:
    for name, got in found:
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5, err_msg=name)


def softmax_attention(inputs: Sequence[Tensor], bias: Tensor | None = None) -> Tensor:
    q, k, v = inputs
    scores = q @ k.transpose(2, 3) / math.sqrt(D)
    return (scores if bias is None else scores + bias).softmax(-1) @ v


@pytest.mark.parametrize("is_causal", [0, 1])
def test_a_query_of_nan_stays_one(is_causal: int) -> None:
    inputs = random_inputs(S)
    inputs[0][0, 1, 2] = NAN
    inputs[0][1, 0, 4, 0] = NAN
    bias = torch.full((S, S), -math.inf).triu(1) if is_causal else None
    check(softmax_attention(inputs, bias), results(inputs, is_causal=is_causal))


@pytest.mark.parametrize("shape", [(S, T), (B, 1, S, T), (B, H, S, T)], ids=str)
def test_a_row_of_nan_in_the_mask_is_one_in_the_result(shape: tuple[int, ...]) -> None:
    inputs, mask = random_inputs(), torch.randn(shape)
    mask[..., 2, :] = NAN
    mask[..., 3, :4] = -math.inf
    check(softmax_attention(inputs, mask), results(inputs, mask))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_query_that_sees_no_key_gets_zeros(kind: str) -> None:
    inputs, allowed = random_inputs(), torch.ones(S, T, dtype=torch.bool)
    allowed[2] = False
    allowed[3, 2:] = False
    mask = torch.where(allowed, 0.0, -math.inf)
    want = softmax_attention(inputs, mask)
    want[:, :, 2] = 0.0
    check(want, results(inputs, allowed if kind == "bool" else mask))


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_guard_stands_where_the_result_is_nan(is_masked: bool) -> None:
    inputs = random_inputs()
    inputs[0][0, 1, 2] = NAN
    inputs[2][1, 1, 3, 4] = NAN
    guard = (inputs[2] * 0).sum(2, keepdim=True)
    mask = torch.randn(B, 1, S, T) if is_masked else None
    plain = softmax_attention(inputs, mask)
    want = torch.where(plain.isnan(), guard, plain)
    assert (want[0, 1, 2] == 0).all()
    assert want[1, 1, :, 4].isnan().all()
    check(want, results(inputs, mask, guard=guard))
