"""The heap whose items may die where they lie, against sorting what lives."""

from __future__ import annotations

import random

from ridgeline.serve.batching.heap import FEWEST, LazyHeap


def test_the_least_live_item_is_on_top_however_many_have_died() -> None:
    living: set[int] = set()
    heap = LazyHeap[tuple[float, int, None]](lambda item: item[1] in living)
    times = {number: random.uniform(0, 10) for number in range(2000)}
    for number, at in times.items():
        living.add(number)
        heap.push((at, number, None))
        while len(living) > 100 + 50 * (number % 3):
            living.remove(random.choice(sorted(living)))
        assert len(heap) <= max(FEWEST, 2 * 201)
        top = heap.top()
        assert top is not None
        assert top[:2] == min((times[each], each) for each in living)
    order = sorted((times[each], each) for each in living)
    while (item := heap.pop()) is not None:
        living.discard(item[1])
        assert item[:2] == order.pop(0)
    assert not order
    assert len(heap) == 0


def test_few_items_are_not_swept() -> None:
    """Looking at all of them for every new one would cost more than keeping them."""
    looks = 0

    def is_live(item: tuple[float, int, None]) -> bool:
        nonlocal looks
        looks += 1
        return True

    heap = LazyHeap[tuple[float, int, None]](is_live)
    for number in range(10_000):
        heap.push((0.0, number, None))
    assert looks < 20_000, "sweeps are too frequent to be paid for by the pushes between them"
