"""Max pooling in Triton: halves and codes in the interpreter, windows over every edge, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from product_cases import for_interpreter, machine_code
from quant_cases import _as_spec, _poisoned, codes, make_site, op
from torch import Tensor

from interpreted import interpret
from offers import offered, why_not
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.floor import call_floor
from ridgeline.kernels.triton.max_pool import max_pool_ref
from ridgeline.tactics.cuda.triton_max_pool import TritonMaxPool, read_pool

TACTIC = TritonMaxPool()
TYPES = ["float16", "int8", "uint8", "float8_e4m3fn"]
STEM = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}


def image(dtype: str, channels: int = 20) -> Tensor:
    if dtype.startswith("float8") or dtype in ("int8", "uint8"):
        return codes(2, channels, 9, 7, dtype=dtype)
    return torch.randn(2, channels, 9, 7).to(getattr(torch, dtype))


def pooled(x: Tensor, **attrs: Any) -> Site:
    return make_site({"x": x}, [op("MaxPool", "x", "y", **attrs)], last="x y")


def run(site: Site, x: Tensor, config: Any) -> Tensor:
    pool = read_pool(site)
    y = _poisoned(site.outputs[0])
    given = _as_spec(x, site.specs["x"])
    interpret(for_interpreter(pool.describe(config, pdl=True)), pool.grid(config), [given, y, pool.positions])
    return y


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "attrs",
    [
        pytest.param(STEM, id="stem"),
        pytest.param({"kernel_shape": (2, 3), "dilations": (2, 1), "pads": (0, 1, 1, 0)}, id="dilated"),
        pytest.param({"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}, id="ceil"),
    ],
)
def test_every_type_and_edge(dtype: str, attrs: dict[str, Any]) -> None:
    x = image(dtype)
    site = pooled(x, **attrs)
    assert why_not(TACTIC, site) is None
    (want,) = call_floor(site.body.ops[0], [x])
    for config in offered(TACTIC, site).configs[:1]:
        assert torch.equal(run(site, x, config).float(), want.float())


def test_nan_stays() -> None:
    x = image("float16")
    x[0, 3, 4, 4] = torch.nan
    site = pooled(x, **STEM)
    want = max_pool_ref(x, kernel=(3, 3), stride=(2, 2), pads=(1, 1, 1, 1), dilation=(1, 1))
    got = run(site, x, offered(TACTIC, site).configs[0])
    assert want.isnan().any()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize(
    ("x", "ops", "last", "reason"),
    [
        (image("float16"), [op("MaxPool", "x", "y", **STEM)], "x", "not channels last"),
        (
            image("float16"),
            [op("MaxPool", "x", "p", **STEM), op("Relu", "p", "y")],
            "x y p",
            "want MaxPool alone",
        ),
        (torch.randn(1, 2, 20, 20), [op("MaxPool", "x", "y", kernel_shape=(9, 9))], "x y", "a window of 81"),
        (torch.randn(1, 2, 9), [op("MaxPool", "x", "y", kernel_shape=(3,))], "", "want images"),
        (torch.randn(1, 2, 9, 9).double(), [op("MaxPool", "x", "y", **STEM)], "x y", "float64"),
    ],
)
def test_refuses(x: Tensor, ops: list[Op], last: str, reason: str) -> None:
    assert reason in str(why_not(TACTIC, make_site({"x": x}, ops, last=last)))


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_machine_code(dtype: str) -> None:
    site = pooled(image(dtype, 64), **STEM)
    offer = offered(TACTIC, site)
    ((compiled, code),) = machine_code(offer.kernels(offer.configs[0]), "sm_90")
    assert ".128" in code
    assert not compiled.spills
