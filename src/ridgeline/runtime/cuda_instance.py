"""An instance on a GPU: its steps are captured once in a CUDA graph, and a run is one launch of it.

Where data decides about some steps, the others are captured in segments between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.gpu_graph import (
    CaptureError,
    own_stream,
    pool_bytes,
    record,
    stream_bytes,
    try_alone,
    warm,
)
from ridgeline.base.gpu_timing import times_in_turn
from ridgeline.base.spec import TensorSpec
from ridgeline.errors import InputError, RidgelineError
from ridgeline.kernels.elements import TORCH_DTYPES, as_numpy, dtype_name, numpy_dtype
from ridgeline.plan.report import RunPart
from ridgeline.runtime.device import DeviceError, device_error, require_memory
from ridgeline.runtime.device_copies import Clones, Destinations
from ridgeline.runtime.device_memory import code_bytes, storages, unused_around
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.pinned_memory import never_free_pinned, new_pinned
from ridgeline.runtime.segments import Segments, capture_segments
from ridgeline.runtime.streamed import StreamedRun, parts_of, require_apart
from ridgeline.runtime.turns import Turns
from ridgeline.runtime.weights import DeviceWeights
from ridgeline.tactics.base import Launch

ALIGNMENT = 16  # of addresses that kernels were compiled for


class CudaInstance(Instance):
    """Bound steps over one arena on the device."""

    device = "cuda"
    _times_in_turn = staticmethod(times_in_turn)
    graph: torch.cuda.CUDAGraph | None = None
    segments: Segments | None = None  # what can be captured of a run that one graph cannot hold
    why_eager = ""  # why there is no graph of the whole run, once a run has shown it
    fatal_error = ""  # the CUDA error after which nothing here can be trusted
    # where the engine keeps what did not go as planned, and what is in which graph, by subgraph
    notes: list[str] | None = None
    run_parts: dict[str, tuple[RunPart, ...]] | None = None
    name = ""  # of the subgraph that this runs; empty for a model

    @cached_property
    def stream(self) -> torch.cuda.Stream:
        """Where the steps are captured, and where runs go that come without a stream of their own."""
        return own_stream(self)

    @cached_property
    def auxiliary(self) -> list[torch.cuda.Stream]:
        """Streams beside it, on which the plan has steps: a library's scratch memory is a stream's own."""
        count = 0 if self.schedule is None else max(self.schedule.streams)
        return [own_stream(self) for _ in range(count)]

    @cached_property
    def turns(self) -> Turns:
        return Turns(self.arena.device)

    def _require_memory(self, inputs: Mapping[str, TensorSpec]) -> None:
        input_bytes = sum(spec.nbytes for spec in inputs.values())
        require_memory({"arena": self.layout.arena_bytes, "inputs": input_bytes})

    def execute(self) -> None:
        """Queue the whole run on the current stream."""
        self.require_usable()
        try:
            if self.graph is not None:
                self.graph.replay()
                return
            with torch.inference_mode():
                if self.segments is None and not self.why_eager:
                    self._capture()
                if self.graph is not None:
                    self.graph.replay()
                elif self.segments is not None:
                    self.segments()
                    if self.ending is not None:
                        self.ending()
                else:
                    super().execute()
        except (RuntimeError, RidgelineError) as error:
            self.raise_device_error(error)
            raise

    def execute_once(self) -> None:
        """Step by step, unless there is a graph already."""
        if self.graph is not None or self.segments is not None:
            self.execute()
            return
        self.require_usable()
        try:
            with torch.inference_mode():
                super().execute()
        except (RuntimeError, RidgelineError) as error:
            self.raise_device_error(error)
            raise

    def take_turns_with(self, other: Instance) -> None:
        """Capture on the same stream, and so share what libraries keep for it."""
        assert isinstance(other, CudaInstance), "instances of one executable"
        vars(self).update(stream=other.stream, auxiliary=other.auxiliary, turns=other.turns)

    def begin_turn(self) -> None:
        self.turns.begin()

    def run_eagerly(self, reason: str) -> None:
        """From now on the steps are queued one by one, without a graph."""
        self.graph, self.segments, self.why_eager = None, None, reason

    def require_usable(self) -> None:
        if self.fatal_error:
            raise DeviceError(
                "this context met a CUDA error and cannot run again",
                got=self.fatal_error,
                help="start a new process: the driver takes back the device's memory after such an error",
            )

    def _capture(self) -> None:
        """Run, so that libraries load and choose, and capture. Inputs stay as they are."""
        warm(self.run_calls, self.stream)
        known = [f"{own.step}: {own.why_eager}" for own in self.call_values if own.why_eager]
        reason = known[0] if known else self._capture_whole()
        if reason is not None:
            self.segments = self._capture_segments()
            how = "the steps run one by one" if self.segments is None else str(self.segments)
            self.why_eager = f"the run cannot be captured in one CUDA graph, and {how}: {reason}"
            note = f"{self.name}: {self.why_eager}" if self.name else self.why_eager
            if self.notes is not None and note not in self.notes:
                self.notes.append(note)
        if self.run_parts is not None:
            self.run_parts.setdefault(self.name, self._parts())

    def _capture_whole(self) -> str | None:
        """Why one graph cannot hold the run; None where it does."""
        if self._capture_streamed():
            return None
        try:
            self.graph = record(super().execute, self.stream)
        except CaptureError as error:
            return str(error)
        return None

    def _capture_streamed(self) -> bool:
        """The whole run on the streams of its plan, if it has several and a graph can hold it."""
        if self.schedule is None:
            return False
        run = StreamedRun(parts_of(self.schedule, self.calls, self.call_steps), self.auxiliary)

        def whole() -> None:
            run()
            if self.ending is not None:
                self.ending()

        try:
            require_apart(self.schedule, {s.index for s in self.steps if s.launch and s.launch.waits_inside})
            # libraries chose their algorithms in runs on one stream, undisturbed by others
            warm(run, self.stream)
            self.graph = record(whole, self.stream)
        except CaptureError as error:
            if self.notes is not None:
                self.notes.append(f"the run is not captured on several streams: {error}")
            return False
        self.is_streamed = True
        return True

    def _capture_segments(self) -> Segments | None:
        """What can be captured between steps that cannot; None where nothing can, or a capture fails."""
        with torch.cuda.stream(self.stream):
            try:
                return capture_segments(
                    self.calls,
                    self.call_values,
                    self.dynamic_values,
                    why_not=lambda call: try_alone(call, self.stream),
                    record=lambda call: record(call, self.stream),
                )
            except CaptureError:
                return None
            finally:
                self.stream.synchronize()

    def _parts(self) -> tuple[RunPart, ...]:
        """For the report: what of a run is in which graph."""
        if self.segments is not None:
            return self.segments.rows(self.name)
        steps = tuple(dict.fromkeys(own.step for own in self.call_values))
        return (RunPart(self.name, steps, is_captured=self.graph is not None, why=self.why_eager),)

    def raise_device_error(self, error: Exception) -> None:
        """Raise a failure of the GPU as what it is; after a fatal one this instance does not run again."""
        found = device_error(error)
        if found is not None:
            self.fatal_error = found.got if found.is_fatal else ""
            if found.is_fatal:
                never_free_pinned()
            raise found from error

    def _graphs(self) -> list[torch.cuda.CUDAGraph]:
        if self.segments is not None:
            return [segment.graph for segment in self.segments.captured]
        return [] if self.graph is None else [self.graph]

    def is_at(self, shapes: Mapping[str, TensorSpec]) -> bool:
        """Whether this instance was made for inputs of these shapes, and keeps memory of its own for them."""
        return bool(self._own_inputs) and all(
            tuple(self.inputs[name].shape) == spec.shape for name, spec in shapes.items()
        )

    def memory(self, engine_holds: Mapping[int, int]) -> dict[str, int]:
        """Device bytes of this instance by kind, without what the engine shares between instances."""
        scratch = storages(self.calls)
        arena, inputs = (storages([held]) for held in (self.arena, list(self._own_inputs.values())))
        apart = {*engine_holds, *arena, *inputs, *storages(list(self.inputs.values()))}
        return {
            "arena": sum(arena.values()),
            "inputs": sum(inputs.values()),
            "scratch": sum(size for place, size in scratch.items() if place not in apart),
            "graph": sum(pool_bytes(graph) for graph in self._graphs()),
            "libraries": sum(map(stream_bytes, (self.stream, *self.auxiliary))),
        }


def gpu_memory(
    instance: CudaInstance, launches: Iterable[Launch], weights: Mapping[str, Tensor]
) -> dict[str, int]:
    """Device bytes by kind: of the engine, then of one of its contexts."""
    launches = list(launches)
    held = storages(weights.held()) if isinstance(weights, DeviceWeights) else {}
    engine_holds = storages(launches) | held
    parts = {
        "weights": sum(held.values()),
        "packed": sum(size for place, size in engine_holds.items() if place not in held),
        "kernels": code_bytes(launches),
        **instance.memory(engine_holds),
    }
    places = [*engine_holds, *storages([instance.arena, list(instance.inputs.values()), instance.calls])]
    parts["rounding"] = unused_around(places)
    return {**parts, "total": sum(parts.values())}


class CudaBinding:
    """Between a caller and a GPU instance: pinned memory for numpy, the caller's own stream for torch."""

    def __init__(self, instance: CudaInstance) -> None:
        self.instance = instance
        self._wanted = [
            (name, tuple(tensor.shape), numpy_dtype(dtype_name(tensor)), tensor.dtype)
            for name, tensor in instance.inputs.items()
        ]
        self._destinations = Destinations(instance.inputs)
        is_fixed = instance.dynamic_names.isdisjoint(instance.program.outputs)
        self._clones = Clones(instance.results()) if is_fixed else None
        self._pinned: dict[str, Tensor] = {}
        self._device = instance.arena.device
        self._turns = Turns(self._device)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """numpy in, numpy out; torch in, torch out; None if the inputs are not just what is wanted here."""
        if feeds.__class__ is not dict or len(feeds) != len(self._wanted):
            return None
        arrays: list[Any] = []
        tensors = there = 0
        for name, shape, dtype, torch_dtype in self._wanted:
            array = feeds.get(name)
            if array.__class__ is Tensor:
                if array.shape != shape or array.dtype is not torch_dtype or array.requires_grad:
                    return None
                tensors += 1
                there += array.is_cuda
            elif array.__class__ is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            arrays.append(array)
        self.instance.require_usable()
        try:
            return self._run_tensors(arrays, there) if tensors else self._run_arrays(arrays)
        except (RuntimeError, RidgelineError) as error:
            self.instance.raise_device_error(error)
            raise

    def _run_arrays(self, arrays: Sequence[Any]) -> dict[str, Any]:
        stream = self.instance.stream
        with torch.cuda.stream(stream):
            self._turns.begin()
            self.load(arrays)
            self.instance.execute()
            results = self.instance.results()
            made = {n: new_pinned(r).copy_(r, non_blocking=True) for n, r in results.items()}
        stream.synchronize()
        self._turns.end()
        return {name: as_numpy(tensor) for name, tensor in made.items()}

    def _run_tensors(self, arrays: Sequence[Any], there: int) -> dict[str, Tensor]:
        """On the caller's stream: nothing waits, unless something comes from the host or goes there."""
        self._turns.begin()
        if there == len(arrays):
            self._destinations.fill(arrays)
        else:
            self.load(arrays)
        self.instance.execute()
        if not there:
            return {name: result.cpu() for name, result in self.instance.results().items()}
        if self._clones is not None:
            made = self._clones.make()
        else:
            made = {name: result.clone() for name, result in self.instance.results().items()}
        if there < len(arrays):
            # callers may write to their arrays, and we to our pinned copies, once `run` is over
            torch.cuda.current_stream(self._device).synchronize()
        return made

    def load(self, arrays: Sequence[Any]) -> None:
        for array, (name, tensor) in zip(arrays, self.instance.inputs.items(), strict=True):
            if not isinstance(array, Tensor):
                if name not in self._pinned:
                    self._pinned[name] = new_pinned(tensor)
                as_numpy(self._pinned[name])[...] = array
                tensor.copy_(self._pinned[name], non_blocking=True)
            elif array.data_ptr() != tensor.data_ptr() or array.device != tensor.device:
                tensor.copy_(array, non_blocking=True)

    def wait(self) -> None:
        """Return when the latest run is over: until then nobody else may have this memory."""
        self._turns.wait()


class BoundRun:
    """An engine captured over the caller's own tensors: a run is one graph launch and copies nothing."""

    def __init__(self, instance: CudaInstance) -> None:
        self._instance = instance
        self.inputs = dict(instance.inputs)
        instance.execute()
        if instance.graph is None:
            raise DeviceError("this engine cannot be bound", got=instance.why_eager, help="use engine.run")
        self.outputs: dict[str, Tensor] = instance.results()
        self.graph = instance.graph
        self._replay = instance.graph.replay

    def run(self) -> dict[str, Tensor]:
        """Queue a run on the current stream. Inputs are read, and outputs written, where they were bound."""
        try:
            self._replay()
        except RuntimeError as error:
            self._instance.raise_device_error(error)
            raise
        return self.outputs


def check_bound(name: str, tensor: Any, dtype: str) -> None:
    """A tensor that kernels can read where it lies, or an error that says what is wrong with it."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name!r} cannot be bound", got=type(tensor).__name__, want="a torch tensor")
    problems = []
    if not tensor.is_cuda:
        problems.append(f"it is on {tensor.device}, want cuda: bind tensor.cuda()")
    elif tensor.device.index != torch.cuda.current_device():
        problems.append(f"it is on {tensor.device}, want cuda:{torch.cuda.current_device()}")
    if not tensor.is_contiguous():
        problems.append("it is not contiguous: bind tensor.contiguous()")
    if tensor.data_ptr() % ALIGNMENT:
        problems.append(f"its memory is not aligned to {ALIGNMENT} bytes: bind tensor.clone()")
    if tensor.dtype != TORCH_DTYPES[dtype]:
        problems.append(f"it is {tensor.dtype}, want {dtype}")
    if problems:
        raise InputError(f"{name!r} cannot be bound", rows=problems)
