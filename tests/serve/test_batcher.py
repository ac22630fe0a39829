"""Which requests run together, and when: the rules of docs/serving.md, and what other batchers got wrong."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from math import inf
from time import process_time

import pytest

from ridgeline.serve.batching.batcher import Batcher, QueueFull
from ridgeline.serve.batching.bucket import MOST_PASSED_OVER, Entry
from ridgeline.serve.errors import Kind
from ridgeline.serve.spec import BatchPolicy, QueuePolicy


def items(entries: Iterable[Entry[str]]) -> str:
    return " ".join(entry.item for entry in entries)


def fill(batcher: Batcher[str], words: str, *, now: float = 0.0, **more: object) -> list[Entry[str]]:
    """A word for each request: its key is the first letter, its size the number behind, if there is one."""
    return [
        batcher.put(word, key=word[0], size=int(word[1:] or 1), now=now, **more)  # type: ignore[arg-type]
        for word in words.split()
    ]


def drained(batcher: Batcher[str], now: float = 0.0) -> list[str]:
    taken = []
    while batch := batcher.take(now):
        taken.append(items(batch))
    return taken


def test_interleaved_shapes_share_batches_and_the_oldest_shape_goes_first() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=8))
    fill(batcher, "b a b a c a b")
    assert drained(batcher) == ["b b b", "a a a", "c"]


def test_a_free_instance_never_waits_and_what_gathered_goes_together() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=4))
    assert batcher.take(0.0) == []
    fill(batcher, "a")
    assert batcher.wake_at(0.0) is None, "there is no timer to wait for"
    assert drained(batcher) == ["a"]
    fill(batcher, "a a a a a a")
    assert drained(batcher) == ["a a a a", "a a"]


def test_a_request_counts_with_its_size_and_is_never_split() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=8))
    fill(batcher, "a3 a3 a3 a8 a2")
    assert drained(batcher) == ["a3 a3 a2", "a3", "a8"]


def test_what_does_not_fit_is_passed_over_but_leads_as_soon_as_it_is_the_oldest() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=8))
    fill(batcher, "a1 a8 a1 a8 b1 a1")
    assert items(batcher.take(0.0)) == "a1 a1 a1"
    fill(batcher, "a1 a1 a1 a1")  # small ones that keep coming cannot starve the large one
    assert drained(batcher) == ["a8", "a8", "b1", "a1 a1 a1 a1"]


def test_the_search_for_smaller_requests_is_bounded() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=8))
    fill(batcher, "a1 " + "a8 " * MOST_PASSED_OVER + "a1")
    assert items(batcher.take(0.0)) == "a1"
    batcher = Batcher[str](BatchPolicy(max_batch=8))
    fill(batcher, "a1 " + "a8 " * (MOST_PASSED_OVER - 1) + "a1")
    assert items(batcher.take(0.0)) == "a1 a1"


@pytest.mark.parametrize("size", [0, 9])
def test_a_size_that_no_batch_can_have_is_a_fault_of_the_caller(size: int) -> None:
    with pytest.raises(AssertionError, match="a request of size"):
        Batcher[str](BatchPolicy(max_batch=8)).put("x", key="a", size=size, now=0.0)


@pytest.mark.parametrize("most", [0, 1])
def test_requests_of_a_model_without_batches_run_alone(most: int) -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=most, preferred=(4,), max_delay_s=1.0))
    fill(batcher, "a5 a1 b2")
    assert batcher.wake_at(0.0) is None
    assert drained(batcher) == ["a5", "a1", "b2"]


def test_keys_are_compared_whole() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=8))
    for value in (0, 256, 0):  # as bytes they differ only behind the first zero
        batcher.put("x", key=("shape", value.to_bytes(4, "little")), size=1, now=0.0)
    assert [len(batcher.take(0.0)) for _ in range(3)] == [2, 1, 0]


def test_with_a_delay_a_batch_waits_until_it_is_full_or_its_oldest_request_has_waited() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=4, max_delay_s=1.0))
    fill(batcher, "a a a", now=5.0)
    fill(batcher, "b", now=5.5)
    assert batcher.take(5.9) == []
    assert batcher.wake_at(5.9) == 6.0
    fill(batcher, "b b b", now=5.9)
    assert items(batcher.take(5.9)) == "b b b b", "a full batch does not wait behind one that does"
    assert items(batcher.take(6.0)) == "a a a"
    assert batcher.wake_at(6.0) is None


def test_the_delay_is_that_of_the_oldest_request_that_still_waits() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=4, max_delay_s=1.0))
    (first,) = fill(batcher, "a", now=0.0)
    fill(batcher, "a", now=0.5)
    assert batcher.cancel(first)
    assert batcher.wake_at(0.6) == 1.5
    assert batcher.take(1.4) == []
    assert items(batcher.take(1.5)) == "a"


def test_a_busy_server_is_not_woken_for_what_it_knows() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=4, max_delay_s=1.0))
    fill(batcher, "a", now=0.0)
    fill(batcher, "b", now=1.0)
    assert batcher.wake_at(1.5) == 2.0, "the first may go since 1.0, but no instance was free to take it"
    assert batcher.wake_at(2.0) is None
    assert drained(batcher, 2.0) == ["a", "b"]


def test_the_largest_preferred_size_goes_and_never_one_request_more() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=16, preferred=(4, 8), max_delay_s=1.0))
    fill(batcher, "a " * 9)
    assert drained(batcher) == ["a a a a a a a a"]
    assert len(batcher) == 1
    fill(batcher, "a " * 16)
    assert [len(batch.split()) for batch in drained(batcher, 1.5)] == [8, 8, 1]
    fill(batcher, "a " * 7, now=2.0)
    assert [len(batch.split()) for batch in drained(batcher, 2.0)] == [4]
    assert batcher.wake_at(2.0) == 3.0
    assert [len(batch.split()) for batch in drained(batcher, 3.0)] == [3], "whatever is there"


def test_a_preferred_size_beyond_the_largest_batch_means_nothing() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=4, preferred=(2, 6)))
    fill(batcher, "a " * 7)
    assert [len(batch.split()) for batch in drained(batcher)] == [2, 2, 2, 1]


def test_a_preferred_size_is_not_formed_without_the_oldest_request() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=8, preferred=(2,)))
    fill(batcher, "a4 a1 a1 a1")
    assert drained(batcher) == ["a4 a1 a1 a1"]


def test_preferred_sizes_without_a_delay_hold_nothing_back() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=8, preferred=(4,)))
    fill(batcher, "a " * 7)
    assert [len(batch.split()) for batch in drained(batcher)] == [4, 3]


def test_a_preferred_size_is_formed_of_requests_of_other_sizes() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=8, preferred=(4,), max_delay_s=1.0))
    fill(batcher, "a3 a3")
    assert batcher.take(0.0) == [], "3 or 6, not 4"
    fill(batcher, "a1")
    assert drained(batcher) == ["a3 a1"]
    fill(batcher, "a6")  # 9 wait: more than a batch holds, so there is nothing to wait for
    assert items(batcher.take(0.0)) == "a3"


def test_the_highest_priority_goes_first_and_lower_ones_fill_its_batch() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=3, priority_levels=3, default_priority=2))
    fill(batcher, "b a", priority=3)
    fill(batcher, "a")  # the default
    fill(batcher, "a", priority=1)
    fill(batcher, "c", priority=9)  # no such level: the default
    batch = batcher.take(0.0)
    assert [entry.priority for entry in batch] == [1, 2, 3]
    assert items(batch) == "a a a"
    assert batcher.waiting() == {1: 0, 2: 1, 3: 1}
    assert drained(batcher) == ["c", "b"]


def test_a_higher_priority_moves_its_bucket_forward() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=4, priority_levels=2, default_priority=2))
    fill(batcher, "a b")
    urgent = fill(batcher, "b", priority=1)
    assert items(batcher.take(0.0)) == "b b"
    fill(batcher, "b")
    urgent = fill(batcher, "b", priority=1)
    assert batcher.cancel(urgent[0])
    assert drained(batcher) == ["a", "b"], "without it, its bucket is back in its place"


def test_a_full_queue_refuses_exactly_and_for_each_priority() -> None:
    policy = BatchPolicy(
        max_batch=8, priority_levels=2, default_priority=2, queue=QueuePolicy(max_queue_size=2),
        queues={1: QueuePolicy(max_queue_size=1, timeout_s=5.0)},
    )  # fmt: skip
    batcher = Batcher[str](policy)
    fill(batcher, "a4 b4")
    with pytest.raises(QueueFull, match="2 requests wait") as refused:
        fill(batcher, "c")
    assert (refused.value.kind, refused.value.reason) == (Kind.UNAVAILABLE, "REJECTED")
    (urgent,) = fill(batcher, "a", priority=1)
    with pytest.raises(QueueFull):
        fill(batcher, "a", priority=1)
    assert batcher.cancel(urgent), "the place of one whose client went away is free at once"
    fill(batcher, "a", priority=1)
    assert len(batcher) == 3
    fill(batcher, "a", now=5.0, priority=1)  # so is the place of one whose time is over
    assert items(batcher.expire(5.0)) == "a"
    batcher.take(5.0)
    assert len(fill(batcher, "c", now=5.0)) == 1, "and so is a place in a batch that runs"


def test_time_in_the_queue_is_over_to_the_moment() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=8, queue=QueuePolicy(timeout_s=2.0)))
    fill(batcher, "a", now=0.0)
    fill(batcher, "b", now=1.0)
    assert batcher.expire(1.9) == []
    assert batcher.wake_at(1.9) == 2.0
    assert items(batcher.take(2.0)) == "b", "what has expired is in no batch, even if nobody asked for it"
    assert batcher.wake_at(2.0) == 2.0, "it is still to be told"
    assert items(batcher.expire(2.0)) == "a"
    assert batcher.expire(9.0) == []
    assert batcher.wake_at(9.0) is None


@pytest.mark.parametrize(
    ("default", "asked", "is_allowed", "allowed"),
    [
        (0.0, 0.0, True, inf), (0.0, 3.0, True, 3.0), (0.0, 3.0, False, inf), (2.0, 3.0, True, 2.0),
        (2.0, 1.0, True, 1.0), (2.0, 1.0, False, 2.0), (2.0, 0.0, True, 2.0),
    ],
)  # fmt: skip
def test_a_request_may_shorten_its_time_if_the_model_allows_it(
    default: float, asked: float, is_allowed: bool, allowed: float
) -> None:
    policy = QueuePolicy(timeout_s=default, allow_override=is_allowed)
    batcher = Batcher[str](BatchPolicy(max_batch=8, queue=policy))
    (entry,) = fill(batcher, "a", now=10.0, timeout_s=asked)
    assert entry.deadline == 10.0 + allowed


def test_delayed_requests_wait_behind_all_whose_time_is_not_over() -> None:
    queue = QueuePolicy(timeout_s=1.0, timeout_action="DELAY", max_queue_size=3)
    batcher = Batcher[str](
        BatchPolicy(
            max_batch=2, queue=queue, priority_levels=2, default_priority=1, queues={2: QueuePolicy()}
        )
    )
    fill(batcher, "a c", now=0.0)
    fill(batcher, "b", now=0.5)
    fill(batcher, "d", now=0.0, priority=2)
    assert batcher.expire(1.0) == []
    assert len(batcher) == 4
    with pytest.raises(QueueFull):
        fill(batcher, "b", now=1.0)
    assert drained(batcher, 1.0) == ["b", "a", "c", "d"]


def test_a_delayed_request_does_not_wait_for_a_larger_batch_too() -> None:
    queue = QueuePolicy(timeout_s=1.0, timeout_action="DELAY")
    batcher = Batcher[str](BatchPolicy(max_batch=4, max_delay_s=5.0, queue=queue))
    fill(batcher, "a")
    assert batcher.take(0.9) == []
    assert items(batcher.take(1.0)) == "a"
    assert batcher.wake_at(1.0) is None


def test_after_a_delayed_request_is_gone_the_others_wait_for_company_again() -> None:
    queue = QueuePolicy(timeout_s=1.0, timeout_action="DELAY")
    batcher = Batcher[str](BatchPolicy(max_batch=4, max_delay_s=0.5, queue=queue))
    (late,) = fill(batcher, "a", now=0.0)
    fill(batcher, "a", now=0.9)
    assert batcher.expire(1.0) == []
    assert batcher.cancel(late)
    assert batcher.take(1.0) == []
    assert items(batcher.take(1.4)) == "a"


def test_a_request_leaves_the_queue_in_one_way_only() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=1, queue=QueuePolicy(timeout_s=1.0)))
    taken, cancelled, expired = fill(batcher, "a b c")
    assert batcher.take(0.0) == [taken]
    assert batcher.cancel(cancelled)
    assert not batcher.cancel(cancelled)
    assert not batcher.cancel(taken)
    assert batcher.expire(1.0) == [expired]
    assert not batcher.cancel(expired)
    assert not any(entry.is_waiting for entry in (taken, cancelled, expired))
    assert len(batcher) == 0


def test_all_that_waits_can_be_taken_out() -> None:
    batcher = Batcher[str](BatchPolicy(max_batch=4, priority_levels=2, default_priority=2, max_delay_s=1.0))
    fill(batcher, "a b a")
    fill(batcher, "c", priority=1)
    assert items(batcher.clear()) == "a b a c"
    assert len(batcher) == 0
    assert batcher.take(2.0) == []
    assert batcher.wake_at(2.0) is None


def test_a_request_that_left_the_queue_is_not_kept_alive() -> None:
    class Body:
        pass

    batcher = Batcher[Body](BatchPolicy(max_batch=1, max_delay_s=1.0, queue=QueuePolicy(timeout_s=60.0)))
    seen = []
    for is_taken in (True, False):
        entry = batcher.put(body := Body(), key="a", size=1, now=0.0)
        seen.append(weakref.ref(body))
        if is_taken:
            batcher.take(0.0)
        else:
            batcher.cancel(entry)
        del body, entry
    gc.collect()
    assert [ref() for ref in seen] == [None, None]


def test_clients_that_come_and_go_while_all_instances_are_busy_cost_no_memory() -> None:
    policy = BatchPolicy(max_batch=4, max_delay_s=1.0, preferred=(1,), queue=QueuePolicy(timeout_s=60.0))
    batcher = Batcher[str](policy)
    for i in range(1000):
        batcher.cancel(batcher.put("x", key=i, size=1, now=float(i) / 1000))
    assert len(batcher._buckets) == 0
    assert max(map(len, (batcher._listed, batcher._watched, batcher._deadlines))) <= 64


def seconds_for(count: int, policy: BatchPolicy) -> float:
    """`count` requests in 1000 buckets come, every third goes away, the rest is taken."""
    batcher = Batcher[int](policy)
    began = process_time()
    entries = [batcher.put(i, key=i % 1000, size=1, now=0.0) for i in range(count)]
    for entry in entries[::3]:
        batcher.cancel(entry)
    while batcher.take(5.0):
        pass
    assert len(batcher) == 0
    return process_time() - began


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_a_hundred_thousand_requests_in_a_thousand_buckets_cost_as_much_each_as_a_few(delay: float) -> None:
    policy = BatchPolicy(max_batch=8, max_delay_s=delay, queue=QueuePolicy(timeout_s=60.0))
    few = min(seconds_for(4000, policy) for _ in range(3))
    many = seconds_for(100_000, policy)
    # 25 times as many: a step that looks at all requests, or all buckets, would cost 600 times as much
    assert many < 120 * few
