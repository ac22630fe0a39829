"""A process that forks: the child runs what it can, and says what it cannot. Nobody hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SETUP = """
import os, sys, numpy as np, onnx.parser, ridgeline
model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 20]> '
    'g (float[N,8] x) => (float[N,8] y) { a = Relu(x) b = Softmax(a) y = Add(a, b) }')
engine = ridgeline.build(model, level=0, verify="off", threads=int(sys.argv[1]), without=sys.argv[2] or ())
feed = lambda n: {"x": np.ones((n, 8), np.float32)}
context = engine.context()
before = {n: engine.run(feed(n))["y"] for n in (64, 9)}  # planned, and new
context.run(feed(9))
engine.save(sys.argv[3])

def in_child(work):
    child = os.fork()
    if not child:
        try:
            work()
        except ridgeline.errors.ProcessError as error:
            print("ProcessError", error, flush=True)
        except BaseException as error:
            print("FAILED", repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
RUNS = """
def work():
    for run in (engine.run, context.run):
        for n in (64, 9, 11):
            made = run(feed(n))["y"]
            engine.wait()
            again = run(feed(n))["y"]
            assert np.array_equal(made, again) and (n not in before or np.allclose(made, before[n]))
    ridgeline.load(sys.argv[3]).run(feed(64))
    print("ran", flush=True)
in_child(work)
engine.run(feed(13)); engine.wait(); engine.run(feed(13))
print("parent ran")
"""


def run(script: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.parametrize("without", ["", "ort"])
def test_an_engine_of_one_thread_goes_on_in_the_child(tmp_path: Path, without: str) -> None:
    assert run(SETUP + RUNS, "1", without, str(tmp_path / "m.ridge")).splitlines() == ["ran", "parent ran"]


def test_an_engine_of_more_threads_says_so(tmp_path: Path) -> None:
    uses = (
        "engine.run(feed(64))",
        "context.run(feed(64))",
        "engine.run(feed(11))",
        "ridgeline.load(sys.argv[3])",
        "ridgeline.build(model, threads=2)",
    )
    script = "\n".join([SETUP, *(f"in_child(lambda: {use})" for use in uses), "engine.run(feed(64))"])
    said = run(script, "2", "", str(tmp_path / "m.ridge"))
    assert said.count("ProcessError an engine of 2 threads cannot be used in a forked process") == len(uses)
    assert said.count("threads=1") == len(uses)


def test_a_child_that_forked_before_any_engine_is_like_any_process(tmp_path: Path) -> None:
    script = SETUP.replace("engine = ", "first = os.fork()\nengine = ", 1)
    # one write each: where output is unbuffered, `print` writes the end of the line on its own
    script += "os.write(1, b'ran\\n')\nif first: os.waitpid(first, 0)"
    assert run(script, "2", "", str(tmp_path / "m.ridge")) == "ran\nran\n"
