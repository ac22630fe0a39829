"""Values put together by key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, and the keys, in the order in which they come."""
    made: dict[K, list[V]] = {}
    for key, value in pairs:
        made.setdefault(key, []).append(value)
    return made
