"""Pointwise ops with the product behind them in Triton: numbers, machine code, what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from product_cases import make_site, op, random, require_close, require_good_code, run_tactic
from prologue_cases import BEFORE, GATED, HARD, NORMED, SCALED, alone, between, convolution, meant, product
from test_triton_waits import ptx_of
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.devices import device_of
from ridgeline.base.spec import Site, Target, TensorSpec
from ridgeline.kernels.triton.products import Tile
from ridgeline.kernels.triton.prologue import MOST_WHOLE, Around
from ridgeline.kernels.triton.prologue_products import rank_prologue
from ridgeline.kernels.triton.ranking import shared_bytes
from ridgeline.tactics.cuda.triton_conv import TritonConv1x1
from ridgeline.tactics.cuda.triton_linear import TritonGemm
from ridgeline.tactics.cuda.triton_prologue import TritonPrologueGemm
from ridgeline.tactics.offer import require_offer

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
SMALL = Tile(16, 16, 32)
TACTIC = TritonPrologueGemm()


def run(site: Site, tensors: Mapping[str, Tensor], tile: Tile) -> Tensor:
    """The output of the span, poisoned before."""
    with np.errstate(all="ignore"):
        return run_tactic(TACTIC, site, config_of(tile), tensors)


def apart(site: Site, tensors: Mapping[str, Tensor], tile: Tile) -> Tensor:
    """The product as a kernel of its own, of what the ops before it make."""
    tactic = TritonConv1x1() if len(tensors["x"].shape) == 4 else TritonGemm()
    with np.errstate(all="ignore"):
        given = {**tensors, "z": between(site, tensors)}
        return run_tactic(tactic, alone(site), config_of(tile), given)


def config_of(tile: Tile) -> dict[str, Any]:
    return {key: value for key, value in asdict(tile).items() if key != "group"}


def check(site: Site, tensors: Mapping[str, Tensor], tile: Tile, *, is_exact: bool = True) -> None:
    """`is_exact`: of ops that every machine rounds alike, so that the two apart give the same bits."""
    made = run(site, tensors, tile)
    want, magnitude = meant(site, tensors)
    # what is between may be rounded to its other neighbour
    terms = tensors["w"].shape[1] if want.dim() == 4 else tensors["w"].shape[0]
    slack = 0 if is_exact else 2**24 * torch.finfo(made.dtype).eps
    require_close(made, want, magnitude, terms=int(terms + slack))
    if is_exact:
        assert torch.equal(made, apart(site, tensors, tile))


@pytest.mark.parametrize("dtype", [HALF, FULL, BRAIN])
@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        pytest.param((3, 5, 7, 40, 24), SMALL, id="images end inside tiles"),
        pytest.param((9, 2, 2, 37, 19), SMALL, id="several images in a tile, nothing divides"),
        pytest.param((2, 4, 8, 64, 16), Tile(32, 16, 32), id="everything divides"),
        pytest.param((1, 3, 5, 48, 16), SMALL, id="one image"),
        pytest.param((1, 1, 1, 48, 16), SMALL, id="one row"),
        pytest.param((5, 1, 1, 33, 40), SMALL, id="one position"),
        pytest.param((2, 3, 3, 1, 5), SMALL, id="one channel"),
        pytest.param((3, 3, 3, 100, 20), Tile(16, 16, 16, split=3), id="a split sum"),
        pytest.param((3, 5, 5, 40, 24), Tile(64, 32, 32), id="a tile of 64 rows"),
    ],
)
def test_a_scale_of_every_image(sizes: tuple[int, ...], tile: Tile, dtype: torch.dtype) -> None:
    site, tensors = convolution(SCALED, sizes, dtype)  # type: ignore[arg-type]
    check(site, tensors, tile)


@pytest.mark.parametrize("before", [NORMED, GATED, HARD], ids=["normed", "gated", "hard"])
@pytest.mark.parametrize("dtype", [HALF, FULL])
def test_chains_before_a_convolution(before: Any, dtype: torch.dtype) -> None:
    site, tensors = convolution(before, (3, 3, 5, 37, 24), dtype, follows=True)
    # a division of nothing by nothing past the last channel is no NaN in the sum
    check(site, tensors, SMALL, is_exact=before is NORMED)


@pytest.mark.parametrize("name", BEFORE)
def test_chains_before_a_matrix(name: str) -> None:
    site, tensors = product(BEFORE[name], (37, 75, 33))
    check(site, tensors, SMALL, is_exact=name in ("scaled", "normed"))


def test_a_gemm_with_a_transposed_weight_and_a_bias() -> None:
    site, tensors = product(SCALED, (20, 40, 24))
    gemm = op("Gemm", "z w b", "y", transB=1, alpha=0.5, beta=2.0)
    turned = tensors | {"w": tensors["w"].mT.contiguous()}
    specs = {**site.specs, "w": TensorSpec("float16", (24, 40))}
    body = replace(site.body, ops=(site.body.ops[0], gemm))
    made = run(replace(site, specs=specs, body=body), turned, SMALL)
    z, w = between(site, tensors).double(), tensors["w"].double()
    want = 0.5 * z @ w + 2 * tensors["b"].double()
    require_close(made, want, z.abs() @ w.abs() + 4, terms=40)


def test_a_scale_that_is_given_its_axes_inside() -> None:
    site, tensors = convolution(SCALED, (3, 2, 5, 40, 24))
    shaped = op("Reshape", "q dims", "s")
    constants = {"dims": np.array([3, 40, 1, 1])}
    inputs = tuple("q" if name == "s" else name for name in site.body.inputs)
    body = replace(site.body, inputs=inputs, ops=(shaped, *site.body.ops), constants=constants)
    moved = replace(site, body=body, specs={**site.specs, "q": TensorSpec("float16", (3, 40))})
    made = run(moved, tensors | {"q": tensors["s"].reshape(3, 40)}, SMALL)
    assert torch.equal(made, run(site, tensors, SMALL))


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("tile", [SMALL, Tile(16, 16, 16, split=2)])
def test_what_is_not_finite_stays_in_its_row(bad: float, tile: Tile) -> None:
    site, tensors = convolution(SCALED, (3, 3, 5, 37, 24))
    tensors["x"][1, 7, 2, 3] = bad  # one row
    tensors["s"][2, 36] = bad  # an image, in the last channel
    tensors["x"][2, 36, 2, 4] = 0.0  # zero times infinity
    made = run(site, tensors, tile)
    z = between(site, tensors)
    is_bad = ~torch.isfinite(z).all(1)
    assert is_bad.sum() == 16
    rows = made.movedim(1, -1)
    assert not torch.isfinite(rows[is_bad]).any()
    assert torch.isfinite(rows[~is_bad]).all()
    assert torch.equal(made.isnan(), apart(site, tensors, tile).isnan())
    assert rows[2, 2, 4].isnan().all()


def test_a_value_beyond_its_type_is_an_infinity_as_in_memory() -> None:
    site, tensors = convolution(SCALED, (2, 2, 2, 32, 16))
    tensors["x"][0, 3, 1, 1], tensors["s"][0, 3] = 60000.0, 4.0
    assert between(site, tensors)[0, 3, 1, 1].isinf()
    made = run(site, tensors, SMALL)
    assert made[0, :, 1, 1].isinf().all()
    assert torch.equal(made, apart(site, tensors, SMALL))


def test_a_kernel_serves_every_batch() -> None:
    sites = [convolution(SCALED, (images, 3, 5, 40, 24)) for images in (2, 3, 7)]
    kernels = [TACTIC.product(site).kernel(SMALL) for site, _ in sites]
    assert len({kernel.digest for kernel in kernels}) == 1
    for site, tensors in sites:
        check(site, tensors, SMALL)


def test_what_a_launch_touches_and_takes() -> None:
    site, tensors = convolution(NORMED, (3, 5, 7, 37, 24), follows=True)
    found = TACTIC.product(site)
    operands = found.operands(SMALL, {n: tensors[n] for n in site.weights}, device="cpu")
    assert operands.reads == {site.body.inputs.index(name) for name in "xgtbr"}
    assert operands.packed_bytes == found.footprint(SMALL).packed_bytes == 24 * 40 * 2
    rows, slot = 3 * 5 * 7, site.body.inputs.index
    assert found.extents[slot("x")] == rows * 37 * 2
    assert found.extents[slot("g")] == found.extents[slot("t")] == 37 * 2
    assert found.extents[len(site.body.inputs)] == found.extents[slot("r")] == rows * 24 * 2
    assert isinstance(found.tail, Around)
    names = list(site.body.inputs)
    assert found.tail.pointers(names, [], ["y"]) == ["b", "r", "y", "g", "t"]


# refusals


def test_refuses_what_it_cannot_do() -> None:
    def reason(site: Site) -> str:
        return str(why_not(TACTIC, site))

    site, _ = convolution(SCALED, (2, 4, 4, 32, 16))
    scale, conv = site.body.ops

    def with_ops(*ops: Any, site: Site = site, **more: Any) -> Site:
        return replace(site, body=replace(site.body, ops=ops), **more)

    def with_conv(**attrs: Any) -> Site:
        shapes = {"x": (2, 32, 4, 4), "s": (2, 32, 1, 1), "w": (16, 32, 3, 3)}
        given = {name: random(*shape, dtype=HALF) for name, shape in shapes.items()}
        ops = [scale, op("Conv", "z w", "y", **attrs)]
        return make_site(given, ops, weights="w", channels_last="x z y")[0]

    assert "want 1x1" in reason(with_conv(pads=(1, 1, 1, 1)))
    assert "nothing comes before" in reason(with_ops(replace(conv, inputs=("x", "w", "b"))))
    assert "no Conv/MatMul/Gemm" in reason(with_ops(scale))
    assert "others read" in reason(replace(site, body=replace(site.body, outputs=("z", "y"))))
    assert "changes between runs" in reason(replace(site, weights=site.weights - {"w"}))
    planes = {name: replace(spec, layout="contiguous") for name, spec in site.specs.items()}
    assert "do not lie together" in reason(replace(site, specs=planes))
    mixed = {**site.specs, "x": replace(site.specs["x"], layout="contiguous")}
    assert "do not lie together" in reason(replace(site, specs=mixed))
    averaged = with_ops(op("GlobalAveragePool", "x", "s2"), op("Mul", "x s2", "z"), conv,
                        specs={**site.specs, "s2": site.specs["s"]})  # fmt: skip
    assert "GlobalAveragePool" in reason(averaged)
    small, _ = convolution((op("Mul", "s s", "z"),), (2, 1, 1, 32, 16))
    assert why_not(TACTIC, small) is None, "with one position a scale is as large as x"
    assert "want sm_80" in reason(convolution(SCALED, (2, 4, 4, 32, 16), target=Target("cuda", "sm_75"))[0])
    residual, _ = product((op("Add", "x o", "z"),), (8, 16, 16))
    first, matmul, _ = residual.body.ops
    again = with_ops(first, matmul, op("Add", "p z", "y"), site=residual)
    assert "others read" in reason(again)
    ops = (op("Add", "x o", "u"), op("Mul", "u q", "z"), *residual.body.ops[1:])
    body = replace(residual.body, inputs=(*residual.body.inputs, "q"), ops=ops)
    specs = {**residual.specs, "q": residual.specs["x"], "u": residual.specs["x"]}
    assert f"want at most {MOST_WHOLE}" in reason(replace(residual, body=body, specs=specs))
    turned = with_ops(op("Transpose", "x", "z", perm=(1, 0)), *residual.body.ops[1:],
                      site=product((op("Add", "x o", "z"),), (16, 16, 16))[0])  # fmt: skip
    assert "do not lie together" in reason(turned)


# cuts and machine code

# of EfficientNet-B0 and RegNet, 16 images; and what divides nothing
NETWORKS = [
    (16, 56, 56, 96, 24), (16, 14, 14, 480, 80), (16, 14, 14, 672, 112), (16, 7, 7, 1152, 192),
    (16, 14, 14, 320, 320), (3, 5, 7, 37, 19),
]  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_cuts_are_few_and_fit(arch: str) -> None:
    for sizes in NETWORKS:
        problem: Any = TACTIC.product(convolution(SCALED, sizes)[0]).reading.problem
        assert problem.spans == (sizes[1] * sizes[2],)
        tiles = rank_prologue(problem, arch)
        assert 1 <= len(tiles) <= 8
        assert len(set(tiles)) == len(tiles)
        assert all(shared_bytes(t, problem, device_of(arch)) <= device_of(arch).shared_bytes for t in tiles)
        if arch == "sm_100":
            assert all(tile.bm < 64 for tile in tiles), "nothing makes a step wait for tensor memory"


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_machine_code(arch: str) -> None:
    target = Target("cuda", arch)
    sites = [convolution(SCALED, sizes, target=target)[0] for sizes in NETWORKS[:4]]
    sites += [convolution(NORMED, NETWORKS[4], BRAIN, follows=True, target=target)[0]]
    sites += [product(GATED, (512, 1024, 768), target=target)[0]]
    kernels = []
    for site in sites:
        offer = require_offer(TACTIC, site)
        kernels += [offer.kernels(config)[0] for config in offer.configs[: 4 if arch == "sm_90" else 1]]
    require_good_code(kernels, arch)


def test_wgmma_is_waited_for_before_its_registers_are_written_again() -> None:
    """A computed tile is multiplied from registers; Triton leaves a part of it under way in the next step."""
    found = []
    for sizes in NETWORKS[1:3]:
        offer = offered(TACTIC, convolution(SCALED, sizes)[0])
        found += [offer.kernels(c)[0] for c in offer.configs if c["bm"] >= 64]
    assert found
    for text in ptx_of(found):
        waits = re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)", text)
        assert waits
        assert set(waits) == {"0"}
