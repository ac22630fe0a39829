"""QuantizeLinear and DequantizeLinear in generated Triton: the very numbers that the floor computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from cpp_cases import random
from torch import Tensor
from triton_cases import AMPERE, evaluate, machine_code, make_site, run_stages

from offers import offered, stages_of, why_not
from ridgeline.base.spec import Op, Site
from ridgeline.frontend.types import ONNX_TYPES
from ridgeline.tactics.cuda.triton_codegen import GeneratedTriton, TritonPointwise, TritonRows

POINTWISE, ROWS = TritonPointwise(), TritonRows()
CODES = ["int8", "uint8", "float8_e4m3fn", "float8_e5m2"]
TORCH = {name: getattr(torch, name) for name in CODES}


def require_same(tactic: GeneratedTriton, site: Site, inputs: Mapping[str, Tensor]) -> None:
    """Codes are equal; float results within two units in the last place."""
    assert why_not(tactic, site) is None
    want = evaluate(site.body, inputs)
    for config in offered(tactic, site).configs:
        made = run_stages(site, stages_of(tactic, site, config), inputs)
        for name, got in zip(site.body.outputs, made, strict=True):
            if got.element_size() == 1:
                # NaN has several codes, and zero has two
                both_nan = got.float().isnan() & want[name].float().isnan()
                wrong = (got.float() != want[name].float()) & ~both_nan
                assert not wrong.any(), f"{int(wrong.sum())} codes of {name} differ"
            else:
                torch.testing.assert_close(got, want[name], equal_nan=True)


def awkward(*shape: int) -> Tensor:
    """Ties, ends of every range, infinities and NaN among ordinary numbers."""
    x = random(*shape) * 40
    odd = [
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        127.5,
        -128.5,
        126.5,
        448.0,
        464.0,
        480.0,
        57344.0,
        61440.0,
        1e9,
    ]
    odd += [-448.0, -480.0, -1e9, 2.0**-9, 2.0**-10, 3 * 2.0**-10, 2.0**-17, 17.0, 18.0, 19.0, 255.5, 254.5]
    odd += [torch.inf, -torch.inf, torch.nan]
    x.view(-1)[: len(odd)] = torch.tensor(odd)
    return x


def quantize(x: str, y: str, zero: str = "", **attrs: int) -> Op:
    return Op("QuantizeLinear", (x, "s", zero) if zero else (x, "s"), (y,), attrs)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("exponent", [-124, -24, 0, 5, 126])
def test_quantize_with_a_power_of_two(dtype: str, exponent: int) -> None:
    """One multiplication gives every code that the division gives, NaN and infinities included."""
    scale = torch.tensor(2.0**exponent)
    inputs = {"x": awkward(5, 37) * scale, "s": scale}
    op = quantize("x", "y", output_dtype=ONNX_TYPES[dtype])
    site = make_site([op], inputs, ["y"], weights=["s"])
    require_same(POINTWISE, replace(site, power_scales=frozenset({"s"})), inputs)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("scale", [1.0, 0.37], ids=["ties", "odd scale"])
def test_quantize_with_one_scale(dtype: str, scale: float) -> None:
    inputs = {"x": awkward(5, 37)}
    constants = {"s": np.float32(scale).reshape(())}
    op = quantize("x", "y", output_dtype=ONNX_TYPES[dtype])
    require_same(POINTWISE, make_site([op], inputs, ["y"], constants=constants), inputs)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("source", [torch.float32, torch.float16], ids=str)
def test_quantize_per_channel_with_zero_points(dtype: str, source: torch.dtype) -> None:
    inputs = {"x": awkward(3, 17, 5).to(source), "s": random(17).abs().to(source) + 0.1}
    inputs["z"] = torch.arange(17).to(TORCH[dtype]) + (3 if dtype == "uint8" else -9)
    op = quantize("x", "y", "z", axis=1)
    require_same(POINTWISE, make_site([op], inputs, ["y"], weights=["s", "z"]), inputs)


@pytest.mark.parametrize("dtype", CODES)
def test_dequantize_every_code(dtype: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(TORCH[dtype]).reshape(2, 128)
    inputs: dict[str, Tensor] = {"x": codes, "s": torch.tensor([0.25, 3.0])}
    names: tuple[str, ...] = ("x", "s")
    if not codes.is_floating_point():
        inputs["z"], names = torch.tensor([3, 100]).to(codes.dtype), ("x", "s", "z")
    op = Op("DequantizeLinear", names, ("y",), {"axis": 0})
    require_same(POINTWISE, make_site([op], inputs, ["y"], weights=names[1:]), inputs)


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks(axis: int) -> None:
    shape, scales = (8, 32), ((2, 32) if axis == 0 else (8, 8))
    codes = torch.randint(-128, 128, shape, dtype=torch.int8)
    inputs = {
        "x": codes,
        "s": random(*scales).abs() + 0.1,
        "z": torch.randint(-9, 9, scales, dtype=torch.int8),
    }
    attrs = {"axis": axis, "block_size": 4}
    ops = [Op("DequantizeLinear", ("x", "s", "z"), ("f",), attrs), quantize("f", "y", "z", **attrs)]
    require_same(POINTWISE, make_site(ops, inputs, ["f", "y"], weights=["s", "z"]), inputs)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_cast_to_float8_and_back(dtype: str) -> None:
    inputs = {"x": awkward(3, 41)}
    ops = [Op("Cast", ("x",), ("y",), {"to": ONNX_TYPES[dtype]}), Op("Cast", ("y",), ("z",), {"to": 1})]
    require_same(POINTWISE, make_site(ops, inputs, ["y", "z"]), inputs)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_a_norm_writes_its_float_result_and_the_quantised_one(dtype: str) -> None:
    inputs = {"x": random(6, 96), "g": random(96, seed=1), "b": random(96, seed=2)}
    ops = [
        Op("LayerNormalization", ("x", "g", "b"), ("n",), {"axis": -1}),
        quantize("n", "y", output_dtype=ONNX_TYPES[dtype]),
    ]
    constants = {"s": np.float32(0.25).reshape(())}
    site = make_site(ops, inputs, ["n", "y"], weights=["g", "b"], constants=constants)
    require_same(ROWS, site, inputs)


def test_a_quantised_activation_between_two_products() -> None:
    inputs = {"x": torch.randint(-128, 128, (9, 40), dtype=torch.int8)}
    ops = [
        Op("DequantizeLinear", ("x", "s"), ("f",)), Op("Gelu", ("f",), ("a",)),
        quantize("a", "y", output_dtype=ONNX_TYPES["int8"]),
    ]  # fmt: skip
    constants = {"s": np.float32(0.031).reshape(())}
    require_same(POINTWISE, make_site(ops, inputs, ["y"], constants=constants), inputs)


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ([quantize("x", "y", output_dtype=ONNX_TYPES["float8_e4m3fn"], saturate=0)], "without saturation"),
        ([quantize("x", "y", output_dtype=ONNX_TYPES["int8"], precision=10)], "divides in another type"),
        ([quantize("x", "y", output_dtype=ONNX_TYPES["int4"])], "int4"),
    ],
)
def test_refuses(ops: Sequence[Op], reason: str) -> None:
    inputs = {"x": random(4, 8)}
    constants = {"s": np.float32(0.5).reshape(())}
    assert reason in str(why_not(POINTWISE, make_site(ops, inputs, ["y"], constants=constants)))


def test_float8_needs_hardware_that_converts_it() -> None:
    inputs = {"x": random(4, 8)}
    op = Op("Cast", ("x",), ("y",), {"to": ONNX_TYPES["float8_e4m3fn"]})
    assert "want sm_89" in str(why_not(POINTWISE, make_site([op], inputs, ["y"], target=AMPERE)))


def test_machine_code_converts_in_hardware_and_stores_wide() -> None:
    inputs = {"x": random(64, 1024).half()}
    constants = {"s": np.float16(0.5).reshape(())}
    op = quantize("x", "y", output_dtype=ONNX_TYPES["float8_e4m3fn"])
    site = make_site([op], inputs, ["y"], constants=constants)
    ((compiled, code),) = machine_code(stages_of(POINTWISE, site, offered(POINTWISE, site).configs[0]))
    assert "E4M3" in code
    assert not compiled.spills
