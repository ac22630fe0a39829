"""Answers in the order in which their requests came, for `preserve_ordering`."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class InOrder(Generic[T]):
    """Holds answers back until all earlier numbers are answered or skipped. Numbers are those of entries."""

    def __init__(self) -> None:
        self._next = 0
        self._held: dict[int, tuple[T, ...]] = {}  # one answer, or none

    def __len__(self) -> int:
        """Answers that are held back."""
        return sum(map(len, self._held.values()))

    def put(self, number: int, answer: T) -> list[T]:
        """The answers that may go now."""
        return self._settle(number, (answer,))

    def skip(self, number: int) -> list[T]:
        """The request gets no answer in order: it was cancelled, or refused while it waited."""
        return self._settle(number, ())

    def _settle(self, number: int, answers: tuple[T, ...]) -> list[T]:
        is_new = number >= self._next and number not in self._held
        assert is_new, f"request {number} is answered twice"
        self._held[number] = answers
        ready: list[T] = []
        while self._next in self._held:
            ready += self._held.pop(self._next)
            self._next += 1
        return ready
