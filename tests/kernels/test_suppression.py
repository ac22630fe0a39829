"""NonMaxSuppression as a GPU computes it picks the boxes that the host picks, one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.kernels.floor import suppression
from ridgeline.kernels.floor.suppression import pick_at_once, pick_in_turn

ASKED: dict[str, Any] = {"most": 20, "overlap": 0.4, "least": 0.3, "is_centre": False}


def draw(images: int, classes: int, boxes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(seed)
    low = random.uniform(0, 10, (images, boxes, 2))
    made = np.concatenate((low, low + random.uniform(0.5, 6, (images, boxes, 2))), -1).astype(np.float32)
    scores = random.uniform(0, 1, (images, classes, boxes)).astype(np.float32)
    return torch.from_numpy(made), torch.from_numpy(scores)


def require_same(boxes: Tensor, scores: Tensor, **asked: Any) -> Tensor:
    given = ASKED | asked
    want = pick_in_turn(boxes, scores, **given)
    made = pick_at_once(boxes, scores, **given)
    assert made.dtype == want.dtype
    assert torch.equal(made, want)
    return made


@pytest.mark.parametrize(("images", "classes", "boxes"), [(1, 1, 1), (2, 3, 60), (1, 7, 301), (3, 1, 33)])
@pytest.mark.parametrize("overlap", [0.0, 0.4, 0.9, 1.0])
@pytest.mark.parametrize("is_centre", [False, True])
def test_all_at_once(images: int, classes: int, boxes: int, overlap: float, is_centre: bool) -> None:
    for seed in range(3):
        require_same(*draw(images, classes, boxes, seed), overlap=overlap, is_centre=is_centre)


@pytest.mark.parametrize("most", [0, 1, 5, 1000])
@pytest.mark.parametrize("least", [-float("inf"), -1.0, 0.99, 2.0, float("inf")])
def test_few_and_none(most: int, least: float) -> None:
    made = require_same(*draw(2, 3, 40), most=most, least=least)
    assert bool(len(made)) == (most > 0 and least < 1)


def test_ties_keep_the_order_of_the_boxes() -> None:
    boxes, scores = draw(1, 4, 120)
    require_same(boxes, (scores * 4).round() / 4)
    require_same(boxes, torch.zeros_like(scores).copysign(scores - 0.5), least=-1.0)


def test_a_chain_of_boxes_that_hide_one_another() -> None:
    """Each hides the next, so every second one is kept, decided from the first on."""
    at = torch.arange(101, dtype=torch.float32)
    boxes = torch.stack((at, torch.zeros_like(at), at + 2, torch.ones_like(at)), -1)[None]
    scores = (1.0 - at / 200)[None, None]
    made = require_same(boxes, scores, overlap=0.3, most=1000)
    assert made[:, 2].tolist() == list(range(0, 101, 2))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_odd_numbers(odd: float) -> None:
    boxes, scores = draw(1, 3, 50)
    scores[0, 0, ::7] = odd
    require_same(boxes, scores, least=-float("inf"))
    boxes[0, ::5, 1] = odd
    require_same(boxes, scores, least=-float("inf"))


def test_an_overlap_that_is_no_number_hides_nothing() -> None:
    """As in ONNX Runtime: lines without end, of no height."""
    inf = float("inf")
    boxes = torch.tensor([[1.0, -inf, 1.0, inf], [2.0, -inf, 2.0, inf], [1.0, -inf, 1.0, inf]])[None]
    assert len(require_same(boxes, torch.ones(1, 1, 3))) == 3


@pytest.mark.parametrize(("images", "classes", "boxes"), [(0, 3, 5), (1, 0, 5), (1, 3, 0)])
def test_nothing_to_pick_from(images: int, classes: int, boxes: int) -> None:
    assert require_same(torch.zeros(images, boxes, 4), torch.zeros(images, classes, boxes)).shape == (0, 3)


def test_half_types_and_flat_boxes() -> None:
    boxes, scores = draw(1, 2, 64)
    require_same(boxes.half(), scores.half())
    boxes[:, ::2, 2:] = boxes[:, ::2, :2]
    require_same(boxes, scores)


@pytest.mark.parametrize("pairs", [1, 5000, 20000])
def test_in_parts(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    monkeypatch.setattr(suppression, "PAIRS", pairs)
    require_same(*draw(2, 5, 70))


def test_too_many_candidates_go_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suppression, "MOST_CANDIDATES", 20)
    require_same(*draw(1, 2, 60))
