"""Where the onnx reference evaluator is wrong by the standard: its op again, with what it gets wrong.

Each is also what ONNX Runtime computes. Loop is not here: the reference concatenates what it should stack,
which is the same for values of one axis, and the fuzz keeps to those.
"""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_conv_transpose import ConvTranspose as PlainConvTranspose


class LpNormalization(OpRun):
    """The reference takes powers without absolute values, and axis 0 or p 0 for "not given"."""

    op_domain = ""

    def _run(self, x: np.ndarray, axis: int = -1, p: int = 2) -> tuple[np.ndarray]:
        wide = x.astype(np.float64)
        norm = (
            np.abs(wide).sum(axis=axis, keepdims=True)
            if p == 1
            else np.linalg.norm(wide, axis=axis, keepdims=True)
        )
        return (np.where(norm == 0, 0, wide / norm).astype(x.dtype),)


class LRN(OpRun):
    """The reference walks the batch where it should walk the channels."""

    op_domain = ""

    def _run(
        self, x: np.ndarray, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1
    ) -> tuple[np.ndarray]:
        squares = x.astype(np.float64) ** 2
        before, after = (size - 1) // 2, -(-(size - 1) // 2)
        near = [squares[:, max(0, c - before) : c + after + 1].sum(1) for c in range(x.shape[1])]
        return ((x / (bias + alpha / size * np.stack(near, 1)) ** beta).astype(x.dtype),)


class ConvTranspose(PlainConvTranspose):
    """The reference mixes the channels of different groups: here each group is a convolution of its own."""

    op_domain = ""

    def _run(
        self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, **attrs: object
    ) -> tuple[np.ndarray]:
        groups = int(str(attrs.pop("group", None) or 1))
        wholes, weights = np.split(x, groups, 1), np.split(w, groups, 0)
        biases = [None] * groups if b is None else np.split(b, groups)
        made = [
            super(ConvTranspose, self)._run(*parts, group=1, **attrs)[0]
            for parts in zip(wholes, weights, biases, strict=True)
        ]
        return (np.concatenate(made, 1),)


MENDED = [LpNormalization, LRN, ConvTranspose]
