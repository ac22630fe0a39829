"""A heap whose items may come to mean nothing before they reach the top."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=tuple[float, int, object])  # no two with the same first two parts

FEWEST = 64  # items that are kept without looking at them


class LazyHeap(Generic[Item]):
    """The least item that still counts, in O(log n): removing an item means that `is_live` denies it.

    Dead items are swept out when there are more of them than of live ones, so that memory follows what lives.
    """

    def __init__(self, is_live: Callable[[Item], bool]) -> None:
        self._is_live = is_live
        self._items: list[Item] = []
        self._sweep_at = FEWEST

    def __len__(self) -> int:
        """Dead items included."""
        return len(self._items)

    def push(self, item: Item) -> None:
        heappush(self._items, item)
        if len(self._items) > self._sweep_at:
            self._items = [each for each in self._items if self._is_live(each)]
            heapify(self._items)
            self._sweep_at = max(FEWEST, 2 * len(self._items))

    def top(self) -> Item | None:
        items = self._items
        while items:
            if self._is_live(items[0]):
                return items[0]
            heappop(items)
        return None

    def pop(self) -> Item | None:
        item = self.top()
        if item is not None:
            heappop(self._items)
        return item
