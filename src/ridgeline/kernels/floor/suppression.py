"""NonMaxSuppression: one box at a time on the host, or all overlaps of a class at once on a GPU.

On a GPU a box is kept if no box that is kept hides it: that is applied to all boxes at once until nothing
changes, which takes as many rounds as the longest chain of boxes that hide one another. Every overlap is
computed as on the host, so both pick the same boxes.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ridgeline.kernels.floor.registry import floor

# pairs of boxes whose overlaps lie in memory at the same time
PAIRS = 1 << 22
# of one class: with more candidates their pairs take too much memory, and the host decides
MOST_CANDIDATES = 8192
ROUNDS = 4  # between two looks at whether anything still changes


@floor("NonMaxSuppression")
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    most = int(_number(max_output_boxes_per_class, 0))
    overlap, least = _number(iou_threshold, 0.0), _number(score_threshold, -math.inf)
    pick = pick_at_once if boxes.is_cuda else pick_in_turn
    return pick(boxes, scores, most=most, overlap=overlap, least=least, is_centre=bool(center_point_box))


def _number(x: Tensor | None, default: float) -> float:
    return default if x is None or x.numel() == 0 else float(x.item())


def pick_in_turn(
    boxes: Tensor, scores: Tensor, *, most: int, overlap: float, least: float, is_centre: bool
) -> Tensor:
    """Rows of image, class and box. A loop of tiny steps: numpy's calls cost a fifth of torch's."""
    all_boxes, all_scores = boxes.float().numpy(), scores.float().numpy()
    picked: list[list[int]] = []
    with np.errstate(invalid="ignore", over="ignore"):  # boxes may be infinite
        for image in range(scores.shape[0]):
            corners = _corners(all_boxes[image], is_centre)
            for label in range(scores.shape[1]):
                kept = _suppressed(corners, all_scores[image, label], most=most, overlap=overlap, least=least)
                picked += [[image, label, box] for box in kept]
    return torch.tensor(picked, dtype=torch.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, is_centre: bool) -> np.ndarray:
    """[N, 4] as y0, x0, y1, x1 with y0 <= y1 and x0 <= x1."""
    if is_centre:
        x, y, w, h = boxes.T
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _suppressed(
    corners: np.ndarray, scores: np.ndarray, *, most: int, overlap: float, least: float
) -> list[int]:
    candidates = np.flatnonzero(scores > least)
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    low, high = corners[:, :2], corners[:, 2:]
    area = (high - low).prod(-1)
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, rest = order[0], order[1:]
        kept.append(int(best))
        sides = np.minimum(high[best], high[rest]) - np.maximum(low[best], low[rest])
        common = sides.clip(min=0).prod(-1)
        # an overlap that is no number hides nothing
        order = rest[~(common > overlap * (area[best] + area[rest] - common))]
    return kept


def pick_at_once(
    boxes: Tensor, scores: Tensor, *, most: int, overlap: float, least: float, is_centre: bool
) -> Tensor:
    """As `pick_in_turn`, without a step for each box. B images, C classes, N boxes, M of them candidates."""
    n_classes = scores.shape[1]
    numbers = scores.float().flatten(0, 1)  # [B C, N]
    counts = (numbers > least).sum(1)
    longest = int(counts.max()) if counts.numel() and most > 0 else 0
    if longest == 0:
        return torch.empty(0, 3, dtype=torch.int64, device=scores.device)
    if longest > MOST_CANDIDATES:
        there = (boxes.cpu(), scores.cpu())
        picked = pick_in_turn(*there, most=most, overlap=overlap, least=least, is_centre=is_centre)
        return picked.to(scores.device)
    # what is no candidate comes last, since no candidate is minus infinity; equal scores keep their order,
    # and so do zeros of either sign
    ranked = torch.where(numbers > least, numbers + 0.0, -math.inf)
    order = ranked.sort(dim=1, descending=True, stable=True).indices[:, :longest]  # [B C, M]
    is_candidate = torch.arange(longest, device=scores.device) < counts[:, None]
    corners = _corners_there(boxes.float(), is_centre)  # [B, N, 4]
    kept = torch.empty_like(is_candidate)
    step = max(PAIRS // longest**2, 1)
    for first in range(0, len(order), step):
        here = slice(first, first + step)
        images = torch.arange(first, min(first + step, len(order)), device=scores.device) // n_classes
        kept[here] = _kept(corners[images[:, None], order[here]], is_candidate[here], overlap)
    kept &= kept.cumsum(1) <= most
    groups, ranks = kept.nonzero(as_tuple=True)
    return torch.stack((groups // n_classes, groups % n_classes, order[groups, ranks]), 1)


def _corners_there(boxes: Tensor, is_centre: bool) -> Tensor:
    if is_centre:
        x, y, w, h = boxes.unbind(-1)
        return torch.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], -1)


def _kept(corners: Tensor, is_candidate: Tensor, overlap: float) -> Tensor:
    """Of boxes [G, M, 4] in the order of their scores, those that no kept one before them hides: [G, M]."""
    low, high = corners[..., :2], corners[..., 2:]
    height, width = (high - low).unbind(-1)
    area = height * width
    sides = torch.minimum(high[:, :, None], high[:, None]) - torch.maximum(low[:, :, None], low[:, None])
    across, along = sides.clamp(min=0).unbind(-1)
    common = across * along
    # [G, M, M]: a box hides those after it, unless their overlap is no number
    hides = (common > (area[:, :, None] + area[:, None] - common) * overlap).triu(1)
    kept = is_candidate
    while True:
        for _ in range(ROUNDS):
            before = kept
            kept = is_candidate & ~(hides & before[:, :, None]).any(1)
        if torch.equal(kept, before):
            return kept
