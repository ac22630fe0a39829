"""Captured segments: which calls graphs hold, and that values pass between graphs and calls beside them.

A stand-in replays calls on the CPU, from the memory that the capture saw to the memory that it made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from moving_models import close, detector, expected, model_of, own, rand
from stand_ins import Replayed

from ridgeline.base.gpu_graph import CaptureError
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.segments import CallValues, Segment, Segments, capture_segments

WAITS = {"NonZero", "NonMaxSuppression", "Compress"}


def waiting(instance: Instance) -> set[int]:
    """The calls of ops that ask the device for a size."""
    by_index = {step.index: step for step in instance.steps}
    ops = [{op.op_type for op in by_index[i].region.body.ops} for i in instance.call_steps]
    return {i for i, types in enumerate(ops) if types & WAITS}


def segmented(instance: Instance, refused: set[int]) -> Segments:
    places = {id(call): i for i, call in enumerate(instance.calls)}

    def why_not(call: Callable[[], object]) -> str | None:
        if places[id(call)] in refused:
            return "it waits"
        call()  # a trial runs the Python of a call: it lets go of what nobody reads any more
        return None

    with torch.inference_mode():
        return capture_segments(
            instance.calls,
            instance.call_values,
            instance.dynamic_values,
            why_not=why_not,
            record=lambda run: Replayed(run, instance.dynamic_values),  # type: ignore[arg-type, return-value]
        )


def run(instance: Instance, parts: Segments, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with torch.inference_mode():
        for name, array in feeds.items():
            instance.inputs[name].copy_(torch.from_numpy(array))
        parts()
        return {name: value.numpy().copy() for name, value in instance.results().items()}


def between() -> onnx.ModelProto:
    """Rows are picked by data in the middle; before, beside and behind it sizes are known."""
    return model_of(
        """between (float[6,8] x) => (float[6,3] best, int64[6,3] places, float[1,4] out, float[6,8] side) {
          h = MatMul (x, w)  r = Relu (h)
          k = Constant <value_ints = [3]> ()
          best, places = TopK <axis = -1> (r, k)
          found = NonZero (r)
          row = Cast <to = 1> (found)
          axes = Constant <value_ints = [0, 1]> ()
          total = ReduceSum <keepdims = 1> (row, axes)
          wide = Softmax <axis = 1> (h)
          s = MatMul (wide, w)  side = Sigmoid (s)
          near = MatMul (best, v)
          mean = ReduceMean <keepdims = 1> (near, first)
          sum = Add (mean, total)
          out = Tanh (sum)
        }""",
        w=rand(8, 8), v=rand(3, 4, seed=1), first=np.array([0], np.int64),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "feeds"),
    [
        pytest.param(between(), [{"x": rand(6, 8, seed=s)} for s in (2, 3, 4)], id="between"),
        pytest.param(detector(), [{"image": rand(1, 3, 32, 32, seed=s)} for s in (2, 3, 4)], id="detector"),
    ],
)
def test_segments_compute_what_the_run_computes(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]
) -> None:
    instance = own(model).context(wait=True).instance(feeds[0])
    refused = waiting(instance)
    assert refused
    with torch.inference_mode():
        instance.execute()
    parts = segmented(instance, refused)
    for given in [*feeds, feeds[0]]:
        close(run(instance, parts, given), expected(model, given))
    captured = [segment.graph for segment in parts.captured]
    assert all(graph.replays == 4 for graph in captured)  # type: ignore[attr-defined]
    assert sum(segment.n_calls for segment in parts.captured) > len(instance.calls) // 2


def test_what_reads_a_value_that_moves_is_not_captured() -> None:
    named: dict[str, Any] = {"given": torch.ones(1)}  # an input that is no tensor: the caller has it

    def call(made: str, read: str = "") -> Callable[[], object]:
        return lambda: named.update({made: named[read] + 1 if read else torch.zeros(1)})

    def values(made: str, read: str = "") -> CallValues:
        return CallValues(frozenset([read] if read else []), frozenset([made]))

    edges = [("a", ""), ("b", "a"), ("island", "b"), ("c", "island"), ("d", "a"), ("e", "given")]
    calls = [call(*edge) for edge in edges]
    made = capture_segments(
        calls,
        [values(*edge) for edge in edges],
        named,
        why_not=lambda tried: "it waits" if tried is calls[2] else None,
        record=lambda run: Replayed(run, named),  # type: ignore[arg-type, return-value]
    )
    assert [isinstance(part, Segment) for part in made.parts] == [True, False, False, True, False]
    assert [segment.n_calls for segment in made.captured] == [2, 1]
    waits, reads, given = made.reasons
    assert waits == "it waits"
    assert reads == "reads 'island', whose size and place data decides"
    assert given == "reads 'given', which the caller hands over"
    assert str(made) == "3 of 6 calls run in 2 CUDA graphs, the others one by one"
    made()
    assert {name: float(value) for name, value in named.items()} == {
        "given": 1, "a": 0, "b": 1, "island": 2, "c": 3, "d": 1, "e": 2,
    }  # fmt: skip


def test_nothing_can_be_captured() -> None:
    calls = [lambda: None] * 3
    values = [CallValues()] * 3
    given: dict[str, Any] = {"why_not": lambda _: "it waits", "record": lambda _: pytest.fail("captured")}
    made = capture_segments(calls, values, {}, **given)
    assert not made.captured
    assert made.reasons == ["it waits"] * 3
    assert str(made) == "the steps run one by one"


def test_a_capture_that_fails_is_told() -> None:
    def record(_: object) -> Any:
        raise CaptureError("no memory")

    with pytest.raises(CaptureError, match="no memory"):
        capture_segments([lambda: None], [CallValues()], {}, why_not=lambda _: None, record=record)
