"""What commands say can be followed: flags that paste, reasons that are whole, profiles that are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

import ridgeline
from ridgeline.analyze.explain import explain_engine
from ridgeline.errors import first_line

Ridge = Callable[..., tuple[int, str, str]]
HEAD = '<ir_version: 10, opset_import: ["": 20]> '
SIZED = (
    HEAD
    + "g (float[N,12] x, int64[2] s) => (float[A,B] y) { a = Relu (x) r = Reshape (a, s) y = Mul (r, r) }"
)
# no batch of twelves makes seven elevens
UNFIT = (
    HEAD
    + """g (float[N,12] x, int64[2] s) => (float[A,B] y) {
  a = Relu (x) c = Constant <value_ints = [7, 11]> () b = Reshape (a, c)
  r = Reshape (b, s) y = Mul (r, r) }"""
)
LOOP = (
    HEAD
    + """g (int64 n, float[2,4] x) => (float[2,4] y) {
  c = Constant <value = bool {1}> ()
  y = Loop <body = b (int64 i, bool ci, float[2,4] h) => (bool co, float[2,4] ho) {
    co = Identity (ci) ho = Tanh (h) }> (n, c, x) }"""
)
FOUND = HEAD + "g (float[N,4] x) => (int64[2,K] y) { r = Relu (x) y = NonZero (r) }"


def write(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(text), str(path))
    return path


def test_random_inputs_keep_planned_values(ridge: Ridge, here: Path) -> None:
    engine = ridgeline.build(
        onnx.parser.parse_model(SIZED), profiles={"x": "2x12", "s": "[8, 3]"}, level=0, threads=1
    )
    engine.save(here / "m.ridge")
    code, stdout, stderr = ridge("run", "m.ridge", "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["rows"][0]["shape"] == [8, 3]


def test_shapes_that_cannot_be_guessed_are_asked_for_by_name(ridge: Ridge, here: Path) -> None:
    code, _, stderr = ridge("build", write(UNFIT, here / "m.onnx"), "--level", "0")
    assert code == 1
    assert "--shapes x=…x12 --shapes 's=[…, …]'" in stderr
    assert "cannot be reshaped" in stderr, "the reason, not only where in its sources ONNX Runtime stopped"
    assert stderr.count("x=1x12 s=2") == 1


def test_guessed_shapes_are_told_as_flags() -> None:
    text = HEAD + "g (float[N,4] x, float[N,4] z) => (float[N,4] y) { y = Add (x, z) }"
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0, threads=1)
    assert any("--shapes x=1x4 --shapes z=1x4" in line for line in engine.report.warnings)


def test_values_without_brackets_are_pointed_to_them(ridge: Ridge, here: Path) -> None:
    code, _, stderr = ridge("build", write(SIZED, here / "m.onnx"), "--shapes", "s=-1,3")
    assert code == 1
    assert "'s=[-1,3]'" in stderr


def test_profiles_and_padding_are_told(ridge: Ridge, here: Path, tiny_model: Path) -> None:
    profiles = ["--profile", "x=1x3x32x32", "--profile", "x=4x3x32x32"]
    code, built, stderr = ridge("build", tiny_model, *profiles, "--pad", "--level", "0")
    assert code == 0, stderr
    assert "time: " not in stderr, "nothing is timed at level 0"
    _, shown, _ = ridge("show", "tiny.ridge")
    for text in (built, shown):
        assert "2: x=1x3x32x32; x=4x3x32x32; inputs that fit none are padded" in " ".join(text.split())


def test_a_library_that_runs_a_loop_runs_its_body() -> None:
    engine = ridgeline.build(onnx.parser.parse_model(LOOP), level=0, threads=1)
    (island,) = explain_engine(engine.plan, engine.report).islands
    assert engine.plan.steps[0].tactic == "ort"
    assert not island.body
    assert island.why.startswith("inside ort: Loop")


def test_islands_elsewhere_are_listed_and_not_predicted() -> None:
    engine = ridgeline.build(
        onnx.parser.parse_model(FOUND), target="cuda:sm_90", profiles={"x": "8x4"}, level=0
    )
    story = explain_engine(engine.plan, engine.report)
    assert [island.ops for island in story.islands] == [("NonZero",)]
    assert story.steps[-1].contest.median_us is None


def test_a_gpu_engine_without_a_gpu_says_where_to_run_it(ridge: Ridge, here: Path, tiny_model: Path) -> None:
    options = ["--target", "cuda:sm_90", "--level", "0", "-o", "g.ridge", "--shapes", "x=1x3x32x32"]
    assert ridge("build", tiny_model, *options)[0] == 0
    code, _, stderr = ridge("run", "g.ridge")
    assert code == 1
    assert "run it on a machine that has one" in stderr


def test_refusals_alike_are_one_line(ridge: Ridge, here: Path) -> None:
    assert ridge("build", write(FOUND, here / "m.onnx"), "--level", "0")[0] == 0
    _, told, _ = ridge("explain", "m.ridge")
    assert told.count("a shape inside depends on data") == 1


def test_onnx_runtime_is_quoted_from_its_reason_on() -> None:
    said = (
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. Name:'a' "
        "Status Message: /onnxruntime_src/onnxruntime/core/math.h:540 void onnxruntime::F::G(int64_t, long) "
        "axis == 1 was false"
    )
    assert first_line(RuntimeError(said)) == "Add a: axis == 1 was false"
    assert first_line(ValueError("other words")) == "other words"


def test_strings_may_come_as_a_list() -> None:
    text = HEAD + "g (string[N] s) => (string[N,M] y, int64[N] k) { y, k = StringSplit (s) }"
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0, threads=1)
    assert np.array_equal(engine.run({"s": ["a b", "c"]})["k"], [2, 1])


def test_a_half_engine_says_so() -> None:
    text = HEAD + "g (float16[4,4] x) => (float16[4,4] y) { y = Relu (x) }"
    assert ridgeline.build(onnx.parser.parse_model(text), level=0, threads=1).plan.precision == "fp16"


def test_a_command_never_replaces_what_it_reads(ridge: Ridge, here: Path) -> None:
    model = write(SIZED, here / "m.onnx")
    before = model.read_bytes()
    for words in (
        ("build", "m.onnx", "-o", "m.onnx"),
        ("build", "m.onnx", "--cache", "m.onnx", "-o", "m.ridge"),
        ("extract", "m.onnx", "--to", "a", "-o", "m.onnx"),
    ):
        code, _, stderr = ridge(*words)
        assert code == 1
        assert "would replace" in stderr or "not a timing cache" in stderr
        assert model.read_bytes() == before
