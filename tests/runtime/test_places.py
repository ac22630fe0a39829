"""Paths from outside: only regular files are replaced, links lead on, and what is no path is our error."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import ridgeline
from ridgeline.cli.files import require_file, require_writable, write_atomically
from ridgeline.errors import OptionError, RidgelineError
from ridgeline.surgery.extract import extract_file
from ridgeline.surgery.record import Recording
from ridgeline.tactics.cache import TimingCache

MODEL = """<ir_version: 9, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"""
OUT = "sample_00.npz"  # as `reduce` calls its first sample
build = partial(ridgeline.build, onnx.parser.parse_model(MODEL), level=0, verify="off", threads=1)
Write = Callable[[Path], object]


@pytest.fixture(scope="module")
def engine() -> ridgeline.Engine:
    return build()


def _extract(path: Path) -> None:
    model = path.with_name("model.onnx")
    model.write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
    extract_file(model, path, starts=[], ends=[])


def _samples(path: Path) -> None:
    recording = Recording(path.parent, 1)
    recording.keep(0, "x", np.zeros(1))
    recording.write_samples(["x"], path.parent)


WRITERS: dict[str, Callable[[ridgeline.Engine], Write]] = {
    "save": lambda engine: engine.save,
    "observe": lambda engine: lambda path: engine.observe(path).stop(),
    "--cache": lambda engine: TimingCache().write,
    "--lock": lambda engine: lambda path: TimingCache().write_lock(path, []),
    "-o": lambda engine: lambda path: require_writable(path, option="-o"),
    "run --output": lambda engine: lambda path: write_atomically(path, lambda file: file.write(b"new")),
    "extract": lambda engine: _extract,
    "samples": lambda engine: _samples,
}


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("far"))
    path.symlink_to(path.with_name("far"))


THINGS: dict[str, Callable[[Path], object]] = {
    "is a pipe": _pipe,
    "is a link to a pipe": _link_to_pipe,
    "is a link to nothing": lambda path: path.symlink_to(path.with_name("nowhere")),
    "Too many levels of symbolic links": lambda path: path.symlink_to(path),
    "is a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("said", THINGS)
def test_what_is_no_regular_file_is_never_replaced(
    engine: ridgeline.Engine, tmp_path: Path, writer: str, said: str
) -> None:
    path = tmp_path / OUT
    THINGS[said](path)
    before = {p.name: stat.S_IFMT(p.lstat().st_mode) for p in tmp_path.iterdir()}
    with pytest.raises(OptionError, match=said):
        WRITERS[writer](engine)(path)
    after = {p.name: stat.S_IFMT(p.lstat().st_mode) for p in tmp_path.iterdir()}
    assert before.items() <= after.items()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("writer", sorted(WRITERS.keys() - {"-o"}))
def test_a_link_leads_to_the_file_that_is_written(
    engine: ridgeline.Engine, tmp_path: Path, writer: str
) -> None:
    far, link = tmp_path / "elsewhere" / "far", tmp_path / OUT
    far.parent.mkdir()
    far.touch()
    link.symlink_to(far)
    WRITERS[writer](engine)(link)
    assert link.is_symlink()
    assert far.stat().st_size
    assert [p.name for p in far.parent.iterdir() if p.name.endswith("part")] == []


@pytest.mark.parametrize("option", ["timing_cache", "lock"])
@pytest.mark.parametrize("said", THINGS)
def test_a_build_refuses_such_places_before_its_work(tmp_path: Path, option: str, said: str) -> None:
    THINGS[said](tmp_path / OUT)
    with pytest.raises(OptionError, match=said):
        build(progress=lambda *_: pytest.fail("work began"), **{option: tmp_path / OUT})


def test_a_lock_beside_a_cache_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".cache.toml.lock")
    with pytest.raises(OptionError, match="not a regular file"):
        TimingCache().write(tmp_path / "cache.toml")


NO_PATHS = ["a\0b", "x" * 5000, "\ud800", 3, b"bytes"]
DOORS: dict[str, Callable[[ridgeline.Engine, Any], object]] = {
    "save": lambda engine, path: engine.save(path),
    "observe": lambda engine, path: engine.observe(path),
    "load": lambda engine, path: ridgeline.load(path),
    "build": lambda engine, path: ridgeline.build(path if path != b"bytes" else 3),  # bytes are a model
    "timing_cache": lambda engine, path: build(timing_cache=path),
    "lock": lambda engine, path: build(lock=path),
    "data": lambda engine, path: build(data=path),
    "verify_engine": lambda engine, path: ridgeline.verify_engine(
        engine, onnx.parser.parse_model(MODEL), data=path
    ),
    "MODEL": lambda engine, path: require_file(path),
    "-o": lambda engine, path: require_writable(path, option="-o"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("given", NO_PATHS, ids=lambda given: repr(given)[:8])
def test_what_is_no_path_is_our_error(engine: ridgeline.Engine, door: str, given: Any) -> None:
    with pytest.raises(RidgelineError) as refused:
        DOORS[door](engine, given)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("given", ["/", "", "."])
@pytest.mark.parametrize("option", ["timing_cache", "lock"])
def test_a_folder_is_no_file_to_write(option: str, given: str) -> None:
    with pytest.raises(OptionError, match="is a folder"):
        build(**{option: given})


def test_a_profile_is_for_an_input_with_a_name() -> None:
    with pytest.raises(OptionError, match="profiles names no input"):
        build(profiles={1: "2"})
