"""What data decides about: right at every shape, planned inside, and its cost told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from moving_models import close, decoder, detector, expected, model_of, own, rand

import ridgeline
from ridgeline.analyze.explain import explain_engine
from ridgeline.cli.draw_explain import draw_explanation

SHAPE_OPS = {"Shape", "Size", "Range", "ConstantOfShape"}


@pytest.fixture(scope="module")
def yolo():  # type: ignore[no-untyped-def]
    return own(detector(), profiles={"image": "1x3x32..64..96x32..64..96"})


@pytest.mark.parametrize("sizes", [(64, 64), (32, 96), (48, 80)])
def test_a_detector_at_moving_sizes(yolo, sizes: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    for seed in range(3):
        feeds = {"image": rand(1, 3, *sizes, seed=seed)}
        want = expected(detector(), feeds)
        assert len(want["classes_out"]) > 0
        close(yolo.run(feeds), want)


def test_a_detector_that_finds_nothing() -> None:
    model = detector()
    for node in model.graph.node:
        if node.output[0] == "floor":
            node.attribute[0].floats[:] = [2.0]
    engine, feeds = own(model, profiles={"image": "1x3x32x32"}), {"image": rand(1, 3, 32, 32)}
    want = expected(model, feeds)
    assert want["boxes_out"].shape == (0, 4)
    close(engine.run(feeds), want)


def test_no_shape_op_runs_in_steady_state(yolo) -> None:  # type: ignore[no-untyped-def]
    instance = yolo.context(wait=True).instance({"image": rand(1, 3, 48, 80)})
    run = {op for step in instance.steps if step.launch is not None for op in step.region.op_types}
    assert not run & SHAPE_OPS
    # the grid of cells, made of shapes alone, is a constant of the instance
    assert "cell" in instance.inferred.values
    assert "Expand" not in run


def test_segments_before_an_island_are_planned(yolo) -> None:  # type: ignore[no-untyped-def]
    tactics = {step.op_types[0]: step.tactic for step in yolo.plan.steps}
    assert tactics["NonMaxSuppression"] == "aten"
    assert tactics["Conv"] != "aten"
    assert yolo.report.islands[0].step == "picked"


def test_explain_tells_what_islands_cost() -> None:
    from io import StringIO

    from rich.console import Console

    engine = ridgeline.build(detector(), level=1, without=("ort",), profiles={"image": "1x3x64x64"})
    assert engine.report.verified
    story = explain_engine(engine.plan, engine.report)
    first = story.islands[0]
    assert first.why == "NonMaxSuppression: the number of results depends on data"
    assert first.median_us is not None
    assert first.median_us > 0
    assert first.share is not None
    assert 0 < first.share < 1
    text = StringIO()
    draw_explanation(story, Console(file=text, width=160))
    assert "Islands: what data decides about" in text.getvalue()
    assert "depends on data" in text.getvalue()


@pytest.mark.parametrize("growing", [False, True])
def test_a_greedy_decoder(growing: bool) -> None:
    model = decoder(growing=growing)
    engine = own(model, profiles={"S": "1..6..20"})
    for length, steps in ((6, 5), (6, 12), (3, 7), (6, 0), (11, 1), (6, 12)):
        feeds = {"memory": rand(length, 16, seed=9), "start": np.array(3), "steps": np.array(steps)}
        close(engine.run(feeds), expected(model, feeds))
    (island,) = engine.report.islands
    assert island.why == "Loop: data says how often the body runs"
    assert "ops in" in island.body


def test_a_body_is_fused_and_planned_and_comes_back_from_the_file(tmp_path: Path) -> None:
    model = decoder(growing=False)
    engine = own(model, profiles={"S": "6"})
    body = engine.plan.bodies["last.body"]
    assert any(len(step.op_types) > 1 for step in body.steps)
    assert {step.tactic for step in body.steps} - {"aten"}
    again = ridgeline.load(engine.save(tmp_path / "loop.ridge"))
    assert again.plan == engine.plan
    feeds = {"memory": rand(6, 16, seed=9), "start": np.array(3), "steps": np.array(9)}
    close(again.run(feeds), expected(model, feeds))
    islands = [each.variants[0].executable.islands for each in (again, engine)]
    assert islands[0]._found.keys() == islands[1]._found.keys() == {"last.body"}
    assert all(islands[0]._found.values())
    assert not again.notes


def test_the_plan_of_a_body_says_what_it_computes_in() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float16[4] x, int64 n, bool on) => (float16[4] y) {
        y = Loop(n, on, x) <body = b (int64 i, bool go, float16[4] a) => (bool more, float16[4] c) {
            more = Identity(go)
            c = Add(a, a)
        }>
    }"""
    engine = ridgeline.build(onnx.parser.parse_model(text), target="null", progress=False)
    assert [body.precision for body in engine.plan.bodies.values()] == ["fp16"]


def test_a_verified_decoder_at_level_one() -> None:
    engine = ridgeline.build(decoder(growing=False), level=1, profiles={"S": "6"})
    assert engine.report.verified
    assert engine.report.islands


CASES = {
    "scan": """g (float[T,4] x) => (float[4] y, float[T,4] z) {
        i = Constant <value_floats = [0.0, 0.0, 0.0, 0.0]> ()
        y, z = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] xi) => (float[4] so, float[4] o) {
            so = Add(s, xi) m = Mul(so, xi) o = Tanh(m) }> (i, x) }""",
    "scan backwards along another axis": """g (float[T,4] x) => (float[4] y, float[4,T] z) {
        i = Constant <value_floats = [0.0, 0.0, 0.0, 0.0]> () t = Transpose <perm = [1, 0]> (x)
        y, z = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            scan_output_axes = [1], scan_output_directions = [1],
            body = b (float[4] s, float[4] xi) => (float[4] so, float[4] o) {
            d = Mul(s, k) so = Add(d, xi) o = Identity(so) }> (i, t) }""",
    "states that change places": """g (float[T,4] x) => (float[T,4] y, float[T,4] z) {
        n = Constant <value_int = 5> () c = Constant <value = bool {1}> () h = Neg(x)
        y, z = Loop (n, c, x, h) < body = b (int64 i, bool go, float[T,4] a, float[T,4] b1)
            => (bool on, float[T,4] b2, float[T,4] a2) {
            on = Identity(go) b2 = Identity(b1) a2 = Mul(a, k) } > }""",
    "loop in a loop": """g (float[T,4] x) => (float[T,4] y) {
        n = Constant <value_int = 3> () c = Constant <value = bool {1}> ()
        y = Loop (n, c, x) < body = b (int64 i, bool go, float[T,4] a) => (bool on, float[T,4] w) {
            on = Identity(go) one = Constant <value_int = 1> () m = Add(i, one)
            w0 = Loop (m, go, a) < body = b2 (int64 j, bool go2, float[T,4] a2) => (bool on2, float[T,4] w2) {
                on2 = Identity(go2) h = Mul(a2, k) w2 = Sub(h, x) } >
            w = Tanh(w0) } > }""",
    "branches": """g (float[T,4] x) => (float[T,4] y) {
        s = ReduceSum <keepdims = 0> (x) zero = Constant <value_float = 0.0> () c = Greater(s, zero)
        y = If (c) < then_branch = t () => (float[T,4] a) { e = Exp(x) a = Mul(e, k) },
                     else_branch = f () => (float[T,4] b) { n = Neg(x) r = Softmax(n) b = Add(r, k) } > }""",
    "a body that hides rows": """g (float[T,4] x) => (float[T,4] y, float[K,4] z) {
        m = ReduceMax <keepdims = 0> (x, ax) zero = Constant <value_float = 0.5> () c = Greater(m, zero)
        z = Compress <axis = 0> (x, c) y = Relu(x) }""",
    "no trip": """g (float[T,4] x) => (float[T,4] y, float[K,T,4] z) {
        n = Constant <value_int = 0> () c = Constant <value = bool {1}> ()
        y, z = Loop (n, c, x) < body = b (int64 i, bool go, float[T,4] a)
            => (bool on, float[T,4] w, float[T,4] s) {
            on = Identity(go) w = Mul(a, k) s = Identity(a) } > }""",
    "unique": """g (float[T,4] x) => (float[K] y, int64[K] n) {
        r = Round(x) y, a, b, n = Unique (r) }""",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_data_dependent_graphs(name: str) -> None:
    weights = {"k": np.float32([0.5, 2.0, -1.0, 1.5])} if "k)" in CASES[name] else {}
    weights |= {"ax": np.array([1])} if "ax)" in CASES[name] else {}
    model = model_of(CASES[name], **weights)
    engine = own(model, profiles={"T": "1..3..8"})
    for seed, rows in enumerate([3, 5, 3, 1, 5, 8]):
        feeds = {"x": rand(rows, 4, seed=seed)}
        close(engine.run(feeds), expected(model, feeds))


@pytest.mark.parametrize("without", [(), ("ort",)])
def test_a_scan_over_nothing_after_one_over_something(without: tuple[str, ...]) -> None:
    """ONNX Runtime refuses it, so a plan that runs there must not hand it over."""
    model = model_of("""g (float[T,3] x, float[3] s) => (float[3] e, float[K,3] y) {
        one = Constant <value_ints = [1]> () far = Constant <value_ints = [99]> ()
        zero = Constant <value_ints = [0]> () t = Slice(x, one, far, zero)
        e, y = Scan <num_scan_inputs = 1, body = b (float[3] a, float[3] i) => (float[3] o, float[3] q) {
            o = Add(a, i) q = Relu(o) }> (s, t) }""")
    engine = own(model, without=without, profiles={"x": "1..4..9x3"})
    first = {"x": rand(4, 3), "s": rand(3, seed=1)}
    close(engine.run(first), expected(model, first))
    made = engine.run({"x": rand(1, 3), "s": first["s"]})
    np.testing.assert_array_equal(made["e"], first["s"])
    assert made["y"].shape == (0, 3)
    close(engine.run(first), expected(model, first))


def test_two_branches_of_one_form_read_what_is_theirs() -> None:
    """Equal bodies over other captured values are not the same body."""
    model = model_of("""g (float[3] p, float[3] q) => (float[3] y) {
        s = ReduceSum <keepdims = 0> (p) zero = Constant <value_float = 0.0> () c = Greater(s, zero)
        y = If (c) < then_branch = t () => (float[3] a) { a = Relu(p) },
                     else_branch = e () => (float[3] b) { b = Relu(q) } > }""")
    engine = own(model)
    for sign in (1, -1):
        feeds = {"p": sign * np.float32([1, 2, 3]), "q": np.float32([7, 8, 9])}
        close(engine.run(feeds), expected(model, feeds))


def test_threads_run_bodies_in_memory_of_their_own() -> None:
    import threading

    model = decoder(growing=True)
    engine = own(model, profiles={"S": "6"})
    inputs = [
        {"memory": rand(6, 16, seed=i), "start": np.array(i), "steps": np.array(4 + i)} for i in range(4)
    ]
    wants = [expected(model, feeds)["tokens"] for feeds in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(5) if not np.array_equal(engine.run(inputs[i])["tokens"], wants[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_growing_state_gives_the_same_bits_again() -> None:
    """What does not grow beside it has a kernel, which adds in another order than the floor."""
    model = model_of("""g (int64 trips, float[1,99] x) => (float[1,99] y, float[M,99] all) {
        going = Constant <value = bool {1}> ()
        y, all = Loop (trips, going, x, x) <body =
            body (int64 i, bool go, float[1,99] row, float[K,99] rows)
                => (bool on, float[1,99] ratio, float[L,99] grown) {
            on = Identity (go)
            square = Mul (row, row)
            mean = ReduceMean <keepdims = 1> (square, axes)
            root = Sqrt (mean)
            moved = Add (row, root)
            ratio = Div (moved, root)
            grown = Concat <axis = 0> (rows, ratio)
        } >
    }""", axes=np.array([1]))  # fmt: skip
    context = own(model).context(wait=True)
    feeds = {"trips": np.array(9), "x": rand(1, 99)}
    first = context.run(feeds)
    close(first, expected(model, feeds))
    for _ in range(3):
        again = context.run(feeds)
        assert all(np.array_equal(again[name], first[name]) for name in first)
