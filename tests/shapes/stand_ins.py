"""Stand-ins for CUDA graphs and streams on a CPU: what is done with them can be seen without a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ridgeline.base.gpu_graph import CaptureError
from ridgeline.runtime import cuda_instance, turns
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.fused_model import FusedModel


class Replayed:
    """As a CUDA graph: a replay writes where the capture wrote, whatever values are called now."""

    def __init__(self, run: Callable[[], object], dynamic_values: dict[str, Any]) -> None:
        before = dict(dynamic_values)
        run()
        self._run, self._named = run, dynamic_values
        self._made = {name: made for name, made in dynamic_values.items() if made is not before.get(name)}
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        before = dict(self._named)
        self._run()
        for name, tensor in self._made.items():
            if tensor is not None and self._named[name] is not tensor:
                tensor.copy_(self._named[name])
        self._named.clear()
        self._named.update(before)


class HostInstance(CudaInstance):
    """An instance of a CPU, captured and run as one of a GPU is."""

    device = "cpu"

    def _require_memory(self, inputs: Any) -> None:
        """There is no device to ask."""


def values_of(call: Any) -> dict[str, Any]:
    """The values by name that a captured call reads and makes."""
    owner = getattr(call, "__self__", None)
    found = owner.dynamic_values if owner is not None else None
    named: dict[str, Any] = found or inspect.getclosurevars(call).nonlocals.get("dynamic_values", {})
    return owner.dynamic_values if owner is not None else named


class Rig:
    """Captures by stand-ins, and what was captured. `refused`: ops that no graph holds."""

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        self.refused, self.graphs = refused, list[Replayed]()
        self.stream = SimpleNamespace(cuda_stream=1, synchronize=lambda: None, wait_stream=lambda other: None)

    def warm(self, call: Callable[[], object], stream: object) -> None:
        call()
        call()

    def record(self, call: Any, stream: object) -> Replayed:
        owner = getattr(call, "__self__", None)
        if owner is not None and any(self._waits(owner, place) for place in range(len(owner.calls))):
            raise CaptureError("it waits")
        dynamic_values = values_of(call)
        inputs = [] if owner is None else [(t, t.clone()) for t in owner.inputs.values()]
        graph = Replayed(call, dynamic_values)
        for tensor, before in inputs:  # a capture computes nothing
            tensor.copy_(before)
        self.graphs.append(graph)
        return graph

    def try_alone(self, owner: CudaInstance, call: object) -> str | None:
        places = [place for place, own in enumerate(owner.calls) if own is call]
        return "it waits" if any(self._waits(owner, place) for place in places) else None

    def _waits(self, instance: Any, place: int) -> bool:
        step = next(step for step in instance.steps if step.index == instance.call_steps[place])
        return any(op.op_type in self.refused for op in step.region.body.ops)


@contextmanager
def replaying(monkeypatch: pytest.MonkeyPatch, refused: frozenset[str] = frozenset()) -> Iterator[Rig]:
    """Inside, engines of the CPU run as those of a GPU do."""
    rig = Rig(refused)

    @contextmanager
    def on(_: object) -> Iterator[None]:
        yield

    def capture_segments(instance: CudaInstance) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(cuda_instance, "try_alone", lambda call, stream: rig.try_alone(instance, call))
            return CudaInstance._capture_segments(instance)

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda device=None: rig.stream)
        patch.setattr(torch.cuda, "stream", on)
        patch.setattr(turns, "raw_stream", lambda device: 1)
        patch.setattr(cuda_instance, "own_stream", lambda owner: rig.stream)
        patch.setattr(cuda_instance, "warm", rig.warm)
        patch.setattr(cuda_instance, "record", rig.record)
        patch.setattr(HostInstance, "_capture_segments", capture_segments)
        patch.setattr(FusedModel, "instance_type", HostInstance)
        yield rig
