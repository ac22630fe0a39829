"""The smallest set of names that suffices, found with few questions.

Which nodes must stay in high precision is such a question. The answer is a set, not a prefix: names are
ordered by how much each matters alone, the shortest sufficient run of that order is found by doubling and
bisection, and then names are taken out again until none can be spared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

# whether keeping exactly these in high precision is inside the budget
IsInside: TypeAlias = Callable[[frozenset[str]], bool]


def minimal_set(
    candidates: Iterable[str], is_inside: IsInside, order: Sequence[str]
) -> frozenset[str] | None:
    """A sufficient set of candidates from which no single one can be removed; None if all do not suffice.

    `order` has the candidates that matter most first; those it does not name come last. `is_inside` is asked
    once for each set at most. It need not be monotone: each answer that the result rests on was asked for.
    """
    known = dict.fromkeys(candidates)
    ordered = [name for name in dict.fromkeys(order) if name in known]
    ordered += [name for name in known if name not in set(ordered)]
    asked = Questions(is_inside)
    if asked(()):
        return frozenset()
    found = shortest_prefix(ordered, asked)
    return None if found is None else frozenset(without_spare(found, asked))


class Questions:
    """The question with its answers so far."""

    def __init__(self, is_inside: IsInside) -> None:
        self._is_inside = is_inside
        self._answers: dict[frozenset[str], bool] = {}

    def __call__(self, names: Iterable[str]) -> bool:
        key = frozenset(names)
        if key not in self._answers:
            self._answers[key] = self._is_inside(key)
        return self._answers[key]


def shortest_prefix(ordered: list[str], asked: Questions) -> list[str] | None:
    """A sufficient prefix, the shortest one if sufficiency is monotone; None if there is none."""
    too_few, enough = 0, min(1, len(ordered))
    while not asked(ordered[:enough]):
        if enough == len(ordered):
            return None
        too_few, enough = enough, min(2 * enough, len(ordered))
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if asked(ordered[:middle]):
            enough = middle
        else:
            too_few = middle
    return ordered[:enough]


def without_spare(names: list[str], asked: Questions) -> list[str]:
    """Take out pieces, large ones first and the least important first, until no name can be spared."""
    piece = max(1, len(names) // 2)
    while True:
        before = len(names)
        end = len(names)
        while end > 0:
            begin = max(0, end - piece)
            rest = names[:begin] + names[end:]
            if asked(rest):
                names = rest
            end = begin
        if piece == 1 and len(names) == before:
            return names
        # a name that was needed beside others may be spare without them: single names are tried again
        piece = max(1, piece // 2)
