"""Requests of a queue that may share a batch, and which of them a batch of some size would hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_PASSED_OVER = 32  # requests that do not fit into a batch, before the search for smaller ones ends


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """A request in a queue, or one that has left it."""

    item: T  # the caller's own
    key: Hashable
    size: int
    priority: int  # 1 is the highest; 0 in a queue without levels
    number: int  # in the order of arrival, from 0: what `InOrder` takes
    arrival: float
    deadline: float
    lane: int  # two of each priority: the odd one for those whose time is over and that wait on
    bucket: Bucket[T] | None  # None: it was taken, has expired or was cancelled

    @property
    def is_waiting(self) -> bool:
        return self.bucket is not None


class Bucket(Generic[T]):
    """The requests of one key. Lanes go from high to low priority; empty ones are dropped."""

    __slots__ = ("is_due", "key", "lanes", "late", "listed", "size", "watched")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.size = 0  # of all requests together
        self.late = 0  # requests in odd lanes
        self.lanes: dict[int, OrderedDict[int, Entry[T]]] = {}
        # what the batcher knows of it
        self.listed: tuple[int, int, Bucket[T]] | None = None  # its place: lane and number of its leader
        self.watched = -1  # number of the request whose delay is being waited for
        self.is_due = False  # that request has waited long enough

    def add(self, entry: Entry[T]) -> None:
        line = self.lanes.get(entry.lane)
        if line is None:
            line = self.lanes[entry.lane] = OrderedDict()
        line[entry.number] = entry
        self.size += entry.size
        self.late += entry.lane & 1

    def remove(self, entry: Entry[T]) -> None:
        line = self.lanes[entry.lane]
        del line[entry.number]
        if not line:
            del self.lanes[entry.lane]
        self.size -= entry.size
        self.late -= entry.lane & 1

    def leader(self) -> Entry[T]:
        """The request that is in the next batch, whatever else is."""
        return next(iter(self.lanes[min(self.lanes)].values()))

    def oldest(self) -> Entry[T]:
        """Exact while no request is late; after that nobody waits for the oldest one's delay."""
        return min((next(iter(line.values())) for line in self.lanes.values()), key=_number)

    def fill(self, room: int) -> tuple[list[Entry[T]], int]:
        """The leader and what fits beside it, in order; and the room that is left. Never without the leader.

        A request that does not fit is passed over, or large ones between small ones would make every batch
        small. It could not be in this batch anyway, and the first that was passed over leads a later one.
        """
        chosen: list[Entry[T]] = []
        passed = 0
        for lane in sorted(self.lanes):
            for entry in self.lanes[lane].values():
                if entry.size <= room:
                    chosen.append(entry)
                    room -= entry.size
                    if not room:
                        return chosen, 0
                else:
                    passed += 1
                    if not chosen or passed == MOST_PASSED_OVER:
                        return chosen, room
        return chosen, room


def _number(entry: Entry[T]) -> int:
    return entry.number
