"""What follows an anchor, read as steps a library can take over or torch can do in place on the result.

`split_epilogue` reads; `bind_steps` and `bind_epilogue` make callables. Anchors are read beside this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.kernels.elements import to_torch
from ridgeline.kernels.floor import call_floor

Apply: TypeAlias = Callable[[Tensor, Sequence[Any]], object]


@dataclass(frozen=True)
class Bias:
    """Add a constant that varies along the channel axis only, or not at all."""

    name: str


@dataclass(frozen=True)
class Unary:
    """A pointwise function, under the name and with the scalars that torch's oneDNN ops take."""

    name: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


@dataclass(frozen=True)
class Binary:
    """`add`, `sub`, `mul` or `div` by another operand; `is_full`: a region input of the very same shape."""

    name: str
    other: str
    is_full: bool


Step: TypeAlias = Bias | Unary | Binary


@dataclass(frozen=True)
class Epilogue:
    """`steps` turn the anchor's result into `value`, one after the other; `rest` runs op by op after them."""

    value: str
    steps: tuple[Step, ...]
    made: tuple[str, ...]  # the value after each step
    rest: tuple[Op, ...]

    def is_all_of(self, body: Body) -> bool:
        """Whether the steps lead from the anchor to the region's one output."""
        return not self.rest and body.outputs == (self.value,)

    @property
    def note(self) -> str:
        """What a launch should say about the rest, if there is one."""
        return "op by op after the call: " + ", ".join(op.op_type for op in self.rest) if self.rest else ""

    def split_bias(self) -> tuple[tuple[str, ...], tuple[Step, ...]]:
        """The biases right after the anchor, to be summed into one vector, and the steps after them."""
        count = next((i for i, step in enumerate(self.steps) if not isinstance(step, Bias)), len(self.steps))
        return tuple(step.name for step in self.steps[:count] if isinstance(step, Bias)), self.steps[count:]


@dataclass(frozen=True, kw_only=True)
class AnchorSite:
    """A product or a convolution with a constant weight, and what follows it."""

    anchor: Op
    x: TensorSpec
    y: TensorSpec
    slot: int  # of the activation among the region's inputs
    weight: str
    biases: tuple[str, ...]  # the op's own, if any
    beta: float = 1.0  # what the op multiplies its own bias by
    epilogue: Epilogue

    channel_axis: ClassVar[int]  # of the result

    @property
    def channels(self) -> int:
        return self.y.shape[self.channel_axis]

    def bias(self, constants: Mapping[str, Tensor], names: Sequence[str] | None = None) -> Tensor | None:
        """The sum of these biases as one contiguous vector. By default: all before any other step."""
        if names is None:
            names = (*self.biases, *self.epilogue.split_bias()[0])
        if not names:
            return None
        own = {name: constants[name] * self.beta for name in self.biases if self.beta != 1.0}
        first, *others = ({**constants, **own}[name].reshape(-1) for name in names)
        return sum(others, first.expand(self.channels)).contiguous()

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is left of the epilogue once the biases right after the anchor are summed."""
        return self.epilogue.split_bias()[1]


def read_operands(site: Site, op_types: Sequence[str]) -> tuple[Op, str, str, str]:
    """The anchor of these types, and the names of its activation, its constant weight and its bias or ""."""
    anchor = find_anchor(site.body, op_types)
    data, weight, bias = (*anchor.inputs, "")[:3]
    if data not in site.body.inputs:
        producer = site.body.producer(data)
        fed_by = producer.op_type if producer else "a constant"
        raise RefusedError(f"{fed_by} feeds the {anchor.op_type} inside the region")
    if not is_constant(site, weight):
        raise RefusedError(f"weight {weight!r} changes between runs")
    return anchor, data, weight, bias


def split_epilogue(site: Site, anchor: Op, *, channel_axis: int) -> Epilogue:
    """Follow the anchor's result as far as each value has one reader and each reader is a known step."""
    body = site.body
    value, steps, made, taken = anchor.outputs[0], [], [], [anchor]
    while value not in body.outputs:
        found = _next_step(site, value, channel_axis)
        if found is None:
            break
        step, ops = found
        steps.append(step)
        taken += ops
        value = ops[-1].outputs[0]
        made.append(value)
    used = {id(op) for op in taken}
    rest = tuple(op for op in body.ops if id(op) not in used)
    return Epilogue(value, tuple(steps), tuple(made), rest)


def _next_step(site: Site, value: str, channel_axis: int) -> tuple[Step, list[Op]] | None:
    users = site.body.consumers(value)
    if len(users) == 2:
        return _gate(site, value, users)
    if len(users) != 1 or users[0].domain:
        return None
    op = users[0]
    step = _binary(site, op, value, channel_axis) if op.op_type in BINARY else _unary(site, op, value)
    return (step, [op]) if step is not None else None


def _gate(site: Site, value: str, users: Sequence[Op]) -> tuple[Step, list[Op]] | None:
    """value * gate(value), the two spellings that oneDNN knows as one function."""
    gate, mul = users
    if mul.op_type != "Mul" or sorted(mul.inputs) != sorted((value, gate.outputs[0])):
        return None
    if len(site.body.consumers(gate.outputs[0])) != 1 or gate.outputs[0] in site.body.outputs:
        return None
    if gate.op_type == "Sigmoid":
        return Unary("swish"), [gate, mul]
    if gate.op_type == "HardSigmoid" and _is_torch_hardsigmoid(gate):
        return Unary("hardswish"), [gate, mul]
    return None


PLAIN_UNARY = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "HardSwish": "hardswish"}
BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}


def _unary(site: Site, op: Op, value: str) -> Step | None:
    if op.inputs[0] != value:
        return None
    if op.op_type in PLAIN_UNARY:
        return Unary(PLAIN_UNARY[op.op_type])
    if op.op_type == "HardSigmoid":
        return Unary("hardsigmoid") if _is_torch_hardsigmoid(op) else None
    if op.op_type == "LeakyRelu":
        return Unary("leaky_relu", (float(op.attrs.get("alpha", 0.01)),))
    if op.op_type == "Gelu":
        return Unary("gelu", algorithm=op.attrs.get("approximate", "none"))
    if op.op_type == "Swish":
        return Unary("swish") if op.attrs.get("alpha", 1.0) == 1.0 else None
    if op.op_type == "Clip":
        return _clip(site, op)
    return None


def _is_torch_hardsigmoid(op: Op) -> bool:
    slope, offset = op.attrs.get("alpha", 0.2), op.attrs.get("beta", 0.5)
    return math.isclose(slope, 1 / 6, rel_tol=1e-6) and math.isclose(offset, 0.5, rel_tol=1e-6)


def _clip(site: Site, op: Op) -> Step | None:
    bounds = [*op.inputs[1:], "", ""][:2]
    low, high = (_known_scalar(site, name) for name in bounds)
    if any(name and bound is None for name, bound in zip(bounds, (low, high), strict=True)):
        return None
    if low == 0.0 and high is None:
        return Unary("relu")
    return Unary("hardtanh", (low, high)) if low is not None and high is not None else None


def _known_scalar(site: Site, name: str) -> float | None:
    known = site.body.constants.get(name, site.values.get(name)) if name else None
    return float(np.asarray(known).reshape(())) if known is not None and known.size == 1 else None


def _binary(site: Site, op: Op, value: str, channel_axis: int) -> Step | None:
    is_left = op.inputs[0] == value
    other = op.inputs[1] if is_left else op.inputs[0]
    if not is_left and op.op_type in ("Sub", "Div"):
        return None
    if other not in site.body.inputs and other not in site.body.constants:
        return None
    here, there, result = site.specs[value], spec_of(site, other), site.specs[op.outputs[0]]
    # a step works in place, so it may not widen the running value
    if result.shape != here.shape or there.dtype != here.dtype:
        return None
    if op.op_type == "Add" and is_constant(site, other) and is_per_channel(there, here, channel_axis):
        return Bias(other)
    is_full = there.shape == here.shape and other in site.body.inputs
    return Binary(BINARY[op.op_type], other, is_full)


def is_per_channel(there: TensorSpec, here: TensorSpec, channel_axis: int) -> bool:
    axis = channel_axis % len(here.shape) - len(here.shape)
    return all(
        size == 1 or position == axis
        for position, size in zip(range(-len(there.shape), 0), there.shape, strict=True)
    )


def spec_of(site: Site, name: str) -> TensorSpec:
    if name in site.specs:
        return site.specs[name]
    array = site.body.constants[name]
    return TensorSpec(str(array.dtype), array.shape)


def is_constant(site: Site, name: str) -> bool:
    return name in site.weights or name in site.body.constants


def find_anchor(body: Body, op_types: Sequence[str]) -> Op:
    """The one op of the region that has one of these types."""
    found = [op for op in body.ops if op.op_type in op_types and not op.domain]
    if len(found) != 1:
        raise RefusedError(f"region has {len(found) or 'no'} {'/'.join(op_types)}, want one")
    return found[0]


def constant_tensors(site: Site, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Everything that never changes between runs, by name."""
    known = {name: to_torch(array) for name, array in site.body.constants.items()}
    return known | dict(weights)


IN_PLACE: dict[str, Callable[[Tensor], object]] = {
    "relu": torch.relu_,
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
    "hardswish": torch.ops.aten.hardswish_.default,
    "hardsigmoid": torch.ops.aten.hardsigmoid_.default,
    "swish": torch.ops.aten.silu_.default,
}
IN_PLACE_BINARY: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add": Tensor.add_, "sub": Tensor.sub_, "mul": Tensor.mul_, "div": Tensor.div_,
}  # fmt: skip


def bind_steps(site: Site, steps: Sequence[Step], constants: Mapping[str, Tensor]) -> tuple[Apply, ...]:
    """Each step as `apply(y, inputs)`, in place on `y`, which has the shape of the step's value."""
    return tuple(_bind_step(site, step, constants) for step in steps)


def _bind_step(site: Site, step: Step, constants: Mapping[str, Tensor]) -> Apply:
    if isinstance(step, Unary):
        return _bind_unary(step)
    function = IN_PLACE_BINARY["add" if isinstance(step, Bias) else step.name]
    name = step.name if isinstance(step, Bias) else step.other
    if name in constants:
        fixed = constants[name]
        return lambda y, _: function(y, fixed)
    slot = site.body.inputs.index(name)
    return lambda y, inputs: function(y, inputs[slot])


def _bind_unary(step: Unary) -> Apply:
    if step.name in IN_PLACE:
        function = IN_PLACE[step.name]
        return lambda y, _: function(y)
    if step.name == "hardtanh":
        low, high = step.scalars
        return lambda y, _: torch.clamp_(y, low, high)
    if step.name == "leaky_relu":
        (slope,) = step.scalars
        return lambda y, _: torch.ops.aten.leaky_relu_.default(y, slope)
    assert step.name == "gelu", f"{step.name} has no form in place"
    return lambda y, _: torch.ops.aten.gelu_.default(y, approximate=step.algorithm)


Finish: TypeAlias = Callable[[Tensor, Sequence[Any]], tuple[Tensor, ...]]


def bind_epilogue(
    site: Site, epilogue: Epilogue, steps: Sequence[Step], constants: Mapping[str, Tensor]
) -> Finish:
    """From a library's result to the outputs of the region: these steps in place, then the rest."""
    applies, finish = bind_steps(site, steps, constants), _bind_rest(site, epilogue, constants)
    if not applies:
        return finish

    def run(y: Tensor, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
        for apply in applies:
            apply(y, inputs)
        return finish(y, inputs)

    return run


def _bind_rest(site: Site, epilogue: Epilogue, constants: Mapping[str, Tensor]) -> Finish:
    """From the value after the steps to the outputs of the region, in the layouts of their specs."""
    outputs = site.body.outputs
    lay = [to_layout(spec) for spec in site.outputs]
    if epilogue.is_all_of(site.body):
        only = lay[0]
        return lambda y, _: (only(y),)
    names, value, rest = site.body.inputs, epilogue.value, epilogue.rest
    fixed: dict[str, Any] = {"": None, **constants}

    def finish(y: Tensor, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
        values = {**fixed, **dict(zip(names, inputs, strict=True)), value: y}
        for op in rest:
            made = call_floor(op, [values[name] for name in op.inputs])
            values.update(zip(op.outputs, made, strict=True))
        return tuple(put(values[name]) for put, name in zip(lay, outputs, strict=True))

    return finish


def to_layout(spec: TensorSpec) -> Callable[[Tensor], Tensor]:
    """Copies only a tensor that does not lie as the spec says."""
    rank = len(spec.shape)
    if spec.layout == "contiguous":
        return Tensor.contiguous
    if rank == 3:
        return lambda y: y.unsqueeze(2).contiguous(memory_format=torch.channels_last).squeeze(2)
    memory_format = torch.channels_last if rank == 4 else torch.channels_last_3d
    return lambda y: y.contiguous(memory_format=memory_format)
