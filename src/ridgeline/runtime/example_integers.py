"""Example values for integers that are data: indices inside their tables, lengths inside their axes, flags.

What an integer means is read from the ops that it reaches, and from the shapes that they work on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgeline.base.spec import ITEM_BITS, Op, TensorSpec
from ridgeline.kernels.elements import BIT_WIDTHS

# ops that hand on the integers of these operands; None stands for all of them
_CARRIES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand",
                     "Clip", "Slice", "Split", "Gather", "Tile"), (0,)),
    "Concat": None, "Where": (1, 2),
}  # fmt: skip
# and ops that compute another place from them
_ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Neg", "Abs", "Max", "Min", "CumSum", "ReduceSum", "ReduceMax", "ReduceMin", "Div",
     "Mod"}
)  # fmt: skip
_COMPARES = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
# ops whose second input holds places in the first: along one axis, and along several at once
_BY_AXIS = frozenset({"Gather", "GatherElements", "ScatterElements", "Scatter"})
_BY_TUPLE = frozenset({"GatherND", "ScatterND"})
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


@dataclass
class Meaning:
    """What the ops that an integer reaches want of it."""

    low: int = 0
    highs: list[int] = field(default_factory=list)  # it must stay below each of these
    equals: list[int] = field(default_factory=list)  # constants that it is compared with
    lengths: list[int] = field(default_factory=list)  # sizes of the axes whose positions it is compared with
    scatter: tuple[Op, tuple[int, ...]] | None = None  # writes at these places of a tensor of this shape
    is_place: bool = False  # something computed from it is an index
    is_count: bool = False

    def bounds(self, dtype: str, *, is_inner: bool) -> tuple[int, int]:
        """From the first number to behind the last one."""
        if self.highs:
            return self.low, max(min(self.highs), self.low + 1)
        if self.is_place and is_inner:
            return NOTHING
        if self.equals:
            first = self.equals[0]
            return (first - 1, first + 2) if is_inner else (first, first + 1)
        if self.is_count:
            return SMALL
        return FLAGS if self.is_place else _any_value(dtype, is_inner=is_inner)


@dataclass(frozen=True)
class Known:
    """What is known at these shapes of the ops that an input reaches."""

    ops: Sequence[Op]
    specs: Mapping[str, TensorSpec]
    constants: Mapping[str, np.ndarray]
    beside: Sequence[TensorSpec] | None = None  # the model's inputs; None for a value between regions


def draw_integers(rng: np.random.Generator, name: str, spec: TensorSpec, known: Known) -> np.ndarray:
    """Values for one input."""
    is_inner, shape = known.beside is None, spec.shape
    meaning = _meaning(name, known)
    low, high = meaning.bounds(spec.dtype, is_inner=is_inner)
    length = 0 if known.beside is None or meaning.equals else _length(name, spec, meaning, known.beside)
    if length:
        longest = min(length, high - 1) if meaning.highs else length
        least = min(max(low, longest // 2 + 1), longest)  # a table may be shorter than the lengths want
        drawn = rng.integers(least, longest + 1, shape, dtype=np.int64)
        drawn.reshape(-1)[:1] = longest  # a batch is as long as its longest row
        return drawn
    distinct = None if meaning.scatter is None else _distinct(rng, *meaning.scatter, shape, (low, high))
    if distinct is not None:
        return low + distinct
    drawn = rng.integers(low, max(high, low + 1), shape, dtype=np.int64)
    if (low, high) == FLAGS and shape and shape[-1]:
        drawn[..., 0] = 1  # a mask that hides a whole row makes NaN of it, in any engine
    return drawn


def _meaning(name: str, known: Known) -> Meaning:
    """Follow the input through the ops that hand it on, with the least and most that was added to it."""
    found, specs, constants = Meaning(), known.specs, known.constants
    carried, derived = {name: (0, 0)}, {name}
    for op in known.ops:
        if op.domain or not derived.intersection(op.inputs):
            continue
        slots = [i for i, n in enumerate(op.inputs) if n in carried]
        added = carried[op.inputs[slots[0]]] if slots else (0, 0)
        others = [constants[n] for n in op.inputs if n not in carried and n in constants]
        if op.op_type in _CARRIES or op.op_type in _ARITHMETIC:
            derived.update(op.outputs)
        if op.op_type in _CARRIES and set(slots) & set(_CARRIES[op.op_type] or slots):
            carried.update(dict.fromkeys(op.outputs, added))
        if op.op_type in ("Add", "Sub") and slots == [0] and len(others) == 1 and others[0].size:
            shift = _shift(others[0], is_less=op.op_type == "Sub")
            carried[op.outputs[0]] = (added[0] + shift[0], added[1] + shift[1])
        if op.op_type == "Equal" and slots:
            found.equals += [int(value.reshape(-1)[0]) for value in others if value.size == 1]
        if op.op_type in _COMPARES and slots:
            found.lengths += [int(value.max()) + 1 - added[1] for value in others if value.size > 1]
        if op.op_type in _BY_AXIS | _BY_TUPLE and op.inputs[1] in derived:
            data = specs.get(op.inputs[0])
            if data is None or op.inputs[1] not in carried:
                found.is_place = True
                continue
            found.low = max(found.low, -added[0])
            found.highs.append(_table_size(op, data, specs.get(op.inputs[1])) - added[1])
            if op.op_type.startswith("Scatter") and op.attrs.get("reduction", "none") in ("none", b"none"):
                found.scatter = (op, data.shape)
        found.is_place |= _reads(op, _PLACES, derived)
        found.is_count |= _reads(op, _COUNTS, derived if known.beside is None else set(carried))
    return found


def _reads(op: Op, slots: Mapping[str, int], names: set[str]) -> bool:
    slot = slots.get(op.op_type)
    return slot is not None and slot < len(op.inputs) and op.inputs[slot] in names


def _shift(added: np.ndarray, *, is_less: bool) -> tuple[int, int]:
    low, high = int(added.min()), int(added.max())
    return (-high, -low) if is_less else (low, high)


def _table_size(op: Op, data: TensorSpec, indices: TensorSpec | None) -> int:
    """How many places an index of this op may name, along the shortest axis that it indexes."""
    if op.op_type in _BY_AXIS:
        axis: int = op.attrs.get("axis", 0)
        return data.shape[axis] if -len(data.shape) <= axis < len(data.shape) else 1
    batch: int = op.attrs.get("batch_dims", 0)
    width = indices.shape[-1] if indices is not None else len(data.shape) - batch
    return min(data.shape[batch : batch + width], default=1)


def _length(name: str, spec: TensorSpec, meaning: Meaning, beside: Sequence[TensorSpec]) -> int:
    """The longest that a row can be: by what it is compared with, else by its name and its neighbours."""
    if meaning.lengths:
        return min(meaning.lengths)
    if "len" not in name.lower():
        return 0
    sizes = [
        size
        for other in beside
        if len(other.shape) > 1 and (spec.numel == 1 or other.shape[0] == spec.shape[0])
        for size in other.shape[1:]
        if size > 1
    ]
    return min(sizes, default=0)


def _distinct(
    rng: np.random.Generator, op: Op, data: tuple[int, ...], shape: tuple[int, ...], bounds: tuple[int, int]
) -> np.ndarray | None:
    """Indices of which no two write to the same place; None where there are too many for that."""
    size = bounds[1] - bounds[0]
    if not shape:
        return None
    if op.op_type == "ScatterND":
        # as far as each axis goes, unless something was added on the way
        table = data[: shape[-1]] if bounds == (0, min(data[: shape[-1]], default=1)) else (size,) * shape[-1]
        is_room = math.prod(shape[:-1]) <= math.prod(table) < 1 << 62
        if len(table) != shape[-1] or not is_room:  # more indices than the data has axes is no model's wish
            return None
        flat = rng.choice(math.prod(table), math.prod(shape[:-1]), replace=False)
        return np.stack(np.unravel_index(flat, table), axis=-1).reshape(shape)
    axis = op.attrs.get("axis", 0) % len(shape)
    if shape[axis] > size:
        return None
    whole = [*shape[:axis], size, *shape[axis + 1 :]]
    line = np.arange(size).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.take(rng.permuted(np.broadcast_to(line, whole), axis=axis), range(shape[axis]), axis)


def _any_value(dtype: str, *, is_inner: bool) -> tuple[int, int]:
    """All that a type of one byte holds; a wider one is a flag to a model and a number to a region."""
    bits = BIT_WIDTHS.get(dtype, ITEM_BITS[dtype])
    if bits > 8:
        bits = INNER_BITS
        if not is_inner:
            return FLAGS
    return (0, 1 << bits) if dtype.startswith("uint") else (-(1 << bits - 1), 1 << bits - 1)
