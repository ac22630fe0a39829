"""Engines and Python steps where they run: loaded from a file, then batch after batch. Engine side."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ridgeline.base.gpu_graph import release_unused
from ridgeline.base.spec import Port
from ridgeline.builder import load_engine
from ridgeline.errors import DeviceError, InputError, LimitError, RidgelineError, first_line
from ridgeline.runtime.device import device_error
from ridgeline.runtime.engine import Engine
from ridgeline.serve.datatypes import BY_ENGINE, DATATYPES
from ridgeline.serve.hosts.hosting import BatchError, HostedModel, LoadError, PortInfo
from ridgeline.serve.hosts.tensor_arrays import array_of, require_dims, tensor_of
from ridgeline.serve.messages import Tensor

Run = Callable[[dict[str, np.ndarray]], Mapping[str, Any]]
# what allocators say besides raising MemoryError
MEMORY_WORDS = ("can't allocate memory", "Failed to allocate memory", "bad_alloc", "too little GPU memory")
_log = logging.getLogger(__name__)
# passes over a graph and the compiler's caches are made for one build at a time
_loading = threading.Lock()


@dataclass(frozen=True)
class Loaded:
    """A model in memory. Each instance runs it through a `Run` of its own."""

    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]
    new_run: Callable[[], Run]
    threads: int | None = None  # of the plan, on a CPU
    is_step: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)


def load_runners(model: HostedModel, device: str) -> tuple[Loaded, list[Runner]]:
    """The model, and a runner for each instance. `LoadError` for whatever is wrong with it."""
    use_device(device)
    try:
        loaded = _load_step(model) if model.kind == "python" else _load_engine(model, device)
        return loaded, [Runner(loaded) for _ in range(model.instances)]
    except LoadError:
        raise
    except (RidgelineError, OSError) as error:
        raise LoadError(str(error)) from error
    except (Exception, SystemExit) as error:
        _log.exception("%s could not be loaded", model.path)
        raise LoadError(f"{type(error).__name__}: {error}") from error


def use_device(device: str) -> None:
    """From now on this thread's work goes to that GPU."""
    kind, _, index = device.partition(":")
    if kind == "cuda":
        torch.cuda.set_device(int(index or 0))


def _load_engine(model: HostedModel, device: str) -> Loaded:
    with _loading:
        engine = load_engine(model.path, trust=model.trust)
    target = engine.plan.target
    if not device.startswith("cuda" if target.traits.is_gpu else "cpu"):
        raise LoadError(f"the engine was built for {target}, and is asked to run on {device}")
    planned = engine.plan.planned_shapes
    inputs = tuple(
        replace(_port_info("input", port), planned=planned[port.name].shape if port.name in planned else ())
        for port in engine.inputs
    )
    outputs = tuple(_port_info("output", port) for port in engine.outputs)
    threads = None if target.traits.is_gpu else target.threads
    return Loaded(inputs, outputs, lambda: engine.context().run, threads, notes=_notes(model, engine))


def _port_info(side: str, port: Port) -> PortInfo:
    datatype = BY_ENGINE.get(port.dtype)
    if datatype is None:
        raise LoadError(f"{side} {port.name!r} is {port.dtype}, which the protocol has no type for")
    if port.dims is None:
        raise LoadError(f"{side} {port.name!r} has no rank that is known before it runs")
    return PortInfo(port.name, datatype.name, port.dims)


def _notes(model: HostedModel, engine: Engine) -> dict[str, str]:
    plan = engine.plan
    tactics = Counter(step.tactic for step in plan.steps)
    threads = str(plan.target.threads)
    if model.threads is not None and model.threads != plan.target.threads and not plan.target.traits.is_gpu:
        threads += f", as it was planned; {model.threads} were asked for"
    notes = {
        "target": str(plan.target),
        "threads": threads,
        "tactics": ", ".join(f"{name} {count}" for name, count in sorted(tactics.items())),
    }
    return notes | ({"notes": "; ".join(engine.notes)} if engine.notes else {})


def _load_step(model: HostedModel) -> Loaded:
    """A file with `run(inputs) -> outputs`, and `load()` if it has something to prepare."""
    unknown = [port.datatype for port in (*model.inputs, *model.outputs) if port.datatype not in DATATYPES]
    if unknown or not model.outputs:
        raise LoadError(f"a Python step declares its outputs, in types of the protocol; not {unknown}")
    # not imported: that would write compiled files into the repository
    module = ModuleType(f"ridgeline_step_{model.path.stem}")
    module.__file__ = str(model.path)
    exec(compile(model.path.read_bytes(), str(model.path), "exec"), vars(module))
    run = getattr(module, "run", None)
    if not callable(run):
        raise LoadError(f"{model.path.name} has no function run(inputs)")
    if callable(load := getattr(module, "load", None)):
        load()
    return Loaded(model.inputs, model.outputs, lambda: run, is_step=True)


@dataclass
class Ran:
    """Outputs of a batch in memory of this process."""

    outputs: list[Tensor]
    input_ns: int
    infer_ns: int
    output_ns: int


class Runner:
    """Runs a model for one instance. Not for two threads at once."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._ports = {port.name: port for port in loaded.outputs}
        self._run: Run | None = loaded.new_run()

    def enter_thread(self, device: str) -> None:
        """Whoever calls this runs the batches from now on. PyTorch counts threads for each thread apart."""
        use_device(device)
        if self._loaded.threads is not None:
            torch.set_num_threads(self._loaded.threads)

    def run(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> Ran:
        """`BatchError` for all that goes wrong. Inputs are read where they lie, and not written to."""
        error = self._try(inputs, outputs)
        if isinstance(error, BatchError) and error.is_memory:
            # what is kept of other shapes, and what the allocator keeps, may be all that is missing
            self._run = None
            give_back_memory()
            error = self._try(inputs, outputs)
        if isinstance(error, BatchError):
            raise error
        return error

    def _try(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> Ran | BatchError:
        """An error is returned, so that its traceback holds no memory while the batch is tried again."""
        try:
            return self._run_once(inputs, outputs)
        except BaseException as error:
            if self._loaded.is_step and not isinstance(error, (BatchError, ValueError)):
                _log.exception("a Python step failed")
            return batch_error(error).with_traceback(None)

    def _run_once(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> Ran:
        began = perf_counter_ns()
        arrays = {tensor.name: array_of(tensor, as_text=not self._loaded.is_step) for tensor in inputs}
        ready = perf_counter_ns()
        if self._run is None:
            self._run = self._loaded.new_run()
        made = self._run(arrays)
        ran = perf_counter_ns()
        tensors = [self._output(name, made) for name in outputs]
        return Ran(tensors, ready - began, ran - ready, perf_counter_ns() - ran)

    def _output(self, name: str, made: Mapping[str, Any]) -> Tensor:
        port = self._ports.get(name)
        if port is None:
            raise BatchError(f"there is no output {name!r}")
        if not isinstance(made, Mapping) or name not in made:
            raise BatchError(f"the step returned no output {name!r}")
        tensor = tensor_of(port, made[name])
        if self._loaded.is_step:
            require_dims(port, tensor)
        return tensor


def batch_error(error: BaseException) -> BatchError:
    """An error of a run, as whoever asked for the batch needs to know it."""
    if isinstance(error, BatchError):
        return error
    ours = isinstance(error, RidgelineError)
    text = str(error) if ours else f"{type(error).__name__}: {first_line(error, 500)}"
    causes = list(_causes(error))
    if any(_is_fatal(cause) for cause in causes):
        return BatchError(text, is_fatal=True)
    if any(_is_memory(cause) for cause in causes):
        return BatchError(f"out of memory: {text}", is_memory=True)
    is_input = isinstance(error, (InputError, LimitError, ValueError))
    return BatchError(text, is_input=is_input and not any("CUDA" in str(cause) for cause in causes))


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def _as_device(error: BaseException) -> BaseException | None:
    return device_error(error) if isinstance(error, RuntimeError) else error


def _is_fatal(error: BaseException) -> bool:
    found = _as_device(error)
    return isinstance(found, DeviceError) and found.is_fatal


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # an InputError quotes its cause, which is in the list itself
    is_quoted = isinstance(error, RidgelineError) and not isinstance(error, DeviceError)
    texts = (str(error), str(_as_device(error) or ""))
    return not is_quoted and any(word in text for word in MEMORY_WORDS for text in texts)


def give_back_memory() -> None:
    """To the system and to the device: what nobody uses, but allocators keep."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
