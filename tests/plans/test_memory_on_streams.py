"""Memory of steps on several streams: whatever order they run in, no value in use is written over."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from ridgeline.base.spec import TensorSpec
from ridgeline.plan.memory import ArenaLayout, StepIO, lay_out
from ridgeline.plan.streams import MAX_STREAMS, Schedule, needs_of, with_waits

ITEM = 4


@dataclass
class Graph:
    """Steps with all that memory planning knows of them, drawn at random."""

    steps: list[StepIO] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)


def draw(rng: random.Random, n: int) -> Graph:
    graph = Graph(specs={"x": TensorSpec("float32", (16,))})
    for i in range(n):
        name = f"v{i}"
        values = list(graph.specs)[-8:]
        kind = rng.random()
        source = rng.choice(values)
        if kind < 0.15:
            parts = rng.sample(values, min(len(values), rng.randint(1, 3)))
            firsts = [sum(graph.specs[p].numel for p in parts[:k]) for k in range(len(parts))]
            graph.specs[name] = TensorSpec("float32", (sum(graph.specs[p].numel for p in parts),))
            joins = tuple(zip(parts, firsts, strict=True))
            graph.steps.append(StepIO(tuple(parts), (name,), writes_out=True, joins=joins))
        elif kind < 0.3 and source != "x":
            graph.specs[name] = TensorSpec("float32", graph.specs[source].shape)
            graph.steps.append(StepIO((source,), (name,), writes_out=False, views=((name, source, 0),)))
        else:
            reads = tuple(rng.sample(values, min(len(values), rng.randint(1, 2))))
            shape = graph.specs[reads[0]].shape if rng.random() < 0.6 else (rng.choice([1, 16, 100]),)
            graph.specs[name] = TensorSpec("float32", shape)
            in_place = rng.random() < 0.5
            graph.steps.append(StepIO(reads, (name,), writes_out=rng.random() < 0.9, in_place=in_place))
    graph.outputs = sorted({f"v{n - 1}", f"v{rng.randrange(n)}"})
    return graph


def planned(graph: Graph, schedule: Schedule | None) -> ArenaLayout:
    before = None if schedule is None else schedule.before
    return lay_out(graph.steps, graph.specs, borders={"x"}, outputs=graph.outputs, before=before)


class Run:
    """The steps in some order that the schedule allows, over bytes that remember who wrote them.

    A step writes as soon as it begins, and must find what it reads still there when it ends. Several run at
    a time.
    """

    def __init__(self, graph: Graph, layout: ArenaLayout, schedule: Schedule) -> None:
        self.graph, self.layout, self.schedule = graph, layout, schedule
        self.written: dict[int, str] = {}  # by place in the arena: the value whose step wrote there last
        self.content: dict[str, tuple[str, ...]] = {}  # by value: what its bytes must say

    def places(self, name: str) -> range:
        root, first = self.layout.root(name)
        if root not in self.layout.offsets:
            return range(0)
        begin = self.layout.offsets[root] + first * ITEM
        return range(begin, begin + self.graph.specs[name].nbytes, ITEM)

    def begin(self, i: int) -> None:
        step = self.graph.steps[i]
        for name in filter(None, step.inputs):
            self.require(name, i)
        for name in step.outputs:
            moves_nothing = step.views or name in self.layout.joined
            if not moves_nothing:
                for place in self.places(name):
                    self.written[place] = name

    def end(self, i: int) -> None:
        step = self.graph.steps[i]
        mine = {place for name in step.outputs for place in self.places(name)}
        for name in step.outputs:
            self.content[name] = tuple(self.written.get(place, "") for place in self.places(name))
        for name in step.inputs:
            if name and not mine.intersection(self.places(name)):
                self.require(name, i)

    def require(self, name: str, i: int) -> None:
        if name in self.content:
            now = tuple(self.written.get(place, "") for place in self.places(name))
            assert now == self.content[name], f"step {i} finds {name} written over"

    def go(self, rng: random.Random) -> None:
        n = len(self.graph.steps)
        waiting, running, done = set(range(n)), set[int](), 0
        while waiting or running:
            ready = [i for i in waiting if not self.schedule.before[i] & ~done]
            if ready and (not running or rng.random() < 0.6):
                i = rng.choice(sorted(ready))
                self.begin(i)
                waiting.remove(i)
                running.add(i)
            else:
                i = rng.choice(sorted(running))
                self.end(i)
                running.remove(i)
                done |= 1 << i
        for name in self.graph.outputs:
            self.require(name, n)


def drawn_schedule(rng: random.Random, graph: Graph) -> Schedule:
    return with_waits([rng.randrange(MAX_STREAMS) for _ in graph.steps], needs_of(graph.steps))


@pytest.mark.parametrize("seed", range(150))
def test_no_order_that_the_schedule_allows_writes_over_a_value_in_use(seed: int) -> None:
    rng = random.Random(seed)
    graph = draw(rng, 35)
    schedule = drawn_schedule(rng, graph)
    layout = planned(graph, schedule)
    for _ in range(10):
        Run(graph, layout, schedule).go(rng)


def test_the_runs_above_find_what_the_order_of_one_stream_would_break() -> None:
    """Memory planned for one stream, run on several: the check must see it."""
    found = 0
    for seed in range(40):
        rng = random.Random(seed)
        graph = draw(rng, 35)
        schedule = drawn_schedule(rng, graph)
        try:
            for _ in range(10):
                Run(graph, planned(graph, None), schedule).go(rng)
        except AssertionError:
            found += 1
    assert found > 20


@pytest.mark.parametrize("seed", range(60))
def test_on_one_stream_the_layout_is_that_of_the_order(seed: int) -> None:
    graph = draw(random.Random(seed), 40)
    one = with_waits([0] * len(graph.steps), needs_of(graph.steps))
    by_order, by_streams = planned(graph, None), planned(graph, one)
    assert by_streams.offsets == by_order.offsets
    assert by_streams.aliases == by_order.aliases
    assert by_streams.joined == by_order.joined
    assert by_streams.lifetimes == by_order.lifetimes
    assert by_streams.arena_bytes == by_order.arena_bytes


def test_branches_side_by_side_share_nothing() -> None:
    steps = [
        StepIO(("x",), ("a",), writes_out=True),
        StepIO(("a",), ("b",), writes_out=True),
        StepIO(("x",), ("c",), writes_out=True),
        StepIO(("c",), ("d",), writes_out=True),
        StepIO(("b", "d"), ("y",), writes_out=True),
    ]
    specs = {n: TensorSpec("float32", (16,)) for n in "xabcdy"}

    def laid(streams: list[int]) -> ArenaLayout:
        before = with_waits(streams, needs_of(steps)).before
        return lay_out(steps, specs, borders={"x"}, outputs=["y"], before=before)

    assert laid([0, 0, 0, 0, 0]).arena_bytes == 3 * 64
    side_by_side = laid([0, 0, 1, 1, 0])
    assert len({side_by_side.offsets[n] for n in "abcd"}) == 4
    assert side_by_side.offsets["y"] in {side_by_side.offsets["a"], side_by_side.offsets["c"]}


def test_in_place_waits_for_readers_on_other_streams() -> None:
    steps = [
        StepIO(("x",), ("a",), writes_out=True),
        StepIO(("a",), ("b",), writes_out=True),
        StepIO(("a",), ("c",), writes_out=True, in_place=True),
        StepIO(("b", "c"), ("y",), writes_out=True),
    ]
    specs = {n: TensorSpec("float32", (16,)) for n in "xabcy"}

    def root_of_c(schedule: Schedule) -> str:
        layout = lay_out(steps, specs, borders={"x"}, outputs=["y"], before=schedule.before)
        return layout.root("c")[0]

    assert root_of_c(with_waits([0, 0, 0, 0], needs_of(steps))) == "a"
    assert root_of_c(with_waits([0, 1, 0, 0], needs_of(steps))) == "c"
    # a wait for the reader is enough
    assert root_of_c(Schedule((0, 1, 0, 0), ((), (0,), (1,), ()))) == "a"
