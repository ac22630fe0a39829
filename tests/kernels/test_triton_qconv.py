"""Convolutions of int8 and float8 codes in Triton: numbers in the interpreter, machine code, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from product_cases import BiasRelu, machine_code
from quant_cases import UNIT32, codes, exact, make_site, op, quantize, require_near, run, scales
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.triton.quant_products import CodeProduct, CodeTile, CodeWindow
from ridgeline.tactics.cuda.triton_quant import TritonCodeConv

TACTIC = TritonCodeConv()
DQ = [op("DequantizeLinear", "x xs", "a"), op("DequantizeLinear", "w ws", "b", axis=0)]
CODES = ["int8", "float8_e4m3fn"]


def operands(
    dtype: str, channels: int, columns: int, kernel: int, size: tuple[int, ...] = (9, 7)
) -> dict[str, Tensor]:
    taps = (kernel,) * len(size)
    return {
        "x": codes(2, channels, *size, dtype=dtype), "xs": scales(),
        "w": codes(columns, channels, *taps, dtype=dtype, seed=2), "ws": scales(columns, seed=3),
    }  # fmt: skip


def check(site: Site, tensors: dict[str, Tensor], tiles: Any = (), factor: float = 1.0) -> None:
    assert why_not(TACTIC, site) is None
    values = exact(site, tensors)
    node = next(node for node in site.body.ops if node.op_type == "Conv")
    attrs = {key: value for key, value in node.attrs.items() if key != "group"}
    sizes = {"x": tensors["x"], "w": tensors["w"]}
    bare = make_site(
        sizes, [op("Cast", "x", "a", to=11), op("Cast", "w", "b", to=11), op("Conv", "a b", "y", **attrs)]
    )
    scale = float(values["a"].abs().max() / tensors["x"].double().abs().max())
    magnitude = exact(bare, {n: t.double().abs().to(t.dtype) for n, t in sizes.items()})["y"] * scale
    magnitude = magnitude * tensors["ws"].double().max()
    depth = tensors["w"][0].numel()
    bound = (depth + 16) * UNIT32 * magnitude + 16 * UNIT32
    if tensors["x"].is_floating_point():  # as in the tests of products
        bound = bound + (depth / 32 + 1) * 2.0**-13 * magnitude
    for config in tiles or [offered(TACTIC, site).configs[i] for i in (0, -1)]:
        for name, got in zip(site.body.outputs, run(TACTIC, site, config, tensors), strict=True):
            require_near(got, values[name], factor * bound)


def tile(*sizes: int, **more: Any) -> dict[str, Any]:
    made = CodeTile(*sizes, **more)
    return {key: getattr(made, key) for key in ("bm", "bn", "bk", "split", "warps", "stages", "is_promoted")}


TILES = [tile(16, 16, 32), tile(32, 16, 32, split=2), tile(16, 32, 32, is_promoted=True)]
LAST = "x a y p q s d"


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize(
    ("channels", "attrs"),
    [
        pytest.param(32, {"pads": (1, 1, 1, 1)}, id="taps"),
        pytest.param(32, {"strides": (2, 2), "pads": (0, 1, 1, 0)}, id="strided"),
        pytest.param(5, {"pads": (1, 1, 1, 1), "dilations": (2, 2)}, id="few channels"),
    ],
)
def test_window(dtype: str, channels: int, attrs: dict[str, Any]) -> None:
    tensors = operands(dtype, channels, 24, 3) | {"c": scales(24)}
    ops = [*DQ, op("Conv", "a b c", "p", **attrs), op("Relu", "p", "y")]
    check(make_site(tensors, ops, last=LAST), tensors, TILES[1:2] if dtype == "int8" else TILES[2:])


@pytest.mark.parametrize("dtype", CODES)
def test_single_positions_with_a_residual_into_codes(dtype: str) -> None:
    tensors = operands(dtype, 40, 24, 1) | {
        "r": codes(2, 24, 9, 7, dtype=dtype, seed=5),
        "rs": scales(),
        "ys": scales() * 4,
    }
    ops = [
        *DQ, op("Conv", "a b", "p"), op("DequantizeLinear", "r rs", "d"), op("Add", "p d", "q"),
        op("Relu", "q", "s"), quantize("s", "y", dtype),
    ]  # fmt: skip
    site = make_site(tensors, ops, last=f"{LAST} r")
    assert isinstance(TACTIC.read(site).problem, CodeProduct)
    check(site, tensors, TILES[1:2], factor=1 / float(tensors["ys"]))


@pytest.mark.parametrize("activation", ["Relu", "Neg"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_codes_saturate_at_both_ends(activation: str, dtype: str) -> None:
    tensors = operands("int8", 40, 24, 1) | {"c": scales(24), "ys": scales() / 8}
    tensors["c"][:3] = torch.tensor([1e30, -1e30, torch.inf])
    ops = [*DQ, op("Conv", "a b c", "p"), op(activation, "p", "s"), quantize("s", "y", dtype)]
    site = make_site(tensors, ops, last=LAST)
    made = run(TACTIC, site, TILES[0], tensors)[0].float()
    ends = torch.iinfo(getattr(torch, dtype))
    least = max(0, ends.min) if activation == "Relu" else ends.min
    assert made.amin() == least
    assert made.amax() == ends.max
    want = exact(site, tensors)["y"].round().clamp(ends.min, ends.max)
    assert (made - want).abs().max() <= 1
    assert (made != want).float().mean() < 0.01


def test_planes_and_a_quantised_bias() -> None:
    tensors = operands("int8", 3, 16, 3) | {
        "c": torch.randint(-99, 99, (16,), dtype=torch.int32),
        "cs": scales(16),
    }
    ops = [
        *DQ, op("DequantizeLinear", "c cs", "d", axis=0), op("Conv", "a b d", "p", pads=(1, 1, 1, 1)),
        op("Relu", "p", "y"),
    ]  # fmt: skip
    check(make_site(tensors, ops, last="p y"), tensors, TILES[1:2])


def test_unsigned_codes_are_padded_with_their_zero() -> None:
    tensors = operands("int8", 32, 16, 3) | {"x": codes(2, 32, 9, 7, dtype="uint8")}
    ops = [*DQ, op("Conv", "a b", "p", pads=(1, 1, 1, 1)), op("Relu", "p", "y")]
    check(make_site(tensors, ops, last=LAST), tensors, TILES[1:2])


def test_one_spatial_axis() -> None:
    tensors = operands("int8", 32, 16, 3, size=(11,))
    ops = [*DQ, op("Conv", "a b", "p", pads=(1, 1)), op("Relu", "p", "y")]
    check(make_site(tensors, ops), tensors, TILES[:1])


def with_zero(kernel: int) -> dict[str, Tensor]:
    return operands("int8", 32, 16, kernel) | {"xz": torch.tensor(5, dtype=torch.int8)}


def test_a_zero_point_without_padding() -> None:
    tensors = with_zero(3)
    ops = [op("DequantizeLinear", "x xs xz", "a"), DQ[1], op("Conv", "a b", "p"), op("Relu", "p", "y")]
    check(make_site(tensors, ops, last=LAST), tensors, TILES[1:2])


@pytest.mark.parametrize(
    ("tensors", "ops", "reason"),
    [
        (with_zero(3), [op("DequantizeLinear", "x xs xz", "a"), DQ[1], op("Conv", "a b", "y", pads=(1,) * 4)],
         "is padded, and its zero point is not known"),
        (operands("int8", 32, 16, 1) | {"xs": scales(32)}, [*DQ, op("Conv", "a b", "y")], "scales vary"),
        (operands("int8", 32, 16, 1) | {"w": codes(16, 16, 1, 1, dtype="int8")},
         [*DQ, op("Conv", "a b", "y", group=2)], "in 2 groups"),
    ],
)  # fmt: skip
def test_refuses(tensors: dict[str, Tensor], ops: list[Op], reason: str) -> None:
    assert reason in str(why_not(TACTIC, make_site(tensors, ops, last=LAST)))


def test_machine_code() -> None:
    window = CodeWindow(
        size=(14, 14), made=(14, 14), kernel=(3, 3), stride=(1, 1), dilation=(1, 1), pads=(1, 1), images=32,
        channels=256, columns=256, x_strides=(14 * 14 * 256, 14 * 256, 256, 1), dtype="int8",
    )  # fmt: skip
    kernel = window.describe(CodeTile(128, 128, 128, warps=8, stages=4), BiasRelu(256, "fp16"), pdl=True)
    ((compiled, code),) = machine_code([kernel], "sm_90")
    assert "IGMMA" in code
    assert not compiled.spills
    assert ".128" in code


def test_a_code_costs_few_instructions() -> None:
    """Saturation and a Relu are part of a multiplication; half a tile at a time spares registers."""
    tensors = operands("int8", 64, 128, 1) | {"r": codes(2, 128, 9, 7, dtype="int8", seed=5)}
    tensors |= {"rs": scales(), "ys": scales(), "c": scales(128)}
    ops = [
        *DQ, op("Conv", "a b c", "p"), op("DequantizeLinear", "r rs", "d"), op("Add", "p d", "q"),
        op("Relu", "q", "s"), quantize("s", "y"),
    ]  # fmt: skip
    site = make_site(tensors, ops, last=f"{LAST} r")
    kernel = TACTIC.product(site).kernel(CodeTile(128, 64, 64, warps=4, stages=2))
    ((compiled, code),) = machine_code([kernel], "sm_90")
    assert not compiled.spills
    assert compiled.registers <= 128
    assert code.count("FFMA.SAT") == 64
    assert code.count("FMNMX") + code.count("F2I") < 8
    assert "STG.E.128" in code
