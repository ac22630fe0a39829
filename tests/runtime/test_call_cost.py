"""What a call at a known shape costs besides its steps, as a number of Python functions that are called.

The number is the same on every machine and every run, where a time is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from models import model_of, quick, rand

import ridgeline
from ridgeline.base.timing import gc_paused

SOURCES = str(Path(ridgeline.__file__).parent)
THREE = "g (float[N,8] x) => (float[N,8] y) { a = Softmax(x) b = Softmax <axis = 0> (a) y = Softmax(b) }"
RELU = "g (float[N,8] x) => (float[N,8] y) { y = Relu(x) }"
FIVE = "g ({}) => ({}) {{ {} }}".format(
    ", ".join(f"float[N,8] x{i}" for i in range(5)),
    ", ".join(f"float[N,8] y{i}" for i in range(5)),
    " ".join(f"y{i} = Relu(x{i})" for i in range(5)),
)
LARGE = "g (float[N,32768] x) => (float[N,32768] y) { y = Relu(x) }"
OPEN = "g (float[N,8] x) => (int64[2,K] y) { y = NonZero(x) }"


def python_calls(call: Callable[[], object]) -> list[str]:
    """The functions of ours that one call goes through, once it has prepared all it needs."""
    for _ in range(5):
        call()
    names: list[str] = []

    def hear(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            names.append(frame.f_code.co_qualname)

    with gc_paused():  # finalizers are functions too
        sys.setprofile(hear)
        try:
            call()
        finally:
            sys.setprofile(None)
    return names


# the most functions for arrays, and for tensors; Python 3.11 has one more for every comprehension
CASES = [
    # Engine.run, Context.run, IoBinding.run, Instance.execute, and the results
    pytest.param(THREE, "ort", (5, 5), id="own kernels"),
    pytest.param(THREE, "cpp", (6, 6), id="one step of ONNX Runtime"),
    pytest.param(FIVE, "ort", (5, 5), id="five inputs and outputs"),
    # steps are pointed at the caller's memory and back
    pytest.param(LARGE, "ort", (14, 17), id="large arrays"),
    pytest.param(OPEN, "cpp", (15, 17), id="sizes that depend on data"),
]


@pytest.mark.parametrize(("text", "without", "most"), CASES)
def test_a_call_at_a_known_shape(text: str, without: str, most: tuple[int, int]) -> None:
    engine = quick(model_of(text), without=(without,), threads=1, new_shapes="serve")
    arrays = {
        port.name: rand(*(3 if isinstance(dim, str) else dim for dim in port.dims or ()))
        for port in engine.inputs
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    engine.run(arrays)
    engine.wait()
    for feeds, allowed in zip((arrays, tensors), most, strict=True):
        names = python_calls(partial(engine.run, feeds))
        assert 0 < len(names) <= allowed, names


def test_a_call_at_another_known_shape() -> None:
    engine = quick(model_of(RELU), threads=1, profiles={"N": "1..3..9"})
    all_feeds = [{"x": rand(rows, 8)} for rows in (3, 5)]

    def both() -> None:
        for feeds in all_feeds:
            engine.run(feeds)

    # each time the binding of the shape before is asked first, and the right one is then looked up
    names = python_calls(both)
    assert len(names) <= 2 * 8, names
