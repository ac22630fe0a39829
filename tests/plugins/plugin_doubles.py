"""An op that doubles its input, for tests of what authors do wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import parser
from torch import Tensor

import ridgeline
from ridgeline.kernels.cpp.compiler import find_compiler
from ridgeline.plugins import CppTactic, Plugin, PluginOp, PythonTactic, Schema, register_op

X = np.random.default_rng(0).standard_normal((2, 8), np.float32)
P = Plugin("acme", "1.0", "pip install acme")
ONE = Schema("acme::Op", {"x": "T"}, {"y": "T"}, types={"T": ("float32", "float64")})
OPEN = {"inputs": "float[N, 8] x", "outputs": "float[N, 8] y"}
DOUBLE = """extern "C" void f(const float* x, float* y, int64_t n)
{ for (int64_t i = 0; i < n; ++i) y[i] = 2 * x[i]; }"""
needs_cpp = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")


def register(schema: Any = ONE, **parts: Any) -> PluginOp:
    given = {"shapes": lambda x, **attrs: x, "reference": lambda x, **attrs: x * 2, "plugin": P} | parts
    return register_op(schema, **given)


def model(
    nodes: str = "y = acme.Op (x)", inputs: str = "float[2, 8] x", outputs: str = "float[2, 8] y"
) -> Any:
    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18, "acme": 1]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    )


def build(source: Any = None, **options: Any) -> ridgeline.Engine:
    return ridgeline.build(source or model(), **{"level": 0, "threads": 1} | options)


def python(run: Any, **fields: Any) -> PythonTactic:
    return PythonTactic("acme.t", op="acme::Op", run=run, **fields)


def cpp(source: str = DOUBLE, **fields: Any) -> CppTactic:
    numbers = {"scalars": lambda at: (at.outputs[0].numel,)}
    return CppTactic("acme.c", op="acme::Op", source=source, function="f", **numbers | fields)


def good(x: Tensor, *, out: list[Tensor], **more: Any) -> None:
    torch.mul(x, 2, out=out[0])


def refusal(engine: ridgeline.Engine) -> str:
    return next(c.refused or "" for c in engine.plan.steps[0].losers if c.tactic.startswith("acme"))
