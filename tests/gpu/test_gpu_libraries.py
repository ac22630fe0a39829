"""Libraries on the GPU with what follows them: cuBLAS and cuDNN in each of their forms and float types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import on_gpu
import pytest
import torch
from library_cases import make_site, node, run_body
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.errors import UnsupportedError
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cuda.cublas import Cublas
from ridgeline.tactics.cuda.cublas_lt import CublasLt
from ridgeline.tactics.cuda.cudnn_conv import CudnnConv

BIAS = [node("MatMul", "x w", "p"), node("Add", "p b", "q")]
CONV = node("Conv", "x w b", "c", pads=[1, 1, 1, 1])
LINEAR = {"x": (5, 40), "w": (40, 24), "b": (24,), "r": (5, 24)}
IMAGE = {"x": (2, 16, 7, 5), "w": (24, 16, 3, 3), "b": (24,), "r": (2, 24, 7, 5)}


def only(shapes: Mapping[str, tuple[int, ...]], names: str) -> dict[str, tuple[int, ...]]:
    return {name: shapes[name] for name in names.split()}


PRODUCTS: dict[str, tuple[dict[str, tuple[int, ...]], Sequence[Op]]] = {
    "product alone": (only(LINEAR, "x w"), [node("MatMul", "x w", "y")]),
    "bias": (only(LINEAR, "x w b"), [BIAS[0], node("Add", "p b", "y")]),
    "bias and relu": (only(LINEAR, "x w b"), [*BIAS, node("Relu", "q", "y")]),
    "bias and tanh gelu": (only(LINEAR, "x w b"), [*BIAS, node("Gelu", "q", "y", approximate="tanh")]),
    "bias and gelu": (only(LINEAR, "x w b"), [*BIAS, node("Gelu", "q", "y")]),
    "residual": (only(LINEAR, "x w r"), [BIAS[0], node("Add", "p r", "y")]),
    "bias and residual": (LINEAR, [*BIAS, node("Add", "q r", "y")]),
    "bias, residual, relu": (LINEAR, [*BIAS, node("Add", "q r", "s"), node("Relu", "s", "y")]),
    "bias, gelu, residual": (LINEAR, [*BIAS, node("Gelu", "q", "g"), node("Add", "g r", "y")]),
    "gemm with factors": (
        {"x": (5, 40), "w": (24, 40), "b": (24,)},
        [node("Gemm", "x w b", "y", transB=1, beta=2.0)],
    ),
    "gemm and a matrix": (only(LINEAR, "x w r"), [node("Gemm", "x w r", "y")]),
    "gemm, a matrix, bias, relu": (
        LINEAR,
        [node("Gemm", "x w r", "p"), node("Add", "p b", "q"), node("Relu", "q", "y")],
    ),
    "rows in batches": (
        {"x": (2, 3, 40), "w": (40, 24), "b": (24,)},
        [BIAS[0], node("Add", "p b", "y")],
    ),
}
CONVS: dict[str, tuple[dict[str, tuple[int, ...]], Sequence[Op]]] = {
    "conv and bias": (only(IMAGE, "x w b"), [replace(CONV, outputs=("y",))]),
    "conv and relu": (only(IMAGE, "x w b"), [CONV, node("Relu", "c", "y")]),
    "conv, residual, relu": (IMAGE, [CONV, node("Add", "c r", "s"), node("Relu", "s", "y")]),
    "conv and hard swish": (only(IMAGE, "x w b"), [CONV, node("HardSwish", "c", "y")]),
    "strides and dilations": (
        only(IMAGE, "x w b"),
        [
            node("Conv", "x w b", "c", pads=[2, 2, 2, 2], strides=[2, 2], dilations=[2, 2]),
            node("Relu", "c", "y"),
        ],
    ),
    "groups": (
        {"x": (2, 16, 7, 5), "w": (16, 4, 3, 3), "b": (16,)},
        [node("Conv", "x w b", "c", pads=[1, 1, 1, 1], group=4), node("Relu", "c", "y")],
    ),
}


@pytest.mark.parametrize("dtype", on_gpu.FLOATS, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("tactic", [Cublas(), CublasLt()], ids=lambda tactic: tactic.name)
def test_cublas(tactic: Tactic, name: str, dtype: torch.dtype) -> None:
    shapes, ops = PRODUCTS[name]
    check(tactic, *make_site(shapes, ops, weights=weights_of(shapes)), dtype)


@pytest.mark.parametrize("dtype", on_gpu.FLOATS, ids=str)
@pytest.mark.parametrize("name", CONVS)
def test_cudnn(name: str, dtype: torch.dtype) -> None:
    shapes, ops = CONVS[name]
    site, tensors = make_site(shapes, ops, weights=weights_of(shapes), channels_last="x r c s y")
    check(CudnnConv(), site, tensors, dtype)


@pytest.mark.parametrize("dtype", on_gpu.FLOATS, ids=str)
def test_a_1x1_convolution_is_a_product(dtype: torch.dtype) -> None:
    shapes = {"x": (2, 16, 7, 5), "w": (24, 16, 1, 1), "b": (24,)}
    ops = [node("Conv", "x w b", "c"), node("Relu", "c", "y")]
    site, tensors = make_site(shapes, ops, weights="w b", channels_last="x c y")
    for tactic in (Cublas(), CublasLt()):
        check(tactic, site, tensors, dtype)


def weights_of(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return " ".join(name for name in shapes if name in "wb")


def check(tactic: Tactic, site: Site, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Every config that the library has a plan for, against float64 at the values of the type."""
    name = str(dtype).removeprefix("torch.")
    site = on_gpu.here(replace(site, specs={n: replace(spec, dtype=name) for n, spec in site.specs.items()}))
    given = {n: t.to(dtype) for n, t in tensors.items()}
    reason = why_not(tactic, site)
    assert reason is None, reason
    plain = run_body(site.body, given)["y"]
    exact = run_body(site.body, {n: t.double() for n, t in given.items()})["y"]
    refusals = []
    for config in offered(tactic, site).configs:
        try:
            launch = offered(tactic, site).bind(config, {n: given[n].cuda() for n in site.weights})
            (got,) = on_gpu.run_launch(launch, site, given)
        except (
            UnsupportedError,
            RefusedError,
            RuntimeError,
        ) as error:  # no plan for these sizes: the build refuses it too
            refusals.append(f"{dict(config)}: {error}")
            continue
        on_gpu.near(got, plain, exact)
    assert len(refusals) < len(offered(tactic, site).configs), refusals
