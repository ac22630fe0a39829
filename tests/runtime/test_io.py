"""Arrays lent to steps and results given away: the same bits as by copying, and nobody's memory touched."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from models import model_of, quick, rand

import ridgeline
from ridgeline.errors import InputError

COLUMNS = 4096  # from four rows on an array is large enough to be lent
TACTICS = {"cpp": ("ort",), "ort": (), "aten": ("ort", "cpp")}
GRAPHS = {
    "two inputs": "g (float[N,4096] x, float[N,4096] z) => (float[N,4096] y) { a = Add(x, z) y = Tanh(a) }",
    "read by two steps": """g (float[N,4096] x, float[N,4096] z) => (float[N,4096] y, float[N] s) {
        a = Softmax(x) y = Mul(a, z) b = Mul(x, z) k = Constant <value_ints = [1]> ()
        s = ReduceSum <keepdims = 0> (b, k) }""",
    "views of an input": """g (float[8,4096] x, float[4,4096] z) => (float[4,4096] y) {
        a, b = Split <num_outputs = 2> (x) c = Softmax(b) d = Softmax <axis = 0> (a) e = Mul(c, z)
        y = Add(e, d) }""",
    "joined output": """g (float[N,4096] x, float[N,4096] z) => (float[M,4096] y) {
        a = Softmax(x) b = Softmax <axis = 0> (z) y = Concat <axis = 0> (a, b) }""",
    "output read again": """g (float[N,4096] x, float[N,4096] z) => (float[N,4096] y, float[N,4096] w) {
        y = Softmax(x) a = Softmax <axis = 0> (y) w = Mul(a, z) }""",
    "output is a view": """g (float[N,4096] x, float[N,4096] z) => (float[M] y) {
        a = Softmax(x) b = Mul(a, z) k = Constant <value_ints = [-1]> () y = Reshape(b, k) }""",
    "outputs are views": """g (float[8,4096] x, float[8,4096] z) => (float[4,4096] y, float[4,4096] w) {
        a = Softmax(x) b = Mul(a, z) y, w = Split <num_outputs = 2> (b) }""",
    "output is a part": """g (float[8,4096] x, float[8,4096] z) => (float[4,4096] y, float[4] s) {
        a = Softmax(x) b = Mul(a, z) y, w = Split <num_outputs = 2> (b) k = Constant <value_ints = [1]> ()
        s = ReduceSum <keepdims = 0> (w, k) }""",
    "read by torch too": """g (float[N,4096] x, float[N,4096] z) => (float[N,4096] y, float[N,4096] w) {
        a = Softmax(x) y = Mul(a, z) k = Constant <value_int = 1> () b = CumSum(x, k) c = CumSum(y, k)
        w = Mul(b, c) }""",
    "output is an input": """g (float[N,4096] x, float[N,4096] z) => (float[N,4096] y, float[N,4096] w) {
        y = Identity(x) w = Add(x, z) }""",
    "one value, two outputs": """g (float[N,4096] x, float[N,4096] z) => (float[N,4096] y, float[M] w) {
        y = Add(x, z) k = Constant <value_ints = [-1]> () w = Reshape(y, k) }""",
}
# results that share memory inside are copied out
COPIED = {"output is a part", "outputs are views", "output is an input", "one value, two outputs"}
# and so are values that PyTorch looks at: its tensors stay where they are
BY_TORCH = {"read by torch too"}


def frozen(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def shifted(array: np.ndarray, nbytes: int) -> np.ndarray:
    """The same values, so many bytes after an aligned address."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + nbytes
    moved = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": np.copy,
    "read-only": frozen,
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda a: a[::-1].copy()[::-1],
    "Fortran": np.asfortranarray,
    "aligned": lambda a: shifted(a, 0),
    "16 bytes on": lambda a: shifted(a, 16),
    "48 bytes on": lambda a: shifted(a, 48),
    "one element on": lambda a: shifted(a, 4),
    "one byte on": lambda a: shifted(a, 1),
}

Feeds = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def engines() -> Callable[[str, str], ridgeline.Engine]:
    made: dict[tuple[str, str], ridgeline.Engine] = {}

    def engine(graph: str, tactic: str) -> ridgeline.Engine:
        if (graph, tactic) not in made:
            made[graph, tactic] = quick(model_of(GRAPHS[graph]), without=TACTICS[tactic])
        return made[graph, tactic]

    return engine


Engines = Callable[[str, str], ridgeline.Engine]


def draw(engine: ridgeline.Engine, seed: int = 0, rows: int = 4) -> Feeds:
    return {
        port.name: rand(*(rows if isinstance(d, str) else d for d in port.dims or ()), seed=seed + 100 * i)
        for i, port in enumerate(engine.inputs)
    }


def by_copying(engine: ridgeline.Engine, feeds: Feeds) -> Feeds:
    """What the steps make of inputs that were loaded into memory of their own."""
    instance = engine.context().instance({name: np.array(array) for name, array in feeds.items()})
    with torch.inference_mode():
        instance.execute()
        return {name: result.clone().numpy() for name, result in instance.results().items()}


def same(got: Feeds, want: Feeds) -> None:
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, strict=True)


@pytest.mark.parametrize("tactic", TACTICS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_every_kind_of_array(engines: Engines, graph: str, tactic: str) -> None:
    engine = engines(graph, tactic)
    context = engine.context()
    for seed, kind in enumerate(KINDS.values()):
        plain = draw(engine, seed)
        feeds = {name: kind(array) for name, array in plain.items()}
        same(context.run(feeds), by_copying(engine, plain))
        same(feeds, plain)


@pytest.mark.parametrize("tactic", ["cpp", "ort"])
@pytest.mark.parametrize("graph", sorted(set(GRAPHS) - COPIED - BY_TORCH))
def test_large_arrays_are_not_copied(engines: Engines, graph: str, tactic: str) -> None:
    engine = engines(graph, tactic)
    context = engine.context()
    feeds = draw(engine)
    want = by_copying(engine, feeds)
    instance = context.instance(feeds)
    own = [*instance.inputs.values(), *(instance.tensors[name] for name in want)]
    large = [tensor for tensor in own if tensor.nbytes >= 1 << 16]
    assert len(large) > len(feeds)
    with torch.inference_mode():
        for tensor in large:
            tensor.fill_(torch.nan)
    same(context.run(feeds), want)
    assert all(tensor.isnan().all() for tensor in large)


@pytest.mark.parametrize("tactic", ["cpp", "ort"])
def test_arrays_between_alignments_are_copied(engines: Engines, tactic: str) -> None:
    """Libraries may add in another order where vectors begin elsewhere; bits need not show it here."""
    engine = engines("two inputs", tactic)
    context = engine.context()
    feeds = {name: shifted(array, 4) for name, array in draw(engine).items()}
    context.run(feeds)
    own = context.instance(draw(engine, 1)).inputs
    context.run(feeds)
    same({name: tensor.numpy() for name, tensor in own.items()}, feeds)


@pytest.mark.parametrize("tactic", TACTICS)
def test_inputs_belong_to_the_caller(engines: Engines, tactic: str) -> None:
    engine = engines("two inputs", tactic)
    context = engine.context()
    feeds = draw(engine)
    want = by_copying(engine, feeds)
    context.run(feeds)
    holders = [sys.getrefcount(array) for array in feeds.values()]
    got = context.run(feeds)
    assert [sys.getrefcount(array) for array in feeds.values()] == holders
    for array in feeds.values():
        array.fill(np.nan)
    same(got, want)


@pytest.mark.parametrize("tactic", TACTICS)
@pytest.mark.parametrize("graph", ["two inputs", "output read again", "one value, two outputs"])
def test_held_results_never_change(engines: Engines, graph: str, tactic: str) -> None:
    engine = engines(graph, tactic)
    context = engine.context()
    feeds = [draw(engine, seed) for seed in range(8)]
    results = [context.run(each) for each in feeds]
    for each, result in zip(feeds, results, strict=True):
        same(result, by_copying(engine, each))
    arrays = [array for result in results for array in result.values()]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


@pytest.mark.parametrize("tactic", TACTICS)
def test_a_view_of_a_result_keeps_it(engines: Engines, tactic: str) -> None:
    engine = engines("two inputs", tactic)
    context = engine.context()
    rows = [context.run(draw(engine, seed))["y"][1:2] for seed in range(6)]
    for seed, row in enumerate(rows):
        np.testing.assert_array_equal(row, by_copying(engine, draw(engine, seed))["y"][1:2])


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # numpy 2.5 still lets callers
@pytest.mark.parametrize("tactic", TACTICS)
def test_a_result_may_be_changed_and_let_go(engines: Engines, tactic: str) -> None:
    engine = engines("two inputs", tactic)
    context = engine.context()
    feeds = draw(engine)
    want = by_copying(engine, feeds)
    for _ in range(6):
        result = context.run(feeds)
        same(result, want)
        result["y"].fill(7)
        result["y"].shape = (-1,)
        result["y"].flags.writeable = False


@pytest.mark.parametrize("tactic", ["cpp", "ort"])
def test_memory_of_results_is_used_again(engines: Engines, tactic: str) -> None:
    engine = engines("two inputs", tactic)
    context = engine.context()
    feeds = draw(engine)
    assert len({context.run(feeds)["y"].ctypes.data for _ in range(20)}) == 1


@pytest.mark.parametrize("tactic", TACTICS)
def test_one_array_for_two_inputs_and_results_for_inputs(engines: Engines, tactic: str) -> None:
    engine = engines("two inputs", tactic)
    context = engine.context()
    state = rand(4, COLUMNS)
    want = state.copy()
    for _ in range(6):
        state = context.run({"x": state, "z": state})["y"]
        want = by_copying(engine, {"x": want, "z": want})["y"]
    np.testing.assert_array_equal(state, want)


@pytest.mark.parametrize("tactic", TACTICS)
def test_shapes_and_libraries_in_turn(engines: Engines, tactic: str) -> None:
    engine = engines("output read again", tactic)
    context = engine.context()
    held = []
    for seed, rows in enumerate([4, 1, 8, 4, 0, 8, 1, 4] * 2):
        feeds = draw(engine, seed, rows)
        want = by_copying(engine, feeds)
        held.append((context.run(feeds), want))
        if seed % 3 == 0:
            tensors = context.run({name: torch.from_numpy(array) for name, array in feeds.items()})
            assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
            same({name: tensor.numpy() for name, tensor in tensors.items()}, want)
            mixed = context.run({"x": torch.from_numpy(feeds["x"]), "z": feeds["z"]})
            same({name: tensor.numpy() for name, tensor in mixed.items()}, want)
    for got, want in held:
        same(got, want)


@pytest.mark.parametrize("tactic", TACTICS)
def test_two_threads(engines: Engines, tactic: str) -> None:
    engine = engines("output read again", tactic)
    feeds = [draw(engine, seed) for seed in range(2)]
    wants = [by_copying(engine, each) for each in feeds]
    failed: list[BaseException] = []

    def work(i: int) -> None:
        try:
            results = [engine.run(feeds[i]) for _ in range(20)]
            for result in results:
                same(result, wants[i])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("tactic", TACTICS)
def test_steps_called_one_by_one_read_what_was_loaded(engines: Engines, tactic: str) -> None:
    engine = engines("read by two steps", tactic)
    context = engine.context()
    feeds, others = draw(engine, 0), draw(engine, 1)
    context.run(feeds)
    instance = context.instance(feeds)
    context.run(others)
    with context.without_steps(others):
        context.run(others)
    context.instance(feeds)
    with torch.inference_mode():
        for call in instance.calls:
            call()
    same({n: instance.result(n).numpy() for n in instance.program.outputs}, by_copying(engine, feeds))


def test_a_run_that_fails_leaves_all_as_it_was() -> None:
    """ONNX Runtime refuses the index in the middle of a run, while its session points at a caller's array."""
    engine = quick(
        model_of("g (float[8,4096] x, int64[4] i) => (float[4,4096] y) { a = Tanh(x) y = Gather(a, i) }"),
        without=(),
    )
    context = engine.context()
    x, index = rand(8, COLUMNS), np.array([0, 2, 7, 1])
    want = context.run({"x": x, "i": index})["y"].copy()
    bad = x.copy()
    holders = sys.getrefcount(bad)
    with pytest.raises(InputError, match="cannot run with these values"):
        context.run({"x": bad, "i": index + 90})
    assert sys.getrefcount(bad) == holders
    with pytest.raises(InputError, match="does not fit this plan"):
        context.run({"x": bad, "i": index.astype(np.int32)})
    assert sys.getrefcount(bad) == holders
    instance = context.instance({"x": x, "i": index})
    instance.execute()
    np.testing.assert_array_equal(instance.result("y").numpy(), want)
    np.testing.assert_array_equal(context.run({"x": x, "i": index})["y"], want)


@pytest.mark.parametrize("tactic", TACTICS)
def test_arrays_of_other_classes(engines: Engines, tactic: str, tmp_path: Path) -> None:
    engine = engines("two inputs", tactic)
    feeds = draw(engine)
    feeds["x"].tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", np.float32, mode="r", shape=feeds["x"].shape)
    got = engine.run({"x": mapped, "z": feeds["z"].view(np.ma.MaskedArray)})
    same(got, by_copying(engine, feeds))
    assert type(got["y"]) is np.ndarray


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_results_whose_sizes_depend_on_data_are_the_callers_own(kind: str) -> None:
    """ONNX Runtime gives its results away as they are: none lies on an input, a weight or another one."""
    graph = """g (float[N,8] x)
        => (int64[2,K] y, int64[2,K] y2, int64[L] y3, float[M] r, float[3] c, float[3] c2) {
        y = NonZero(x) y2 = Identity(y) k = Constant <value_ints = [-1]> () y3 = Reshape(y, k)
        r = Reshape(x, k) c = Identity(w) c2 = Identity(w) }"""
    engine = quick(model_of(graph, w=rand(3)), without=("cpp",))
    context = engine.context()
    held = []
    for seed in range(4):
        x = np.maximum(rand(2, 8, seed=seed), 0)
        want = np.array(np.nonzero(x))
        made = context.run({"x": x if kind == "numpy" else torch.from_numpy(x.copy())})
        arrays = {name: np.asarray(value) for name, value in made.items()}
        wanted = {
            "y": want,
            "y2": want,
            "y3": want.reshape(-1),
            "r": x.reshape(-1),
            "c": rand(3),
            "c2": rand(3),
        }
        same(arrays, wanted)
        for array in arrays.values():
            array += 1
        held.append((arrays, wanted))
    for arrays, wanted in held:
        same(arrays, {name: array + 1 for name, array in wanted.items()})
    every = [array for arrays, _ in held for array in arrays.values()]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(every) for b in every[:i])


def test_a_buffer_is_read_in_every_call(engines: Engines) -> None:
    engine = engines("two inputs", "cpp")
    context = engine.context()
    feeds = draw(engine)
    for _ in range(3):
        same(context.run({"x": memoryview(feeds["x"]), "z": feeds["z"]}), by_copying(engine, feeds))


def test_a_view_of_what_a_library_made_is_a_result_of_its_own() -> None:
    """A step of two outputs allocates both, and a Reshape that looks at one is an output too."""
    graph = """g (float[N,8] x) => (float[N,8] y, float[M] flat, float[N,8] y2) {
        y = Relu(x) y2 = Identity(y) k = Constant <value_ints = [-1]> () flat = Reshape(y, k) }"""
    made = quick(model_of(graph), without=("ort", "cpp")).run({"x": rand(4, 8)})
    made["flat"].fill(7)
    np.testing.assert_array_equal(made["y"], np.maximum(rand(4, 8), 0))
    np.testing.assert_array_equal(made["y2"], made["y"])


def test_an_item_that_is_asked_for_twice_is_two_results() -> None:
    graph = """g (float[N,8] x) => (float[A,B] y, float[C,D] z) { a = Relu(x) s = SequenceConstruct(a, x)
        second = Constant <value_int = 1> () last = Constant <value_int = -1> ()
        y = SequenceAt(s, second) z = SequenceAt(s, last) }"""
    made = quick(model_of(graph)).run({"x": rand(4, 8)})
    made["y"].fill(7)
    np.testing.assert_array_equal(made["z"], rand(4, 8))
