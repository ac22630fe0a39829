"""Control flow: subgraphs are compiled once, and run as often as the data says.

Who compiles a body is for the caller to say: the floor runs it op by op, the runtime plans it first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ridgeline.base.spec import Body, Op, TensorSpec
from ridgeline.errors import LimitError
from ridgeline.ir.loops import first_specs, state_count, ways
from ridgeline.kernels.elements import TORCH_DTYPES, cloned
from ridgeline.kernels.values import Items
from ridgeline.options import Limits

Run: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
RunBody: TypeAlias = Callable[[Sequence[Any]], list[Any]]
CompileBody: TypeAlias = Callable[[Body], tuple[RunBody, list[str]]]


class _Running(threading.local):
    """What the outermost loop of this thread has cost so far."""

    depth = 0
    trips = 0


_running = _Running()


class Trips:
    """The budget of a loop that runs. The trips of a loop inside another count with the outer one's."""

    def __init__(self, op: Op, limits: Limits) -> None:
        self._op, self._limits = op, limits
        self._stacked = 0

    def __enter__(self) -> Trips:
        if not _running.depth:
            _running.trips = 0
        _running.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        _running.depth -= 1

    def count(self) -> None:
        """One more trip begins."""
        _running.trips += 1
        if _running.trips > self._limits.loop_trips:
            raise self._over("goes round", "loop_trips", self._limits.loop_trips)

    def hold(self, states: Sequence[Any], stacked: Sequence[Any]) -> None:
        """A trip ended with these states, and these results to keep until the loop ends."""
        self._stacked += _nbytes(stacked)
        if self._stacked + _nbytes(states) > self._limits.planned_bytes:
            raise self._over("grows", "planned_bytes", self._limits.planned_bytes)

    def _over(self, does: str, limit: str, allowed: int) -> LimitError:
        where = self._op.name or self._op.outputs[0]
        return LimitError(
            f"the {self._op.op_type} at {where} {does} beyond its limit", limit=limit, allowed=allowed
        )


def _nbytes(values: Sequence[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def begin(run: RunBody) -> None:
    """Tell a body that remembers what it was given that another call of its op starts."""
    start = getattr(run, "begin", None)
    if start is not None:
        start()


def kept(run: RunBody, value: Any) -> Any:
    """A value as it may outlive the next run of the body, which may use its memory again."""
    return cloned(value) if isinstance(value, Tensor) and getattr(run, "reuses_memory", False) else value


def _if(op: Op, reads: Sequence[str], compile_body: CompileBody, limits: Limits) -> tuple[Run, list[str]]:
    """One branch or the other; what a branch captures comes after the condition."""
    branches, notes = {}, []
    for taken, key in ((True, "then_branch"), (False, "else_branch")):
        shut = closed(op.attrs[key])
        run, more = compile_body(shut)
        branches[taken] = (run, [reads.index(n) for n in shut.inputs])
        notes += more

    def call(values: Sequence[Any]) -> Sequence[Any]:
        run, places = branches[bool(values[0].reshape(-1)[0])]
        begin(run)
        return [kept(run, value) for value in run([values[p] for p in places])]

    return call, notes


def _repeated(
    body: Body, reads: Sequence[str], compile_body: CompileBody
) -> tuple[RunBody, list[str], list[int]]:
    """A body that runs many times, compiled once; notes; and where what it captures is among the values."""
    shut = closed(body)
    run, notes = compile_body(shut)
    return run, notes, [reads.index(name) for name in shut.inputs[len(body.inputs) :]]


def _loop(op: Op, reads: Sequence[str], compile_body: CompileBody, limits: Limits) -> tuple[Run, list[str]]:
    """ONNX Loop: trip count and condition, carried values, and scan outputs stacked at the end."""
    body: Body = op.attrs["body"]
    run, notes, captured = _repeated(body, reads, compile_body)
    n_carried = len(op.inputs) - 2

    def call(values: Sequence[Any]) -> Sequence[Any]:
        limit = None if values[0] is None else int(values[0])
        going = torch.tensor(True) if values[1] is None else values[1]
        carried = values[2 : 2 + n_carried]
        outside = [values[p] for p in captured]
        scans: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - n_carried)]
        begin(run)
        trip, is_going = 0, bool(going)
        with Trips(op, limits) as trips:
            while is_going and (limit is None or trip < limit):
                trips.count()
                before = going
                going, *made = run([torch.tensor(trip), going, *carried, *outside])
                carried = made[:n_carried]
                trips.hold(carried, made[n_carried:])
                for scan, value in zip(scans, made[n_carried:], strict=True):
                    scan.append(kept(run, value))
                trip += 1
                # to read a value of a GPU is to wait for it: the same object again is the same value
                if going is not before and trip != limit:
                    is_going = bool(going)
        if trip:
            carried = [kept(run, value) for value in carried]
        names = body.outputs[1 + n_carried :]
        stacked = [stack(scan, 0, body, name) for scan, name in zip(scans, names, strict=True)]
        return [*carried, *stacked][: len(op.outputs)]

    return call, notes


def _scan(op: Op, reads: Sequence[str], compile_body: CompileBody, limits: Limits) -> tuple[Run, list[str]]:
    """ONNX Scan: states carried along, one slice of every scanned input at a time, slices stacked."""
    body: Body = op.attrs["body"]
    run, notes, captured = _repeated(body, reads, compile_body)
    n_scanned = int(op.attrs["num_scan_inputs"])
    n_states = len(op.inputs) - n_scanned
    n_stacked = len(body.outputs) - n_states
    axes, is_backward = ways(op, "input", n_scanned)
    out_axes, is_out_backward = ways(op, "output", n_stacked)

    def call(values: Sequence[Any]) -> Sequence[Any]:
        states, scanned = values[:n_states], values[n_states : n_states + n_scanned]
        outside = [values[p] for p in captured]
        length = scanned[0].shape[axes[0]]
        stacks: list[list[Any]] = [[] for _ in range(n_stacked)]
        begin(run)
        with Trips(op, limits) as trips:
            for i in range(length):
                trips.count()
                places = [length - 1 - i if back else i for back in is_backward]
                slices = [x.select(axis, at) for x, axis, at in zip(scanned, axes, places, strict=True)]
                made = run([*states, *slices, *outside])
                states = made[:n_states]
                trips.hold(states, made[n_states:])
                for rows, value in zip(stacks, made[n_states:], strict=True):
                    rows.append(kept(run, value))
        if length:
            states = [kept(run, value) for value in states]
        results = [*states]
        ways = zip(stacks, body.outputs[n_states:], out_axes, is_out_backward, strict=True)
        for rows, name, axis, back in ways:
            results.append(stack(rows[::-1] if back else rows, axis, body, name))
        return results[: len(op.outputs)]

    return call, notes


def _sequence_map(
    op: Op, reads: Sequence[str], compile_body: CompileBody, limits: Limits
) -> tuple[Run, list[str]]:
    """ONNX SequenceMap: the body for every item; what is no sequence is the same for all."""
    body: Body = op.attrs["body"]
    run, notes, captured = _repeated(body, reads, compile_body)

    def call(values: Sequence[Any]) -> Sequence[Any]:
        given, outside = values[: len(body.inputs)], [values[p] for p in captured]
        results = [Items() for _ in body.outputs]
        begin(run)
        with Trips(op, limits) as trips:
            for i in range(len(given[0])):
                trips.count()
                made = run([*(value[i] if isinstance(value, Items) else value for value in given), *outside])
                trips.hold((), made)
                for result, value in zip(results, made, strict=True):
                    result.append(cloned(value) if isinstance(value, Tensor) else value)
        return results[: len(op.outputs)]

    return call, notes


def stack(rows: Sequence[Any], axis: int, body: Body, name: str) -> Tensor:
    """Results of all trips as one tensor; of no trip an empty one, as the body declares it."""
    if rows:
        return torch.stack(list(rows), axis)
    value = next((v for v in body.graph.outputs if v.name == name), None) if body.graph is not None else None
    kind = getattr(value, "dtype", None)
    sizes = [d if isinstance(d, int) else 0 for d in value.shape] if value is not None and value.shape else []
    dtype = TORCH_DTYPES[str(kind.numpy())] if kind is not None else torch.float32
    sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, 0)
    return torch.empty(sizes, dtype=dtype)


def first_trip(op: Op, body: Body, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec] | None:
    """What a body of the op is given on its first run, by name; None where that depends on data."""
    given: list[TensorSpec | None] = []
    if op.op_type == "SequenceMap":
        return None  # items may have any shape
    if op.op_type in ("Loop", "Scan"):
        given = [*first_specs(op, specs)]
    free = body.free_names()
    given += [specs.get(name) for name in free]
    made = dict(zip((*body.inputs, *free), given, strict=True))
    if any(spec is None or spec.dtype not in TORCH_DTYPES for spec in made.values()):
        return None
    # inside a body values come as they are handed over, in plain order
    return {n: TensorSpec(s.dtype, s.shape) for n, s in made.items() if s is not None}


@dataclass(frozen=True)
class Cycle:
    """How one run of a body follows another."""

    carried: Mapping[int, int] = field(default_factory=dict)  # by result, the input that it is next
    counter: int | None = None  # the input that counts the runs
    decides: int | None = None  # the result that the host reads after every run


def cycle_of(op: Op) -> Cycle:
    """Loops hand states from run to run; whatever else runs a body gives it new values each time."""
    if op.op_type == "Loop":
        return Cycle({place: place + 1 for place in range(len(op.inputs) - 1)}, counter=0, decides=0)
    if op.op_type == "Scan":
        return Cycle({place: place for place in range(state_count(op))})
    return Cycle()


def closed(body: Body) -> Body:
    """The body with its free names as further inputs."""
    free = body.free_names()
    return replace(body, inputs=(*body.inputs, *free)) if free else body


CONTROL_OPS: dict[str, Callable[[Op, Sequence[str], CompileBody, Limits], tuple[Run, list[str]]]] = {
    "If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map,
}  # fmt: skip
