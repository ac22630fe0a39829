"""Matrix products in Triton: numbers in the interpreter, machine code, how sites are read."""

from __future__ import annotations

import pytest
import torch
from product_cases import (
    GPU,
    BiasRelu,
    machine_code,
    make_site,
    op,
    random,
    require_close,
    require_dependent_launch,
    run_tactic,
    run_twice,
)

from offers import offered, why_not
from ridgeline.base.devices import device_of
from ridgeline.base.spec import Body, Site, Target, TensorSpec
from ridgeline.kernels.triton.gemm import gemm_ref
from ridgeline.kernels.triton.products import TYPES, FewRows, Product, Tile, pack_weight, row_stride
from ridgeline.kernels.triton.ranking import rank_gemm, rank_gemv, shared_bytes
from ridgeline.tactics.cuda.triton_linear import TritonGemm, TritonGemv

HALF, SINGLE = torch.float16, torch.float32
PLAIN = [op("MatMul", "x v", "y")]


def linear(
    rows: int, columns: int, depth: int, dtype: torch.dtype = HALF, kind: type[Product] = Product
) -> Product:
    name = str(dtype).removeprefix("torch.")
    return kind(rows, columns, depth, name, (0, depth, 1), (0, row_stride(depth, dtype.itemsize), 1))


@pytest.mark.parametrize(
    ("dtype", "sizes", "tile"),
    [
        pytest.param(HALF, (37, 40, 64), Tile(16, 16, 32), id="rows over the edge"),
        pytest.param(HALF, (33, 37, 75), Tile(32, 16, 32), id="nothing divides"),
        pytest.param(SINGLE, (19, 24, 96), Tile(16, 16, 16, split=3), id="split, float32"),
        pytest.param(HALF, (20, 18, 70), Tile(16, 16, 16, split=4), id="last part short"),
        pytest.param(HALF, (1, 16, 16), Tile(16, 16, 16, split=4), id="parts without work"),
        pytest.param(HALF, (40, 50, 32), Tile(64, 64, 32, warps=1), id="in halves"),
        pytest.param(HALF, (40, 50, 64), Tile(64, 64, 32, split=2, warps=1), id="split, in halves"),
    ],
)
def test_gemm(dtype: torch.dtype, sizes: tuple[int, int, int], tile: Tile) -> None:
    check(linear(*sizes, dtype), tile, dtype)


@pytest.mark.parametrize(
    ("dtype", "sizes", "tile"),
    [
        pytest.param(HALF, (1, 36, 256), Tile(1, 4, 64), id="one row"),
        pytest.param(HALF, (5, 10, 200), Tile(8, 4, 64, split=2), id="rows, columns and depth over the edge"),
        pytest.param(SINGLE, (2, 3, 70), Tile(2, 1, 64), id="float32"),
    ],
)
def test_gemv(dtype: torch.dtype, sizes: tuple[int, int, int], tile: Tile) -> None:
    check(linear(*sizes, dtype, FewRows), tile, dtype)


def check(problem: Product, tile: Tile, dtype: torch.dtype) -> None:
    x, w = (
        random(problem.rows, problem.depth, dtype=dtype),
        random(problem.columns, problem.depth, dtype=dtype),
    )
    bias, y = random(problem.columns, dtype=dtype), torch.empty(problem.rows, problem.columns, dtype=dtype)
    run_twice(problem, tile, x, pack_weight(w), bias, y)
    want = torch.relu(gemm_ref(x.double(), w.double()) + bias.double())
    magnitude = gemm_ref(x.double().abs(), w.double().abs()) + bias.double().abs()
    require_close(y, want, magnitude, terms=problem.depth)


def test_packed_rows_start_on_a_boundary_and_need_no_copy_where_they_do() -> None:
    odd, even = random(3, 75, dtype=HALF), random(3, 80, dtype=HALF)
    packed = pack_weight(odd)
    assert packed.stride() == (80, 1)
    assert torch.equal(packed[:, :75], odd)
    assert not packed[:, 75:].any()
    assert pack_weight(even).data_ptr() == even.data_ptr()


# tactics


@pytest.mark.parametrize(
    ("shapes", "ops", "tactic"),
    [
        pytest.param(
            {"x": (2, 9, 40), "w": (40, 24), "b": (24,), "r": (2, 9, 24)},
            [op("MatMul", "x w", "p"), op("Add", "p b", "q"), op("Add", "q r", "s"), op("Relu", "s", "y")],
            TritonGemm(), id="bias, residual, relu",
        ),
        pytest.param(
            {"x": (18, 40), "w": (24, 40), "b": (24,)},
            [op("Gemm", "x w b", "y", transB=1, alpha=0.5, beta=2.0)], TritonGemm(), id="gemm",
        ),
        pytest.param(
            {"x": (3, 40), "w": (40, 24), "b": (24,)},
            [op("MatMul", "x w", "p"), op("Add", "p b", "y")], TritonGemv(), id="gemv",
        ),
        pytest.param({"x": (2, 3, 17, 24), "v": (2, 3, 24, 20)}, PLAIN, TritonGemm(), id="batched"),
        pytest.param({"x": (2, 17, 24), "v": (24, 20)}, PLAIN, TritonGemm(), id="one matrix"),
        pytest.param({"x": (17, 24), "v": (3, 24, 20)}, PLAIN, TritonGemm(), id="one matrix on the left"),
    ],
)  # fmt: skip
def test_tactic(shapes: dict, ops: list, tactic: TritonGemm) -> None:
    tensors = {name: random(*shape, dtype=HALF) for name, shape in shapes.items()}
    site, values = make_site(tensors, ops, weights="w b")
    assert why_not(tactic, site) is None
    magnitude = make_site({n: t.abs() for n, t in tensors.items()}, ops)[1]["y"]
    configs = offered(tactic, site).configs
    for config in (configs[0], configs[-1]):
        y = run_tactic(tactic, site, config, tensors)
        require_close(y, values["y"], magnitude, terms=shapes["x"][-1])


def test_a_larger_batch_than_planned_has_all_its_rows() -> None:
    """A config chosen for two rows, bound for seven: what a profile does at its other end."""
    planned, _ = make_site(
        {"x": random(2, 40, dtype=HALF), "w": random(40, 24, dtype=HALF)}, [op("MatMul", "x w", "y")],
        weights="w",
    )  # fmt: skip
    config = offered(TritonGemv(), planned).configs[0]
    tensors = {"x": random(7, 40, dtype=HALF), "w": random(40, 24, dtype=HALF)}
    site, values = make_site(tensors, [op("MatMul", "x w", "y")], weights="w")
    y = run_tactic(TritonGemv(), site, config, tensors)
    magnitude = tensors["x"].double().abs() @ tensors["w"].double().abs()
    require_close(y, values["y"], magnitude, terms=40)


def test_splits_where_tiles_are_few() -> None:
    tensors = {"x": random(8, 2048, dtype=HALF), "w": random(2048, 32, dtype=HALF)}
    site, values = make_site(tensors, [op("MatMul", "x w", "y")], weights="w")
    config = next(c for c in offered(TritonGemm(), site).configs if c["split"] > 1)
    y = run_tactic(TritonGemm(), site, config, tensors)
    magnitude = tensors["x"].double().abs() @ tensors["w"].double().abs()
    require_close(y, values["y"], magnitude, terms=2048)
    found = TritonGemm().product(site)
    cut = TritonGemm().cut_of(found.reading.problem, config)
    operands = found.operands(cut, {"w": tensors["w"]}, device="cpu")
    parts, counters = operands.problem.scratch(operands.cut, "cpu")
    assert operands.problem.scratch_bytes(operands.cut) == parts.nbytes + counters.nbytes


@pytest.mark.parametrize(
    ("shapes", "ops", "tactic", "reason"),
    [
        ({"x": (20, 16), "w": (16, 8)}, [op("MatMul", "x w", "y")], TritonGemv(), "20 rows, want at most 16"),
        ({"x": (2, 16), "v": (16, 8)}, PLAIN, TritonGemv(), "changes between runs"),
        ({"x": (2, 1, 4, 16), "v": (1, 3, 16, 8)}, PLAIN, TritonGemm(), "broadcast in part"),
        ({"x": (4, 16), "w": (16,)}, [op("MatMul", "x w", "y")], TritonGemm(), "want rows and a matrix"),
        ({"x": (4, 16), "b": (4, 16)}, [op("Add", "x b", "y")], TritonGemm(), "no MatMul/Gemm"),
        (
            {"x": (4, 16), "w": (16, 8)}, [op("Relu", "x", "r"), op("MatMul", "r w", "y")], TritonGemm(),
            "not an input",
        ),
    ],
)  # fmt: skip
def test_refuses(shapes: dict, ops: list, tactic: TritonGemm, reason: str) -> None:
    tensors = {name: random(*shape, dtype=HALF) for name, shape in shapes.items()}
    site, _ = make_site(tensors, ops, weights="w b")
    assert reason in str(why_not(tactic, site))


@pytest.mark.parametrize(
    ("dtype", "target", "reason"),
    [
        (HALF, Target("cpu"), "target is cpu, want cuda"),
        (HALF, Target("cuda", "sm_75"), "want sm_80 or newer"),
        (torch.float64, GPU, "operands are float64"),
    ],
)
def test_refuses_the_machine_or_the_type(dtype: torch.dtype, target: Target, reason: str) -> None:
    tensors = {"x": random(4, 16, dtype=dtype), "w": random(16, 8, dtype=dtype)}
    site, _ = make_site(tensors, [op("MatMul", "x w", "y")], weights="w", target=target)
    assert reason in str(why_not(TritonGemm(), site))


def test_a_matrix_that_32_bits_do_not_count_is_refused() -> None:
    """Rows of x have pointers of their own; down a weight whose columns lie together, offsets count."""
    depth, columns = 1 << 16, (1 << 15) + 8
    shapes = {"x": (32, depth), "w": (depth, columns), "y": (32, columns)}
    specs = {name: TensorSpec("float16", shape) for name, shape in shapes.items()}
    body = Body(("x", "w"), ("y",), (op("MatMul", "x w", "y"),))
    given, packed = (Site(body, specs, frozenset(weights), {}, GPU) for weights in ("", "w"))
    assert f"{columns * (depth - 1):,} items" in str(why_not(TritonGemm(), given))
    assert why_not(TritonGemm(), packed) is None


# ranking and machine code


@pytest.mark.parametrize(
    "sizes", [(128, 768, 768), (128, 768, 3072), (4096, 3072, 768), (1, 1000, 2048), (7, 5, 3)]
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_cuts_fit_the_machine_and_differ(sizes: tuple[int, int, int], arch: str) -> None:
    problem = linear(*sizes)
    tiles = rank_gemm(problem, arch)
    assert 1 <= len(tiles) <= 8
    assert len(set(tiles)) == len(tiles)
    device = device_of(arch)
    assert all(shared_bytes(tile, problem, device) <= device.shared_bytes for tile in tiles)
    if sizes[0] >= 128:
        assert len({(tile.bm, tile.bn) for tile in tiles}) >= 3


def test_few_tiles_are_split_and_many_are_large() -> None:
    assert rank_gemm(linear(128, 768, 3072), "sm_90")[0].split > 1
    best = rank_gemm(linear(4096, 3072, 768), "sm_90")[0]
    assert best.split == 1
    assert best.bm * best.bn >= 128 * 128


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_machine_code(arch: str) -> None:
    is_new = arch == "sm_90"
    small, few = linear(128, 768, 3072), linear(1, 4096, 4096, kind=FewRows)
    large = linear(4096, 3072, 768, torch.bfloat16)
    cuts = [
        (small, rank_gemm(small, arch)[0]),
        (large, rank_gemm(large, arch)[0]),
        (few, rank_gemv(few, arch)[0]),
    ]
    kernels = [
        problem.describe(tile, BiasRelu(problem.columns, TYPES[problem.dtype]), pdl=is_new)
        for problem, tile in cuts
    ]
    for (compiled, code), (problem, tile) in zip(machine_code(kernels, arch), cuts, strict=True):
        assert not compiled.spills, f"{tile} spills"
        assert compiled.shared <= device_of(arch).shared_bytes
        assert ".128" in code, "loads are narrow"
        assert ("CCTL.E.PF2" in code) == (tile.prefetch and is_new)
        if not isinstance(problem, FewRows):
            assert ("HGMMA" if is_new and tile.bm >= 64 else "HMMA") in code
        if is_new:
            require_dependent_launch(code)
