"""A norm with the product behind it in Triton: numbers in the interpreter, machine code, what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from normed_cases import LAYER, RMS, span
from product_cases import for_interpreter, op, require_good_code
from test_triton_waits import ptx_of
from torch import Tensor

from interpreted import interpret
from offers import offered, why_not
from ridgeline.base.devices import device_of
from ridgeline.base.spec import EPSILON, Site, Target, TensorSpec
from ridgeline.kernels.triton.normed_gemm import normed_gemm_ref
from ridgeline.kernels.triton.normed_products import NormedProduct, NormTail, normed_us, rank_normed
from ridgeline.kernels.triton.products import Product, Tile, row_stride
from ridgeline.kernels.triton.ranking import rank_gemm, tile_us
from ridgeline.tactics.cuda.triton_normed import MOST_ROWS, TritonNormedGemm
from ridgeline.tactics.offer import require_offer
from ridgeline.tactics.predict import ROWS_US

HALF, BRAIN = torch.float16, torch.bfloat16
SMALL = Tile(16, 16, 32)
TACTIC = TritonNormedGemm()


def run(site: Site, tensors: Mapping[str, Tensor], tile: Tile) -> list[Tensor]:
    """The outputs of the span, poisoned before."""
    found = TACTIC.product(site)
    placed = [tensors[name] for name in site.body.inputs]
    weights = {name: tensors[name] for name in site.weights}
    operands = found.operands(tile, weights, device="cpu")
    outputs = [torch.full(s.shape, torch.nan, dtype=placed[0].dtype) for s in site.outputs]
    unread = [t if i in operands.reads else None for i, t in enumerate(placed)]
    with np.errstate(all="ignore"):
        interpret(for_interpreter(found.kernel(tile)), operands.grid, operands.arguments(unread, outputs))
    return outputs


def meant(site: Site, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The normed rows, y before what follows, and how far y may be off, by rounding alone."""
    x, w, g = (tensors[name].double() for name in "xwg")
    b = tensors["b"].double() if "b" in tensors else None
    is_centred = b is not None
    y, normed = normed_gemm_ref(x, w.mT, g, b, 1e-5, is_centred=is_centred)
    y = y + tensors["c"].double()
    mean = x.mean(-1, keepdim=True) if is_centred else torch.zeros(len(x), 1, dtype=x.dtype)
    variance = (x - mean).square().mean(-1, keepdim=True)
    inverse = torch.rsqrt(variance + 1e-5)
    weight = (g[:, None] * w).abs()
    magnitude = ((x - mean) * inverse).abs() @ weight
    # a row far from zero is centred before it is multiplied
    is_near = mean.square() <= 64 * variance
    cancelled = torch.where(is_near, inverse * (x.abs() @ weight + mean.abs() * weight.sum(0)), magnitude)
    half = EPSILON[str(tensors["x"].dtype).removeprefix("torch.")] / 2
    shifted = 0 if b is None else b.abs() @ w.abs()
    sums = (x.shape[1] + 8) * 2.0**-24 * (cancelled + 65 * magnitude + shifted)
    # the weight is rounded with the scale in it; rows that were centred first are rounded too
    bound = 2 * half * magnitude + sums + half * (y.abs() + tensors["c"].abs()) + 2.0**-20
    return normed, y, bound


def check(site: Site, tensors: Mapping[str, Tensor], tile: Tile) -> None:
    normed, y, bound = meant(site, tensors)
    made = run(site, tensors, tile)
    steps = [node.op_type for node in site.body.ops[3:]]
    if steps == ["Relu"]:
        y = y.relu()
    elif steps == ["Add"]:
        y = y + tensors["r"].double()
        bound = bound + EPSILON["bfloat16"] * 2**-8 * y.abs() if tensors["x"].dtype == HALF else 2 * bound
    assert torch.isfinite(made[-1]).all(), "something was not written"
    off = (made[-1].double() - y).abs()
    assert (off <= bound).all(), f"off by {off.max():.3g}, {(off / bound).max():.2f} times the bound"
    if len(made) == 2:
        half = EPSILON[str(tensors["x"].dtype).removeprefix("torch.")] / 2
        allowed = (half + 65 * (len(tensors["g"]) + 8) * 2.0**-24) * (normed.abs() + 1) + 2.0**-14
        assert torch.isfinite(made[0]).all(), "a normed row was not written"
        assert ((made[0].double() - normed).abs() <= allowed).all()


@pytest.mark.parametrize(
    ("sizes", "tile", "options"),
    [
        pytest.param((37, 40, 64), SMALL, {}, id="rows over the edge"),
        pytest.param((33, 37, 75), SMALL, {"is_shared": True}, id="nothing divides"),
        pytest.param((5, 24, 200), Tile(16, 32, 64), {"norm": RMS, "is_shared": True}, id="rms"),
        pytest.param((1, 16, 16), SMALL, {"is_shared": True}, id="one row"),
        pytest.param((3, 1, 1), SMALL, {"norm": RMS}, id="one column of one item"),
        pytest.param((20, 48, 96), Tile(64, 16, 32), {"follows": "Relu"}, id="tile of 64 rows"),
        pytest.param((20, 16, 32), SMALL, {"follows": "Add", "dtype": BRAIN}, id="bfloat16, residual"),
        pytest.param((9, 33, 130), SMALL, {"norm": RMS, "dtype": BRAIN}, id="bfloat16, rms"),
        pytest.param((18, 16, 300), Tile(16, 16, 16), {"is_shared": True}, id="more blocks than programs"),
    ],
)
def test_numbers(sizes: tuple[int, int, int], tile: Tile, options: dict[str, Any]) -> None:
    check(*span(*sizes, **options), tile)


@pytest.mark.parametrize("mean", [7.0, 30.0, 1000.0])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_rows_far_from_zero_are_centred_before_they_are_multiplied(mean: float, dtype: torch.dtype) -> None:
    site, tensors = span(20, 24, 96, dtype, is_shared=True)
    tensors["x"][3:9] = (tensors["x"][3:9].double() + mean).to(dtype)
    check(site, tensors, SMALL)


def test_a_constant_row_is_the_shift() -> None:
    """Its deviation is zero: all that is left of x - mean would be multiplied by 1 / sqrt(epsilon)."""
    site, tensors = span(17, 24, 96, is_shared=True)
    tensors["x"][5], tensors["x"][6] = 311.0, 0.0
    check(site, tensors, SMALL)


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**14])
def test_scales_that_would_leave_the_type_with_the_weight(scale: float) -> None:
    site, tensors = span(4, 16, 64)
    tensors["g"] = (tensors["g"].float() * 2.0**-9).to(HALF) if scale < 1 else tensors["g"] * 60
    tensors["w"] = (tensors["w"].float() * 2.0**-9).to(HALF) if scale < 1 else tensors["w"] * 1000
    tensors["b"].zero_()
    tensors["c"].zero_()
    _, y, bound = meant(site, tensors)
    (made,) = run(site, tensors, SMALL)
    is_inside = y.abs() < 60000
    slack = bound if scale > 1 else bound - 2.0**-20 + 2.0**-25
    assert ((made.double() - y).abs() <= slack)[is_inside].all()
    assert made.isinf()[y.abs() > 66000].all()


@pytest.mark.parametrize("norm", [LAYER, RMS])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_row_that_is_not_finite_is_nan_and_no_other(norm: str, bad: float) -> None:
    site, tensors = span(20, 24, 96, norm=norm, is_shared=True)
    tensors["x"][4, 7] = bad
    normed, y, bound = meant(site, tensors)
    made = run(site, tensors, SMALL)
    assert torch.equal(made[0].isnan(), normed.isnan())
    assert made[1][4].isnan().all()
    others = [row for row in range(20) if row != 4]
    assert ((made[1].double() - y).abs() <= bound)[others].all()


def test_squares_that_leave_float32_make_zeros_of_an_rms_norm() -> None:
    site, tensors = span(4, 16, 32, BRAIN, norm=RMS)
    tensors["x"][2] = 1e30
    (made,) = run(site, tensors, SMALL)
    want = tensors["c"].expand(4, 16)[2]
    assert torch.equal(made[2], want)


def test_a_weight_that_is_not_finite_is_refused_when_it_is_packed() -> None:
    site, tensors = span(4, 16, 32)
    tensors["w"][3, 3] = torch.inf
    with pytest.raises(Exception, match="infinity or NaN"):
        run(site, tensors, SMALL)


def test_gemm_with_a_transposed_weight() -> None:
    site, tensors = span(20, 24, 48)
    ops = (site.body.ops[0], op("Gemm", "n w c", "y", transB=1, alpha=0.5, beta=2.0))
    turned = tensors | {"w": tensors["w"].mT.contiguous()}
    specs = {**site.specs, "w": TensorSpec("float16", (24, 48))}
    (made,) = run(replace(site, specs=specs, body=replace(site.body, ops=ops)), turned, SMALL)
    _, y, bound = meant(site, tensors)
    c = tensors["c"].double()
    assert ((made.double() - (0.5 * (y - c) + 2 * c)).abs() <= bound + 2.0**-10 * c.abs()).all()


def test_what_is_packed_is_what_was_foretold() -> None:
    site, tensors = span(20, 37, 75, is_shared=True)
    found = TACTIC.product(site)
    operands = found.operands(SMALL, {n: tensors[n] for n in site.weights}, device="cpu")
    footprint = found.footprint(SMALL)
    assert operands.packed_bytes == footprint.packed_bytes
    assert (footprint.writes_out, footprint.in_place, footprint.scratch_bytes) == (True, False, 0)
    # x, c, n and y are touched to their ends
    inputs = len(site.body.inputs)
    assert {found.extents[i] for i in (0, inputs, inputs + 1)} == {20 * 75 * 2, 20 * 37 * 2}


# refusals


def test_refuses_what_it_cannot_do() -> None:
    def reason(site: Site) -> str:
        return str(why_not(TACTIC, site))

    site, _ = span(20, 24, 48)
    norm, product, bias = site.body.ops

    def with_ops(*ops: Any, **more: Any) -> Site:
        return replace(site, body=replace(site.body, ops=ops), **more)

    assert "want at most" in reason(span(MOST_ROWS + 1, 24, 48)[0])
    assert "want contiguous float16" in reason(span(4, 8, 16, torch.float32)[0])
    assert "last axis" in reason(span(4, 8, 16, axis=0)[0])
    assert "not a constant" in reason(replace(site, weights=site.weights - {"g"}))
    assert "changes between runs" in reason(replace(site, weights=site.weights - {"w"}))
    before = with_ops(op("Relu", "x", "z"), op(LAYER, "z g b", "n"), product, bias,
                      specs={**site.specs, "z": site.specs["x"]})  # fmt: skip
    assert "Relu comes before" in reason(before)
    assert "does not multiply" in reason(with_ops(norm, op("MatMul", "x w", "p"), bias))
    square, _ = span(20, 48, 48)
    again = replace(square, body=replace(square.body, ops=(norm, product, op("Add", "p n", "y"))))
    assert "another op of the span reads" in reason(again)
    assert "no LayerNormalization" in reason(with_ops(op("MatMul", "x w", "p"), bias))
    assert "want sm_80" in reason(span(20, 24, 48, target=Target("cuda", "sm_75"))[0])


# cuts and machine code

BERT = [(128, 2304, 768), (128, 3072, 768), (200, 3072, 768)]


def problem_of(sizes: tuple[int, int, int]) -> NormedProduct:
    rows, columns, depth = sizes
    return NormedProduct(rows, columns, depth, "float16", (0, depth, 1), (0, row_stride(depth, 2), 1))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_cuts_are_few_and_give_whole_sums(arch: str) -> None:
    for sizes in [*BERT, (1, 4096, 4096), (16, 10, 8)]:
        tiles = rank_normed(problem_of(sizes), arch)
        assert 1 <= len(tiles) <= 6
        assert all(tile.split == 1 for tile in tiles)
        assert len(set(tiles)) == len(tiles)
    if arch == "sm_100":
        assert all(tile.bm < 64 for tile in tiles), "nothing makes a step wait for tensor memory"


def test_the_sums_of_rows_are_predicted_to_cost_less_than_a_launch_while_rows_are_few() -> None:
    device = device_of("sm_90")
    for rows, is_worth_it in ((128, True), (MOST_ROWS, False)):
        problem = problem_of((rows, 2304, 768))
        plain = Product(rows, 2304, 768, "float16", problem.x_strides, problem.w_strides)
        alone = min(tile_us(plain, tile, device) for tile in rank_gemm(plain, "sm_90"))
        joined = min(normed_us(problem, tile, device) for tile in rank_normed(problem, "sm_90"))
        assert alone < joined
        assert (joined - alone < ROWS_US) == is_worth_it


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_machine_code(arch: str) -> None:
    target = Target("cuda", arch)
    sites = [
        span(*BERT[0], is_shared=True, target=target)[0],
        span(*BERT[2], BRAIN, norm=RMS, target=target)[0],
    ]
    kernels = []
    for site in sites:
        offer = require_offer(TACTIC, site)
        configs = offer.configs if arch == "sm_90" else offer.configs[:2]
        kernels += [offer.kernels(config)[0] for config in configs]
    require_good_code(kernels, arch)


def test_wgmma_is_waited_for_before_its_rows_are_overwritten() -> None:
    """Tiles of x are looked at in registers too, and Triton then keeps one buffer too few of them."""
    site, _ = span(*BERT[0], is_shared=True)
    large = [c for c in offered(TACTIC, site).configs if c["bm"] >= 64]
    assert large
    kernels = [require_offer(TACTIC, site).kernels(config)[0] for config in large]
    for text in ptx_of(kernels):
        waits = re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)", text)
        assert waits
        assert set(waits) == {"0"}
        for found in re.finditer(r"wgmma\.mma_async", text):
            before, copy, _ = text[found.end() :].partition("cp.async.cg")
            # all warps have waited: another's product reads the same tile
            assert not copy or re.search(r"wgmma\.wait_group.*bar\.sync", before, re.DOTALL)


def test_the_tail_hands_over_outputs_in_the_order_of_the_epilogue() -> None:
    tail = TACTIC.product(span(4, 8, 16, is_shared=True)[0]).tail
    assert isinstance(tail, NormTail)
    assert (tail.outputs, tail.normed) == ((1,), 0)
    assert tail.pointers(["x", "g", "b", "w", "c"], [], ["n", "y"])[-2:] == ["y", "n"]
