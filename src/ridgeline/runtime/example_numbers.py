"""Example values for inputs that an op reads as numbers (sizes, axes, counts): ones it can work with.

Drawn at random they would ask for empty or impossible shapes, and no plan could be run with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ridgeline.base.spec import Op, TensorSpec

# an end that lies behind every axis, in any integer type that may hold it
FAR = 2**31 - 1
# an op's value is the same number before and after these
_SAME = frozenset({"Cast", "Identity"})


class Asked(NamedTuple):
    """What an op wants to be told: so many numbers, about a tensor of this shape."""

    op: Op
    n: int
    shape: tuple[int, ...]  # of the op's first input; () where it is not known

    def axis(self, default: int = 0) -> int:
        return int(self.op.attrs.get("axis", default))


Answer: TypeAlias = Callable[[Asked], Any]


def _constant(number: float) -> Answer:
    return lambda asked: [number] * asked.n


def _in_order(asked: Asked) -> list[int]:
    return list(range(asked.n))


def _same_elements(asked: Asked) -> list[int]:
    """One long axis: every tensor has that shape."""
    return [math.prod(asked.shape), *[1] * (asked.n - 1)]


def _shares(asked: Asked) -> list[int]:
    """The axis in parts as equal as can be."""
    size = asked.shape[asked.axis()] if asked.shape else asked.n
    share, rest = divmod(size, asked.n)
    return [share + (i < rest) for i in range(asked.n)]


def _present_sizes(asked: Asked) -> list[int]:
    axes = asked.op.attrs.get("axes") or range(len(asked.shape))
    sizes = [asked.shape[axis] for axis in axes] if asked.shape else []
    return sizes if len(sizes) == asked.n else [1] * asked.n


def _unit_box(asked: Asked) -> list[float]:
    half = asked.n // 2
    return [0.0] * half + [1.0] * (asked.n - half)


def _single_axes(asked: Asked) -> list[int]:
    return [axis for axis, size in enumerate(asked.shape) if size == 1][: asked.n]


def _grid_size(asked: Asked) -> list[int]:
    return [asked.shape[0] if asked.shape else 1, 1, *[2] * (asked.n - 2)]


def _whole_length(asked: Asked) -> list[int]:
    return [asked.shape[0] if asked.shape else 1] * asked.n


ZERO, ONE, FEW, HALF = _constant(0), _constant(1), _constant(4), _constant(0.5)
_LENGTHS: dict[int, Answer] = {4: _whole_length}
ANSWERS: dict[str, dict[int, Answer]] = {
    "Reshape": {1: _same_elements}, "Expand": {1: ONE}, "Tile": {1: ONE}, "ConstantOfShape": {0: ONE},
    "Slice": {1: ZERO, 2: _constant(FAR), 3: _in_order, 4: ONE}, "Split": {1: _shares},
    "SplitToSequence": {1: _shares}, "Pad": {1: ZERO, 3: _in_order}, "Upsample": {1: ONE},
    "Resize": {1: _unit_box, 2: ONE, 3: _present_sizes}, "CenterCropPad": {1: _present_sizes},
    "Squeeze": {1: _single_axes}, "Unsqueeze": {1: _in_order}, "CumSum": {1: ZERO}, "CumProd": {1: ZERO},
    "TopK": {1: ONE}, "OneHot": {1: FEW}, "Range": {0: ZERO, 1: FEW, 2: ONE}, "Trilu": {1: ZERO},
    "AffineGrid": {1: _grid_size}, "RoiAlign": {2: ZERO}, "Dropout": {1: HALF}, "Loop": {0: FEW},
    "NonMaxSuppression": {2: FEW, 3: HALF, 4: ZERO}, "DFT": {1: FEW, 2: ONE}, "STFT": {1: ONE, 3: FEW},
    "HannWindow": {0: FEW}, "HammingWindow": {0: FEW}, "BlackmanWindow": {0: FEW},
    "LSTM": _LENGTHS, "GRU": _LENGTHS, "RNN": _LENGTHS,
    **{f"Reduce{kind}": {1: _in_order} for kind in (
        "Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp",
    )},
}  # fmt: skip


def numbers_for(
    name: str, spec: TensorSpec, ops: Sequence[Op], specs: Mapping[str, TensorSpec]
) -> np.ndarray | None:
    """Numbers that the first op to read this input as such can work with; None where no op does."""
    names = {name}
    for op in ops:
        if op.domain:
            continue
        if op.op_type in _SAME and op.inputs[0] in names:
            names.update(op.outputs)
        for slot, answer in ANSWERS.get(op.op_type, {}).items():
            if slot < len(op.inputs) and op.inputs[slot] in names:
                first = specs.get(op.inputs[0])
                made = np.asarray(answer(Asked(op, spec.numel, first.shape if first is not None else ())))
                # fewer numbers than asked for (no axis of size 1, say): the input is drawn like any other
                return made.astype(spec.dtype).reshape(spec.shape) if made.size == spec.numel else None
    return None
