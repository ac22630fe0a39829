"""Products with packed weights in Triton: every format and form of scales, machine code, refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from product_cases import BiasRelu, machine_code, require_dependent_launch
from quant_cases import UNIT32, codes, exact, make_site, op, require_near, run, scales
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site, Target
from ridgeline.kernels.elements import to_torch
from ridgeline.kernels.triton.products import Tile
from ridgeline.kernels.triton.quant_products import CodedWeight, row_words, widths_of
from ridgeline.kernels.triton.weight_only import weight_only_ref
from ridgeline.tactics.cuda.triton_weight_only import TritonWeightOnly

TACTIC = TritonWeightOnly()
HALF = torch.float16
ROWS, COLUMNS = 5, 40


def narrow(*shape: int, dtype: str, seed: int = 3) -> Tensor:
    """Every code, at random."""
    rng = np.random.default_rng(seed)
    if dtype in ("int4", "uint4"):
        low, high = (-8, 8) if dtype == "int4" else (0, 16)
        return to_torch(rng.integers(low, high, shape).astype(getattr(ml_dtypes, dtype)))
    if dtype == "float4_e2m1fn":
        values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        sign = rng.choice([-1.0, 1.0], shape)
        return to_torch((sign * rng.choice(values, shape)).astype(ml_dtypes.float4_e2m1fn))
    return codes(*shape, dtype=dtype, seed=seed)


def site_of(
    dtype: str, depth: int, *, block: int = 0, zero: bool = False, is_nk: bool = False, rows: int = ROWS,
    per: str = "column", half: torch.dtype = HALF,
) -> tuple[Site, dict[str, Tensor]]:  # fmt: skip
    """x · dequantised w + c, relu."""
    shape = (COLUMNS, depth) if is_nk else (depth, COLUMNS)
    axis = (1 if is_nk else 0) if block else (0 if is_nk else 1)
    count = -(-depth // block) if block else 0
    parameters: tuple[int, ...] = (COLUMNS,) if per == "column" else ()
    if block:
        parameters = (COLUMNS, count) if is_nk else (count, COLUMNS)
    x = (torch.randn(rows, depth, generator=torch.Generator().manual_seed(0)) / 8).to(half)
    tensors = {"x": x, "w": narrow(*shape, dtype=dtype), "ws": scales(*parameters, dtype=half)}
    if zero:
        tensors["wz"] = narrow(*parameters, dtype=dtype, seed=9)
    tensors["c"] = scales(COLUMNS, dtype=half)
    attrs = {"axis": axis, "block_size": block} if block else {"axis": axis}
    ops = [
        op("DequantizeLinear", "w ws wz" if zero else "w ws", "b", **attrs),
        op("Gemm", "x b c", "p", transB=1) if is_nk else op("MatMul", "x b", "q"),
        *([] if is_nk else [op("Add", "q c", "p")]), op("Relu", "p", "y"),
    ]  # fmt: skip
    return make_site(tensors, ops, inputs="x"), tensors


def check(site: Site, tensors: dict[str, Tensor], tiles: Any = ()) -> None:
    assert why_not(TACTIC, site) is None
    want = exact(site, tensors)
    is_nk = site.body.ops[1].op_type == "Gemm"
    weight = want["b"].mT if is_nk else want["b"]
    magnitude = tensors["x"].double().abs() @ weight.abs()
    bound = (weight.shape[0] + 16) * UNIT32 * (magnitude + want["p"].abs())
    for config in tiles or [offered(TACTIC, site).configs[i] for i in (0, -1)]:
        (got,) = run(TACTIC, site, config, tensors)
        require_near(got, want["y"], bound)


def tile(*sizes: int, **more: Any) -> dict[str, Any]:
    made = Tile(*sizes, **more)
    return {key: getattr(made, key) for key in ("bm", "bn", "bk", "split", "warps", "stages")}


@pytest.mark.parametrize("block", [16, 32, 256])
@pytest.mark.parametrize("zero", [False, True], ids=["symmetric", "zero points"])
def test_int4_in_blocks(block: int, zero: bool) -> None:
    site, tensors = site_of("int4", 256, block=block, zero=zero)
    check(site, tensors, [tile(8, 32, 128, split=2)])


@pytest.mark.parametrize("dtype", ["uint4", "uint8"])
@pytest.mark.parametrize("block", [0, 32])
def test_unsigned_codes_with_zero_points(dtype: str, block: int) -> None:
    check(*site_of(dtype, 200, block=block, zero=True), [tile(16, 16, 128)])


@pytest.mark.parametrize("dtype", ["int4", "int8", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
@pytest.mark.parametrize("per", ["column", "tensor"])
def test_scales_that_do_not_vary_along_the_sum(dtype: str, per: str) -> None:
    check(*site_of(dtype, 200, per=per), [tile(16, 16, 128)])


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float4_e2m1fn"])
@pytest.mark.parametrize("block", [32, 128])
def test_blocks_of_other_formats(dtype: str, block: int) -> None:
    check(*site_of(dtype, 256, block=block), [tile(16, 32, 128, split=2)])


@pytest.mark.parametrize("rows", [1, 33, 100])
def test_any_number_of_rows_in_the_offered_cuts(rows: int) -> None:
    check(*site_of("int4", 512, block=128, rows=rows))


@pytest.mark.parametrize(
    ("dtype", "block", "zero", "depth"),
    [
        ("int4", 128, False, 1024), ("int4", 128, True, 1100), ("int4", 32, False, 1000),
        ("int4", 0, False, 1024), ("uint4", 32, True, 1056), ("int8", 0, False, 1000),
        ("uint8", 32, True, 1024), ("float8_e4m3fn", 128, False, 1024), ("float8_e5m2", 0, False, 600),
    ],
)  # fmt: skip
def test_one_row_without_tensor_cores(dtype: str, block: int, zero: bool, depth: int) -> None:
    site, tensors = site_of(dtype, depth, block=block, zero=zero, rows=1)
    check(site, tensors, [tile(1, 16, 1024), tile(1, 8, 512, split=2)])


def test_numbers_of_one_row_are_read_in_pairs() -> None:
    depths = {depth: offered(TACTIC, site_of("int4", depth, rows=1)[0]).configs for depth in (2048, 2047)}
    assert {1 in {config["bm"] for config in configs} for configs in depths.values()} == {True, False}
    check(*site_of("int4", 301, rows=1))
    fours = offered(TACTIC, site_of("float4_e2m1fn", 1024, block=16, rows=1)[0])
    with pytest.raises(RefusedError, match="no kernel for one row"):
        fours.kernels(tile(1, 4, 1024))


def test_a_weight_by_rows() -> None:
    check(*site_of("int4", 384, block=32, is_nk=True, zero=True), [tile(16, 16, 128)])


def test_depth_that_ends_inside_a_block_and_a_group() -> None:
    check(*site_of("int4", 300, block=128), [tile(16, 16, 256), tile(16, 16, 128, split=3)])
    check(*site_of("int4", 72, block=16), [tile(16, 16, 64)])


def test_two_levels_of_scales() -> None:
    """NVFP4: block scales are float8 codes with a scale of their own."""
    tensors = {
        "x": torch.randn(3, 192).half(), "w": narrow(192, 24, dtype="float4_e2m1fn"),
        "s": (torch.rand(12, 24) * 100 + 1).to(torch.float8_e4m3fn), "t": torch.tensor(0.003).half(),
    }  # fmt: skip
    ops = [
        op("DequantizeLinear", "s t", "u"), op("DequantizeLinear", "w u", "b", axis=0, block_size=16),
        op("MatMul", "x b", "p"), op("Relu", "p", "y"),
    ]  # fmt: skip
    site = make_site(tensors, ops, inputs="x")
    assert TACTIC.read(site).problem.scales == "float8_e4m3fn"
    check(site, tensors, [tile(16, 16, 128)])


def test_scales_that_are_powers_of_two() -> None:
    """MXFP8: float8 numbers in blocks of 32 with E8M0 scales, the least of them subnormal."""
    exponents = torch.randint(117, 130, (6, 24), dtype=torch.uint8)
    exponents[0, 0] = 0
    tensors = {
        "x": torch.randn(3, 192).half(), "w": codes(192, 24, dtype="float8_e4m3fn", seed=4),
        "s": exponents.view(torch.float8_e8m0fnu),
    }  # fmt: skip
    ops = [
        op("DequantizeLinear", "w s", "b", axis=0, block_size=32, output_dtype=10),
        op("MatMul", "x b", "p"), op("Relu", "p", "y"),
    ]  # fmt: skip
    site = make_site(tensors, ops, inputs="x")
    x, w, s = tensors["x"].double(), tensors["w"].double().mT, tensors["s"].double().mT
    (got,) = run(TACTIC, site, tile(16, 16, 64), tensors)
    magnitude = weight_only_ref(x.abs(), w.abs(), s)
    require_near(got, weight_only_ref(x, w, s).relu(), (192 + 16) * UNIT32 * magnitude)


def plain(x: torch.dtype = HALF, ws: tuple[int, ...] = (24,)) -> dict[str, Tensor]:
    return {"x": torch.randn(4, 64).to(x), "w": narrow(64, 24, dtype="int8"), "ws": scales(*ws, dtype=x)}


MATMUL = op("MatMul", "x b", "y")
DQ = op("DequantizeLinear", "w ws", "b", axis=1)


@pytest.mark.parametrize(
    ("tensors", "ops", "reason"),
    [
        (plain(torch.float32), [DQ, MATMUL], "activations are float32"),
        (plain(ws=(64,)), [op("DequantizeLinear", "w ws", "b", axis=0), MATMUL], "scales vary"),
        (plain(ws=(8, 24)), [op("DequantizeLinear", "w ws", "b", axis=0, block_size=8), MATMUL],
         "blocks of 8, want a power of two from 16 on"),
        (plain(), [DQ, op("Relu", "x", "a"), op("MatMul", "a b", "y")], "Relu comes before"),
        (plain(), [op("Add", "x x", "a"), op("Relu", "a", "y")], "no MatMul/Gemm"),
    ],
)  # fmt: skip
def test_refuses(tensors: dict[str, Tensor], ops: list[Op], reason: str) -> None:
    assert reason in str(why_not(TACTIC, make_site(tensors, ops, inputs="x")))


def test_codes_that_change_between_runs_are_refused() -> None:
    site = make_site(plain(), [DQ, op("MatMul", "x b", "y")], inputs="x w")
    assert "changes between runs" in str(why_not(TACTIC, site))


def problem(format: str, block: int, scale: str, rows: int = 16, dtype: str = "float16") -> CodedWeight:
    width, made = widths_of(format, block)
    strides = (0, 4096, 1), (0, row_words(4096, format, width), 1)
    return CodedWeight(
        rows, 14336, 4096, dtype, *strides, format=format, width=width, block=made, scales=scale
    )


def test_machine_code() -> None:
    """Decoded in registers that feed the tensor cores: nothing is stored to shared memory on the way."""
    cuts = [
        (problem("int4", 128, "float16"), 1.6), (problem("int4", 128, "bfloat16", dtype="bfloat16"), 2.0),
    ]  # fmt: skip
    tile = Tile(16, 64, 256, warps=4, stages=4)
    kinds = {"float16": "fp16", "bfloat16": "bf16"}
    kernels = [one.describe(tile, BiasRelu(14336, kinds[one.dtype]), pdl=True) for one, _ in cuts]
    for (compiled, code), (one, most) in zip(machine_code(kernels, "sm_90"), cuts, strict=True):
        assert "HGMMA" in code
        assert not compiled.spills
        assert "LDGSTS.E.BYPASS.128" in code or "LDGSTS.E.BYPASS.LTC128B.128" in code, one.format
        decoding = sum(code.count(f" {name}") for name in ("LOP3", "HADD2", "PRMT", "SHF", "F2FP", "I2F"))
        assert decoding <= most * 64 * 256 / 128, f"{one.format}: {decoding} instructions"
        require_dependent_launch(code)


def test_wants_a_gpu_that_copies_asynchronously() -> None:
    site = make_site(plain(), [DQ, op("MatMul", "x b", "y")], inputs="x", target=Target("cuda", "sm_75"))
    assert "want sm_80" in str(why_not(TACTIC, site))
