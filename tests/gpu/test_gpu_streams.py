"""Runs on several streams compute what one stream computes, bit by bit, however they run."""

from __future__ import annotations

import random
import threading
from typing import Any

import networks
import numpy as np
import pytest
import torch

import ridgeline
from ridgeline.base.spec import TensorSpec
from ridgeline.plan.stream_choice import Task, best_schedule
from ridgeline.plan.streams import MAX_STREAMS, ONE, SEVERAL, Schedule, needs_of, with_waits
from ridgeline.plan.trace import CUPTI, EVENTS
from ridgeline.runtime.context import CudaContext
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.memory_report import variant_on
from ridgeline.select import streams

RUNS = 200
NANS = 0xFF  # as every byte of a float
NETS = {"branches": (networks.branches, "1..2..4x16x16x16"), "towers": (networks.two_towers, "1..8..16x128")}
# own kernels wherever there are any, in dependent launches; and libraries that allocate what they make
WITHOUT = {"all tactics": (), "libraries": ("triton",)}


@pytest.fixture(scope="module", params=[(net, kind) for net in NETS for kind in WITHOUT], ids=" ".join)
def built(request: pytest.FixtureRequest) -> ridgeline.Engine:
    net, kind = request.param
    make, profile = NETS[net]
    return ridgeline.build(
        make(), target="cuda", profiles={"x": profile}, level=1, verify="fast", without=WITHOUT[kind]
    )


def forked(engine: ridgeline.Engine, schedule: Schedule) -> ridgeline.Engine:
    return engine.only(variant_on(engine.variants[0], schedule))


def side_by_side(engine: ridgeline.Engine) -> Schedule:
    """As if every step took the same time and kept little of the device busy."""
    tasks = [Task(100.0, 0.01, needs) for needs in needs_of(engine.plan.steps)]
    schedule = best_schedule(tasks).schedule
    assert schedule.n_streams > 1
    return schedule


def at_random(engine: ridgeline.Engine, seed: int) -> Schedule:
    """Waits everywhere: a dependent launch that should not be one would show."""
    rng = random.Random(seed)
    needs = needs_of(engine.plan.steps)
    return with_waits([rng.randrange(MAX_STREAMS) for _ in needs], needs)


def on_device(feeds: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}


def require_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        made = got[name].cpu().numpy() if isinstance(got[name], torch.Tensor) else got[name]
        wanted = array.cpu().numpy() if isinstance(array, torch.Tensor) else array
        assert np.array_equal(made, wanted, equal_nan=True), name


def instance_of(engine: ridgeline.Engine, feeds: dict[str, Any]) -> CudaInstance:
    instance = engine.context().instance(feeds)
    assert isinstance(instance, CudaInstance)
    return instance


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_replays_in_poisoned_memory_equal_one_stream(built: ridgeline.Engine, seed: int | None) -> None:
    schedule = side_by_side(built) if seed is None else at_random(built, seed)
    engine = forked(built, schedule)
    feeds = built.example_inputs(seed=5)
    want = built.run(feeds)
    instance = instance_of(engine, feeds)
    with torch.inference_mode():
        instance.execute()
        assert instance.is_streamed, engine.notes
        for _ in range(RUNS):
            instance.arena.fill_(NANS)
            instance.execute()
            got = {name: tensor.clone() for name, tensor in instance.results().items()}
            require_same(got, want)
        # the same memory, step by step on one stream
        instance.arena.fill_(NANS)
        Instance.execute(instance)
        require_same(instance.results(), want)


def test_runs_in_a_row_without_a_wait(built: ridgeline.Engine) -> None:
    """The next run starts in the same memory as soon as the last one ends."""
    engine = forked(built, side_by_side(built))
    all_feeds = [built.example_inputs(seed=seed) for seed in range(4)]
    want = [built.run(feeds) for feeds in all_feeds]
    tensors = [on_device(feeds) for feeds in all_feeds]
    context = engine.context()
    torch.cuda.synchronize()
    got = [context.run(tensors[i % 4]) for i in range(40)]
    torch.cuda.synchronize()
    for i, made in enumerate(got):
        require_same(made, want[i % 4])


def test_bound_runs(built: ridgeline.Engine) -> None:
    engine = forked(built, side_by_side(built))
    first, second = (built.example_inputs(seed=seed) for seed in (5, 6))
    context, tensors = engine.context(), on_device(first)
    assert isinstance(context, CudaContext)
    bound = context.bind(tensors)
    require_same(bound.run(), built.run(first))
    tensors["x"].copy_(torch.from_numpy(second["x"]))
    for _ in range(RUNS):
        got = bound.run()
    require_same(got, built.run(second))


def test_other_shapes(built: ridgeline.Engine) -> None:
    engine = forked(built, side_by_side(built))
    spec = built.plan.planned_shapes["x"]
    for rows in (1, 3, 4, 1):
        shape = {"x": TensorSpec(spec.dtype, (rows, *spec.shape[1:]))}
        feeds = built.example_inputs(seed=rows, shapes=shape)
        # steps are the same; whether their waits are is the question
        require_same(engine.run(feeds), built.run(feeds))


def test_contexts_side_by_side(built: ridgeline.Engine) -> None:
    engine = forked(built, side_by_side(built))
    all_feeds = [built.example_inputs(seed=seed) for seed in (7, 8, 9)]
    want = [built.run(feeds) for feeds in all_feeds]
    contexts = [engine.context() for _ in all_feeds]
    for context, feeds in zip(contexts, all_feeds, strict=True):
        context.run(feeds)
    failures: list[BaseException] = []

    def work(which: int) -> None:
        try:
            feeds = on_device(all_feeds[which])
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(RUNS):
                    got = contexts[which].run(feeds)
                torch.cuda.current_stream().synchronize()
            require_same(got, want[which])
        except BaseException as error:  # told to the main thread, where pytest sees it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_every_context_has_streams_of_its_own(built: ridgeline.Engine) -> None:
    """PyTorch hands out 32 streams in turn; libraries keep scratch memory for each."""
    engine = forked(built, side_by_side(built))
    feeds = built.example_inputs()
    instances = [instance_of(engine, feeds) for _ in range(20)]
    handles = [s.cuda_stream for each in instances for s in (each.stream, *each.auxiliary)]
    assert len(set(handles)) == len(handles) > 32
    want = built.run(feeds)
    with torch.inference_mode():
        instances[-1].execute()
    require_same(instances[-1].results(), want)


def test_a_profile_says_the_streams(built: ridgeline.Engine) -> None:
    trace = forked(built, side_by_side(built)).profile(built.example_inputs(), rounds=5)
    assert len({step.stream for step in trace.steps}) > 1
    assert trace.how in (CUPTI, EVENTS)
    if trace.how == CUPTI:
        assert 0.5 < trace.coverage < 1.5


def test_a_run_that_waits_for_data_stays_on_one_stream() -> None:
    engine = ridgeline.build(networks.waits_in_the_middle(), target="cuda", level=1)
    needs = needs_of(engine.plan.steps)
    several = forked(engine, with_waits([i % 2 for i in range(len(needs))], needs))
    for seed in (3, 4):
        feeds = engine.example_inputs(seed=seed)
        require_same(several.run(feeds), engine.run(feeds))
    assert any("not captured on several streams" in note for note in several.notes)


def test_selection_races_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a margin that anything passes, and with one that nothing does."""
    model = networks.two_towers()
    taken = {}
    for margin in (-1000.0, 1000.0):
        monkeypatch.setattr(streams, "MARGIN", margin)
        monkeypatch.setattr(streams, "critical_us", lambda _: float("-inf"))
        engine = ridgeline.build(model, target="cuda", profiles={"x": "8x128"}, level=2, verify="full")
        assert engine.report.verified
        taken[margin] = engine.plan
    assert {step.stream for step in taken[1000.0].steps} == {0}
    chosen = taken[-1000.0]
    assert chosen.alternatives, chosen.why
    named = {each.tactic: each for each in chosen.alternatives}
    if named[SEVERAL].refused is None and int(named[SEVERAL].config["streams"]) > 1:
        assert chosen.alternatives[0].tactic == SEVERAL
        assert chosen.alternatives[0].median_us is not None
        assert len({step.stream for step in chosen.steps}) > 1
    assert named[ONE].refused is None
