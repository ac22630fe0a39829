"""Quantised regions for Triton kernels: sites with specs, and what they mean in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from product_cases import GPU, for_interpreter
from torch import Tensor

from interpreted import interpret
from ridgeline.base.spec import Body, Config, Op, Site, Target, TensorSpec
from ridgeline.frontend.types import ONNX_TYPES
from ridgeline.kernels.elements import dtype_name, to_torch
from ridgeline.kernels.floor import call_floor
from ridgeline.kernels.floor.sub_byte import opened
from ridgeline.tactics.cuda.triton_product import TritonProduct

UNIT32 = 2.0**-24


def codes(*shape: int, dtype: str, seed: int = 0) -> Tensor:
    """Random codes; float8 ones are finite."""
    made = torch.Generator().manual_seed(seed)
    if dtype in ("int8", "uint8"):
        low, high = (-128, 128) if dtype == "int8" else (0, 256)
        return torch.randint(low, high, shape, generator=made, dtype=torch.int16).to(getattr(torch, dtype))
    return torch.randn(shape, generator=made).to(getattr(torch, dtype))


def scales(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.5
    return (made / 64).to(dtype)


def op(op_type: str, inputs: str, output: str, **attrs: Any) -> Op:
    return Op(op_type, tuple("" if n == "-" else n for n in inputs.split()), (output,), attrs)


def quantize(x: str, y: str, dtype: str = "int8", scale: str = "ys") -> Op:
    return op("QuantizeLinear", f"{x} {scale}", y, output_dtype=ONNX_TYPES[dtype])


def make_site(
    tensors: Mapping[str, Tensor], ops: Sequence[Op], outputs: Sequence[str] = ("y",), *,
    inputs: str = "x r", last: str = "", constants: Mapping[str, np.ndarray] | None = None,
    target: Target = GPU,
) -> Site:  # fmt: skip
    """Everything but `inputs` is a weight; specs are those of the floor's values."""
    values: dict[str, Any] = dict(tensors) | {n: to_torch(a) for n, a in (constants or {}).items()}
    for node in ops:
        made = call_floor(node, [values[n] if n else None for n in node.inputs])
        values.update(zip(node.outputs, made, strict=True))
    specs = {
        n: TensorSpec(
            dtype_name(v), tuple(v.shape),
            "channels_last" if n in last.split() else "contiguous",
        )
        for n, v in values.items()
    }  # fmt: skip
    weights = frozenset(n for n in tensors if n not in inputs.split())
    body = Body(tuple(tensors), tuple(outputs), tuple(ops), dict(constants or {}))
    return Site(body, specs, weights, {}, target)


def exact(site: Site, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every value in float64, with nothing rounded on the way; QuantizeLinear leaves its quotient."""
    values: dict[str, Tensor] = {n: to_torch(a) for n, a in site.body.constants.items()} | dict(tensors)
    wide: dict[str, Tensor] = {}

    def get(name: str) -> Tensor:
        return wide[name] if name in wide else opened(values[name]).double()

    for node in site.body.ops:
        given = [get(n) if n else None for n in node.inputs]
        if node.op_type == "QuantizeLinear":
            made = call_floor(Op("Div", node.inputs[:2], node.outputs), given[:2])[0]
        elif node.op_type == "DequantizeLinear":
            made = _dequantized(node, given)
        else:
            made = call_floor(node, given)[0]
        wide[node.outputs[0]] = made
    return wide


def _dequantized(node: Op, given: Sequence[Any]) -> Tensor:
    x, scale, zero = (*given, None)[:3]
    axis, block = int(node.attrs.get("axis", 1)), int(node.attrs.get("block_size", 0))

    def placed(parameter: Tensor) -> Tensor:
        if parameter.numel() == 1:
            return parameter.reshape(())
        if block:
            return parameter.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
        shape = [1] * x.ndim
        shape[axis] = -1
        return parameter.reshape(shape)

    return (x if zero is None else x - placed(zero)) * placed(scale)


def run(tactic: TritonProduct, site: Site, config: Config, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The tactic's kernel with the tactic's arguments, in the interpreter; outputs are poisoned before."""
    placed = [_as_spec(tensors[name], site.specs[name]) for name in site.body.inputs]
    weights = {n: t for n, t in zip(site.body.inputs, placed, strict=True) if n in site.weights}
    found = tactic.product(site)
    cut = tactic.cut_of(found.reading.problem, config)
    operands = found.operands(cut, weights, device="cpu")
    outputs = [_poisoned(spec) for spec in site.outputs]
    unread = [t if i in operands.reads else None for i, t in enumerate(placed)]
    with np.errstate(all="ignore"):
        interpret(for_interpreter(found.kernel(cut)), operands.grid, operands.arguments(unread, outputs))
    return outputs


def _as_spec(tensor: Tensor, spec: TensorSpec) -> Tensor:
    if tensor.element_size() > 1:
        return torch.empty_strided(tensor.shape, spec.strides, dtype=tensor.dtype).copy_(tensor)
    made = torch.empty_strided(tensor.shape, spec.strides, dtype=torch.uint8)
    return made.copy_(tensor.view(torch.uint8)).view(tensor.dtype)


def _poisoned(spec: TensorSpec) -> Tensor:
    dtype = getattr(torch, spec.dtype)
    made = torch.empty_strided(spec.shape, spec.strides, dtype=dtype)
    if dtype.is_floating_point:
        return (
            made.fill_(torch.nan)
            if made.element_size() > 1
            else made.view(torch.uint8).fill_(0x7F).view(dtype)
        )
    return made.fill_(77)


def require_near(got: Tensor, want: Tensor, bound: Tensor) -> None:
    """Floats within `bound`; codes are those of a number within it."""
    assert got.shape == want.shape
    if got.dtype in (torch.int8, torch.uint8):
        ends = torch.iinfo(got.dtype)
        low, high = ((want + side * bound).round().clamp(ends.min, ends.max) for side in (-1, 1))
        wide = got.double()
        assert ((low <= wide) & (wide <= high)).all(), f"codes are off by {(wide - want).abs().max():.3g}"
        return
    if got.element_size() == 1:
        largest = 448.0 if got.dtype == torch.float8_e4m3fn else 57344.0
        low, high = (
            (want + side * bound).clamp(-largest, largest).float().to(got.dtype).double() for side in (-1, 1)
        )
        wide = got.double()
        assert ((low <= wide) & (wide <= high)).all(), f"codes are off by {(wide - want).abs().max():.3g}"
        return
    assert not got.isnan().any(), "something was not written"
    bound = bound + torch.finfo(got.dtype).eps / 2 * want.abs() + 2.0**-24
    off = (got.double() - want).abs()
    assert (off <= bound).all(), f"off by {off.max():.3g}, {(off / bound).max():.2f} times the bound"
