"""A machine without a compiler, or without Triton: said once, and everything runs all the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ridgeline
from ridgeline.kernels.cpp.compiler import find_compiler
from ridgeline.kernels.triton.source import triton_version


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PATH", str(tmp_path))
    find_compiler.cache_clear()
    yield
    monkeypatch.undo()
    find_compiler.cache_clear()


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "triton", None)
    triton_version.cache_clear()
    yield
    monkeypatch.undo()
    triton_version.cache_clear()


@pytest.fixture(scope="module")
def generated(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of several steps of generated C++."""
    engine = ridgeline.build(tiny_model, level=0, without=("ort", "onednn", "mkl"), verify="off")
    assert sum(step.tactic.startswith("cpp.") for step in engine.plan.steps) > 1
    return engine.save(tmp_path_factory.mktemp("generated") / "generated.ridge")


@pytest.mark.usefixtures("no_compiler")
def test_an_engine_of_generated_kernels_gives_one_note(generated: Path) -> None:
    engine = ridgeline.load(generated)
    engine.run(engine.example_inputs())
    assert len(engine.notes) == 1
    assert engine.notes[0].startswith("no C++ compiler found: ")


@pytest.mark.usefixtures("no_compiler")
def test_a_build_without_a_compiler_says_so_once(tiny_model: Path) -> None:
    engine = ridgeline.build(tiny_model, level=0, without=("ort",), profiles={"x": "1x3x32x32"})
    assert engine.report.verified
    assert sum("no C++ compiler" in warning for warning in engine.report.warnings) == 1
    assert not engine.notes


@pytest.mark.usefixtures("no_triton")
def test_a_gpu_build_without_triton_says_so(tiny_model: Path) -> None:
    engine = ridgeline.build(tiny_model, target="cuda:sm_90", level=0, verify="off")
    assert any(warning.startswith("Triton is not installed") for warning in engine.report.warnings)


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import ridgeline
engine = ridgeline.build({path!r}, level=0, verify="off", profiles={{"x": "1x3x32x32"}})
engine.run(engine.example_inputs())
ridgeline.build({path!r}, target="cuda:sm_90", level=0, verify="off", profiles={{"x": "1x3x32x32"}})
"""


def test_nothing_that_is_imported_needs_triton(tiny_model: Path) -> None:
    """In a process of its own: here the modules of kernels are imported already."""
    code = WITHOUT_TRITON.format(path=str(tiny_model))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
