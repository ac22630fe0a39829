"""Inputs to time and verify with: seeded, typed per input, integers kept where the model can take them.

One way to draw for a whole model and for the site of one region. A site's integers use more of their type:
whatever a region computes of them is compared with the floor, and nothing after it reads the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ridgeline.kernels.elements import (
    BIT_WIDTHS,
    TORCH_DTYPES,
    as_numpy,
    fill,
    numpy_dtype,
    on_device,
    to_torch,
)
from ridgeline.passes.body import Program
from ridgeline.passes.settle import settled_value
from ridgeline.runtime.example_numbers import numbers_for
from ridgeline.runtime.loose import draw_loose
from ridgeline.spec import ITEM_BITS, Body, Op, Site, TensorSpec

# draws floats of a shape
Floats: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
# ops through which an integer keeps its meaning on the way to its table
_PASS = frozenset(
    {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Clip"}
)
# and ops that compute another place from it
_ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Neg", "Abs", "Max", "Min", "Where", "Concat", "Slice", "Split", "Tile", "CumSum",
     "Gather", "ReduceSum", "ReduceMax", "ReduceMin", "Div", "Mod"}
)  # fmt: skip
# ops whose second input holds places in the first
_INDEXED = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter"})
# other inputs that name places or lengths; nothing here says which are legal besides zero
_PLACES = {
    "OneHot": 0, "ReverseSequence": 1, "MaxUnpool": 1, "ArrayFeatureExtractor": 1, "TensorScatter": 2,
    "NegativeLogLikelihoodLoss": 1, "SoftmaxCrossEntropyLoss": 1, "RotaryEmbedding": 3, "Attention": 6,
}  # fmt: skip
# a divisor must not be zero, a shift or an exponent not be large
_COUNTS = {"Div": 1, "Mod": 1, "BitShift": 1, "Pow": 1}
FLAGS, NOTHING, SMALL = (0, 2), (0, 1), (1, 5)
# of wide integers between regions: both signs, and products that stay exact in float32
INNER_BITS = 8
# what torch draws on the device itself; the rest is drawn by numpy and copied
_DRAWN_IN_PLACE = frozenset({"float64", "float32", "float16", "bfloat16"})


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def _tones(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A few sines with some noise along the last axis, as sound is."""
    places = np.arange(shape[-1] if shape else 1)
    tones = np.sin(2 * np.pi * places / np.array([[160], [73], [17]])).sum(0) / 6
    return np.broadcast_to(tones, shape) + 0.01 * rng.standard_normal(shape)


# floats for models that make nothing but NaN of normal ones: a root, a logarithm, a search for a pitch
OTHER_FLOATS: dict[str, Floats] = {
    "positive values": lambda rng, shape: np.abs(rng.standard_normal(shape)) + 0.01,
    "values from 0 to 1": lambda rng, shape: rng.uniform(0, 1, shape),
    "small values": lambda rng, shape: 0.01 * rng.standard_normal(shape),
    "sound": _tones,
    "values above 1": lambda rng, shape: 1 + 10 * rng.uniform(0, 1, shape),
}


def example_feeds(
    program: Program,
    shapes: Mapping[str, TensorSpec],
    weights: Mapping[str, Tensor],
    *,
    seed: int,
    floats: Floats = normal,
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
        else _draw(rng, name, shapes[name], ops, sizes, constants, floats=floats)
        for name in program.inputs
    }


def site_inputs(site: Site, weights: Mapping[str, Tensor], *, device: str = "cpu") -> list[Tensor | None]:
    """What candidates of a site are timed and checked with: its weights, known values, and drawn ones."""
    rng = np.random.default_rng(0)
    generator = torch.Generator(device).manual_seed(0)
    ops = list(_all_ops(site.body.ops))
    sizes = {name: spec.shape for name, spec in site.specs.items()}
    constants = {**site.body.constants, **site.values}
    made: list[Tensor | None] = []
    for name, spec in zip(site.body.inputs, site.inputs, strict=True):
        if spec is None:
            made.append(None)
        elif name in weights:
            made.append(weights[name])
        elif name in site.values:
            made.append(on_device(to_torch(site.values[name]), device))
        else:
            tensor = torch.empty_strided(
                spec.shape, spec.strides, dtype=TORCH_DTYPES[spec.dtype], device=device
            )
            if spec.dtype in _DRAWN_IN_PLACE and numbers_for(name, spec, ops, sizes) is None:
                tensor.normal_(generator=generator)
            else:
                drawn = _draw(rng, name, spec, ops, sizes, constants, is_inner=True)
                fill(tensor, on_device(to_torch(drawn), device))
            made.append(tensor)
    return made


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
    *,
    is_inner: bool = False,
    floats: Floats = normal,
) -> Any:
    """`is_inner`: a value between regions, of which no more is known than what its own region says."""
    shape = spec.shape
    if spec.value is not None:
        return settled_value(spec)
    numbers = numbers_for(name, spec, ops, sizes)
    if numbers is not None:
        return numbers
    if spec.dtype.startswith(("float", "bfloat")):
        return floats(rng, shape).astype(numpy_dtype(spec.dtype))
    if spec.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if spec.dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(spec.dtype)
    places = _distinct_places(rng, name, shape, ops, sizes)
    if places is not None:
        return places.astype(numpy_dtype(spec.dtype))
    low, high = _integer_range(name, spec.dtype, ops, sizes, constants, is_inner=is_inner)
    drawn = rng.integers(low, max(high, low + 1), shape, dtype=np.int64)
    if (low, high) == FLAGS and shape and shape[-1]:
        drawn[..., 0] = 1  # a mask that hides a whole row makes NaN of it, in any engine
    return drawn.astype(numpy_dtype(spec.dtype))


def _integer_range(
    name: str,
    dtype: str,
    ops: list[Op],
    sizes: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, np.ndarray],
    *,
    is_inner: bool,
) -> tuple[int, int]:
    """Within the tables it indexes; the value it is compared with; small as a divisor; else any value.

    Any value is all that a type of one byte can hold. A wider input of a model is a flag, 0 or 1.
    """
    same, derived = {name}, {name}  # values that are this one, and those computed from it
    tables: list[int] = []
    equals: list[int] = []
    is_count = is_place = False
    for op in ops:
        if not derived.intersection(op.inputs):
            continue
        if op.op_type in _PASS and op.inputs[0] in same:
            same.update(op.outputs)
        if op.op_type in _PASS or op.op_type in _ARITHMETIC:
            derived.update(op.outputs)
        if op.op_type in _INDEXED and op.inputs[1] in derived:
            if op.inputs[1] in same and op.inputs[0] in sizes:
                tables.append(_places(op, sizes))
            else:
                is_place = True
        slot = _PLACES.get(op.op_type)
        is_place |= slot is not None and slot < len(op.inputs) and op.inputs[slot] in derived
        slot = _COUNTS.get(op.op_type)
        is_count |= slot is not None and op.inputs[slot] in (derived if is_inner else same)
        if op.op_type == "Equal" and same.intersection(op.inputs):
            known = [constants[n].reshape(-1) for n in op.inputs if n in constants]
            equals += [int(value[0]) for value in known if value.size == 1]
    if tables:
        return 0, min(tables)
    if is_place and is_inner:
        return NOTHING
    if equals:
        return (equals[0] - 1, equals[0] + 2) if is_inner else (equals[0], equals[0] + 1)
    if is_count:
        return SMALL
    return FLAGS if is_place else _any_value(dtype, is_inner=is_inner)


def _distinct_places(
    rng: np.random.Generator,
    name: str,
    shape: tuple[int, ...],
    ops: list[Op],
    sizes: Mapping[str, tuple[int, ...]],
) -> np.ndarray | None:
    """Indices of a scatter: written twice, a place would hold whichever came last. None: not possible."""
    op = next((o for o in ops if o.op_type.startswith("Scatter") and o.inputs[1] == name), None)
    data = sizes.get(op.inputs[0]) if op is not None else None
    if op is None or not data or not shape:
        return None
    if op.op_type == "ScatterND":
        table, count = data[: shape[-1]], math.prod(shape[:-1])
        if count > math.prod(table):
            return None
        flat = rng.choice(math.prod(table), count, replace=False)
        return np.stack(np.unravel_index(flat, table), axis=-1).reshape(shape)
    axis = int(op.attrs.get("axis", 0))
    return np.argsort(rng.random(shape), axis=axis) if shape[axis] <= data[axis] else None


def _places(op: Op, sizes: Mapping[str, tuple[int, ...]]) -> int:
    """How many places an index of this op may name, along the shortest axis that it indexes."""
    data = sizes[op.inputs[0]]
    if not op.op_type.endswith("ND"):
        return data[int(op.attrs.get("axis", 0))]
    first, index = int(op.attrs.get("batch_dims", 0)), sizes.get(op.inputs[1])
    return min(data[first : first + index[-1]] if index else data[first:], default=1)


def _any_value(dtype: str, *, is_inner: bool) -> tuple[int, int]:
    """All that a type of one byte holds; a wider one is a flag to a model and a number to a region."""
    bits = BIT_WIDTHS.get(dtype, ITEM_BITS[dtype])
    if bits > 8:
        bits = INNER_BITS
        if not is_inner:
            return FLAGS
    return (0, 1 << bits) if dtype.startswith("uint") else (-(1 << bits - 1), 1 << bits - 1)
