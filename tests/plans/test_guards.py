"""Guards are data: what a file may say, how it is evaluated, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ridgeline.base.guards import Term, broken, evaluate, holds, read_guards, text

N: Term = ("size", "x", 0)
EVEN: Term = ("==", ("%", N, 2), 0)


@pytest.mark.parametrize(
    ("guard", "kept", "refused"),
    [
        (EVEN, 4, 3),
        (("<", N, 15), 14, 15),
        (("or", ("<", N, 3), (">", N, 6)), 7, 5),
        (("==", ("//", ("max", N, 3), 2), 2), 5, 6),
        (("<", ("/", ("float", N), 2), 2.5), 4, 5),
        (("==", ("%", 12, N), 0), 6, 0),  # a division by 0 keeps nothing
        ((">", ("**", N, 0.5), 1.5), 3, 2),
    ],
)
def test_a_guard_is_kept_or_not(guard: Term, kept: int, refused: int) -> None:
    assert holds(guard, {"x": (kept,)})
    assert not holds(guard, {"x": (refused,)})
    assert read_guards(json.loads(json.dumps([guard])), {"x": 1}) == (guard,)


def test_a_broken_guard_says_which_size() -> None:
    assert broken([EVEN, (">=", N, 2)], {"x": (3, 4)}) == ["(x.shape[0] % 2) == 0: x.shape[0] is 3"]
    assert text(("<", ("min", N, 3), ("+", N, 1))) == "min(x.shape[0], 3) < (x.shape[0] + 1)"


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = ["not", made]
    return made


@pytest.mark.parametrize(
    "raw",
    [
        "x.shape[0] % 2 == 0",
        ["__import__('os').system('true')"],
        [["eval", "1"]],
        [["__import__", 1]],
        [["==", 1]],
        [["size", "y", 0]],
        [["size", "x", 2]],
        [["size", "x", -1]],
        [["size", "x", True]],
        [["size", "x"]],
        [None],
        [True],
        [[]],
        [{"==": 1}],
        [nested(2000)],
        [["+", 1, 1]] * 60_000,
    ],
)
def test_what_is_no_guard_is_refused(raw: Any) -> None:
    with pytest.raises(ValueError, match="guard"):
        read_guards(raw, {"x": 2})


def test_numbers_without_end_are_not_computed() -> None:
    tower: Term = N
    for _ in range(20):
        tower = ("**", tower, 8)
    with pytest.raises(OverflowError):
        evaluate(tower, {"x": (9,)})
    assert not holds(("==", tower, 1), {"x": (9,)})
    assert not holds(("==", ("**", N, 1 << 40), 1), {"x": (9,)})
