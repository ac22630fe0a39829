"""What is said about GPUs where there is none, and the parts of it that need none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import ridgeline
from ridgeline.base.spec import Target
from ridgeline.errors import RidgelineError
from ridgeline.runtime import device
from ridgeline.runtime.device import (
    Device,
    DeviceError,
    current_device,
    device_error,
    foreseen_parts,
    gpu_errors,
    require_memory,
    why_no_gpu,
)
from ridgeline.runtime.device_memory import storages

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"


@no_gpu
def test_a_build_for_this_machines_gpu_says_that_there_is_none(tiny_model: Path) -> None:
    with pytest.raises(DeviceError, match="there is no GPU to run on") as found:
        ridgeline.build(tiny_model, target="cuda", profiles={"x": "1x3x32x32"})
    assert found.value.got == why_no_gpu()
    assert "--target cpu" in found.value.help
    assert "--target cuda:sm_90" in found.value.help


@no_gpu
def test_every_question_about_the_device_is_answered_so() -> None:
    with pytest.raises(DeviceError, match="there is no GPU"):
        current_device()


def test_another_architecture_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Device("Some GPU", "sm_80", 108, 80 << 30, 163 << 10, 40 << 20, "12.8", "13.0")
    monkeypatch.setattr(device, "current_device", lambda: here)
    with pytest.raises(DeviceError, match="another GPU") as found:
        device.require_device(Target("cuda", "sm_90"))
    assert (found.value.got, found.value.want) == ("Some GPU (sm_80)", "sm_90")
    assert "--target cuda:sm_80" in found.value.help
    assert device.require_device(Target("cuda", "sm_80")) is here
    assert replace(here, multiprocessors=100).key != here.key


def test_too_little_memory_is_said_part_by_part() -> None:
    parts = {"weights": 600, "arena": 300, "inputs": 0}
    require_memory(parts, free=900)
    with pytest.raises(DeviceError, match="too little GPU memory") as found:
        require_memory(parts, free=899)
    assert found.value.rows == ("weights: 600 bytes", "arena: 300 bytes")
    assert (found.value.got, found.value.want) == ("899 bytes free", "900 bytes")


def test_a_plan_foresees_its_parts(tiny_model: Path) -> None:
    engine = ridgeline.build(tiny_model, level=0, verify="off", profiles={"x": "1x3x32x32"})
    parts = foreseen_parts(engine.plan.memory)
    assert parts["weights"] == sum(t.nbytes for t in engine.weights.values())
    assert parts["inputs"] == 3 * 32 * 32 * 4


@pytest.mark.parametrize(
    ("error", "is_fatal"),
    [
        (RuntimeError(ASSERT), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RidgelineError("launching gemm failed", got="CUDA error 719: unspecified launch failure"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), False),
        (RidgelineError("launching gemm failed", got="CUDA error 2: out of memory"), False),
    ],
)
def test_failures_of_the_gpu_are_known(error: Exception, is_fatal: bool) -> None:
    found = device_error(error)
    assert found is not None
    assert found.is_fatal == is_fatal
    assert found.help
    with pytest.raises(DeviceError), gpu_errors():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: invalid configuration argument"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        DeviceError("this context met a CUDA error", got="CUDA error"),
    ],
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert device_error(error) is None
    with pytest.raises(type(error), match=str(error).splitlines()[0]), gpu_errors():
        raise error


def test_memory_in_reach_counts_every_storage_once() -> None:
    packed, scratch, default = (torch.empty(n, dtype=torch.uint8) for n in (100, 30, 7))

    class Holder:
        def __init__(self) -> None:
            self.views = {"whole": packed, "half": packed[50:]}

        def call(self, x: object) -> object:
            return self, x

    def closure(_held: object = default) -> object:
        return scratch, _held

    roots = [Holder().call, partial(closure, [packed.view(10, 10)])]
    assert sorted(storages(roots, "cpu").values()) == [7, 30, 100]
    assert storages(roots, "cuda") == {}
