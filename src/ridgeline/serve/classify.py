"""The classification extension: the best elements of an output, as texts `value:index[:label]`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from ridgeline.serve.datatypes import join_bytes
from ridgeline.serve.errors import invalid
from ridgeline.serve.messages import Tensor

BF16_TO_FP32_SHIFT = 16
Numbers = npt.NDArray[np.number]


def classify(output: Tensor, classes: int, labels: Sequence[str] = (), *, has_batch: bool) -> Tensor:
    """BYTES of shape [batch, n] or [n], the largest first; of equal elements the one with the lower index."""
    if output.datatype in ("BYTES", "BOOL"):
        raise invalid(f"output {output.name!r} is {output.datatype}, which has no order to classify by")
    rows = output.shape[0] if has_batch else 1
    elements = prod(output.shape[1:] if has_batch else output.shape)
    count = min(classes, elements)
    table = _numbers(output).reshape(rows, elements)
    texts = [
        _text(row[index].item(), int(index), labels) for row in table for index in _descending(row)[:count]
    ]
    shape = (rows, count) if has_batch else (count,)
    return Tensor(output.name, "BYTES", shape, join_bytes(texts))


def _numbers(output: Tensor) -> Numbers:
    if output.datatype == "BF16":
        bits = np.frombuffer(output.data, np.uint16).astype(np.uint32)
        return (bits << BF16_TO_FP32_SHIFT).view(np.float32)
    return np.frombuffer(output.data, output.type.numpy)


def _descending(row: Numbers) -> npt.NDArray[np.intp]:
    # NaN is no candidate: it comes last
    keys = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    # reversed twice, so that equal elements stay in their order without negating unsigned integers
    return row.size - 1 - np.argsort(keys[::-1], kind="stable")[::-1]


def _text(value: float, index: int, labels: Sequence[str]) -> bytes:
    number = f"{value:f}" if isinstance(value, float) else str(value)
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{number}:{index}{label}".encode()
