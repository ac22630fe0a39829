"""Products of int8 and float8 codes in Triton: numbers in the interpreter, machine code, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from product_cases import BiasRelu, machine_code, require_dependent_launch
from quant_cases import UNIT32, codes, exact, make_site, op, quantize, require_near, run, scales
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.spec import Op, Site, Target
from ridgeline.kernels.triton.products import Tile
from ridgeline.kernels.triton.qgemm import qgemm_ref
from ridgeline.kernels.triton.quant_products import CodeProduct, CodeTile
from ridgeline.tactics.cuda.triton_quant import TritonCodeGemm

TACTIC = TritonCodeGemm()
DQ_X, DQ_W = op("DequantizeLinear", "x xs", "a"), op("DequantizeLinear", "w ws", "b", axis=1)
PRODUCT = [DQ_X, DQ_W, op("MatMul", "a b", "p")]
BIAS_RELU = [op("Add", "p c", "q"), op("Relu", "q", "y")]
CODES = ("int8", "float8_e4m3fn", "float8_e5m2")


def operands(dtype: str, rows: tuple[int, ...] = (37,), **more: Tensor) -> dict[str, Tensor]:
    return {
        "x": codes(*rows, 75, dtype=dtype), "xs": scales(), "w": codes(75, 40, dtype=dtype, seed=2),
        "ws": scales(40, seed=3), **more,
    }  # fmt: skip


def bound_of(site: Site, tensors: dict[str, Tensor], name: str = "p", in_cores: int = 75) -> Tensor:
    """What a float32 sum of the codes, two scales and a few steps after it may be off.

    Hopper's tensor cores keep 13 bits of a float8 sum after every 32 products; `in_cores` are summed there.
    """
    values = exact(site, tensors)
    magnitude = values["a"].abs() @ values["b"].abs()
    made = (values["a"].shape[-1] + 16) * UNIT32 * (magnitude + values[name].abs())
    if tensors["x"].is_floating_point():
        made = made + (in_cores / 32 + 1) * 2.0**-13 * magnitude
    return made + 16 * UNIT32


def check(site: Site, tensors: dict[str, Tensor], tiles: Any = (), factor: float = 1.0) -> None:
    assert why_not(TACTIC, site) is None
    configs = list(tiles) or [offered(TACTIC, site).configs[i] for i in (0, -1)]
    want = exact(site, tensors)
    for config in configs:
        for name, got in zip(site.body.outputs, run(TACTIC, site, config, tensors), strict=True):
            require_near(got, want[name], factor * bound_of(site, tensors))


def config(*sizes: int, **more: Any) -> dict[str, Any]:
    tile = CodeTile(*sizes, **more)
    return {key: getattr(tile, key) for key in ("bm", "bn", "bk", "split", "warps", "stages", "is_promoted")}


@pytest.mark.parametrize("dtype", CODES)
def test_bias_and_relu_with_odd_sizes(dtype: str) -> None:
    tensors = operands(dtype, c=scales(40) * 9)
    tiles = [
        config(16, 16, 32), config(32, 16, 64, split=2), config(16, 32, 32, is_promoted=True),
        config(64, 64, 32, warps=4),
    ]  # fmt: skip
    check(make_site(tensors, [*PRODUCT, *BIAS_RELU]), tensors, tiles)


@pytest.mark.parametrize("dtype", CODES)
def test_codes_in_and_out_with_a_residual_of_codes(dtype: str) -> None:
    tensors = operands(
        dtype, rows=(2, 9), r=codes(2, 9, 40, dtype=dtype, seed=5), rs=scales(seed=6), ys=scales() * 4
    )
    ops = [
        *PRODUCT, op("DequantizeLinear", "r rs", "d"), op("Add", "p d", "q"), op("Relu", "q", "s"),
        quantize("s", "y", dtype),
    ]  # fmt: skip
    check(make_site(tensors, ops), tensors, factor=1 / float(tensors["ys"]))


def test_a_float_result_beside_the_codes() -> None:
    tensors = operands("int8", ys=scales() * 100)
    site = make_site(tensors, [*PRODUCT, quantize("p", "y")], ("p", "y"))
    check(site, tensors, factor=1 / float(tensors["ys"]))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("is_known", [True, False], ids=["constant", "in every run"])
def test_zero_points_of_the_activation(dtype: str, is_known: bool) -> None:
    zero = torch.tensor(100 if dtype == "uint8" else -7).to(getattr(torch, dtype))
    tensors = operands("int8", xz=zero) | {"x": codes(37, 75, dtype=dtype)}
    ops = [op("DequantizeLinear", "x xs xz", "a"), DQ_W, op("MatMul", "a b", "y")]
    site = make_site(tensors, ops, inputs="x" if is_known else "x xz")
    sums = qgemm_ref(tensors["x"], tensors["w"].mT, int(zero))
    want = sums * tensors["xs"].double() * tensors["ws"].double()
    for tile in (config(16, 16, 32), config(32, 32, 32, split=3)):
        (got,) = run(TACTIC, site, tile, tensors)
        require_near(got, want, bound_of(site, tensors, "y"))


def test_unsigned_weights_around_128() -> None:
    tensors = operands("int8", wz=torch.full((40,), 128, dtype=torch.uint8))
    tensors["w"] = codes(75, 40, dtype="uint8", seed=4)
    ops = [
        DQ_X,
        op("DequantizeLinear", "w ws wz", "b", axis=1),
        op("MatMul", "a b", "p"),
        op("Relu", "p", "y"),
    ]
    check(make_site(tensors, ops), tensors)


def test_weights_that_leave_a_signed_byte_are_refused_when_bound() -> None:
    tensors = operands("int8", wz=torch.tensor(3, dtype=torch.uint8))
    tensors["w"] = codes(75, 40, dtype="uint8", seed=4)
    ops = [DQ_X, op("DequantizeLinear", "w ws wz", "b", axis=1), op("MatMul", "a b", "y")]
    site = make_site(tensors, ops)
    with pytest.raises(Exception, match="want a signed byte"):
        run(TACTIC, site, config(16, 16, 32), tensors)


@pytest.mark.parametrize("form", ["axis", "blocks"])
def test_a_scale_for_every_row(form: str) -> None:
    is_axis = form == "axis"
    tensors = operands("int8", rows=(19,) if is_axis else (2, 9)) | {
        "xs": scales(19) if is_axis else scales(2, 9, 1)
    }
    attrs = {"axis": 0} if is_axis else {"axis": -1, "block_size": 75}
    ops = [op("DequantizeLinear", "x xs", "a", **attrs), DQ_W, op("MatMul", "a b", "p"), op("Relu", "p", "y")]
    check(make_site(tensors, ops), tensors)


def test_gemm_with_a_quantised_bias_and_a_weight_by_rows() -> None:
    tensors = operands("int8", c=torch.randint(-999, 999, (40,), dtype=torch.int32), cs=scales(40))
    tensors["w"] = codes(40, 75, dtype="int8", seed=8)
    ops = [
        DQ_X, op("DequantizeLinear", "w ws", "b0", axis=0), op("Transpose", "b0", "b", perm=[1, 0]),
        op("DequantizeLinear", "c cs", "d", axis=0), op("Gemm", "a b d", "p", alpha=0.5, beta=2.0),
        op("Relu", "p", "y"),
    ]  # fmt: skip
    check(make_site(tensors, ops), tensors)


def test_half_scales_make_half_results() -> None:
    tensors = operands("float8_e4m3fn", c=scales(40).half())
    tensors |= {"xs": tensors["xs"].half(), "ws": tensors["ws"].half()}
    check(make_site(tensors, [*PRODUCT, *BIAS_RELU]), tensors)


def with_types(x: str, w: str) -> dict[str, Tensor]:
    return operands("int8") | {"x": codes(37, 75, dtype=x), "w": codes(75, 40, dtype=w)}


@pytest.mark.parametrize(
    ("tensors", "ops", "reason"),
    [
        (with_types("int8", "float8_e4m3fn"), PRODUCT, "codes are int8 and float8_e4m3fn"),
        (operands("int8") | {"ws": scales(75)},
         [DQ_X, op("DequantizeLinear", "w ws", "b", axis=0), PRODUCT[2]], "scales of the weight vary along"),
        (operands("int8") | {"xs": scales(75)}, [op("DequantizeLinear", "x xs", "a"), *PRODUCT[1:]],
         "scales of x vary along the sum"),
        (operands("int8"), [DQ_X, DQ_W, op("Relu", "a", "e"), op("MatMul", "e b", "p")], "Relu comes before"),
        (operands("int8"),
         [*PRODUCT, op("ReduceSum", "a", "e", keepdims=0), op("Add", "p e", "z")], "is read by more than"),
        ({"x": torch.randn(4, 8), "w": codes(8, 40, dtype="int8"), "ws": scales(40)},
         [DQ_W, op("MatMul", "x b", "p")], "'x' is not dequantised"),
    ],
)  # fmt: skip
def test_refuses(tensors: dict[str, Tensor], ops: list[Op], reason: str) -> None:
    site = make_site(tensors, ops, ("p",))
    assert reason in str(why_not(TACTIC, site))


def test_float8_wants_hardware_for_it() -> None:
    tensors = operands("float8_e4m3fn")
    site = make_site(tensors, PRODUCT, ("p",), target=Target("cuda", "sm_80"))
    assert "want sm_89" in str(why_not(TACTIC, site))


def test_machine_code() -> None:
    """Tensor cores of the type, wide loads, no spills."""
    problems = [CodeProduct(4096, 4096, 4096, dtype, (0, 4096, 1), (0, 4096, 1)) for dtype in CODES[:2]]
    cuts = [
        (problems[0], Tile(128, 128, 128, warps=8, stages=4), "IGMMA"),
        (problems[1], CodeTile(128, 128, 128, warps=8, stages=4), "QGMMA"),
        (problems[1], CodeTile(128, 128, 128, warps=8, stages=4, is_promoted=True), "QGMMA"),
    ]
    kernels = [problem.describe(tile, BiasRelu(4096, "fp16"), pdl=True) for problem, tile, _ in cuts]
    for (compiled, code), (_, tile, instruction) in zip(machine_code(kernels, "sm_90"), cuts, strict=True):
        assert instruction in code, f"{tile} has no {instruction}"
        assert not compiled.spills, f"{tile} spills"
        assert ".128" in code, "loads are narrow"
        require_dependent_launch(code)
