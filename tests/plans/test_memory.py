"""The arena: values that live together never share bytes, and those that do not, do."""

from __future__ import annotations

import random

import pytest

from ridgeline.base.spec import TensorSpec
from ridgeline.plan.memory import StepIO, account, aligned, lay_out


def chain(n: int, size: int = 256) -> tuple[list[StepIO], dict[str, TensorSpec]]:
    steps = [StepIO((f"v{i}",), (f"v{i + 1}",), writes_out=True) for i in range(n)]
    return steps, {f"v{i}": TensorSpec("float32", (size,)) for i in range(n + 1)}


def overlaps(layout, specs) -> list[tuple[str, str]]:  # type: ignore[no-untyped-def]
    """Pairs that live at the same time and share bytes."""
    found = []
    names = list(layout.offsets)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            (a0, a1), (b0, b1) = layout.lifetimes[a], layout.lifetimes[b]
            if a1 < b0 or b1 < a0:
                continue
            ao, bo = layout.offsets[a], layout.offsets[b]
            if ao < bo + specs[b].nbytes and bo < ao + specs[a].nbytes:
                found.append((a, b))
    return found


def test_a_chain_needs_two_buffers() -> None:
    steps, specs = chain(6)
    layout = lay_out(steps, specs, borders={"v0"}, outputs=["v6"])
    assert layout.arena_bytes == 2 * 1024
    assert not overlaps(layout, specs)


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    specs = {"x": TensorSpec("float32", (64,))}
    steps = []
    for i in range(40):
        reads = tuple(rng.sample(list(specs), min(len(specs), rng.randint(1, 3))))
        name = f"v{i}"
        specs[name] = TensorSpec("float32", (rng.choice([1, 7, 64, 1000]),))
        steps.append(StepIO(reads, (name,), writes_out=rng.random() < 0.8, in_place=rng.random() < 0.3))
    layout = lay_out(steps, specs, borders={"x"}, outputs=["v39", "v7"])
    assert not overlaps(layout, specs)
    assert layout.arena_bytes <= sum(aligned(s.nbytes) for s in specs.values())
    for name in layout.aliases:
        root, _ = layout.root(name)
        assert specs[root] == specs[name]


def test_in_place_takes_the_input_that_ends_there() -> None:
    steps = [StepIO(("x",), ("a",), writes_out=True), StepIO(("a",), ("b",), writes_out=True, in_place=True)]
    specs = {n: TensorSpec("float32", (8,)) for n in "xab"}
    layout = lay_out(steps, specs, borders={"x"}, outputs=["b"])
    assert layout.root("b") == ("a", 0)


def test_in_place_leaves_an_input_that_is_read_later() -> None:
    steps = [
        StepIO(("x",), ("a",), writes_out=True),
        StepIO(("a",), ("b",), writes_out=True, in_place=True),
        StepIO(("a", "b"), ("c",), writes_out=True),
    ]
    specs = {n: TensorSpec("float32", (8,)) for n in "xabc"}
    layout = lay_out(steps, specs, borders={"x"}, outputs=["c"])
    assert layout.root("b") == ("b", 0)
    assert not overlaps(layout, specs)


def test_in_place_never_writes_over_the_users_input() -> None:
    steps = [StepIO(("x",), ("a",), writes_out=True, in_place=True)]
    specs = {n: TensorSpec("float32", (8,)) for n in "xa"}
    assert lay_out(steps, specs, borders={"x"}, outputs=["a"]).root("a") == ("a", 0)


def test_a_view_keeps_its_source_alive() -> None:
    steps = [
        StepIO(("x",), ("a",), writes_out=True),
        StepIO(("a",), ("r",), writes_out=False, views=(("r", "a", 0),)),
        StepIO(("x",), ("b",), writes_out=True),
        StepIO(("r", "b"), ("c",), writes_out=True),
    ]
    specs = {n: TensorSpec("float32", (8,)) for n in "xarbc"}
    layout = lay_out(steps, specs, borders={"x"}, outputs=["c"])
    assert layout.lifetimes["a"] == (0, 3)
    assert not overlaps(layout, specs)


def test_a_concat_of_planned_parts_costs_nothing() -> None:
    steps = [
        StepIO(("x",), ("a",), writes_out=True),
        StepIO(("x",), ("b",), writes_out=True),
        StepIO(("a", "b"), ("c",), writes_out=True, joins=(("a", 0), ("b", 8))),
    ]
    specs = {
        "x": TensorSpec("float32", (8,)),
        "a": TensorSpec("float32", (8,)),
        "b": TensorSpec("float32", (8,)),
    }
    specs["c"] = TensorSpec("float32", (16,))
    layout = lay_out(steps, specs, borders={"x"}, outputs=["c"])
    assert layout.root("b") == ("c", 8)
    assert layout.arena_bytes == 64


def test_a_concat_of_an_input_is_copied() -> None:
    steps = [
        StepIO(("x",), ("a",), writes_out=True),
        StepIO(("a", "x"), ("c",), writes_out=True, joins=(("a", 0), ("x", 8))),
    ]
    specs = {n: TensorSpec("float32", (8,)) for n in "xa"} | {"c": TensorSpec("float32", (16,))}
    assert not lay_out(steps, specs, borders={"x"}, outputs=["c"]).aliases


def test_figures_add_up() -> None:
    steps, specs = chain(4)
    layout = lay_out(steps, specs, borders={"v0"}, outputs=["v4"])
    memory = account(layout, steps, specs, io_bytes=1024, weight_bytes=10, packed_bytes=20)
    assert memory.arena_bytes == 2048
    assert memory.unshared_bytes == 4096
    assert memory.live_bytes == (1024, 2048, 2048, 2048)
    assert memory.library_bytes == 0


def test_views_of_other_values_are_not_mistaken_for_joined_parts() -> None:
    """The parts of the concat are views already, so it has to copy."""
    steps = [
        StepIO(("x",), ("a",), writes_out=True),
        StepIO(("a",), ("r",), writes_out=False, views=(("r", "a", 0),)),
        StepIO(("x",), ("b",), writes_out=True),
        StepIO(("r", "b"), ("c",), writes_out=True, joins=(("r", 0), ("b", 8))),
    ]
    specs = {n: TensorSpec("float32", (8,)) for n in "xarb"} | {"c": TensorSpec("float32", (16,))}
    layout = lay_out(steps, specs, borders={"x"}, outputs=["c"])
    assert not layout.joined
    assert layout.root("r") == ("a", 0)
