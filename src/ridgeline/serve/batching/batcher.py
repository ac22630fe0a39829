"""Which requests run together, and when: pure logic on one thread. Time is an argument, in seconds.

Requests of one key may share a batch. A batch begins with the oldest request of the highest priority, and is
filled with requests of the same key in the order of their priority and arrival. Without a delay in the policy
nothing that waits is held back. With one, a batch goes when it has a preferred size (the largest that can be
formed), when it is full, or when its oldest request has waited that long. A priority goes before all lower
ones whatever their age; within a priority no request waits for ever, because the oldest is in the next batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

from ridgeline.serve.batching.bucket import Bucket, Entry
from ridgeline.serve.batching.heap import LazyHeap
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.spec import BatchPolicy, QueuePolicy

T = TypeVar("T")


class QueueFull(RequestError):
    """As many requests wait as the policy allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            Kind.UNAVAILABLE, f"the model's queue is full: {limit} requests wait", reason="REJECTED"
        )


class Batcher(Generic[T]):
    """The queue of one model. `put`, `cancel` and `expire` cost O(log n), `take` that and its batch's length.

    With `max_batch` 0 or 1 requests are not joined: each runs alone, whatever its size.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._joins = policy.max_batch > 1
        self._preferred = sorted((n for n in policy.preferred if n <= policy.max_batch), reverse=True)
        self._delay_s = policy.max_delay_s if self._joins else 0.0
        self._buckets: dict[Hashable, Bucket[T]] = {}
        self._waiting: dict[int, int] = {}
        self._next_number = 0
        self._expired: list[Entry[T]] = []
        # buckets that may have a batch, by their leader's lane and number
        self._listed = LazyHeap[tuple[int, int, Bucket[T]]](lambda each: each[2].listed is each)
        # buckets by when their oldest request has waited long enough
        self._watched = LazyHeap[tuple[float, int, Bucket[T]]](lambda each: each[2].watched == each[1])
        # lines instead of entries, so that what has left the queue is not kept alive until its time is over
        self._deadlines = LazyHeap[tuple[float, int, OrderedDict[int, Entry[T]]]](
            lambda each: each[1] in each[2]
        )

    def __len__(self) -> int:
        return sum(self._waiting.values())

    def waiting(self) -> dict[int, int]:
        """Requests that wait, by priority; priorities without any may be missing."""
        return dict(self._waiting)

    def put(
        self, item: T, *, key: Hashable, size: int, now: float, priority: int = 0, timeout_s: float = 0.0
    ) -> Entry[T]:
        """Queues a request; `QueueFull` if it may not wait. The caller refuses larger ones than `max_batch`.

        A priority that the model does not have is its default, and so is 0. `timeout_s` of 0 is the policy's.
        """
        assert 0 < size <= self.policy.max_batch or not self._joins, f"a request of size {size}"
        self._move_expired(now)
        if not 0 < priority <= self.policy.priority_levels:
            priority = self.policy.default_priority
        queue = self.policy.queue_of(priority)
        waiting = self._waiting.get(priority, 0)
        if 0 < queue.max_queue_size <= waiting:
            raise QueueFull(queue.max_queue_size)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(key)
        number = self._next_number
        self._next_number = number + 1
        deadline = now + _allowed_s(queue, timeout_s)
        entry = Entry(item, key, size, priority, number, now, deadline, 2 * priority, bucket)
        bucket.add(entry)
        self._waiting[priority] = waiting + 1
        if deadline != inf:
            self._deadlines.push((deadline, number, bucket.lanes[entry.lane]))
        if bucket.listed is None or entry.lane < bucket.listed[0]:  # else nothing can have changed
            self._update(bucket)
        return entry

    def cancel(self, entry: Entry[T]) -> bool:
        """Whether it was still waiting; then it is in no batch and no answer of `expire`."""
        bucket = entry.bucket
        if bucket is None:
            return False
        self._remove(entry, bucket)
        self._update(bucket)
        return True

    def take(self, now: float) -> list[Entry[T]]:
        """What one free instance should run now. Nothing: nothing waits, or by the policy waiting pays."""
        self._move_expired(now)
        self._mark_due(now)
        while (top := self._listed.pop()) is not None:
            bucket = top[2]
            bucket.listed = None
            batch = self._form(bucket)
            if batch:
                for entry in batch:
                    self._remove(entry, bucket)
                self._update(bucket)
                return batch
            # it is listed again when it changes, or when its delay is over
        return []

    def expire(self, now: float) -> list[Entry[T]]:
        """Requests whose time in the queue was over, each told once. Those that may wait on are not."""
        self._move_expired(now)
        expired, self._expired = self._expired, []
        return expired

    def wake_at(self, now: float) -> float | None:
        """When `take` or `expire` may next answer otherwise than now though nothing came or went."""
        self._move_expired(now)
        if self._expired:
            return now
        self._mark_due(now)
        tops = (self._deadlines.top(), self._watched.top())
        return min((top[0] for top in tops if top is not None), default=None)

    def clear(self) -> list[Entry[T]]:
        """Everything that waits, in the order of arrival, taken out of the queue."""
        lines = (line for bucket in self._buckets.values() for line in bucket.lanes.values())
        entries = [entry for line in lines for entry in line.values()]
        for entry in entries:
            self.cancel(entry)
        return sorted(entries, key=lambda entry: entry.number)

    def _form(self, bucket: Bucket[T]) -> list[Entry[T]]:
        """The batch that the bucket has for now, or nothing."""
        if not self._joins:
            return [bucket.leader()]
        for size in self._preferred:
            if size <= bucket.size:
                batch, left = bucket.fill(size)
                if not left:
                    return batch
        if bucket.size < self.policy.max_batch and not self._may_not_wait(bucket):
            return []
        return bucket.fill(self.policy.max_batch)[0]

    def _may_not_wait(self, bucket: Bucket[T]) -> bool:
        """A request whose time is over waits for those whose time is not, but not for a larger batch."""
        return not self._delay_s or bucket.is_due or bucket.late > 0

    def _remove(self, entry: Entry[T], bucket: Bucket[T]) -> None:
        bucket.remove(entry)
        entry.bucket = None
        self._waiting[entry.priority] -= 1

    def _update(self, bucket: Bucket[T]) -> None:
        """After every change of a bucket: in which place it may be taken, and from when on."""
        if not bucket.lanes:
            del self._buckets[bucket.key]
            bucket.listed, bucket.watched = None, -1
            return
        if self._delay_s:
            oldest = bucket.oldest()
            if oldest.number != bucket.watched:
                bucket.watched, bucket.is_due = oldest.number, False
                self._watched.push((oldest.arrival + self._delay_s, oldest.number, bucket))
        leader = bucket.leader()
        if bucket.listed is None or bucket.listed[:2] != (leader.lane, leader.number):
            bucket.listed = (leader.lane, leader.number, bucket)
            self._listed.push(bucket.listed)

    def _mark_due(self, now: float) -> None:
        while (top := self._watched.top()) is not None and top[0] <= now:
            self._watched.pop()
            top[2].is_due = True
            self._update(top[2])

    def _move_expired(self, now: float) -> None:
        """Before any answer is given, so that limits and batches are exact."""
        while (top := self._deadlines.top()) is not None and top[0] <= now:
            self._deadlines.pop()
            entry = top[2][top[1]]
            bucket = entry.bucket
            assert bucket is not None, "what is in a line waits"
            if self.policy.queue_of(entry.priority).timeout_action == "DELAY":
                bucket.remove(entry)
                entry.lane, entry.deadline = entry.lane | 1, inf
                bucket.add(entry)
            else:
                self._remove(entry, bucket)
                self._expired.append(entry)
            self._update(bucket)


def _allowed_s(queue: QueuePolicy, asked_s: float) -> float:
    """How long a request may wait. What it asks for itself only shortens that."""
    allowed = queue.timeout_s or inf
    return min(allowed, asked_s) if queue.allow_override and asked_s > 0 else allowed
