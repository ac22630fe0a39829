"""The batcher against a reference that keeps one list and looks at all of it every time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from ridgeline.serve.batching.batcher import Batcher, QueueFull
from ridgeline.serve.batching.bucket import Entry
from ridgeline.serve.spec import BatchPolicy, QueuePolicy


@dataclass(eq=False)
class Waits:
    number: int
    key: str
    size: int
    priority: int
    arrival: float
    deadline: float
    late: int = 0  # how many expired before it, from 1


class Reference:
    """The rules, as plainly as they can be written."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.waiting: list[Waits] = []
        self.expired: list[int] = []
        self.count = 0
        self.late = 0

    def put(self, key: str, size: int, priority: int, timeout_s: float, now: float) -> bool:
        self.sweep(now)
        levels = self.policy.priority_levels
        level = priority if 1 <= priority <= levels else self.policy.default_priority
        queue = self.policy.queue_of(level)
        limit = queue.max_queue_size
        if limit and sum(each.priority == level for each in self.waiting) >= limit:
            return False
        limits = [queue.timeout_s or inf]
        if queue.allow_override and timeout_s:
            limits.append(timeout_s)
        self.waiting.append(Waits(self.count, key, size, level, now, now + min(limits)))
        self.count += 1
        return True

    def sweep(self, now: float) -> None:
        for each in sorted(self.waiting, key=lambda each: (each.deadline, each.number)):
            if each.deadline > now:
                break
            if self.policy.queue_of(each.priority).timeout_action == "DELAY":
                self.late += 1
                each.late, each.deadline = self.late, inf
            else:
                self.waiting.remove(each)
                self.expired.append(each.number)

    def expire(self, now: float) -> list[int]:
        self.sweep(now)
        expired, self.expired = self.expired, []
        return expired

    def bucket(self, key: str) -> list[Waits]:
        order = [each for each in self.waiting if each.key == key]
        return sorted(order, key=lambda each: (each.priority, each.late, each.number))

    def is_due(self, bucket: list[Waits], now: float) -> bool:
        on_time = [each.arrival for each in bucket if not each.late]
        return len(on_time) < len(bucket) or min(on_time) + self.policy.max_delay_s <= now

    def batch(self, bucket: list[Waits], now: float) -> list[Waits]:
        policy = self.policy
        if policy.max_batch <= 1:
            return bucket[:1]
        for size in sorted(policy.preferred, reverse=True):
            batch = filled(bucket, size)
            if sum(each.size for each in batch) == size and bucket[0] in batch:
                return batch
        is_full = sum(each.size for each in bucket) >= policy.max_batch
        return filled(bucket, policy.max_batch) if is_full or self.is_due(bucket, now) else []

    def take(self, now: float) -> list[int]:
        self.sweep(now)
        batches = []
        for key in {each.key for each in self.waiting}:
            bucket = self.bucket(key)
            if batch := self.batch(bucket, now):
                batches.append(((bucket[0].priority, bucket[0].late > 0, bucket[0].number), batch))
        if not batches:
            return []
        _, batch = min(batches, key=lambda each: each[0])
        for each in batch:
            self.waiting.remove(each)
        return [each.number for each in batch]

    def moments(self) -> list[float]:
        """When time alone may change an answer."""
        moments = [each.deadline for each in self.waiting if each.deadline < inf]
        if self.policy.max_delay_s and self.policy.max_batch > 1:
            moments += [each.arrival + self.policy.max_delay_s for each in self.waiting if not each.late]
        return moments


def filled(bucket: list[Waits], room: int) -> list[Waits]:
    batch = []
    for each in bucket:
        if each.size <= room:
            batch.append(each)
            room -= each.size
    return batch


def numbers(entries: Iterable[Entry[object]]) -> list[int]:
    return [entry.number for entry in entries]


REQUESTS = st.tuples(
    st.sampled_from("aaab"), st.sampled_from([1, 1, 1, 2, 3, 6]), st.integers(0, 3),
    st.sampled_from([0.0, 0.0, 1.0, 4.0]),
)  # fmt: skip
QUEUES = st.builds(
    QueuePolicy,
    max_queue_size=st.sampled_from([0, 0, 4]),
    timeout_s=st.sampled_from([0.0, 0.0, 2.0, 5.0]),
    timeout_action=st.sampled_from(["REJECT", "DELAY"]),
    allow_override=st.booleans(),
)


@st.composite
def policies(draw: st.DrawFn) -> BatchPolicy:
    levels = draw(st.sampled_from([0, 0, 2, 3]))
    most = draw(st.sampled_from([1, 4, 6, 6, 6]))
    return BatchPolicy(
        max_batch=most,
        preferred=tuple(sorted(draw(st.sets(st.integers(2, most))))) if most > 1 else (),
        max_delay_s=draw(st.sampled_from([0.0, 1.0, 3.0])),
        priority_levels=levels,
        default_priority=draw(st.integers(1, levels)) if levels else 0,
        queue=draw(QUEUES),
        queues=draw(st.dictionaries(st.integers(1, levels), QUEUES)) if levels else {},
    )


class BatcherMachine(RuleBasedStateMachine):
    """Whatever clients, instances and the clock do, both give the same answers."""

    entries = Bundle("entries")

    @initialize(policy=policies())
    def start(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.batcher = Batcher[object](policy)
        self.reference = Reference(policy)
        self.now = 0.0

    @rule(target=entries, requests=st.lists(REQUESTS, min_size=1, max_size=8))
    def put(self, requests: list[tuple[str, int, int, float]]) -> MultipleResults[Entry[object]]:
        made = [self.put_one(*request) for request in requests]
        return multiple(*(entry for entry in made if entry is not None))

    def put_one(self, key: str, size: int, priority: int, timeout_s: float) -> Entry[object] | None:
        size = min(size, self.policy.max_batch)
        is_admitted = self.reference.put(key, size, priority, timeout_s, self.now)
        try:
            entry = self.batcher.put(
                None, key=key, size=size, now=self.now, priority=priority, timeout_s=timeout_s
            )
        except QueueFull:
            assert not is_admitted
            return None
        assert is_admitted
        assert entry.number == self.reference.count - 1
        return entry

    @rule(entry=consumes(entries))
    def cancel(self, entry: Entry[object]) -> None:
        found = [each for each in self.reference.waiting if each.number == entry.number]
        assert self.batcher.cancel(entry) == bool(found)
        for each in found:
            self.reference.waiting.remove(each)

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        waited = bool(self.reference.waiting)
        expected = self.reference.take(self.now)
        batch = self.batcher.take(self.now)
        assert numbers(batch) == expected
        assert len({entry.key for entry in batch}) <= 1
        assert sum(entry.size for entry in batch) <= self.policy.max_batch
        if waited and not self.policy.max_delay_s and not self.reference.expired:
            assert batch, "an instance is idle though requests wait"

    @rule()
    def expire(self) -> None:
        assert numbers(self.batcher.expire(self.now)) == self.reference.expire(self.now)

    @rule()
    def sleep_as_told(self) -> None:
        """With an idle instance and no request, nothing happens before the time that is told."""
        while expected := self.reference.take(self.now):
            assert numbers(self.batcher.take(self.now)) == expected
        assert self.batcher.take(self.now) == []
        assert numbers(self.batcher.expire(self.now)) == self.reference.expire(self.now)
        at = self.batcher.wake_at(self.now)
        assert at == min(self.reference.moments(), default=None)
        if at is None:
            assert all(each.deadline == inf for each in self.reference.waiting)
            return
        assert at > self.now, "a timer that fires at once, again and again"
        just_before = (self.now + at) / 2
        assert self.reference.take(just_before) == []
        assert self.reference.expire(just_before) == []
        self.now = at

    @invariant()
    def counts_are_exact(self) -> None:
        waiting = self.reference.waiting
        assert len(self.batcher) == len(waiting)
        counts = self.batcher.waiting()
        assert all(counts[each.priority] for each in waiting)
        assert sum(counts.values()) == len(waiting)

    def teardown(self) -> None:
        """Nobody starves: when no request comes any more, all that wait are taken or expire."""
        if hasattr(self, "batcher"):
            self.now += 10.0
            expected = set(range(self.reference.count)) & {each.number for each in self.reference.waiting}
            left = set(numbers(self.batcher.expire(self.now)))
            while batch := self.batcher.take(self.now):
                left |= set(numbers(batch))
            assert left >= expected
            assert len(self.batcher) == 0


BatcherMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestBatcherAgainstReference = BatcherMachine.TestCase
