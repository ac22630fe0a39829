"""What each op does to the axis whose tail is padding: carries it along, or forbids it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ridgeline.base.spec import Op
from ridgeline.ir.infer import Inferred
from ridgeline.ir.moves import cuts, order, pads
from ridgeline.ir.op_given import Given, MisfitError, NotKnownError, given_at
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import of_kind

Found = TypeVar("Found")


class Forbidden(Exception):
    """An op through which padding would reach a real row."""

    def __init__(self, op: Op | None, why: str) -> None:
        at = f"{op.op_type} at {op.name or op.outputs[0]}: " if op is not None else ""
        super().__init__(at + why)


@dataclass(frozen=True)
class At:
    """One op at the real and at the padded size."""

    op: Op
    axes: tuple[int | None, ...]  # of each input: the axis whose tail is padding
    real: Inferred
    padded: Inferred

    def shape(self, i: int) -> tuple[int, ...]:
        return self.padded.specs[self.op.inputs[i]].shape

    def forbid(self, why: str) -> Forbidden:
        return Forbidden(self.op, why)

    def only(self, *places: int) -> None:
        """Padding in any other operand is not thought of."""
        for i, axis in enumerate(self.axes):
            if axis is not None and i not in places:
                raise self.forbid(f"operand {i} would be padded")

    def has(self, i: int) -> bool:
        return i < len(self.op.inputs) and bool(self.op.inputs[i])

    def known(self, i: int, state: Inferred) -> np.ndarray | None:
        """What an operand holds at one size; None where it is absent, forbidden where only data says."""
        if not self.has(i):
            return None
        if self.op.inputs[i] not in state.values:
            raise self.forbid(f"what operand {i} holds is not known")
        return state.values[self.op.inputs[i]].reshape(-1)

    def read(self, reader: Callable[[Given], Found], state: Inferred) -> Found:
        """What a reader of movement ops finds at one size; forbidden if data decides it."""
        try:
            return reader(given_at(self.op, state.specs, state.values))
        except (MisfitError, NotKnownError) as error:
            raise self.forbid(str(error)) from error

    @property
    def out_rank(self) -> int:
        return len(self.padded.specs[self.op.outputs[0]].shape)


Rule = Callable[[At], int | None]


def difference(name: str, op: Op | None, real: Inferred, padded: Inferred) -> int | None:
    """The one axis along which a value is larger when padded."""
    a, b = real.specs[name].shape, padded.specs[name].shape
    changed = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    if len(a) != len(b) or len(changed) > 1:
        raise Forbidden(op, f"{name!r} would be padded along more than one axis")
    return changed[0] if changed else None


def _aligned(at: At, places: Sequence[int]) -> int | None:
    """Operands that are broadcast against each other, their last axes side by side."""
    rank = at.out_rank
    found = {
        axis + rank - len(at.shape(i))
        for i in places
        if i < len(at.axes) and (axis := at.axes[i]) is not None
    }
    if len(found) > 1:
        raise at.forbid("operands are padded along different axes")
    if not found:
        return None
    axis = found.pop()
    for i in places:
        if not at.has(i) or at.axes[i] is not None:
            continue
        own = axis - (rank - len(at.shape(i)))
        if own >= 0 and at.shape(i)[own] != 1:
            raise at.forbid(f"operand {i} has rows of its own along the padded axis")
    return axis


def _pointwise(at: At) -> int | None:
    return _aligned(at, range(len(at.op.inputs)))


def _first_operand(at: At) -> int | None:
    """Scales and zero points lie along an axis of their own."""
    at.only(0)
    return _aligned(at, (0,))


def _expand(at: At) -> int | None:
    axis = _aligned(at, (0,))
    if axis is not None:
        return axis
    grown = difference(at.op.outputs[0], at.op, at.real, at.padded)
    own = -1 if grown is None else grown - (at.out_rank - len(at.shape(0)))
    if own >= 0 and at.shape(0)[own] != 1:
        raise at.forbid("it would repeat rows that are not there")
    return grown


def _matmul(at: At) -> int | None:
    at.only(0, 1)
    rank = at.out_rank
    a, b = at.axes
    n_a, n_b = len(at.shape(0)), len(at.shape(1))
    if (a is not None and a == n_a - 1) or (b is not None and b == max(n_b - 2, 0)):
        raise at.forbid("it sums over the padded axis")
    rows = a is not None and a == n_a - 2
    columns = b is not None and b == n_b - 1
    if rows or columns:
        if (rows and b is not None) or (columns and a is not None):
            raise at.forbid("both operands would be padded")
        return rank - 2 if rows and n_b > 1 else rank - 1
    return _aligned(at, (0, 1))


def _gemm(at: At) -> int | None:
    at.only(0, 2)
    summed = 0 if at.op.attrs.get("transA", 0) else 1
    if at.axes[0] == summed:
        raise at.forbid("it sums over the padded axis")
    rows = 0 if at.axes[0] is not None else None
    if len(at.axes) > 2 and at.axes[2] is not None:
        bias = at.axes[2] + 2 - len(at.shape(2))
        if rows is None or bias != rows:
            raise at.forbid("operands are padded along different axes")
    return rows


def _batch_only(at: At) -> int | None:
    """Images and sequences: one after the other, along the first axis."""
    at.only(0)
    if at.op.attrs.get("training_mode", 0):
        raise at.forbid("it normalises over the batch")
    if at.axes[0] not in (None, 0):
        raise at.forbid(f"it reads neighbours along axis {at.axes[0]}")
    return at.axes[0]


def _every_batch(at: At) -> int | None:
    """Attention: the same rows of all operands belong together."""
    if any(axis not in (None, 0) for axis in at.axes):
        raise at.forbid("it looks along the padded axis")
    for i in (0, 1, 2):
        if at.axes[i] is None:
            raise at.forbid(f"operand {i} is not padded with the others")
    if len(at.axes) > 3 and at.op.inputs[3]:
        mask = at.shape(3)
        is_batched = len(mask) == 4 and mask[0] != 1
        if is_batched != (at.axes[3] is not None):
            raise at.forbid("its mask is not padded with the others")
    return 0


def _along(default: int) -> Rule:
    """Ops that look along one axis only, which then must not be the padded one."""

    def rule(at: At) -> int | None:
        at.only(0)
        rank = len(at.shape(0))
        known = at.known(1, at.padded) if at.op.op_type in ("CumSum", "CumProd") else None
        axis = int(known[0]) if known is not None else int(at.op.attrs.get("axis", default))
        if at.axes[0] == axis % max(rank, 1):
            raise at.forbid("it looks along the padded axis")
        return at.axes[0]

    return rule


def _normalised(at: At) -> int | None:
    at.only(0)
    rank = len(at.shape(0))
    if at.axes[0] is not None and at.axes[0] >= int(at.op.attrs.get("axis", -1)) % rank:
        raise at.forbid("it normalises over the padded axis")
    return at.axes[0]


def _reduced(at: At) -> int | None:
    at.only(0)
    rank = len(at.shape(0))
    given = at.op.attrs.get("axes")
    known = at.known(1, at.padded)
    axes = list(given) if given is not None else [] if known is None else [int(v) for v in known]
    if at.op.op_type in ("ArgMax", "ArgMin"):
        axes = [int(at.op.attrs.get("axis", 0))]
    if not axes and not at.op.attrs.get("noop_with_empty_axes", 0):
        axes = list(range(rank))
    gone: set[int] = {axis % rank for axis in axes}
    own = at.axes[0]
    if own in gone:
        raise at.forbid("it reduces over the padded axis")
    if own is None or at.op.attrs.get("keepdims", 1):
        return own
    return own - sum(axis < own for axis in gone)


def _transposed(at: At) -> int | None:
    return None if at.axes[0] is None else at.read(order, at.padded).index(at.axes[0])


def _reshaped(at: At) -> int | None:
    """The padded tail stays a tail where as much lies before it as before."""
    axis = difference(at.op.outputs[0], at.op, at.real, at.padded)
    own = at.axes[0]
    if own is None or axis is None:
        raise at.forbid("rows would be cut in other places")
    out = at.padded.specs[at.op.outputs[0]].shape
    if math.prod(at.shape(0)[:own]) != math.prod(out[:axis]):
        raise at.forbid("padding would come to lie between rows")
    return axis


def _joined(at: At) -> int | None:
    axis = int(at.op.attrs["axis"]) % at.out_rank
    found: set[int | None] = set(at.axes)
    if len(found) > 1 or axis in found:
        raise at.forbid("padding would come to lie between its parts")
    return found.pop()


def _kept_whole(at: At) -> int:
    """Slices, tiles, pads and resizes that leave the padded axis as long as it is."""
    at.only(0)
    own = at.axes[0]
    if own is None:
        raise at.forbid("an operand depends on the padded size")
    for state in (at.real, at.padded):
        if state.specs[at.op.inputs[0]].shape[own] != state.specs[at.op.outputs[0]].shape[own]:
            raise at.forbid("it takes a part of the padded axis")
    return own


def _sliced(at: At) -> int | None:
    own = _kept_whole(at)
    real, padded = at.read(cuts, at.real), at.read(cuts, at.padded)
    if own in padded and padded[own].step < 0:
        raise at.forbid("it goes backwards")
    # where each other axis begins, and its step; how long it is, its shape says
    begun = [{a: (r.start, r.step) for a, r in cut.items() if a != own} for cut in (real, padded)]
    if begun[0] != begun[1]:
        raise at.forbid("it cuts another axis in places that depend on the padded size")
    return own


def _filled(at: At) -> int | None:
    """Pads that add nothing along the padded axis, and elsewhere what does not depend on it."""
    own = _kept_whole(at)
    found = [at.read(pads, state) for state in (at.real, at.padded)]
    if any(added.get(own, (0, 0)) != (0, 0) for added in found):
        raise at.forbid("it moves rows along the padded axis")
    if found[0] != found[1]:
        raise at.forbid("it adds another number of elements for another padded size")
    return own


def _resized(at: At) -> int | None:
    """Each image alone, along the first axis: that axis keeps its size, and no other asks for it."""
    _batch_only(at)
    _kept_whole(at)
    rank = len(at.shape(0))
    named = [int(axis) % rank for axis in at.op.attrs.get("axes") or range(rank)]
    if 0 not in named:
        return 0
    scales = at.known(2, at.padded)
    if scales is not None and scales.size and scales[named.index(0)] != 1:
        raise at.forbid("it resizes the padded axis")
    if at.op.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise at.forbid("one scale is made of all sizes")
    if at.op.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise at.forbid("it may take a part of the padded axis")
    return 0


def _gathered(at: At) -> int | None:
    at.only(0, 1)
    rank = len(at.shape(0))
    axis = int(at.op.attrs.get("axis", 0)) % max(rank, 1)
    data, picks = at.axes
    if picks is not None:
        if data is not None:
            raise at.forbid("both operands would be padded")
        return axis + picks
    if data != axis:
        return data if data is None or data < axis else data + len(at.shape(1)) - 1
    known = at.padded.values.get(at.op.inputs[1])
    rows = at.real.specs[at.op.inputs[0]].shape[axis]
    if known is None or (known < 0).any() or (known >= rows).any():
        raise at.forbid("it may pick padded rows")
    return None


_ALONG = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "Split": 0, "TopK": -1, "CumSum": 0, "CumProd": 0}
_IMAGES = (
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool",
    "GlobalLpPool", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN",
    "DepthToSpace", "SpaceToDepth",
)  # fmt: skip
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
RULES: dict[str, Rule] = {
    **dict.fromkeys(of_kind(Kind.POINTWISE), _pointwise),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _first_operand),
    **dict.fromkeys(_IMAGES, _batch_only),
    **{name: _along(default) for name, default in _ALONG.items()},
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalised),
    **dict.fromkeys([f"Reduce{kind}" for kind in _REDUCTIONS] + ["ArgMax", "ArgMin"], _reduced),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    "Slice": _sliced,
    "Tile": _kept_whole,
    "Pad": _filled,
    "Resize": _resized,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Attention": _every_batch,
    "Transpose": _transposed,
    "Concat": _joined,
    "Expand": _expand,
    "Gather": _gathered,
}
