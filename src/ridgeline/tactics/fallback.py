"""One op, run by the first who has it: PyTorch, then ONNX Runtime, then the onnx reference evaluator.

So an op is unsupported only if nobody has it. The slower two say so in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from ridgeline.base.spec import Op, Site, TensorSpec
from ridgeline.errors import BuildError, InputError
from ridgeline.frontend.evaluator import Evaluator
from ridgeline.frontend.other_runtimes import open_session, session_options, session_or_evaluator
from ridgeline.frontend.types import is_non_tensor
from ridgeline.ir.body import model_proto
from ridgeline.ir.infer import type_proto
from ridgeline.ir.op_row import Kind, Trait
from ridgeline.ir.ops import has, is_a
from ridgeline.kernels.elements import BIT_WIDTHS, SUB_BYTE, crosses, on_device
from ridgeline.kernels.floor import FLOOR, call_floor
from ridgeline.kernels.floor.sub_byte import moved_as_bits
from ridgeline.kernels.values import elements_of, outside, taken_in, type_of
from ridgeline.options import DEFAULT_LIMITS, Limits

Values = Sequence[Any]
RunOp = Callable[[Values], Sequence[Any]]


@dataclass(frozen=True)
class Surroundings:
    """What the ops of a body are compiled for. `non_tensor` has the kinds of values without a spec."""

    specs: Mapping[str, TensorSpec]
    opset_imports: Mapping[str, int]
    device: str = "cpu"
    non_tensor: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = DEFAULT_LIMITS
    before: Callable[[Op, Values], None] | None = None  # is called with every op and what it will be given

    @staticmethod
    def of(site: Site, opset_imports: Mapping[str, int], limits: Limits = DEFAULT_LIMITS) -> Surroundings:
        device = site.target.traits.device
        return Surroundings(site.specs, opset_imports, device, site.non_tensor, limits)

    @property
    def is_host(self) -> bool:
        return self.device == "cpu"


def why_slow(op: Op, around: Surroundings) -> str | None:
    """Why PyTorch does not run this op; None when it does."""
    if is_a(op, Kind.CONTROL):
        return None
    entry = FLOOR.get(op.key)
    if entry is None:
        return f"PyTorch has no {op.key}"
    for name in (*op.inputs, *op.outputs):
        if "string" in around.non_tensor.get(name, "") and not entry.takes_strings:
            return f"{name} is {around.non_tensor[name]}, which torch tensors do not hold"
    return entry.why_not(op, around.specs) if entry.why_not is not None else None


def runner(op: Op, around: Surroundings) -> tuple[RunOp, list[str]]:
    """How to run `op`, and a note when it is a slow way."""
    reason = why_slow(op, around)
    if reason is None:
        run, notes = _quick(op, around), []
    else:
        session = _OtherOp(op, around.opset_imports)
        session.open_ahead(around.specs)
        notes = [f"{op.op_type} at {op.name or op.outputs[0]}: {reason}; run by {session.who}"]
        run = _on_host(session, around)
    before = around.before
    if before is None:
        return run, notes

    def checked(values: Values) -> Sequence[Any]:
        before(op, values)
        return run(values)

    return checked, notes


def _quick(op: Op, around: Surroundings) -> RunOp:
    """The floor's way, with what the types of the op need around it."""
    other: RunOp = partial(_call_on_host, op, around.device)
    run = _floor_or(op, _OtherOp(op, around.opset_imports) if around.is_host else other)
    reads = [around.specs.get(n) for n in op.inputs if n]
    if any(spec is None for spec in reads):
        return _AnyOp(op, run, around)
    if not has(op, Trait.READS_NARROW) and any(
        spec.dtype in BIT_WIDTHS for spec in reads if spec is not None
    ):
        return moved_as_bits(run)
    return run


def _floor_or(op: Op, other: RunOp) -> RunOp:
    """A floor op; the other way from the first time on that PyTorch has no kernel for its types."""
    is_missing = False

    def run(values: Values) -> Sequence[Any]:
        nonlocal is_missing
        if not is_missing:
            try:
                return call_floor(op, values)
            except RuntimeError as error:  # NotImplementedError is one
                if not _is_missing(error):
                    raise
                is_missing = True
        return other(values)

    return run


def _call_on_host(op: Op, device: str, values: Values) -> Sequence[Any]:
    """A floor op of values that lie on a GPU."""
    with torch.device("cpu"):
        made = call_floor(op, [v if v is None else v.cpu() for v in values])
    return [v if v is None else v.to(device) for v in made]


def _is_missing(error: RuntimeError) -> bool:
    """PyTorch says that it has no kernel for a type: as its own error, or as text."""
    return isinstance(error, NotImplementedError) or "not implemented for" in str(error)


class _AnyOp:
    """An op whose inputs are known only when they come: strings go elsewhere, narrow types by their bits."""

    def __init__(self, op: Op, run: RunOp, around: Surroundings) -> None:
        self.run = run
        self.opens_narrow = has(op, Trait.READS_NARROW)
        self.takes_strings = FLOOR[op.key].takes_strings
        self.session = _on_host(_OtherOp(op, around.opset_imports), around)

    def __call__(self, values: Values) -> Sequence[Any]:
        for value in values:
            if isinstance(value, np.ndarray) and not self.takes_strings:
                return self.session(values)
            if isinstance(value, Tensor) and value.dtype in SUB_BYTE and not self.opens_narrow:
                return moved_as_bits(self.run)(values)
        return self.run(values)


def _on_host(run: RunOp, around: Surroundings) -> RunOp:
    """What runs on the host, for values that lie on the device."""
    return run if around.is_host else lambda values: [placed(v, around.device) for v in run(values)]


def placed(value: Any, device: str) -> Any:
    """A tensor where the device reads it; all else stays on the host."""
    return on_device(value, device) if isinstance(value, Tensor) else value


Open = Callable[[Mapping[str, Any]], Sequence[Any]]


def require_rows(op: Op, values: Values) -> None:
    """Raise before ONNX Runtime would end the process."""
    if has(op, Trait.NEVER_EMPTY) and not values[0].numel():
        raise InputError(
            f"{op.op_type} at {op.name or op.outputs[-1]} has nothing to compute",
            got=f"a sequence of {list(values[0].shape)}",
            want="at least one step and one row",
        )


class _OtherOp:
    """An op as a model of its own for somebody else, opened when the types of its inputs are first seen."""

    def __init__(self, op: Op, opset_imports: Mapping[str, int]) -> None:
        self.op, self.opset_imports = op, opset_imports
        self.opened: dict[tuple[bytes, ...], Open] = {}
        self.who = "ONNX Runtime, one op at a time"

    def __call__(self, values: Values) -> Sequence[Any]:
        given = {n: v for n, v in zip(self.op.inputs, values, strict=True) if n}
        require_rows(self.op, values)
        types = {name: type_of(value) for name, value in given.items()}
        results = self._opened(types)({n: outside(v) for n, v in given.items()})
        made = dict(zip((n for n in self.op.outputs if n), results, strict=True))
        return [taken_in(made[n]) if n else None for n in self.op.outputs]

    def open_ahead(self, specs: Mapping[str, TensorSpec]) -> None:
        """Where the types are known already, so that the plan says who it will be."""
        names = [n for n in self.op.inputs if n]
        if all(n in specs and not is_non_tensor(specs[n].dtype) for n in names):
            self._opened({n: _any_shape(type_proto(specs[n])) for n in names})

    def _opened(self, types: Mapping[str, onnx.TypeProto]) -> Open:
        key = tuple(kind.SerializeToString() for kind in types.values())
        if key not in self.opened:
            self.opened[key] = self._open(types)
        return self.opened[key]

    def _open(self, types: Mapping[str, onnx.TypeProto]) -> Open:
        model = model_proto(
            [self.op],
            inputs=types,
            outputs={name: onnx.TypeProto() for name in self.op.outputs if name},
            constants={},
            opset_imports=self.opset_imports,
        )

        def session() -> Any:
            _require_crossing(types)
            return open_session(model, session_options(threads=1))

        def failed(rows: Sequence[str]) -> BuildError:
            return BuildError(f"nobody runs {self.op.key} at {self.op.name or self.op.outputs[0]}", rows=rows)

        runner, is_session = session_or_evaluator(session, lambda: Evaluator(model), failed)
        if not is_session:
            self.who = "the onnx reference evaluator, in Python"
        return lambda feeds: runner.run(None, dict(feeds))


def _require_crossing(types: Mapping[str, onnx.TypeProto]) -> None:
    for name, kind in types.items():
        wrong = [dtype for dtype in elements_of(kind) if dtype != "string" and not crosses(dtype)]
        if wrong or kind.HasField("optional_type"):
            raise TypeError(
                f"{name} is {wrong[0] if wrong else 'optional'}, which ONNX Runtime takes from no caller"
            )


def _any_shape(kind: onnx.TypeProto) -> onnx.TypeProto:
    kind.tensor_type.ClearField("shape")
    return kind
