"""What a GPU can be given that it cannot take: each met with a clear error or a correct slower path."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
import torch

import ridgeline
from ridgeline.analyze.show import summarise
from ridgeline.base.spec import Target
from ridgeline.errors import InputError
from ridgeline.runtime.context import CudaContext
from ridgeline.runtime.device import DeviceError
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.profiles import load_variants

OTHER_ARCH = "sm_75"
SANITIZER_LIMIT_S = 60
# a fresh process: after such an error nothing else could run in this one
READS_OUTSIDE = """
import sys
import numpy as np, torch
import ridgeline
from ridgeline.runtime.device import DeviceError
engine = ridgeline.load(sys.argv[1])
engine.run({"ids": np.array([0, 1, 2, 3])})
context = engine.context()
context.run({"ids": np.array([0, 1, 2, 3])})
for _ in range(2):
    try:
        context.run({"ids": np.array([0, 1, 2, 10_000_000])})
    except DeviceError as error:
        print("said:", error.what, "|", error.got, "|", error.help)
try:
    engine.context().run({"ids": np.array([0, 1, 2, 3])})
except ridgeline.errors.RidgelineError as error:
    print("then:", type(error).__name__, error.what)
print("still here")
"""
RUNS_ONCE = """
import sys
import ridgeline
engine = ridgeline.load(sys.argv[1])
feeds = engine.example_inputs()
for _ in range(3):
    engine.run(feeds)
print("ran")
"""


@pytest.fixture
def context(mlp: ridgeline.Engine) -> CudaContext:
    made = mlp.context()
    assert isinstance(made, CudaContext)
    return made


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        pytest.param(lambda: torch.zeros(4, 64), "it is on cpu", id="on the host"),
        pytest.param(lambda: torch.zeros(4, 65, device="cuda")[:, 1:], "not contiguous", id="odd strides"),
        pytest.param(lambda: torch.zeros(257, device="cuda")[1:].view(4, 64), "not aligned", id="one late"),
        pytest.param(lambda: np.zeros((4, 64), np.float32), "want  a torch tensor", id="an array"),
        pytest.param(lambda: torch.zeros(4, 64, device="cuda").half(), "float16", id="another type"),
        pytest.param(lambda: torch.zeros(9, 64, device="cuda"), "1..8", id="too many rows"),
    ],
)
def test_what_cannot_be_bound_is_said(context: CudaContext, tensor: Any, says: str) -> None:
    with pytest.raises(InputError) as found:
        context.bind({"x": tensor()})
    assert says in str(found.value)


def test_a_name_that_does_not_exist(mlp: ridgeline.Engine) -> None:
    with pytest.raises(InputError, match="there is no input 'y'"):
        mlp.run({"y": torch.zeros(4, 64, device="cuda")})


def test_another_architecture(mlp: ridgeline.Engine) -> None:
    target = Target("cuda", OTHER_ARCH)
    plan, fused = replace(mlp.plan, target=target), replace(mlp.fused, target=target)
    other = Engine(load_variants(plan, fused, mlp.planner.bind_body), mlp.planner)
    with pytest.raises(DeviceError, match="another GPU") as found:
        other.run(mlp.example_inputs())
    assert found.value.want == OTHER_ARCH
    assert "--target cuda:sm_" in found.value.help


@pytest.mark.parametrize("make", [networks.waits_for_data, networks.runs_on_the_host])
def test_what_cannot_be_captured_runs_step_by_step(make: Any, mlp: ridgeline.Engine) -> None:
    engine = ridgeline.build(make(), target="cuda", level=1)
    assert engine.report.verified
    assert any("cannot be captured" in note for note in engine.notes)
    assert any("cannot be captured" in text for text in summarise(engine.plan, engine.report).warnings)
    feeds = engine.example_inputs(seed=1)
    tensors = {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}
    for _ in range(3):
        for name, want in engine.run(feeds).items():
            assert torch.equal(engine.run(tensors)[name].cpu(), torch.from_numpy(want))
    made = engine.context()
    assert isinstance(made, CudaContext)
    with pytest.raises(DeviceError, match="cannot be bound"):
        made.bind(tensors)
    # a capture that failed must not spoil those that come after it
    feeds = {"x": torch.zeros(4, 64, device="cuda")}
    bound_context = mlp.context()
    assert isinstance(bound_context, CudaContext)
    assert bound_context.bind(feeds).run()
    torch.cuda.empty_cache()


def test_a_cuda_error_poisons_the_context_and_nothing_else(tmp_path: Path) -> None:
    engine = ridgeline.build(networks.looks_up(), target="cuda", level=0, verify="fast", without=("triton",))
    path = engine.save(tmp_path / "looks_up.ridge")
    done = run_apart(READS_OUTSIDE, path, timeout_s=120)
    said = [line for line in done.stdout.splitlines() if line.startswith("said:")]
    assert len(said) == 2, done.stdout + done.stderr
    assert "a CUDA error ended all work" in said[0]
    assert "device-side assert" in said[0] or "illegal memory access" in said[0]
    assert "cannot run again" in said[1]
    assert "start a new process" in said[1]
    assert "then: DeviceError" in done.stdout, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("still here")
    assert done.returncode == 0, done.stderr


def test_the_sanitizer_finds_nothing(image_net: ridgeline.Engine, tmp_path: Path) -> None:
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not installed")
    path = image_net.save(tmp_path / "image_net.ridge")
    before = (tool, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9")
    try:
        done = run_apart(RUNS_ONCE, path, timeout_s=SANITIZER_LIMIT_S, before=before)
    except subprocess.TimeoutExpired:
        pytest.skip(f"compute-sanitizer takes over {SANITIZER_LIMIT_S} s here")
    assert "ran" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout


def run_apart(
    script: str, path: Path, *, timeout_s: float, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-c", script, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
