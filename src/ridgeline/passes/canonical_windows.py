"""Rules for attention inside the windows of images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.rule import Fusion, Match

MOST_BYTES = 1 << 26  # of a mask that is written out for every image of a batch


class MaskOfWindows(Fusion):
    """[I·W, H, S, T] → [I, W, H, S, T] + mask of each window → [I·W, H, S, T] = scores + mask of all windows

    A shifted window sees only what was together before the shift. Over four axes the mask is one that
    attention takes.
    """

    may_change = ()

    def pattern(self, op: Any, scores: Any, split: Any, mask: Any, joined: Any) -> Any:
        return op.Reshape(op.Add(op.Reshape(scores, split), op.known(mask)), joined)

    def check(self, m: Match) -> None:
        scores, mask = m.dims(m.scores), m.array("mask")
        apart = m.dims(m.node("Add").outputs[0])
        m.require(len(scores) == 4, "scores have not four axes", m.scores)
        m.require(m.dims(m.root.outputs[0]) == scores, "scores do not come out as they went in", m.joined)
        m.require(m.root.outputs[0].dtype == m.scores.dtype, "types differ", m.scores)
        is_split = len(apart) == 5 and apart[2:] == scores[1:]
        m.require(is_split, "does not split the batch alone", m.split)
        images, windows = apart[:2]
        m.require(isinstance(images, int) and isinstance(windows, int), "number of windows unknown", m.split)
        is_by_window = mask.ndim == 4 or (mask.ndim == 5 and mask.shape[0] == 1)
        sizes = zip(mask.shape[-4:], apart[1:], strict=False)
        m.require(
            is_by_window and all(size in (1, whole) for size, whole in sizes),
            f"the mask is {list(mask.shape)}, want one for each window of {list(apart[1:])}", m.mask,
        )  # fmt: skip
        nbytes = int(images) * int(windows) * math.prod(mask.shape[-3:]) * mask.itemsize
        m.require(nbytes <= MOST_BYTES, f"the mask for all images would take {nbytes:,} bytes", m.mask)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        mask = m.array("mask")
        images, windows = (int(size) for size in m.dims(m.node("Add").outputs[0])[:2])
        each = np.broadcast_to(mask.reshape(mask.shape[-4:]), (windows, *mask.shape[-3:]))
        return op.Add(m.scores, op.const(np.tile(each, (images, 1, 1, 1))))


RULES: tuple[Fusion, ...] = (MaskOfWindows(),)
