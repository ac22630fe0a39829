"""`ridge profile` on the command line: what it prints, writes and refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ridgeline.analyze.profile import profile_engine
from ridgeline.analyze.trace import read_trace
from ridgeline.builder import load_engine
from ridgeline.cli.draw_profile import draw_profile, sparkline

Ridge = Callable[..., tuple[int, str, str]]


def test_the_table_states_the_sum_and_the_whole_run(ridge: Ridge, tiny_engine: Path) -> None:
    code, stdout, stderr = ridge("profile", tiny_engine, "--by", "op", "--rounds", "3")
    assert code == 0, stderr
    for word in ("limited by", "By op", "What to look at", "of the whole run", "bound by", "ceilings"):
        assert word in stdout


def test_memory_over_the_steps_is_one_line() -> None:
    assert sparkline((0, 50, 100)) == "▁▄█"
    assert sparkline((0, 0)) == sparkline(()) == ""
    assert len(sparkline(range(1, 1000))) == 40
    assert sparkline((*[0] * 99, 7, *[0] * 100)).count("█") == 1, "a short peak is not lost"


def test_a_wide_terminal_shows_every_column(tiny_engine: Path) -> None:
    report = profile_engine(load_engine(tiny_engine), rounds=1).report
    for width, is_wide in ((100, False), (160, True)):
        console = Console(width=width, file=io.StringIO(), record=True)
        draw_profile(report, console)
        text = console.export_text()
        assert ("flop/B" in text, "calls" in text) == (is_wide, is_wide)
        assert "bytes/s" in text


def test_trace_and_timeline_are_written(ridge: Ridge, here: Path, tiny_engine: Path) -> None:
    code, _, stderr = ridge(
        "profile", tiny_engine, "--rounds", "2", "--save", "p.json", "--trace", "t.json", "--json"
    )
    assert code == 0, stderr
    saved = read_trace(here / "p.json")
    timeline = json.loads((here / "t.json").read_text())
    titles = [e["name"] for e in timeline["traceEvents"] if e["ph"] == "X"]
    assert all(f"{step.index} {step.name}" in titles for step in saved.steps)


def test_top_lists_fewer_steps_and_json_all(ridge: Ridge, tiny_engine: Path) -> None:
    rows = json.loads(ridge("profile", tiny_engine, "--rounds", "2", "--json", "--top", "1")[1])["rows"]
    _, stdout, _ = ridge("profile", tiny_engine, "--rounds", "2", "--top", "1")
    assert f"the 1 that take longest of {len(rows)} steps" in stdout or len(rows) == 1


def test_what_a_library_timed_itself_is_added_up(ridge: Ridge, here: Path, tiny_model: Path) -> None:
    given = ("--level", "0", "--verify", "off", "--threads", "1", "--rounds", "2")
    code, stdout, stderr = ridge("profile", tiny_model, *given, "--without", "cpp,onednn,mkl")
    assert code == 0, stderr
    assert "by its own profiler" in stdout
    assert "in all while it is on" in stdout


def test_sizes_of_an_engine_and_inputs_of_one_s_own(ridge: Ridge, here: Path, tiny_engine: Path) -> None:
    code, stdout, stderr = ridge("profile", tiny_engine, "--shapes", "x=4x3x32x32", "--rounds", "1", "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["shapes"] == {"x": "float32[4,3,32,32]"}
    np.save(here / "x.npy", np.ones((3, 3, 32, 32), np.float32))
    code, stdout, stderr = ridge("profile", tiny_engine, "--input", "x=x.npy", "--rounds", "1", "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["shapes"] == {"x": "float32[3,3,32,32]"}


def test_pytorch_s_profiler_sees_what_pytorch_runs(ridge: Ridge, tiny_model: Path) -> None:
    code, stdout, stderr = ridge(
        "profile", tiny_model, "--level", "0", "--verify", "off", "--without", "ort,cpp,onednn,mkl",
        "--rounds", "3", "--torch-profiler", "--json",
    )  # fmt: skip
    assert code == 0, stderr
    rows = {row["index"]: row for row in json.loads(stdout)["cross"]}
    conv = rows[1]
    assert "aten::" in conv["seen"]
    assert conv["seen_us"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--by", "layers"), "--by has no 'layers'"),
        (("--save", "missing/p.json"), "does not exist"),
        (("--save", "p.json", "--trace", "./p.json"), "--save and --trace name one file"),
        (("--shapes", "z=1x2"), "no input 'z'"),
        (("--shapes", "x=9x3x32x32"), "does not fit"),
        (("--nvtx",), "NVTX ranges are for engines on a GPU"),
        (("--level", "1"), "is built already"),
    ],
)
def test_bad_options_are_said(ridge: Ridge, tiny_engine: Path, arguments: tuple[str, ...], said: str) -> None:
    code, stdout, stderr = ridge("profile", tiny_engine, "--rounds", "1", *arguments)
    assert code == 1, stdout
    assert said in stderr


def test_an_engine_for_a_gpu_that_is_not_here(ridge: Ridge, cross_engine: Path) -> None:
    code, _, stderr = ridge("profile", cross_engine)
    assert code == 1
    assert "there is no GPU to run on" in stderr
    assert "--target cpu" in stderr
