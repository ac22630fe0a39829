"""Inputs to time and verify with: seeded, typed per input, integers kept where the model can take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ridgeline.kernels.elements import as_numpy, numpy_dtype
from ridgeline.passes.body import Program
from ridgeline.passes.settle import settled_value
from ridgeline.runtime.example_numbers import numbers_for
from ridgeline.runtime.loose import draw_loose
from ridgeline.spec import Body, Op, TensorSpec

# ops through which an integer keeps its meaning on the way to its table
_PASS = frozenset(
    {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Clip"}
)
_INDEXED = {"Gather": (0, 1), "GatherElements": (0, 1), "GatherND": (0, 1)}


def example_feeds(
    program: Program, shapes: Mapping[str, TensorSpec], weights: Mapping[str, Tensor], *, seed: int
) -> dict[str, Any]:
    """Random inputs at these shapes."""
    rng = np.random.default_rng(seed)
    flat, inlined = program.flat_ops(program.regions)
    ops = list(_all_ops(flat))
    sizes = {name: tuple(t.shape) for name, t in weights.items()}
    sizes |= {name: spec.shape for name, spec in shapes.items()}
    constants = {name: as_numpy(t) for name, t in weights.items() if t.numel() == 1} | inlined
    return {
        name: draw_loose(rng, program.loose_inputs[name])
        if name in program.loose_inputs
        else _draw(rng, name, shapes[name], ops, sizes, constants)
        for name in program.inputs
    }


def _all_ops(ops: Iterable[Op]) -> Iterable[Op]:
    for op in ops:
        yield op
        for attr in op.attrs.values():
            if isinstance(attr, Body):
                yield from _all_ops(attr.ops)


def _draw(
    rng: np.random.Generator,
    name: str,
    spec: TensorSpec,
    ops: list[Op],
    sizes: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, np.ndarray],
) -> Any:
    shape = spec.shape
    if spec.value is not None:
        return settled_value(spec)
    numbers = numbers_for(name, spec, ops, sizes)
    if numbers is not None:
        return numbers
    if spec.dtype.startswith(("float", "bfloat")):
        return rng.standard_normal(shape).astype(numpy_dtype(spec.dtype))
    if spec.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if spec.dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(spec.dtype)
    low, high = _integer_range(name, ops, sizes, constants)
    drawn = rng.integers(low, max(high, low + 1), shape, dtype=np.int64)
    if (low, high) == (0, 2) and shape and shape[-1]:
        drawn[..., 0] = 1  # a mask that hides a whole row makes NaN of it, in any engine
    return drawn.astype(numpy_dtype(spec.dtype))


def _integer_range(
    name: str, ops: list[Op], sizes: Mapping[str, tuple[int, ...]], constants: Mapping[str, np.ndarray]
) -> tuple[int, int]:
    """Within the tables it indexes; the value it is compared with; else a flag, 0 or 1."""
    values, tables, equals = {name}, [], []
    for op in ops:
        touched = [n for n in op.inputs if n in values]
        if not touched:
            continue
        if op.op_type in _PASS and op.inputs[0] in values:
            values.update(op.outputs)
        if op.op_type in _INDEXED and op.inputs[1] in values and op.inputs[0] in sizes:
            tables.append(sizes[op.inputs[0]][op.attrs.get("axis", 0)])
        if op.op_type == "Equal":
            known = [constants[n].reshape(-1) for n in op.inputs if n in constants]
            equals += [int(value[0]) for value in known if value.size == 1]
    if tables:
        return 0, min(tables)
    if equals:
        return equals[0], equals[0] + 1
    return 0, 2
