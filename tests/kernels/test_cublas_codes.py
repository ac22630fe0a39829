"""Products of codes by cuBLASLt: which regions it takes, and what is left for the kernel after it."""

from __future__ import annotations

import pytest
import torch
from quant_cases import UNIT32, codes, exact, make_site, op, quantize, require_near, scales
from torch import Tensor
from triton_cases import evaluate

from offers import offered, why_not
from ridgeline.base.spec import Op, Site, Target
from ridgeline.tactics.cuda.cublas_codes import RAW, CublasCodes, _fill

TACTIC = CublasCodes()
PRODUCT = [
    op("DequantizeLinear", "x xs", "a"),
    op("DequantizeLinear", "w ws", "b", axis=1),
    op("MatMul", "a b", "p"),
]
RELU = op("Relu", "p", "y")


def operands(dtype: str, columns: int = 32, **more: Tensor) -> dict[str, Tensor]:
    return {
        "x": codes(20, 48, dtype=dtype), "xs": scales(), "w": codes(48, columns, dtype=dtype, seed=2),
        "ws": scales(columns, seed=3), **more,
    }  # fmt: skip


def computed(site: Site, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The library's call on the CPU, then what is left, op by op."""
    product, depth = TACTIC._read(site)
    rest = product.rest.site
    assert rest is not None
    weight = tensors["w"].t().contiguous().t() if not product.is_nk else tensors["w"].contiguous().t()
    sums = torch.empty(rest.specs[RAW].shape, dtype=getattr(torch, rest.specs[RAW].dtype))
    if product.is_integer:
        given = [tensors[name] for name in site.body.inputs]
        _fill(product, weight, [torch.ones(())] * 2, is_fast=False)(given, [sums])
    else:  # PyTorch has no float8 products on a CPU
        sums.copy_(tensors["x"].float().view(-1, depth) @ weight.float())
    given_rest = {RAW: sums} | {name: tensors[name] for name in rest.body.inputs[1:]}
    return evaluate(rest.body, given_rest)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_scales_bias_and_codes_are_left_to_a_kernel(dtype: str) -> None:
    tensors = operands(dtype, c=scales(32), ys=scales() * 8)
    ops = [*PRODUCT, op("Add", "p c", "q"), op("Relu", "q", "s"), quantize("s", "y", dtype)]
    site = make_site(tensors, ops)
    assert len(offered(TACTIC, site).configs) == (1 if dtype == "int8" else 2)
    assert len(offered(TACTIC, site).kernels({})) == 1
    want = exact(site, tensors)["y"]
    require_near(computed(site, tensors)["y"], want, 64 * UNIT32 * want.abs().max() + 64 * UNIT32)


def test_gemm_with_a_bias_of_its_own() -> None:
    tensors = operands("int8", c=scales(32)) | {"w": codes(32, 48, dtype="int8")}
    ops = [PRODUCT[0], op("DequantizeLinear", "w ws", "b", axis=0), op("Gemm", "a b c", "p", transB=1), RELU]
    site = make_site(tensors, ops)
    want = exact(site, tensors)["y"]
    require_near(computed(site, tensors)["y"], want, 64 * UNIT32 * want.abs().max())


def test_a_bare_product_is_the_librarys_alone() -> None:
    tensors = operands("float8_e4m3fn") | {
        "xs": scales(dtype=torch.float16),
        "ws": scales(dtype=torch.float16),
    }
    ops = [PRODUCT[0], op("DequantizeLinear", "w ws", "b"), PRODUCT[2]]
    offer = offered(TACTIC, make_site(tensors, ops, ("p",)))
    assert not offer.compiles
    assert not offer.kernels({})


@pytest.mark.parametrize(
    ("tensors", "ops", "reason"),
    [
        (operands("int8", columns=20), [*PRODUCT, RELU], "20 columns and sums of 48 do not suit"),
        (operands("int8") | {"x": codes(20, 48, dtype="uint8")}, [*PRODUCT, RELU], "no zero points"),
        (operands("int8") | {"x": codes(9, 48, dtype="int8")}, [*PRODUCT, RELU], "9 rows"),
        (operands("int8") | {"xs": scales(20)},
         [op("DequantizeLinear", "x xs", "a", axis=0), *PRODUCT[1:], RELU], "want one scale for x"),
        (operands("int8"), [*PRODUCT, op("Add", "p xs", "q"), op("Add", "q xs", "y")], None),
    ],
)  # fmt: skip
def test_refuses(tensors: dict[str, Tensor], ops: list[Op], reason: str | None) -> None:
    found = why_not(TACTIC, make_site(tensors, ops))
    assert found is None if reason is None else reason in str(found)


def test_float8_wants_hardware_for_it() -> None:
    site = make_site(operands("float8_e4m3fn"), [*PRODUCT, RELU], target=Target("cuda", "sm_80"))
    assert "no tensor cores" in str(why_not(TACTIC, site))
