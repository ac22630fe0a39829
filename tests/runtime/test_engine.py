"""Engines at run time: right results whatever shapes, types and threads they are run with."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from models import expected, model_of, quick, rand

from ridgeline.errors import InputError, ProcessError

MLP = """g (float[N,8] x) => (float[N,4] y) {
  a = MatMul(x, w) b = Add(a, c) r = Relu(b) y = MatMul(r, v)
}"""
WEIGHTS = {"w": rand(8, 16), "c": rand(16), "v": rand(16, 4)}


@pytest.fixture(scope="module")
def engine():  # type: ignore[no-untyped-def]
    return quick(model_of(MLP, **WEIGHTS))


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(
        got, want, rtol=0, atol=64 * 2.0**-23 * max(1.0, float(np.abs(want).max(initial=0)))
    )


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 33])
def test_shapes_are_taken_as_they_come(engine, rows: int) -> None:  # type: ignore[no-untyped-def]
    x = rand(rows, 8)
    close(engine.run({"x": x})["y"], expected(model_of(MLP, **WEIGHTS), {"x": x})["y"])


def test_going_back_and_forth_between_shapes(engine) -> None:  # type: ignore[no-untyped-def]
    model = model_of(MLP, **WEIGHTS)
    for i, rows in enumerate([1, 5, 1, 5, 2, 1] * 3):
        x = rand(rows, 8, seed=i)
        close(engine.run({"x": x})["y"], expected(model, {"x": x})["y"])


def test_results_are_the_callers_own(engine) -> None:  # type: ignore[no-untyped-def]
    first = engine.run({"x": rand(2, 8)})["y"]
    kept = first.copy()
    engine.run({"x": rand(2, 8, seed=1)})
    np.testing.assert_array_equal(first, kept)


def test_torch_in_torch_out(engine) -> None:  # type: ignore[no-untyped-def]
    x = rand(2, 8)
    got = engine.run({"x": torch.from_numpy(x)})["y"]
    assert isinstance(got, torch.Tensor)
    np.testing.assert_array_equal(got.numpy(), engine.run({"x": x})["y"])


@pytest.mark.parametrize("view", [lambda x: x[::-1], np.asfortranarray, lambda x: x[:, ::-1][:, ::-1]])
def test_any_strides_of_input(engine, view) -> None:  # type: ignore[no-untyped-def]
    x = view(rand(4, 8))
    np.testing.assert_array_equal(engine.run({"x": x})["y"], engine.run({"x": x.copy()})["y"])


def test_threads_get_contexts_of_their_own(engine) -> None:  # type: ignore[no-untyped-def]
    model = model_of(MLP, **WEIGHTS)
    inputs = [rand(1 + i % 3, 8, seed=i) for i in range(8)]
    wants = [expected(model, {"x": x})["y"] for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        runs = (engine.run({"x": inputs[i]})["y"] for _ in range(50))
        wrong.extend(i for got in runs if not np.allclose(got, wants[i], atol=1e-4))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_context_is_never_run_by_two_threads_at_once(engine) -> None:  # type: ignore[no-untyped-def]
    context = engine.context()
    refused = []

    class Slow(dict[str, np.ndarray]):
        """Read by `run`, while another thread calls it."""

        def __getitem__(self, name: str) -> np.ndarray:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            return super().__getitem__(name)

    def call() -> None:
        with pytest.raises(ProcessError, match="another thread") as error:
            context.run({"x": rand(2, 8)})
        refused.append(error.value)

    x = rand(3, 8)
    want = expected(model_of(MLP, **WEIGHTS), {"x": x})["y"]
    close(context.run(Slow(x=x))["y"], want)
    assert refused
    with pytest.raises(InputError):
        context.run({"x": rand(3, 9)})
    close(context.run({"x": x})["y"], want)


def test_a_thousand_runs_allocate_nothing_planned(engine) -> None:  # type: ignore[no-untyped-def]
    context = engine.context()
    feeds = {"x": rand(2, 8)}
    instance = context.instance(feeds)
    before = {name: tensor.data_ptr() for name, tensor in instance.tensors.items()}
    for _ in range(1000):
        context.run(feeds)
    assert context.instance(feeds) is instance
    assert {name: tensor.data_ptr() for name, tensor in instance.tensors.items()} == before


def test_few_instances_are_kept() -> None:
    engine = quick(model_of(MLP, **WEIGHTS))
    context = engine.context()
    for rows in range(1, 30):
        context.run({"x": rand(rows, 8)})
    assert len(context._bindings) == 8


INPUT_ERRORS = [
    ({}, "input 'x' is missing"),
    ({"x": rand(2, 8), "z": rand(1)}, "there is no input 'z'"),
    ({"xx": rand(2, 8)}, "did you mean 'x'"),
    ({"x": rand(2, 8).astype(np.float64)}, r"float64\[2, 8\]"),
    ({"x": rand(2, 9)}, r"float32\[N, 8\]"),
    ({"x": rand(8)}, r"float32\[8\]"),
    ({"x": "text"}, r"not an array of numbers\n  got   str\n  want  float32\[N, 8\]"),
    ({"x": None}, r"got   None"),
    ({"x": [[1.0], [2.0, 3.0]]}, r"got   list"),
    ({"x": [[1.0] * 8]}, r"convert it: np.asarray\(x, 'float32'\)"),
    ([1, 2], "takes a mapping"),
    (rand(2, 8), "takes a mapping"),
]


@pytest.mark.parametrize(("feeds", "text"), INPUT_ERRORS)
def test_wrong_inputs_are_explained(engine, feeds, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=text):
        engine.run(feeds)
    engine.run({"x": rand(2, 8)})  # and the engine goes on


def test_out_of_profile_names_the_range_and_the_cure() -> None:
    engine = quick(model_of(MLP, **WEIGHTS), profiles={"x": "1..4x8"})
    engine.run({"x": rand(4, 8)})
    with pytest.raises(InputError, match=r"want  float32\[1..4, 8\](?s:.*)--shapes x=1..5x8"):
        engine.run({"x": rand(5, 8)})
    for wrong in (rand(8), rand(2, 9), None, rand(2, 8).astype(np.float64)):
        with pytest.raises(InputError, match=r"want  float32\[1..4, 8\]"):
            engine.run({"x": wrong})
    with pytest.raises(InputError, match=r"missing: want float32\[1..4, 8\]"):
        engine.run({})


CASES = {
    "concat of views": """g (float[1,4] x) => (float[1,8] y) {
        a = Relu(x) s = Constant <value_ints = [1, 1, 4]> () r = Reshape(a, s)
        t = Constant <value_ints = [1, 4]> () q = Reshape(r, t) n = Neg(x) y = Concat <axis = 1> (q, n) }""",
    "split and join": """g (float[6,4] x) => (float[6,4] y) {
        r = Relu(x) a, b, c = Split <num_outputs = 3> (r) n = Neg(a) y = Concat <axis = 0> (n, b, c) }""",
    "output is an input": "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Identity(x) z = Relu(x) }",
    "output is a weight": "g (float[2,3] x) => (float[16] y, float[2,3] z) { y = Identity(c) z = Relu(x) }",
    "one value, two outputs": """g (float[2,3] x) => (float[2,3] y, float[2,3] z) {
        y = Relu(x) z = Identity(y) }""",
    "inner value is an output": """g (float[2,3] x) => (float[2,3] y, float[2,3] z) {
        y = Exp(x) z = Neg(y) }""",
    "in place chain": """g (float[2,3] x) => (float[2,3] y) {
        t = Transpose <perm = [1, 0]> (x) u = Transpose <perm = [1, 0]> (t) a = Softmax(u) b = Softmax(a)
        y = Add(b, a) }""",
    "empty tensors": "g (float[0,3] x) => (float[0,3] y) { a = Relu(x) y = Exp(a) }",
    "scalar": "g (float x) => (float y) { a = Exp(x) y = Neg(a) }",
    "condition": """g (float[2,3] x) => (float[2,3] y) {
        m = ReduceSum <keepdims = 0> (x) zero = Constant <value_float = 0.0> () c = Greater(m, zero)
        y = If (c) < then_branch = t () => (float[2,3] a) { a = Relu(x) },
                     else_branch = e () => (float[2,3] b) { b = Neg(x) } > }""",
    "loop": """g (float[3] x) => (float[3] y, float[K,3] z) {
        n = Constant <value_int = 4> () c = Constant <value = bool {1}> ()
        y, z = Loop (n, c, x) < body = b (int64 i, bool go, float[3] v) => (bool on, float[3] w, float[3] s) {
            on = Identity(go) w = Add(v, x) s = Neg(v) } > }""",
    "split of a 1x1 image": """g (float[1,4,1,1] x)
        => (float[1,2,1,1] a, float[1,2,1,1] b, float[1,4,1,1] q) {
        r = Relu(x) a, b = Split <axis = 1, num_outputs = 2> (r) d = Softmax <axis = 1> (r) q = Exp(d) }""",
    "a branch that passes a value on": """g (float[4,3] x) => (float[4,3] y) {
        e = Softmax(x) m = ReduceSum <keepdims = 0> (x) zero = Constant <value_float = 0.0> ()
        c = Greater(m, zero)
        a = If (c) < then_branch = t () => (float[4,3] p) { p = Identity(e) },
                     else_branch = s () => (float[4,3] q) { q = Identity(e) } >
        r = Softmax <axis = 0> (x) u = Softmax <axis = 0> (r) y = Mul(a, u) }""",
    "sum of squares over no axes": """g (float[2,3] x) => (float[2,3] y) {
        y = ReduceSumSquare <noop_with_empty_axes = 1> (x) }""",
    "integer mean": """g (float[1,2,3,3] x) => (int64[1,2,1,1] y) {
        i = Cast <to = 7> (x) a = Constant <value_ints = [2, 3]> () y = ReduceMean <keepdims = 1> (i, a) }""",
    "data-dependent": """g (float[5] x) => (int64[1,K] y, float[1,K] z) {
        y = NonZero(x) f = Cast <to = 1> (y) z = Sqrt(f) }""",
}


@pytest.mark.parametrize("name", CASES)
def test_graphs_that_tempt_the_memory_plan(name: str) -> None:
    used = {"c": WEIGHTS["c"]} if "(c)" in CASES[name] and "If" not in CASES[name] else {}
    model = model_of(CASES[name], **used)
    engine = quick(model)
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    for seed in range(3):  # stale memory shows on later runs
        x = rand(*shape, seed=seed) if shape else np.float32(seed + 0.5)
        want = expected(model, {"x": np.asarray(x)})
        for out, got in engine.run({"x": x}).items():
            close(got, want[out])


def test_ops_that_torch_lacks_fall_back_and_say_so() -> None:
    """TfIdfVectorizer is nothing PyTorch has: ONNX Runtime runs it, and the plan says so."""
    model = model_of(
        """g (int64[6] x) => (float[3] y) {
        y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0,
            ngram_counts = [0], ngram_indexes = [0, 1, 2], pool_int64s = [2, 3, 5]> (x) }"""
    )
    engine = quick(model)
    x = np.array([2, 3, 2, 5, 9, 2])
    np.testing.assert_array_equal(engine.run({"x": x})["y"], [3, 1, 1])
    assert "run by ONNX Runtime" in engine.plan.slow_ops[0]


def test_values_a_library_refuses_are_an_input_error() -> None:
    model = model_of("g (int64[2] i) => (float[2,4] y) { y = Gather(t, i) }", t=rand(5, 4))
    engine = quick(model)
    with pytest.raises(InputError, match="cannot run with these values"):
        engine.run({"i": np.array([1, 99])})
    assert engine.run({"i": np.array([1, 2])})["y"].shape == (2, 4)


def test_an_engine_says_what_it_is(engine) -> None:  # type: ignore[no-untyped-def]
    assert "x: float32[N,8] -> y: float32[N,4]" in repr(engine)
    assert [port.name for port in engine.inputs] == ["x"]


def test_equal_node_names_are_told_apart() -> None:
    model = model_of(
        "g (float[4,3] x) => (float[4,3] y, float[4,3] z) { y = Softmax(x) z = Softmax <axis = 0> (y) }"
    )
    for node in model.graph.node:
        node.name = "same"
    x = rand(4, 3)
    want = expected(model_of("g (float[4,3] x) => (float[4,3] y) { y = Softmax(x) }"), {"x": x})["y"]
    close(quick(model).run({"x": x})["y"], want)


def test_kept_outputs_never_change() -> None:
    """A Slice whose end is an input is a view inside; what the caller gets must not be."""
    model = model_of("g (float[4,3] x, int64[1] s) => (float[K,3] y) { y = Slice(x, z, s) }", z=np.array([0]))
    engine = quick(model)
    kept = engine.run({"x": rand(4, 3), "s": np.array([2])})["y"]
    copy = kept.copy()
    engine.run({"x": rand(4, 3, seed=1), "s": np.array([2])})
    np.testing.assert_array_equal(kept, copy)


def test_torch_outputs_can_be_written_to(engine) -> None:  # type: ignore[no-untyped-def]
    got = engine.run({"x": torch.from_numpy(rand(2, 8))})["y"]
    got += 1


def test_launches_of_old_shapes_are_forgotten() -> None:
    engine = quick(model_of(MLP, **WEIGHTS))
    for rows in range(1, 40):
        engine.run({"x": rand(rows, 8)})
    assert len(engine.variants[0].executable.launches) <= 8 * len(engine.plan.steps)
