"""Answers leave in the order of their requests, whatever finishes first."""

from __future__ import annotations

from itertools import permutations

import pytest

from ridgeline.serve.batching.order import InOrder


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_answers_leave_in_order_and_as_soon_as_they_may(order: tuple[int, ...]) -> None:
    answers = InOrder[str]()
    left: list[str] = []
    done: set[int] = set()
    for number in order:
        left += answers.put(number, f"answer {number}")
        done.add(number)
        ready = next(i for i in range(5) if i not in done)
        assert left == [f"answer {i}" for i in range(ready)]
        assert len(answers) == len(done) - ready
    assert len(answers) == 0


def test_nobody_waits_for_a_request_that_went_away() -> None:
    answers = InOrder[str | None]()
    assert answers.put(2, "c") == []
    assert answers.put(1, None) == [], "an answer may be None"
    assert answers.skip(0) == [None, "c"]
    assert answers.skip(3) == []
    assert answers.put(4, "e") == ["e"]


@pytest.mark.parametrize("number", [0, 2])
def test_one_request_has_one_answer(number: int) -> None:
    answers = InOrder[str]()
    answers.put(0, "a")
    answers.put(2, "c")
    with pytest.raises(AssertionError, match=f"request {number} is answered twice"):
        answers.put(number, "again")
