"""Sites for the generated C++, their meaning in plain torch, and the check every case goes through."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from offers import offered, why_not
from ridgeline.base.spec import EPSILON, Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.cpp.compiler import find_compiler
from ridgeline.tactics.base import Tactic

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def _dims(a: Mapping[str, Any], x: Tensor) -> tuple[int, ...]:
    return tuple(a.get("axes", range(x.dim())))


def _reduce(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda a, x, *_: run(x, _dims(a, x), bool(a.get("keepdims", 1)))


def _fold(run: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def folded(_: Mapping[str, Any], first: Tensor, *rest: Tensor) -> Tensor:
        for other in rest:
            first = run(first, other)
        return first

    return folded


def _layer_norm(a: Mapping[str, Any], x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.layer_norm(x, x.shape[a.get("axis", -1) :], scale, bias, a.get("epsilon", 1e-5))


def _channels(v: Tensor, x: Tensor) -> Tensor:
    return v.reshape(-1, *[1] * (x.dim() - 2))


def _clip(a: Mapping[str, Any], x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return torch.clamp(
        x, low if low is not None else a.get("min"), high if high is not None else a.get("max")
    )


def _conv(a: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    top, left, bottom, right = a.get("pads", (0,) * 4)
    strides, dilations = a.get("strides", (1, 1)), a.get("dilations", (1, 1))
    return F.conv2d(F.pad(x, (left, right, top, bottom)), w, b, strides, 0, dilations, a.get("group", 1))


MEANING: dict[str, Callable[..., Tensor]] = {
    "Add": lambda a, x, y: x + y, "Sub": lambda a, x, y: x - y, "Mul": lambda a, x, y: x * y,
    "Div": lambda a, x, y: x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc"),
    "Pow": lambda a, x, y: x**y, "Sqrt": lambda a, x: x.sqrt(), "Reciprocal": lambda a, x: 1 / x,
    "Neg": lambda a, x: -x, "Abs": lambda a, x: x.abs(), "Exp": lambda a, x: x.exp(),
    "Log": lambda a, x: x.log(), "Erf": lambda a, x: x.erf(), "Tanh": lambda a, x: x.tanh(),
    "Sigmoid": lambda a, x: x.sigmoid(), "Relu": lambda a, x: x.relu(), "Sin": lambda a, x: x.sin(),
    "Cos": lambda a, x: x.cos(), "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
    "PRelu": lambda a, x, s: torch.where(x < 0, x * s, x), "Clip": _clip,
    "HardSigmoid": lambda a, x: torch.clamp(x * a.get("alpha", 0.2) + a.get("beta", 0.5), 0, 1),
    "HardSwish": lambda a, x: F.hardswish(x),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", "none")),
    "Swish": lambda a, x: x * torch.sigmoid(a.get("alpha", 1.0) * x),
    "Softplus": lambda a, x: torch.logaddexp(x, torch.zeros_like(x)),
    "Elu": lambda a, x: F.elu(x, a.get("alpha", 1.0)), "Selu": lambda a, x: F.selu(x),
    "Celu": lambda a, x: F.celu(x, a.get("alpha", 1.0)), "Mish": lambda a, x: F.mish(x),
    "Min": _fold(torch.minimum), "Max": _fold(torch.maximum), "Sum": _fold(torch.add),
    "Mean": lambda a, *x: sum(x[1:], x[0]) / len(x),
    "Where": lambda a, c, x, y: torch.where(c, x, y), "Equal": lambda a, x, y: x == y,
    "Greater": lambda a, x, y: x > y, "Less": lambda a, x, y: x < y,
    "GreaterOrEqual": lambda a, x, y: x >= y, "LessOrEqual": lambda a, x, y: x <= y,
    "And": lambda a, x, y: x & y, "Or": lambda a, x, y: x | y, "Xor": lambda a, x, y: x ^ y,
    "Not": lambda a, x: ~x, "Floor": lambda a, x: x.floor(), "Ceil": lambda a, x: x.ceil(),
    "Round": lambda a, x: x.round(), "Sign": lambda a, x: x.sign(), "IsNaN": lambda a, x: x.isnan(),
    "Identity": lambda a, x: x, "Transpose": lambda a, x: x.permute(a["perm"]),
    "Unsqueeze": lambda a, x: x.unsqueeze(a["axes"][0]), "Squeeze": lambda a, x: x.squeeze(a["axes"][0]),
    "Flatten": lambda a, x: x.flatten(1), "Expand": lambda a, x, s: x.expand(s.tolist()),
    "ReduceSum": _reduce(lambda x, d, k: x.sum(d, keepdim=k)),
    "ReduceMean": _reduce(lambda x, d, k: x.mean(d, keepdim=k)),
    "ReduceMax": _reduce(lambda x, d, k: x.amax(d, keepdim=k)),
    "ReduceMin": _reduce(lambda x, d, k: x.amin(d, keepdim=k)),
    "ReduceL1": _reduce(lambda x, d, k: x.abs().sum(d, keepdim=k)),
    "ReduceL2": _reduce(lambda x, d, k: x.square().sum(d, keepdim=k).sqrt()),
    "ReduceSumSquare": _reduce(lambda x, d, k: x.square().sum(d, keepdim=k)),
    "ReduceLogSumExp": _reduce(lambda x, d, k: x.logsumexp(d, keepdim=k)),
    "Softmax": lambda a, x: x.softmax(a.get("axis", -1)),
    "LogSoftmax": lambda a, x: x.log_softmax(a.get("axis", -1)), "LayerNormalization": _layer_norm,
    "RMSNormalization": lambda a, x, s: F.rms_norm(x, x.shape[-1:], s, a.get("epsilon", 1e-5)),
    "InstanceNormalization": lambda a, x, s, b: F.instance_norm(x, weight=s, bias=b),
    "BatchNormalization": lambda a, x, s, b, m, v: F.batch_norm(x, m, v, s, b, eps=a.get("epsilon", 1e-5)),
    "GlobalAveragePool": lambda a, x: x.mean(tuple(range(2, x.dim())), True),
    "MatMul": lambda a, x, w: x @ w, "Conv": _conv,
    "Gemm": lambda a, x, w, b: torch.addmm(b, x, w.t(), alpha=a["alpha"], beta=a["beta"]),
}  # fmt: skip
CASTS = {
    1: torch.float32,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    16: torch.bfloat16,
}


def evaluate(body: Body, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every value of the body, by plain torch, at the dtypes of the inputs."""
    values = dict(inputs) | {n: torch.from_numpy(np.asarray(c)) for n, c in body.constants.items()}
    is_double = any(t.dtype == torch.float64 for t in inputs.values())
    if is_double:
        values = {n: t.double() if t.is_floating_point() else t for n, t in values.items()}
    for op in body.ops:
        args = [values[n] if n else None for n in op.inputs]
        if op.op_type == "Cast":
            to = CASTS[op.attrs["to"]]
            values[op.outputs[0]] = args[0].to(torch.float64 if to.is_floating_point and is_double else to)
        else:
            values[op.outputs[0]] = MEANING[op.op_type](op.attrs, *args)
    return values


def make_site(
    ops: Sequence[Op], inputs: Mapping[str, Tensor], outputs: Sequence[str], *,
    layouts: Mapping[str, Any] | None = None, constants: Mapping[str, np.ndarray] | None = None,
    weights: Sequence[str] = (), values: Mapping[str, np.ndarray] | None = None, threads: int = 2,
) -> Site:  # fmt: skip
    """A site with specs read off a plain evaluation; `layouts` names the channels_last values."""
    body = Body(tuple(inputs), tuple(outputs), tuple(ops), dict(constants or {}))
    specs = {
        name: TensorSpec(dtype_name(t), tuple(t.shape), (layouts or {}).get(name, "contiguous"))
        for name, t in evaluate(body, inputs).items()
    }  # fmt: skip
    return Site(body, specs, frozenset(weights), values or {}, Target(threads=threads))


def dtype_name(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def empty(spec: TensorSpec) -> Tensor:
    """An output buffer in its layout; anything not written shows as NaN (or a wild integer)."""
    dtype = getattr(torch, spec.dtype)
    out = torch.full(spec.shape, math.nan if dtype.is_floating_point else 77 if dtype != torch.bool else 1)
    out = out.to(dtype)
    return out.contiguous(memory_format=torch.channels_last) if spec.layout == "channels_last" else out


def check(tactic: Tactic, site: Site, inputs: Mapping[str, Tensor]) -> None:
    """Every config, called and frozen, against float64 within twice the error of torch at the dtype."""
    assert why_not(tactic, site) is None
    plain = evaluate(site.body, inputs)
    exact = evaluate(site.body, {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()})
    weights = {name: inputs[name] for name in site.weights}
    args = list(inputs.values())
    for config in offered(tactic, site).configs:
        launch = offered(tactic, site).bind(config, weights)
        assert launch.writes_out
        called, frozen = ([empty(spec) for spec in site.outputs] for _ in range(2))
        launch.call(args, called)
        launch.frozen(args, frozen)()
        for name, got, again in zip(site.body.outputs, called, frozen, strict=True):
            assert torch.equal(got.nan_to_num(3.5), again.nan_to_num(3.5))
            close(got, plain[name], exact[name])


def close(got: Tensor, plain: Tensor, exact: Tensor) -> None:
    assert got.shape == exact.shape
    if not got.is_floating_point():
        assert torch.equal(got, plain)
        return
    want = exact.to(got.dtype)
    odd = ~want.isfinite()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[odd].nan_to_num(), want[odd].nan_to_num())
    if odd.all():
        return
    x, y, z = got[~odd].double(), plain[~odd].double(), exact[~odd].double()
    bound = 2 * (y - z).abs().max() + 2 * EPSILON[dtype_name(got)] * z.abs().max()
    assert (x - z).abs().max() <= bound
