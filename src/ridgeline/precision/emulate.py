"""A graph run op by op through PyTorch, where every value can be looked at, and every node computed coarsely.

A node that is coarse reads its floats rounded, computes in float32, and rounds what it makes: that is what
our kernels do with half tensors, apart from values that a fused kernel never rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.base.library_math import library_math
from ridgeline.base.spec import Op, TensorSpec
from ridgeline.ir.infer import Inferred
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.kernels.elements import dtype_name, on_device
from ridgeline.kernels.values import taken_in
from ridgeline.options import DEFAULT_LIMITS, Limits
from ridgeline.precision.failed_runs import run_checked
from ridgeline.runtime.inference import Inference
from ridgeline.tactics.aten import compile_body, is_read_on_host, reads_of
from ridgeline.tactics.control import CONTROL_OPS
from ridgeline.tactics.fallback import RunOp, Surroundings, runner

Rounding: TypeAlias = Callable[[Tensor], Tensor]
Observe: TypeAlias = Callable[[str, Tensor], None]
Values: TypeAlias = dict[str, Any]
WIDE = (torch.float32, torch.float64)
MASK = 3  # the operand of Attention
DROPPED = (1 << 13) - 1  # digits of a float32 that TF32 has not


class OperandsOnly(ABC):
    """A rounding of what a node reads; what it makes stays as it is."""

    @abstractmethod
    def __call__(self, tensor: Tensor) -> Tensor: ...

    def operand(self, name: str, tensor: Tensor) -> Tensor:
        """What a node reads of the value with this name."""
        return self(tensor)


def _read(rounding: Rounding, name: str, tensor: Tensor) -> Tensor:
    return rounding.operand(name, tensor) if isinstance(rounding, OperandsOnly) else rounding(tensor)


def rounded_to(dtype: torch.dtype) -> Rounding:
    """Round to a half type and back; what is too large becomes infinite, as a Cast makes it."""
    return lambda tensor: tensor.to(dtype).to(tensor.dtype)


class Tf32Operands(OperandsOnly):
    """As tensor cores read float32: ten explicit digits. A vector is a bias, which is added in float32."""

    def __call__(self, tensor: Tensor) -> Tensor:
        return cut_to_tf32(tensor) if tensor.ndim > 1 else tensor


def cut_to_tf32(tensor: Tensor) -> Tensor:
    """Ten explicit digits; the others are dropped, as tensor cores do. Infinities and NaN stay."""
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    return torch.where(torch.isfinite(tensor), (bits & ~DROPPED).view(torch.float32), tensor)


def is_mask(op: Op, name: str) -> bool:
    """An operand that says which scores are far below all others: any low number says it."""
    return op.op_type == "Attention" and name in op.inputs[MASK : MASK + 1]


def mask_values(ops: Sequence[Op], outputs: Collection[str]) -> set[str]:
    """Results of ops that only choose and move, and that are read as attention masks and as nothing else."""
    readers: dict[str, list[Op]] = {}
    for op in ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    found: set[str] = set()
    for op in reversed(ops):
        if op.op_type != "Where" and not is_a(op, Kind.MOVEMENT):
            continue
        uses = [(name, user) for name in op.outputs for user in readers.get(name, [])]
        are_masks = all(is_mask(user, name) or found.issuperset(user.outputs) for name, user in uses)
        if uses and are_masks and not set(op.outputs) & set(outputs):
            found.update(op.outputs)
    return found


def node_key(op: Op) -> str:
    """What a node is called here: its first result."""
    return next(name for name in op.outputs if name)


class Emulator:
    """One graph, read at once: the model may be rewritten afterwards."""

    def __init__(self, model: ir.Model, limits: Limits = DEFAULT_LIMITS, device: str = "cpu") -> None:
        self.inference = Inference.of(model, limits)
        program = self.inference.program
        self.ops, self._constants = program.flat_ops(program.regions)
        self.device = device
        self._last_read = {name: i for i, op in enumerate(self.ops) for name in reads_of(op)}
        self.given = {n: on_device(t, device) for n, t in self.inference.weights.items()}
        self.given |= {n: self._placed(taken_in(a)) for n, a in self._constants.items()}
        self._kept = {*self.given, *self.outputs}
        self.masks = mask_values(self.ops, self.outputs)
        self._sample = ""  # what errors call the sample that runs
        self._runners: dict[int, list[RunOp]] = {}  # by the shapes that they were made for

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.inference.program.outputs

    def run(
        self,
        feeds: Mapping[str, Any],
        *,
        rounding: Mapping[str, Rounding] | None = None,
        observe: Observe | None = None,
    ) -> Values:
        """The outputs by name. `rounding` is by `node_key`; `observe` sees every value, inputs first."""
        values = self._begin(feeds, observe)
        rounding = rounding or {}
        rounded: dict[tuple[str, Rounding], Tensor] = {}
        for i, (op, run) in enumerate(zip(self.ops, self._compiled(values), strict=True)):
            self._step(op, run, values, rounding.get(node_key(op)), rounded)
            for name in op.outputs:
                if name and observe is not None and isinstance(values[name], Tensor):
                    observe(name, values[name])
            self._free(i, op, values)
        return {name: values[name] for name in self.outputs}

    def trace(self, feeds: Mapping[str, Any]) -> Values:
        """Every value of a run without rounding, to begin others from."""
        values = self._begin(feeds, None)
        for op, run in zip(self.ops, self._compiled(values), strict=True):
            self._step(op, run, values, None, {})
        return values

    def again(self, trace: Values, rounding: Mapping[str, Rounding]) -> Values:
        """The outputs of a traced run when some nodes round: only what these nodes reach is computed."""
        values = dict(trace)
        changed: set[str] = set()
        rounded: dict[tuple[str, Rounding], Tensor] = {}
        for op, run in zip(self.ops, self._compiled(trace), strict=True):
            step = rounding.get(node_key(op))
            if step is None and changed.isdisjoint(reads_of(op)):
                continue
            self._step(op, run, values, step, rounded)
            changed.update(name for name in op.outputs if name)
        return {name: values[name] for name in self.outputs}

    def _begin(self, feeds: Mapping[str, Any], observe: Observe | None) -> Values:
        values: Values = dict(self.given)
        self._sample = getattr(feeds, "where", "") or "this sample"
        for name in self.inference.program.inputs:
            values[name] = self._placed(taken_in(feeds[name]))
            if observe is not None and isinstance(values[name], Tensor):
                observe(name, values[name])
        return values

    def _placed(self, value: Any) -> Any:
        return on_device(value, self.device) if isinstance(value, Tensor) else value

    def _compiled(self, values: Values) -> list[RunOp]:
        """How to run each op at these shapes."""
        given = {name: values[name] for name in self.inference.program.inputs}
        specs = {
            name: TensorSpec(dtype_name(value), tuple(value.shape))
            for name, value in given.items()
            if isinstance(value, Tensor)
        }
        inferred = self.inference.at(specs)
        if id(inferred) not in self._runners:
            self._runners = {id(inferred): self._compile(inferred)}
        return self._runners[id(inferred)]

    def _compile(self, inferred: Inferred) -> list[RunOp]:
        program = self.inference.program
        kinds = {n: kind for n in inferred.types if (kind := inferred.non_tensor_kind(n)) is not None}
        around = Surroundings(
            inferred.specs, program.opset_imports, self.device, kinds, limits=program.limits
        )
        made: list[RunOp] = []
        for op in self.ops:
            if op.key in CONTROL_OPS:
                inner = partial(compile_body, around=around)
                made.append(CONTROL_OPS[op.key](op, reads_of(op), inner, program.limits)[0])
            else:
                made.append(runner(op, around)[0])
        return made

    def _step(
        self,
        op: Op,
        run: RunOp,
        values: Values,
        rounding: Rounding | None,
        rounded: dict[tuple[str, Rounding], Tensor],
    ) -> None:
        """Run one op; what several coarse nodes read is rounded once."""
        if self.masks.issuperset(op.outputs):
            rounding = None  # it is clipped to the type's range, and stays low
        given = []
        for i, name in enumerate(reads_of(op)):
            value = values[name] if name else None
            if isinstance(value, Tensor) and is_read_on_host(op, i):
                value = value.cpu()
            if (
                rounding is not None
                and isinstance(value, Tensor)
                and value.dtype in WIDE
                and not is_mask(op, name)
            ):
                if (name, rounding) not in rounded:
                    rounded[name, rounding] = _read(rounding, name, value)
                value = rounded[name, rounding]
            given.append(value)
        with torch.inference_mode(), torch.device(self.device), self._exact():
            made = run_checked(op, run, given, where=self._sample)
        for name, value in zip(op.outputs, made, strict=True):
            if not name:
                continue
            value = self._placed(value)
            if rounding is not None and isinstance(value, Tensor) and value.dtype in WIDE:
                # a quantised product reads levels and makes floats
                value = value if isinstance(rounding, OperandsOnly) else rounding(value)
            values[name] = value

    def _exact(self) -> AbstractContextManager[None]:
        """Products of float32 stay float32, so that what a rounding costs is measured against that."""
        return nullcontext() if self.device == "cpu" else library_math()

    def _free(self, i: int, op: Op, values: Values) -> None:
        """Drop what nobody reads any more; weights stay."""
        for name in {*reads_of(op), *op.outputs} - self._kept:
            if self._last_read.get(name, i) <= i:
                values.pop(name, None)
