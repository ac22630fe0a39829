"""Regions in a few words, their meaning in plain torch, and the check of a launch against it in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.spec import EPSILON, Body, Config, Op, Site, Target, TensorSpec
from ridgeline.tactics.base import Tactic

Shape = tuple[int, ...]


def node(op_type: str, inputs: str, output: str, **attrs: Any) -> Op:
    names = tuple("" if name == "-" else name for name in inputs.split())
    return Op(op_type, names, (output,), attrs)


def make_site(
    inputs: Mapping[str, Tensor | Shape],
    ops: Sequence[Op],
    *,
    weights: str = "",
    outputs: str = "y",
    constants: Mapping[str, float] | None = None,
    channels_last: str = "",
    target: Target | None = None,
) -> tuple[Site, dict[str, Tensor]]:
    """The site and float32 tensors for all its inputs; `weights` and `channels_last` are lists of names."""
    generator = torch.Generator().manual_seed(7)
    tensors = {
        name: given if isinstance(given, Tensor) else torch.randn(given, generator=generator)
        for name, given in inputs.items()
    }
    arrays = {name: np.asarray(value, dtype=np.float32) for name, value in (constants or {}).items()}
    body = Body(tuple(inputs), tuple(outputs.split()), tuple(ops), arrays)
    values = run_body(body, tensors)
    specs = {
        name: TensorSpec(
            str(value.dtype).removeprefix("torch."),
            tuple(value.shape),
            "channels_last" if name in channels_last.split() else "contiguous",
        )
        for name, value in values.items()
    }
    site = Site(body, specs, frozenset(weights.split()), {}, target or Target("cpu", threads=2))
    placed = {name: as_spec(tensor, specs[name]) for name, tensor in tensors.items()}
    return site, placed


def as_spec(tensor: Tensor, spec: TensorSpec) -> Tensor:
    return torch.empty_strided(tensor.shape, spec.strides, dtype=tensor.dtype).copy_(tensor)


def run_body(body: Body, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    dtype = next(t.dtype for t in tensors.values() if t.is_floating_point())
    values = {name: torch.from_numpy(np.array(c)).to(dtype) for name, c in body.constants.items()}
    values |= tensors
    for op in body.ops:
        values[op.outputs[0]] = run_op(op, [values[n] if n else None for n in op.inputs])[0]
    return values


def run_op(op: Op, inputs: Sequence[Tensor | None]) -> tuple[Tensor]:
    return (MEANING[op.op_type](*inputs, **op.attrs),)


def _conv(x, w, b=None, *, strides=None, pads=None, dilations=None, group=1):
    rank = x.dim() - 2
    pads = pads or [0] * 2 * rank
    padded = F.pad(x, [side for axis in reversed(range(rank)) for side in (pads[axis], pads[axis + rank])])
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return function(padded, w, b, strides or [1] * rank, 0, dilations or [1] * rank, group)


def _conv_same(x, w, b=None, *, auto_pad="NOTSET", **attrs):
    if auto_pad == "NOTSET":
        return _conv(x, w, b, **attrs)
    rank = x.dim() - 2
    totals = []
    for axis in range(rank):
        stride = (attrs.get("strides") or [1] * rank)[axis]
        size, kernel = x.shape[axis + 2], w.shape[axis + 2]
        totals.append(max((math.ceil(size / stride) - 1) * stride + kernel - size, 0))
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = small + large if auto_pad == "SAME_UPPER" else large + small
    return _conv(x, w, b, pads=pads, **attrs)


def _conv_transpose(x, w, b=None, *, strides=None, pads=None, dilations=None, group=1, output_padding=None):
    rank = x.dim() - 2
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    padding = (pads or [0] * rank)[:rank]
    extra = output_padding or [0] * rank
    return function(x, w, b, strides or [1] * rank, padding, extra, group, dilations or [1] * rank)


def _gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    y = alpha * ((a.t() if transA else a) @ (b.t() if transB else b))
    return y if c is None else y + beta * c


def _attention(q, k, v, mask=None, *, scale=None, is_causal=0, q_num_heads=0, kv_num_heads=0, **_):
    is_joined = q.dim() == 3
    if is_joined:
        q = q.unflatten(2, (q_num_heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(2, (kv_num_heads, -1)).transpose(1, 2) for t in (k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    y = scores.softmax(-1) @ v
    return y.transpose(1, 2).flatten(2) if is_joined else y


MEANING: dict[str, Any] = {
    "Conv": _conv_same,
    "ConvTranspose": _conv_transpose,
    "MatMul": torch.matmul,
    "Gemm": _gemm,
    "Attention": _attention,
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Max": torch.maximum,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Exp": torch.exp,
    "HardSwish": F.hardswish,
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
    "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
    "Clip": torch.clamp,
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    "Transpose": lambda x, *, perm: x.permute(perm),
    "Reshape": lambda x, *, to: x.reshape(to),
    "ReduceMax": lambda x: x.amax(tuple(range(x.dim())), keepdim=True),
}


def check(tactic: Tactic, site: Site, tensors: Mapping[str, Tensor]) -> list[Config]:
    """Every config of the tactic, called twice and frozen, against the body in float64; the configs tried."""
    assert why_not(tactic, site) is None
    wide = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    exact, narrow = run_body(site.body, wide), run_body(site.body, tensors)
    weights = {name: tensors[name] for name in site.weights}
    inputs = [tensors[name] for name in site.body.inputs]
    before = [t.clone() for t in inputs]
    configs = offered(tactic, site).configs
    assert configs
    with torch.inference_mode():
        for config in configs:
            launch = offered(tactic, site).bind(config, weights)
            outs = [torch.empty_strided(s.shape, s.strides).fill_(math.nan) for s in site.outputs]
            if launch.writes_out:
                frozen = launch.frozen(inputs, outs)
                frozen()
                _compare(site, outs, exact, narrow, f"{config} frozen")
                for out in outs:
                    out.fill_(math.nan)
            for _ in range(2):
                returned = launch.call(inputs, outs if launch.writes_out else ())
            got = outs if launch.writes_out else returned
            assert got is not None
            _compare(site, got, exact, narrow, str(config))
    assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True)), "an input was written to"
    return configs


def _compare(
    site: Site, got: Sequence[Tensor], exact: Mapping[str, Tensor], narrow: Mapping[str, Tensor], label: str
) -> None:
    for name, spec, tensor in zip(site.body.outputs, site.outputs, got, strict=True):
        assert tuple(tensor.shape) == spec.shape, label
        assert tensor.stride() == spec.strides or 1 in spec.shape, label
        want = exact[name]
        allowed = 2 * (narrow[name] - want).abs().max() + 2 * EPSILON[spec.dtype] * want.abs().max()
        off = (tensor.double() - want).abs().max()
        assert off <= allowed, f"{label}: off by {off:.3g}, allowed {allowed:.3g}"
