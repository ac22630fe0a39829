"""Splits, slices and views around an Attention op: where the operands lie, and what is refused."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import EPSILON, Body, Op, Site, Target, TensorSpec
from ridgeline.errors import UnsupportedError
from ridgeline.kernels.floor import call_floor
from ridgeline.tactics.cpu.sdpa import Sdpa
from ridgeline.tactics.cuda.sdpa import CudaSdpa
from ridgeline.tactics.cuda.triton_attention import TritonAttention
from ridgeline.tactics.read.attention import read_attention

B, S, H, D = 2, 7, 3, 8
C = H * D
HEADS = {"q_num_heads": H, "kv_num_heads": H}
ATTEND = Op("Attention", ("q", "k", "v"), ("y",), HEADS)
GPU = Target("cuda", "sm_90")


def region(ops, inputs, *, constants=None, target=GPU, values=None) -> tuple[Site, dict[str, Tensor]]:
    """The site and its tensors; shapes of inner values are those the floor gives them."""
    arrays = {name: np.array(value) for name, value in (constants or {}).items()}
    known = {name: np.array(value) for name, value in (values or {}).items()}
    tensors = {name: x if isinstance(x, Tensor) else torch.randn(x) for name, x in inputs.items()}
    tensors |= {name: torch.from_numpy(array) for name, array in known.items()}
    made = compute(ops, tensors | {name: torch.from_numpy(array) for name, array in arrays.items()})
    specs = {n: TensorSpec(str(x.dtype).removeprefix("torch."), tuple(x.shape)) for n, x in made.items()}
    body = Body((*inputs, *known), ("y",), tuple(ops), arrays)
    return Site(body, specs, frozenset(), known, target), tensors


def compute(ops, tensors) -> dict[str, Tensor]:
    made = dict(tensors)
    for op in ops:
        made.update(
            zip(op.outputs, call_floor(op, [made[n] if n else None for n in op.inputs]), strict=False)
        )
    return made


def split_region(**kwargs):
    split = Op("Split", ("x",), ("q", "k", "v"), {"axis": -1, "num_outputs": 3})
    return region([split, ATTEND], {"x": (B, S, 3 * C)}, **kwargs)


def sliced_region(*, step=1, **kwargs):
    bounds = {
        f"{n}_{side}": [(i + (side == "end")) * C] for i, n in enumerate("qkv") for side in ("start", "end")
    }
    ops = [Op("Slice", ("x", f"{n}_start", f"{n}_end", "axis", "step"), (n,)) for n in "qkv"]
    constants = {"axis": [2], "step": [step]}
    return region([*ops, ATTEND], {"x": (B, S, 3 * C)}, constants=constants, values=bounds, **kwargs)


def packed_region(**kwargs):
    """[B, S, 3 · C] as [3, B, H, S, D], split along the first axis, heads joined again at the end."""
    ops = [
        Op("Reshape", ("x", "five"), ("r",)),
        Op("Transpose", ("r",), ("t",), {"perm": (2, 0, 3, 1, 4)}),
        Op("Split", ("t", "ones"), ("q1", "k1", "v1"), {"axis": 0}),
        *(Op("Squeeze", (f"{n}1", "first"), (n,)) for n in "qkv"),
        Op("Attention", ("q", "k", "v"), ("a",), {}),
        Op("Transpose", ("a",), ("j",), {"perm": (0, 2, 1, 3)}),
        Op("Reshape", ("j", "three"), ("y",)),
    ]
    constants = {"five": [B, S, 3, H, D], "ones": [1, 1, 1], "first": [0], "three": [B, S, C]}
    return region(ops, {"x": (B, S, 3 * C)}, constants=constants, **kwargs)


@pytest.mark.parametrize("make", [split_region, sliced_region, packed_region])
def test_operands_are_places_in_the_merged_projection(make):
    site, tensors = make()
    attention = read_attention(site)
    x = tensors["x"]
    inputs = [tensors[name] for name in site.body.inputs]
    for operand, part in zip(attention.operands, x.chunk(3, -1), strict=True):
        want = part.view(B, S, H, D).transpose(1, 2)
        assert operand.slot == 0
        assert operand.place is not None
        seen = operand.place.of(x, operand.shape)
        assert (seen.data_ptr(), seen.shape, seen.stride()) == (want.data_ptr(), want.shape, want.stride())
        assert torch.equal(operand.see(inputs), want)
    assert attention.result_place is not None
    y = torch.arange(B * S * C).view(B, S, C)
    placed = attention.result_place.of(y, attention.result_shape)
    assert torch.equal(placed, y.view(B, S, H, D).transpose(1, 2))


@pytest.mark.parametrize("make", [split_region, sliced_region, packed_region])
@pytest.mark.parametrize(
    ("tactic", "target"), [(Sdpa(), Target("cpu")), (CudaSdpa(), GPU)], ids=["cpu", "cuda"]
)
def test_libraries_compute_regions_with_a_split(make, tactic, target):
    site, tensors = make(target=target)
    agree(tactic, {"backend": "math", "kernel": "math"}, site, tensors)


def agree(tactic, config, site: Site, tensors) -> Tensor:
    assert why_not(tactic, site) is None
    launch = offered(tactic, site).bind(config, {})
    constants = {name: torch.from_numpy(array) for name, array in site.body.constants.items()}
    wide = {n: x.double() if x.is_floating_point() else x for n, x in tensors.items()}
    exact, narrow = (compute(site.body.ops, {**given, **constants})["y"] for given in (wide, tensors))
    with torch.inference_mode():
        returned = launch.call([tensors[name] for name in site.body.inputs], ())
    assert returned is not None
    allowed = 2 * (narrow - exact).abs().max() + 2 * EPSILON["float32"] * exact.abs().max()
    assert (returned[0].double() - exact).abs().max() <= allowed
    return returned[0]


def masked(mask: Tensor, *, target=GPU, **attrs):
    op = Op("Attention", ("q", "k", "v", "m"), ("y",), {**HEADS, **attrs})
    return region([op], {**dict.fromkeys("qkv", (B, S, C)), "m": mask}, target=target)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_cuda_sdpa_gives_zeros_where_no_key_is_seen(kind, is_causal):
    allowed = torch.rand(S, S) < 0.5
    allowed[:, 0] = True
    allowed[2] = False
    mask = allowed if kind == "bool" else torch.where(allowed, 0.0, -math.inf)
    y = agree(CudaSdpa(), {"backend": "math"}, *masked(mask, is_causal=is_causal))
    assert (y[:, 2] == 0).all()


def test_cuda_sdpa_offers_what_may_have_a_plan():
    def backends(site, dtype="float16"):
        specs = {n: TensorSpec(dtype, s.shape) if s.is_float else s for n, s in site.specs.items()}
        site = Site(site.body, specs, site.weights, site.values, site.target)
        return [config["backend"] for config in offered(CudaSdpa(), site).configs]

    site, _ = split_region()
    assert backends(site) == ["cudnn", "flash", "efficient", "math"]
    assert backends(site, "float32") == ["efficient", "math"]
    assert backends(site, "float64") == ["math"]
    assert backends(masked(torch.zeros(S, S))[0]) == ["cudnn", "efficient", "math"]
    lopsided = Op("Attention", ("q", "k", "v"), ("y",), {**HEADS, "is_causal": 1})
    site, _ = region([lopsided], {"q": (B, S, C), "k": (B, S + 1, C), "v": (B, S + 1, C)})
    assert backends(site) == ["efficient", "math"]


def test_a_backend_without_a_plan_says_why():
    site, tensors = split_region()
    launch = offered(CudaSdpa(), site).bind({"backend": "cudnn"}, {})
    with pytest.raises(UnsupportedError, match=r"torch's cudnn attention: .*No viable backend"):
        launch.call([tensors["x"]], ())


def test_mask_is_spread_by_strides_alone():
    attention = read_attention(masked(torch.zeros(H, 1, S))[0])
    assert attention.mask is not None
    assert attention.mask.place is not None
    assert attention.mask.place.strides == (0, S, 0, 1)
    assert attention.mask.shape == (B, H, S, S)


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (torch.zeros(S, 1), "mask covers 1 of 7 keys"),
        (torch.zeros(S, S, dtype=torch.float64), "mask is float64, want bool or float32"),
        (torch.zeros(1, 1, 1, 1, S), "mask has 5 axes, want 2 to 4"),
    ],
    ids=["short", "float64", "5 axes"],
)
def test_masks_that_are_refused(mask, reason):
    site, _ = masked(torch.zeros(S, S))
    specs = {**site.specs, "m": TensorSpec(str(mask.dtype).removeprefix("torch."), tuple(mask.shape))}
    with pytest.raises(RefusedError, match=re.escape(reason)):
        read_attention(Site(site.body, specs, site.weights, site.values, site.target))


def test_views_that_move_elements_are_refused_by_the_kernel_alone():
    ops = [
        Op("Transpose", ("x",), ("t",), {"perm": (0, 2, 1)}),
        Op("Reshape", ("t", "flat"), ("r",)),
        Op("Reshape", ("r", "back"), ("q",)),
        ATTEND,
    ]
    inputs = {"x": (B, C, S), "k": (B, S, C), "v": (B, S, C)}
    constants = {"flat": [B, C * S], "back": [B, S, C]}
    site, tensors = region(ops, inputs, constants=constants)
    assert why_not(TritonAttention(), site) == "the views that make q move its elements"
    agree(CudaSdpa(), {"backend": "math"}, site, tensors)


def test_what_else_is_refused():
    op = Op("Attention", ("q", "k", "v"), ("y",), {**HEADS, "left_window_size": 2})
    site, _ = region([op], dict.fromkeys("qkv", (B, S, C)))
    assert why_not(CudaSdpa(), site) == "a query sees a window of keys only"
    site, _ = sliced_region()
    unknown = Site(site.body, site.specs, site.weights, {}, site.target)
    assert why_not(CudaSdpa(), unknown) == "Slice feeds the Attention inside the region"
    every_second, _ = sliced_region(step=2)
    assert why_not(CudaSdpa(), every_second) == "Slice feeds the Attention inside the region"
    site, _ = split_region(target=Target("cpu"))
    assert why_not(TritonAttention(), site) == why_not(CudaSdpa(), site) == "target is cpu, want cuda"
    site, _ = split_region()
    assert why_not(Sdpa(), site) == "target is cuda:sm_90, want cpu"


@pytest.mark.parametrize(("width", "is_taken"), [(8, True), (120, True), (12, False), (136, False)])
def test_head_widths_of_the_kernel(width, is_taken):
    site, _ = region([Op("Attention", ("q", "k", "v"), ("y",), {})], dict.fromkeys("qkv", (1, H, S, width)))
    refused = None if is_taken else f"heads are {width} wide, want a multiple of 8 up to 128"
    assert why_not(TritonAttention(), site) == refused
    assert not is_taken or 1 <= len(offered(TritonAttention(), site).configs) <= 6


@pytest.mark.parametrize("kv_heads", [H, 1])
def test_a_guard_that_is_made_outside_has_a_taker(kv_heads: int) -> None:
    """What stands for NaN weights of repeated heads comes in: our kernel says so, and SDPA takes it."""
    attrs = {"q_num_heads": H, "kv_num_heads": kv_heads}
    ops = [
        Op("Attention", ("q", "k", "v"), ("a",), attrs),
        Op("IsNaN", ("a",), ("n",)),
        Op("Where", ("n", "g", "a"), ("y",)),
    ]
    query = torch.randn(B, S, C)
    query[0, 2] = math.nan
    inputs = {"q": query, "k": (B, S, kv_heads * D), "v": (B, S, kv_heads * D), "g": (B, 1, C)}
    site, tensors = region(ops, inputs)
    assert "made outside the region" in (why_not(TritonAttention(), site) or "")
    assert why_not(CudaSdpa(), site) is None
    made = agree(CudaSdpa(), {"backend": "math"}, site, tensors)
    torch.testing.assert_close(made[0, 2], tensors["g"][0, 0])
