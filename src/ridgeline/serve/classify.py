"""The classification extension: the best elements of an output, as texts `value:index[:label]`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from ridgeline.serve.datatypes import join_bytes
from ridgeline.serve.errors import invalid
from ridgeline.serve.messages import Tensor

MOST_CLASSES = 10_000  # of all rows together: each is made on the event loop, in about a microsecond
BF16_TO_FP32_SHIFT = 16
Numbers = npt.NDArray[np.number]
Indices = npt.NDArray[np.intp]


def classify(output: Tensor, classes: int, labels: Sequence[str] = (), *, has_batch: bool) -> Tensor:
    """BYTES of shape [batch, n] or [n], the largest first; of equal elements the one with the lower index."""
    if output.datatype in ("BYTES", "BOOL"):
        raise invalid(f"output {output.name!r} is {output.datatype}, which has no order to classify by")
    rows = output.shape[0] if has_batch else 1
    elements = prod(output.shape[1:] if has_batch else output.shape)
    count = min(classes, elements)
    if rows * count > MOST_CLASSES:
        raise invalid(
            f"output {output.name!r} would have {rows * count} classes, at most {MOST_CLASSES} are given:"
            " ask for fewer, or for the output itself"
        )
    table = _numbers(output).reshape(rows, elements)
    texts = [_text(row[index].item(), int(index), labels) for row in table for index in _best(row, count)]
    shape = (rows, count) if has_batch else (count,)
    return Tensor(output.name, "BYTES", shape, join_bytes(texts))


def _numbers(output: Tensor) -> Numbers:
    if output.datatype == "BF16":
        bits = np.frombuffer(output.data, np.uint16).astype(np.uint32)
        return (bits << BF16_TO_FP32_SHIFT).view(np.float32)
    return np.frombuffer(output.data, output.type.numpy)


def _best(row: Numbers, count: int) -> Indices:
    """Indices of the `count` largest elements, in their order; a few of many need no sort of them all."""
    # NaN is no candidate: it comes last
    keys = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    if not 0 < count < row.size:
        return _descending(keys)[:count]
    least = np.partition(keys, row.size - count)[row.size - count]
    larger = np.flatnonzero(keys > least)
    equal = np.flatnonzero(keys == least)[: count - larger.size]
    return np.concatenate((larger[_descending(keys[larger])], equal))


def _descending(keys: Numbers) -> Indices:
    # reversed twice, so that equal elements stay in their order without negating unsigned integers
    return keys.size - 1 - np.argsort(keys[::-1], kind="stable")[::-1]


def _text(value: float, index: int, labels: Sequence[str]) -> bytes:
    number = f"{value:f}" if isinstance(value, float) else str(value)
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{number}:{index}{label}".encode()
