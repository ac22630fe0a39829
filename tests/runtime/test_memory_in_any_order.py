"""Real instances with memory planned for several streams, run in every order that their schedules allow."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from onnx import numpy_helper, parser

import ridgeline
from ridgeline.kernels.elements import fill
from ridgeline.plan.streams import MAX_STREAMS, Schedule, needs_of, with_waits
from ridgeline.runtime.instance import Instance

NANS = 0xFF  # as every byte of a float
ORDERS = 20


def net() -> bytes:
    """Branches of products and convolutions with views between, joined twice, each result used further on."""
    rng = np.random.default_rng(1)
    text = """net (float[2,8,6,6] x) => (float[2,24,6,6] y, float[2,864] z) {
      a = Conv <pads = [1, 1, 1, 1]> (x, w0)
      b = Relu (a)
      c = Conv (x, w1)
      d = Sigmoid (c)
      e = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)
      f = Conv (e, w2)
      j = Concat <axis = 1> (b, d, f)
      g = Conv (j, w3)
      h = Tanh (g)
      i = Conv <pads = [1, 1, 1, 1]> (j, w4)
      k = Softmax <axis = 1> (i)
      y = Add (h, k)
      flat = Flatten <axis = 1> (h)
      m = ReduceMean <axes = [1], keepdims = 1> (flat)
      z = Sub (flat, m)
    }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    shapes = [(8, 8, 3, 3), (8, 8, 1, 1), (8, 8, 1, 1), (24, 24, 1, 1), (24, 24, 3, 3)]
    arrays = [(rng.standard_normal(shape) * 0.2).astype(np.float32) for shape in shapes]
    model.graph.initializer.extend(numpy_helper.from_array(a, f"w{i}") for i, a in enumerate(arrays))
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def engine() -> ridgeline.Engine:
    # without a library for the whole graph there are steps to put in order
    return ridgeline.build(net(), level=0, without=("ort",), verify="fast")


def instance_on(engine: ridgeline.Engine, schedule: Schedule | None) -> Instance:
    executable, fused = engine.variants[0].executable, engine.fused
    inferred = fused.inference.at(executable.planned_shapes)
    with torch.inference_mode():
        made = Instance(
            fused.program, inferred, executable.sites(inferred), fused.placed_weights,
            executable.launches.launch, None, schedule,
        )  # fmt: skip
        for name, array in engine.example_inputs(seed=3).items():
            fill(made.inputs[name], torch.from_numpy(array))
    return made


def run_in_some_order(instance: Instance, schedule: Schedule, rng: random.Random) -> list[int]:
    """Calls one by one, the next always one whose turn the schedule says may have come."""
    before, waiting, done, order = schedule.before, list(range(len(instance.calls))), 0, []
    present = {step.index for step in instance.steps}
    with torch.inference_mode():
        instance.arena.fill_(NANS)
        while waiting:
            called = {instance.call_steps[i] for i in waiting}
            # steps without a call are over as soon as those before them are
            for step in sorted(present - called):
                if not before[step] & ~done:
                    done |= 1 << step
            ready = [i for i in waiting if not before[instance.call_steps[i]] & ~done]
            i = rng.choice(ready)
            instance.calls[i]()
            waiting.remove(i)
            order.append(i)
            if instance.call_steps[i] not in {instance.call_steps[j] for j in waiting}:
                done |= 1 << instance.call_steps[i]
    return order


@pytest.mark.parametrize("seed", range(8))
def test_every_order_computes_the_same_bits(engine: ridgeline.Engine, seed: int) -> None:
    rng = random.Random(seed)
    needs = needs_of(engine.plan.steps)
    schedule = with_waits([rng.randrange(MAX_STREAMS) for _ in needs], needs)
    plain, streamed = instance_on(engine, None), instance_on(engine, schedule)
    with torch.inference_mode():
        plain.execute()
    # a run drops what libraries allocate after its last reader in the plan's order, so there is one at most
    readers = [name for step in streamed.steps for name in step.io.inputs]
    assert all(readers.count(name) <= 1 for name in streamed.dynamic_names)
    orders = set()
    for _ in range(ORDERS):
        orders.add(tuple(run_in_some_order(streamed, schedule, rng)))
        for name, want in plain.results().items():
            assert torch.equal(streamed.result(name), want), name
    assert len(orders) > 1
    with torch.inference_mode():
        streamed.arena.fill_(NANS)
        streamed.execute()
    for name, want in plain.results().items():
        assert torch.equal(streamed.result(name), want), name


@pytest.mark.parametrize("is_apart", [False, True])
def test_what_a_library_allocates_is_kept_for_other_streams(engine: ridgeline.Engine, is_apart: bool) -> None:
    """The allocator would give it to the next step of the stream that made it."""
    steps = engine.plan.steps
    (pool,) = [i for i, step in enumerate(steps) if "MaxPool" in step.op_types]
    needs = needs_of(steps)
    schedule = with_waits([int(is_apart and i == pool) for i in range(len(steps))], needs)
    instance = instance_on(engine, schedule)
    with torch.inference_mode():
        instance.execute()
    assert instance.dynamic_names == {"e"}
    assert (instance.dynamic_values["e"] is not None) == is_apart
