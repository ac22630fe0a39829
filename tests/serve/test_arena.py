"""An area's blocks: never over one another, given back in any order, and segments that come and go."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ridgeline.serve.link.arena import ALIGNMENT, PAGE, Arena, Block

LIMIT, SEGMENT, KEPT = 16 * PAGE, 4 * PAGE, 5 * PAGE


class Segments:
    """What an arena says of its segments."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.told: list[int] = []

    def add(self, segment: int, nbytes: int) -> None:
        assert segment not in self.told, "a number is used twice"
        self.told.append(segment)
        self.sizes[segment] = nbytes

    def arena(self, limit_bytes: int = LIMIT) -> Arena:
        return Arena(
            limit_bytes=limit_bytes,
            on_add=self.add,
            on_drop=self.sizes.pop,
            segment_bytes=SEGMENT,
            kept_bytes=KEPT,
        )


class ArenaMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.segments = Segments()
        self.arena = self.segments.arena()
        self.blocks: list[Block] = []

    @rule(nbytes=st.one_of(st.integers(0, 300), st.integers(0, LIMIT)))
    def allocate(self, nbytes: int) -> None:
        block = self.arena.allocate(nbytes)
        if block is None:
            assert self.blocks, "an empty arena has room for whatever fits its limit"
        else:
            assert block.nbytes == nbytes
            self.blocks.append(block)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        block = self.blocks.pop(data.draw(st.integers(0, len(self.blocks) - 1)))
        self.arena.free(block)
        with pytest.raises(ValueError, match=r"no block|no segment"):
            self.arena.free(block)

    @rule()
    def free_all(self) -> None:
        while self.blocks:
            self.arena.free(self.blocks.pop(len(self.blocks) // 2))
        assert self.arena.nbytes <= KEPT
        # all ranges were joined again: the largest block there can be fits
        self.arena.free(self._whole())

    def _whole(self) -> Block:
        block = self.arena.allocate(LIMIT)
        assert block is not None
        return block

    @invariant()
    def blocks_lie_apart_inside_their_segments(self) -> None:
        ends: dict[int, int] = {}
        for block in sorted(self.blocks, key=lambda b: (b.segment, b.offset)):
            assert block.offset % ALIGNMENT == 0
            assert block.offset >= ends.get(block.segment, 0)
            ends[block.segment] = block.offset + block.nbytes
            assert ends[block.segment] <= self.segments.sizes[block.segment]

    @invariant()
    def segments_are_as_told(self) -> None:
        assert self.arena.nbytes == sum(self.segments.sizes.values()) <= LIMIT
        used = {block.segment for block in self.blocks}
        empty = sum(size for number, size in self.segments.sizes.items() if number not in used)
        assert empty <= KEPT + SEGMENT


ArenaMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestArena = ArenaMachine.TestCase


def test_the_lowest_room_is_taken_first() -> None:
    arena = Segments().arena()
    first, second, third = (arena.allocate(100) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    assert [block.offset for block in (first, second, third)] == [0, 128, 256]
    arena.free(first)
    arena.free(second)
    assert arena.allocate(256) == Block(0, 0, 256)  # both ranges, as one


def test_more_than_the_limit_is_refused_and_a_full_area_says_so() -> None:
    arena = Segments().arena()
    with pytest.raises(ValueError, match=f"{LIMIT + 1:,} bytes are more than the area's limit of {LIMIT:,}"):
        arena.allocate(LIMIT + 1)
    whole = arena.allocate(LIMIT)
    assert whole == Block(0, 0, LIMIT)
    assert arena.allocate(1) is None
    arena.free(whole)
    assert arena.allocate(1) is not None


def test_segments_that_are_too_small_make_room_for_a_large_one() -> None:
    segments = Segments()
    arena = segments.arena()
    small = [arena.allocate(SEGMENT) for _ in range(4)]
    assert sorted(segments.sizes) == [0, 1, 2, 3]
    for block in small:
        assert block is not None
        arena.free(block)
    assert sorted(segments.sizes) == [0]  # one is kept
    assert arena.allocate(LIMIT) == Block(4, 0, LIMIT)
    assert segments.sizes == {4: LIMIT}


@pytest.mark.parametrize("block", [Block(0, 0, 99), Block(0, 64, 100), Block(7, 0, 100), Block(0, -64, 100)])
def test_what_was_never_taken_is_not_freed(block: Block) -> None:
    arena = Segments().arena()
    assert arena.allocate(100) == Block(0, 0, 100)
    with pytest.raises(ValueError, match=r"no block|no segment"):
        arena.free(block)
