"""Shape arithmetic in numpy: the few ops that models spell shapes with, made quick.

Only what is common; the onnx reference evaluator computes the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ridgeline.ir.moves import as_slice, cut_places

Array = Any  # a numpy array, or None for an absent input


def _gather(data: Array, indices: Array, *, axis: int = 0) -> Array:
    return np.take(data, indices, axis=axis)


def _concat(*parts: Array, axis: int) -> Array:
    return np.concatenate(parts, axis=axis)


def _unsqueeze(x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(int(a) for a in np.reshape(axes, -1)))


def _squeeze(x: Array, axes: Array = None) -> Array:
    return np.squeeze(x, None if axes is None else tuple(int(a) for a in np.reshape(axes, -1)))


def _slice(x: Array, starts: Array, ends: Array, axes: Array = None, steps: Array = None) -> Array:
    bounds = [() if bound is None else bound.tolist() for bound in (starts, ends, axes, steps)]
    taken = cut_places(x.shape, *bounds)
    return x[tuple(as_slice(taken[d]) if d in taken else slice(None) for d in range(x.ndim))]


def _div(a: Array, b: Array) -> Array:
    if np.issubdtype(np.result_type(a, b), np.integer):
        # toward zero, as C divides; through floats it would lose the low bits of large sizes
        return np.floor_divide(np.abs(a), np.abs(b)) * (np.sign(a) * np.sign(b))
    return np.divide(a, b)


def _reshape(x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    sizes = [int(s) for s in shape]
    if not allowzero:
        sizes = [x.shape[i] if s == 0 else s for i, s in enumerate(sizes)]
    return np.reshape(x, sizes)


def _keep(ufunc: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *parts: np.asarray(reduce(ufunc, parts))


ARITHMETIC: dict[str, Callable[..., Array]] = {
    "Identity": lambda x: x, "Add": _keep(np.add), "Sub": _keep(np.subtract), "Mul": _keep(np.multiply),
    "Div": _div, "Min": _keep(np.minimum), "Max": _keep(np.maximum), "Equal": _keep(np.equal),
    "Less": _keep(np.less), "Greater": _keep(np.greater),
}  # fmt: skip
HOST_OPS: dict[str, Callable[..., Array]] = {
    **ARITHMETIC, "Gather": _gather, "Concat": _concat, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Slice": _slice, "Reshape": _reshape,
}  # fmt: skip
