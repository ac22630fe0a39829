"""`ridge bench` on the tiny model: each flag changes what is run, reported or written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.builder import load_engine

Ridge = Callable[..., tuple[int, str, str]]
QUICK = ("--duration", "0", "--warmup", "0", "--iterations", "12")


def bench(ridge: Ridge, *arguments: str | Path) -> dict[str, Any]:
    code, stdout, stderr = ridge("bench", *arguments, "--json")
    assert code == 0, stderr
    made: dict[str, Any] = json.loads(stdout)
    return made


def test_shapes_are_those_to_run_an_engine_at(ridge: Ridge, tiny_engine: Path) -> None:
    assert bench(ridge, tiny_engine, *QUICK)["shapes"] == {"x": [2, 3, 32, 32]}
    asked = bench(ridge, tiny_engine, *QUICK, "--shapes", "x=4x3x32x32")
    assert asked["shapes"] == {"x": [4, 3, 32, 32]}
    code, _, stderr = ridge("bench", tiny_engine, *QUICK, "--shapes", "x=9x3x32x32")
    assert code == 1
    assert "9" in stderr
    code, _, stderr = ridge("bench", tiny_engine, *QUICK, "--shapes", "z=1x3x32x32")
    assert (code, "no input 'z'" in stderr) == (1, True)


def test_shapes_of_a_model_are_those_to_build_for(ridge: Ridge, tiny_model: Path) -> None:
    built = bench(
        ridge, tiny_model, *QUICK, "--shapes", "x=1..3..4x3x32x32", "--level", "0", "--verify", "off"
    )
    assert built["shapes"] == {"x": [3, 3, 32, 32]}


def test_iterations_and_contexts_are_counted(ridge: Ridge, tiny_engine: Path) -> None:
    alone = bench(ridge, tiny_engine, *QUICK)
    assert (alone["rows"][0]["queries"], alone["concurrency"], alone["warmup_queries"]) == (12, 1, 0)
    for flag in ("--concurrency", "--streams"):
        several = bench(ridge, tiny_engine, *QUICK, flag, "3")
        assert (several["rows"][0]["queries"], several["concurrency"]) == (36, 3)
        assert [check["max_difference"] for check in several["contexts"]] == [0.0, 0.0]
    warm = bench(ridge, tiny_engine, "--duration", "0", "--warmup", "5")
    assert warm["warmup_queries"] > 0
    _, stdout, _ = ridge("bench", tiny_engine, "--duration", "0", "--warmup", "5")
    assert "warm-up: 5 ms for each runner" in " ".join(stdout.split())
    assert warm["rows"][0]["queries"] == 10, "the least that is run"


def test_without_transfers_a_cpu_says_that_nothing_changes(ridge: Ridge, tiny_engine: Path) -> None:
    made = bench(ridge, tiny_engine, *QUICK, "--no-transfers")
    assert made["transfers"] is False
    assert any("changes nothing on a CPU" in warning for warning in made["warnings"])
    assert bench(ridge, tiny_engine, *QUICK)["transfers"] is True


def test_percentiles_and_averages_are_those_asked_for(ridge: Ridge, tiny_engine: Path) -> None:
    made = bench(
        ridge, tiny_engine, *QUICK, "--percentile", "50,99", "--percentile", "99.9", "--avg-runs", "5"
    )
    assert list(made["rows"][0]["percentiles_us"]) == ["50", "99", "99.9"]
    assert [row["queries"] for row in made["averages"]] == [5, 5]
    assert any("p99, p99.9 of 12" in warning for warning in made["warnings"])
    assert bench(ridge, tiny_engine, *QUICK)["averages"] == []
    code, stdout, _ = ridge("bench", tiny_engine, *QUICK, "--percentile", "99.9", "--avg-runs", "5")
    assert code == 0
    assert "p99.9" in stdout
    assert "p95" not in stdout
    assert "averages of 5 queries" in stdout
    assert "before the steps" in stdout


def test_the_parts_make_up_a_query(ridge: Ridge, here: Path, tiny_engine: Path) -> None:
    code, _, stderr = ridge("bench", tiny_engine, *QUICK, "--export-times", "t.csv")
    assert code == 0, stderr
    rows = list(csv.DictReader((here / "t.csv").read_text().splitlines()))
    assert len(rows) == 12
    for row in rows:
        parts = [float(row[name]) for name in ("h2d_us", "compute_us", "d2h_us")]
        assert all(part > 0 for part in parts)
        assert sum(parts) == pytest.approx(float(row["latency_us"]), abs=0.01)
        assert float(row["end_us"]) - float(row["start_us"]) == pytest.approx(
            float(row["latency_us"]), abs=0.01
        )
        assert row["enqueue_us"] == "", "nothing is queued on a CPU"


def test_inputs_are_loaded_and_outputs_exported(ridge: Ridge, here: Path, tiny_engine: Path) -> None:
    x = np.random.default_rng(3).normal(size=(4, 3, 32, 32)).astype(np.float32)
    # a new shape is measured as it is planned, not as it runs until then
    want = load_engine(tiny_engine).context(wait=True).run({"x": x})["y"]
    np.save(here / "x.npy", x)
    x.tofile(here / "x.bin")
    for given in (("--input", "x=x.npy"), ("--load-inputs", "x=x.bin", "--shapes", "x=4x3x32x32")):
        code, _, stderr = ridge("bench", tiny_engine, *QUICK, *given, "--export-output", "o.npz")
        assert code == 0, stderr
        with np.load(here / "o.npz") as saved:
            np.testing.assert_array_equal(saved["y"], want)
    ridge("bench", tiny_engine, *QUICK, "--input", "x=x.npy", "--export-output", "o.json")
    told = json.loads((here / "o.json").read_text())["outputs"]["y"]
    assert (told["type"], told["shape"]) == ("float32", [4, 10])
    np.testing.assert_array_equal(np.array(told["values"], np.float32), want)


def test_layers_are_exported(ridge: Ridge, here: Path, tiny_engine: Path) -> None:
    for name in ("p.csv", "p.json"):
        code, _, stderr = ridge("bench", tiny_engine, *QUICK, "--export-profile", name)
        assert code == 0, stderr
    steps = load_engine(tiny_engine).plan.steps
    rows = list(csv.DictReader((here / "p.csv").read_text().splitlines()))
    told = json.loads((here / "p.json").read_text())
    assert [row["tactic"] for row in rows] == [row["tactic"] for row in told["rows"]]
    assert {row["name"] for row in rows} <= {step.name for step in steps}
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)
    assert told["total_us"] > 0


def test_csv_has_one_row_for_each_runner(ridge: Ridge, tiny_engine: Path) -> None:
    code, stdout, stderr = ridge("bench", tiny_engine, *QUICK, "--csv", "--percentile", "50")
    assert code == 0, stderr
    (row,) = csv.DictReader(io.StringIO(stdout))
    code, _, stderr = ridge("bench", tiny_engine, *QUICK, "--csv")
    assert "warning: too few samples: p95, p99 of 12" in stderr
    assert (row["name"], row["queries"]) == ("ridgeline", "12")
    assert float(row["min_us"]) <= float(row["p50_us"]) <= float(row["max_us"])
    assert float(row["compute_median_us"]) > 0


def test_a_sweep_runs_every_size(ridge: Ridge, tiny_engine: Path) -> None:
    made = bench(ridge, tiny_engine, *QUICK, "--sweep", "batch=1..4")
    assert made["schema"] == "ridgeline/bench_sweep/1"
    assert (made["dim"], made["rebuilt"], made["tuned_for"]) == ("N", False, 2)
    assert (
        [row["shapes"]["x"][0] for row in made["rows"]] == [row["size"] for row in made["rows"]] == [1, 2, 4]
    )
    for row in made["rows"]:
        assert row["items_per_s"] == pytest.approx(row["throughput_qps"] * row["size"])
    best = max(made["rows"], key=lambda row: row["items_per_s"])
    assert made["best"] == best["size"]
    code, stdout, _ = ridge("bench", tiny_engine, *QUICK, "--sweep", "N=1,3")
    assert code == 0
    assert "█" in stdout
    rows = list(
        csv.DictReader(io.StringIO(ridge("bench", tiny_engine, *QUICK, "--sweep", "N=1,3", "--csv")[1]))
    )
    assert [row["size"] for row in rows] == ["1", "3"]


def test_a_sweep_of_a_model_builds_once_or_for_each_size(ridge: Ridge, tiny_model: Path) -> None:
    quick = (*QUICK, "--level", "0", "--verify", "off", "--sweep", "batch=2,5")
    code, stdout, stderr = ridge("bench", tiny_model, *quick, "--json")
    assert (code, stderr.count("select:")) == (0, 1)
    assert (json.loads(stdout)["rebuilt"], json.loads(stdout)["tuned_for"]) == (False, 5)
    code, stdout, stderr = ridge("bench", tiny_model, *quick, "--rebuild", "--json")
    assert (code, stderr.count("select:")) == (0, 2)
    assert (json.loads(stdout)["rebuilt"], json.loads(stdout)["tuned_for"]) == (True, None)
    assert [row["size"] for row in json.loads(stdout)["rows"]] == [2, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--iterations", "0"], "--iterations is too small"),
        (["--iterations", "1000000000000"], "--iterations is too large"),
        (["--avg-runs", "0"], "--avg-runs is too small"),
        (["--percentile", "101"], "--percentile is out of range"),
        (["--percentile", "p99"], "--percentile is no number"),
        (["--concurrency", "1000"], "--concurrency is out of range"),
        (["--no-graph"], "--no-graph is for engines on a GPU"),
        (["--load-inputs", "x=short.bin"], "'short.bin' does not hold the bytes of 'x'"),
        (["--load-inputs", "z=short.bin"], "no input 'z'"),
        (["--load-inputs", "x=none.bin"], "'none.bin' cannot be read"),
        (["--input", "x=ones.npy", "--shapes", "x=2x3x32x32"], "another shape than --shapes"),
        (["--sweep", "batch=1..64"], "not built for N = 8, 16, 32, 64"),
        (["--sweep", "M=1..4"], "no input has a dim 'M'"),
        (["--sweep", "batch=4..1"], "--sweep has no size"),
        (["--sweep", "batch=1,2", "--rebuild"], "is built already, and --rebuild builds"),
        (["--sweep", "batch=1,2", "--export-times", "t.csv"], "--export-times cannot be used beside --sweep"),
        (["--sweep", "batch=1,2", "--avg-runs", "5"], "--avg-runs cannot be used beside --sweep"),
        (["--rebuild"], "--rebuild is for --sweep"),
        (["--peers", "ort", "--concurrency", "2"], "--concurrency cannot be used beside --peers"),
        (["--peers", "ort", "--export-times", "t.csv"], "--export-times cannot be used beside --peers"),
        (["--export-times", "t.txt"], "--export-times cannot tell the form"),
        (["--export-output", "o.csv"], "--export-output cannot tell the form"),
        (["--export-profile", "no/p.csv"], "the folder no does not exist"),
        (["--export-times", "t.csv", "--export-profile", "./t.csv"], "name one file"),
        (["--input", "x=ones.npz", "--export-output", "ones.npz"], "name one file"),
        (["--csv", "--json"], "--csv cannot be used beside --json"),
    ],
)
def test_bad_input_is_an_error(
    ridge: Ridge, here: Path, tiny_engine: Path, arguments: list[str], message: str
) -> None:
    (here / "short.bin").write_bytes(b"\0" * 12)
    np.save(here / "ones.npy", np.ones((1, 3, 32, 32), np.float32))
    code, _, stderr = ridge("bench", tiny_engine, *QUICK[:4], *arguments)
    assert code == 1
    assert message in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-graph"], "--no-graph is for engines on a GPU"),
        (["--no-graph", "--sweep", "batch=1,2"], "--no-graph is for engines on a GPU"),
        (["--peers", "ort", "--concurrency", "2"], "--concurrency cannot be used beside --peers"),
    ],
)
def test_what_cannot_be_measured_is_not_built(
    ridge: Ridge, tiny_model: Path, arguments: list[str], message: str
) -> None:
    code, _, stderr = ridge("bench", tiny_model, *arguments)
    assert code == 1
    assert message in stderr
    assert "select" not in stderr


def test_a_fixed_batch_is_refused_with_the_way_out(
    ridge: Ridge, here: Path, make_tiny_model: Callable[..., Path]
) -> None:
    make_tiny_model(here / "fixed.onnx", x="2,3,32,32")
    code, _, stderr = ridge("bench", "fixed.onnx", "--sweep", "batch=1..4")
    assert code == 1
    assert "the batch of input 'x' is fixed at 2" in stderr
    assert "dynamic_shapes" in stderr
