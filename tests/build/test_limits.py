"""Budgets: what costs more than a limit allows is refused by name, before the cost is paid."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import ridgeline
from ridgeline.errors import LimitError, OptionError
from ridgeline.options import DEFAULT_LIMITS, Limits, machine_bytes
from ridgeline.passes.fold import FOLDED_BYTES, fold_constants

QUICK = {"level": 0, "threads": 1, "verify": "fast"}
FEW = {"loop_trips": 500}


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')


def loop(trips: str, body: str = "r = Relu(a)", state: str = "float[4]") -> onnx.ModelProto:
    return parse(
        f"g (float[4] x, int64 n, bool go) => ({state} y) {{ y = Loop({trips}, go, x) "
        f"<body = b (int64 i, bool c, {state} a) => (bool d, {state} r) {{ d = Identity(c) {body} }}> }}"
    )


def feeds(n: int, *, go: bool = True) -> dict[str, np.ndarray]:
    return {"x": np.ones(4, np.float32), "n": np.array(n), "go": np.array(go)}


INNER = "<body = e (int64 j, bool f, float[4] h) => (bool k, float[4] m) { k = Identity(f) m = Relu(h) }>"
NESTED = loop("n", f"r = Loop(n, c, a) {INNER}")
GROWS = loop("n", "r = Concat <axis = 0> (a, a)", "float[K]")


@pytest.mark.parametrize("without", ["", "ort"])
def test_a_loop_ends_at_its_limit_when_it_runs(without: str) -> None:
    engine = ridgeline.build(loop("n"), limits=FEW, without=without or (), **QUICK)
    assert engine.plan.steps[-1].tactic == ("aten" if without else "ort")
    np.testing.assert_array_equal(engine.run(feeds(500))["y"], 1)
    for _ in range(2):
        with pytest.raises(LimitError, match="the Loop at y goes round beyond its limit") as caught:
            engine.run(feeds(501))
        assert "--limit loop_trips=" in str(caught.value)
    np.testing.assert_array_equal(engine.run(feeds(3))["y"], 1)


def test_the_limit_is_the_loader_s_and_not_the_file_s(tmp_path: Path) -> None:
    path = ridgeline.build(loop("n"), limits={"loop_trips": 2000}, **QUICK).save(tmp_path / "m.ridge")
    with pytest.raises(LimitError):
        ridgeline.load(path, limits=FEW).run(feeds(1000))
    np.testing.assert_array_equal(ridgeline.load(path, limits={"loop_trips": 2000}).run(feeds(1000))["y"], 1)


@pytest.mark.parametrize("verify", ["fast", "off"])
@pytest.mark.parametrize("trips", ["", "forever"])
def test_a_loop_that_never_ends_does_not_build(trips: str, verify: str) -> None:
    model = loop(trips)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2**62), "forever"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "go"))
    del model.graph.input[1:]
    with pytest.raises(LimitError, match="goes round"):
        ridgeline.build(model, limits=FEW, **{**QUICK, "verify": verify})


def test_the_trips_of_a_loop_inside_a_loop_count_together() -> None:
    engine = ridgeline.build(NESTED, limits=FEW, **QUICK)
    engine.run(feeds(21))  # 21 + 21 * 21
    with pytest.raises(LimitError, match="loop trips"):
        engine.run(feeds(30))


def test_a_loop_that_doubles_its_state_stops_before_memory_ends() -> None:
    engine = ridgeline.build(GROWS, limits={"planned_bytes": 1 << 20}, **QUICK)
    assert engine.run(feeds(3))["y"].shape == (32,)
    with pytest.raises(LimitError, match="the Loop at y grows"):
        engine.run(feeds(60))


@pytest.mark.parametrize("dim", ["4", "N"])
def test_a_constant_larger_than_memory(dim: str) -> None:
    model = parse(
        f"g (float[{dim}] x) => (float y) <int64[2] s = {{4000000, 4000000}}, float[1,1] k> "
        "{ k = ConstantOfShape(s) m = ReduceMax <keepdims = 0> (k) n = ReduceMax <keepdims = 0> (x) "
        "y = Add(m, n) }"
    )
    start = time.perf_counter()
    with pytest.raises(LimitError, match=r"k \(ConstantOfShape\)") as caught:
        ridgeline.build(model, **QUICK)
    assert time.perf_counter() - start < 10
    assert "--limit planned_bytes=64000000000000" in str(caught.value)


def test_an_input_and_an_arena_larger_than_their_limit() -> None:
    with pytest.raises(LimitError, match="input 'x'"):
        ridgeline.build(parse("g (float[1000000,1000000] x) => (float[1000000,1000000] y) { y = Relu(x) }"))
    model = parse("g (float[64,64] x) => (float[64,64] y) { a = MatMul(x, x) y = MatMul(a, x) }")
    with pytest.raises(LimitError, match="an engine at x"):
        ridgeline.build(model, limits={"planned_bytes": 20_000}, without="ort", **QUICK)


def test_a_recurrent_op_of_an_impossible_size() -> None:
    model = parse(
        "g (float[3,2,4] x, float[1,20,4] w, float[1,20,5] r) => (float[3,1,2,H] y) "
        "{ y = LSTM <hidden_size = 2147483648> (x, w, r) }"
    )
    with pytest.raises(ridgeline.errors.RidgelineError, match="y"):
        ridgeline.build(model, **QUICK)


def test_new_shapes_have_the_limit_too() -> None:
    model = parse("g (float[N,1] x, float[1,N] z) => (float[N,N] y) { y = Mul(x, z) }")
    engine = ridgeline.build(model, limits={"planned_bytes": 1 << 20}, **QUICK)
    for n in (128, 4000):
        given = {"x": np.ones((n, 1), np.float32), "z": np.ones((1, n), np.float32)}
        if n == 128:
            engine.context(wait=True).run(given)
        else:
            with pytest.raises(LimitError, match="planned_bytes"):
                engine.context(wait=True).run(given)


def test_constants_are_folded_while_there_is_room() -> None:
    text = "g (float[4] x) => (float[4] y) <int64[1] s = {1024}, int64[1] z = {0}, int64[1] f = {4}> { "
    text += " ".join(f"k{i} = ConstantOfShape <value = float[1] {{{i}}}> (s)" for i in range(4))
    text += " a = Add(k0, k1) b = Add(k2, k3) c = Add(a, b) d = Slice(c, z, f, z) y = Add(x, d) }"
    model = parse(text)
    for room, left in ((DEFAULT_LIMITS.folded_bytes, 0), (10_000, 2)):
        made = ir.from_proto(model)
        made.meta[FOLDED_BYTES] = room
        fold_constants(made)
        assert sum(node.op_type == "ConstantOfShape" for node in made.graph) == left


def test_limits_are_checked_and_have_names() -> None:
    assert Limits().planned_bytes == machine_bytes() // 4
    for wrong in ({"loop_tripz": 4}, {"loop_trips": 0}, {"loop_trips": "many"}, 4):
        with pytest.raises(OptionError):
            ridgeline.build(loop("n"), limits=wrong)


def test_strings_beyond_memory() -> None:
    with pytest.raises(LimitError, match="input 'x'"):
        ridgeline.build(parse("g (string[4000000,4000000] x) => (string[N,M] y) { y = Identity(x) }"))
