"""How the shapes around a Loop or a Scan follow from those inside: of states, slices, stacked results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.base.spec import Op, TensorSpec

Specs = tuple[TensorSpec | None, ...]


def state_count(op: Op) -> int:
    return len(op.inputs) - (2 if op.op_type == "Loop" else int(op.attrs["num_scan_inputs"]))


def first_state(op: Op) -> int:
    """The place of the first state among the inputs of the body: a Loop has its count and condition first."""
    return 2 if op.op_type == "Loop" else 0


def first_result(op: Op) -> int:
    """The place of the first state among the results of the body."""
    return 1 if op.op_type == "Loop" else 0


def ways(op: Op, side: str, count: int) -> tuple[list[int], list[bool]]:
    """The axes and directions that Scan goes along; the first axis, forward, where it does not say."""
    axes = op.attrs.get(f"scan_{side}_axes") or (0,) * count
    directions = op.attrs.get(f"scan_{side}_directions") or (0,) * count
    return [int(axis) for axis in axes], [bool(way) for way in directions]


def first_specs(op: Op, specs: Mapping[str, TensorSpec]) -> Specs:
    """What the body is given on its first run; None for what depends on data."""
    if op.op_type == "Loop":
        condition = specs.get(op.inputs[1]) if op.inputs[1] else TensorSpec("bool", ())
        return (TensorSpec("int64", ()), condition, *(specs.get(n) for n in op.inputs[2:]))
    n_states = state_count(op)
    axes, _ = ways(op, "input", len(op.inputs) - n_states)
    wholes = (specs.get(name) for name in op.inputs[n_states:])
    return (
        *(specs.get(name) for name in op.inputs[:n_states]),
        *(_slice(whole, axis) for whole, axis in zip(wholes, axes, strict=True)),
    )


def _slice(whole: TensorSpec | None, axis: int) -> TensorSpec | None:
    if whole is None or not -len(whole.shape) <= axis < len(whole.shape):
        return None
    sizes = list(whole.shape)
    del sizes[axis]
    return TensorSpec(whole.dtype, tuple(sizes))


def kept_specs(op: Op, before: Specs, made: Sequence[TensorSpec | None]) -> Specs:
    """The specs that a body was given, without those of the states, or the condition, that it changes."""
    # the condition of a Loop comes before its states on both sides
    first, count = (1, 1 + state_count(op)) if op.op_type == "Loop" else (0, state_count(op))
    pairs = zip(before[first : first + count], made[:count], strict=True)
    return (*before[:first], *(old if old == new else None for old, new in pairs), *before[first + count :])


def trips(
    op: Op,
    specs: Mapping[str, TensorSpec],
    values: Mapping[str, np.ndarray],
    goes_on: np.ndarray | None,
) -> int | None:
    """How often the body runs; None where data decides. `goes_on`: the condition that it makes, if known."""
    if op.op_type == "Scan":
        n_states = state_count(op)
        scanned = specs.get(op.inputs[n_states])
        axes, _ = ways(op, "input", len(op.inputs) - n_states)
        is_there = scanned is not None and -len(scanned.shape) <= axes[0] < len(scanned.shape)
        return scanned.shape[axes[0]] if scanned is not None and is_there else None
    counted = values.get(op.inputs[0]) if op.inputs[0] else None
    starts = values.get(op.inputs[1]) if op.inputs[1] else np.array(True)
    if counted is None or starts is None or goes_on is None:
        return None
    most = max(int(counted.reshape(-1)[0]), 0) if bool(starts.reshape(-1)[0]) else 0
    return most if bool(goes_on.reshape(-1)[0]) else min(most, 1)


def stacked_specs(op: Op, rows: Sequence[TensorSpec | None], count: int | None) -> Specs:
    """What so many trips stack; None where that depends on data, and where there is no trip to tell."""
    axes, _ = ways(op, "output", len(rows))
    return tuple(
        _stacked(row, axis, count) if row is not None and count else None
        for row, axis in zip(rows, axes, strict=True)
    )


def _stacked(row: TensorSpec, axis: int, count: int) -> TensorSpec | None:
    rank = len(row.shape) + 1
    if not -rank <= axis < rank:
        return None
    sizes = list(row.shape)
    sizes.insert(axis % rank, count)
    return TensorSpec(row.dtype, tuple(sizes))
