"""What a model's configuration comes to: plain values, checked, that the rest of the server reads.

`config` makes them of config.pbtxt and of what an engine says of itself. Times are seconds; 0 is no limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ENGINE, PYTHON, ENSEMBLE = "ridgeline_engine", "ridgeline_python", "ensemble"  # platforms
BACKENDS = {ENGINE: "ridgeline", PYTHON: "python", ENSEMBLE: ""}
_MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


def is_model_name(name: str) -> bool:
    """Names are parts of paths and of URLs."""
    return _MODEL_NAME.fullmatch(name) is not None and name not in (".", "..")


@dataclass(frozen=True)
class QueuePolicy:
    """How many requests of one priority may wait, and how long."""

    max_queue_size: int = 0
    timeout_s: float = 0.0
    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"  # DELAY: behind all whose time is not over
    allow_override: bool = False  # a request may ask for less time than `timeout_s`


@dataclass(frozen=True)
class BatchPolicy:
    """Which requests run together, and when. A request of a model without a batch dim counts as one."""

    max_batch: int = 1
    preferred: tuple[int, ...] = ()  # ascending
    max_delay_s: float = 0.0
    preserve_ordering: bool = False
    priority_levels: int = 0  # 1 is the highest; 0: requests have no priorities
    default_priority: int = 0  # of requests that name none; 0 only without levels
    queue: QueuePolicy = QueuePolicy()
    queues: Mapping[int, QueuePolicy] = field(default_factory=dict)  # by priority, where it is not `queue`

    def queue_of(self, priority: int) -> QueuePolicy:
        return self.queues.get(priority, self.queue)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output as clients see it. `dims` and `names` have no batch dim."""

    name: str
    datatype: str
    dims: tuple[int, ...]  # -1: may differ from request to request
    names: tuple[str, ...] = ()  # of the dims, "" for a fixed one; () while no engine has told them
    reshape: tuple[int, ...] | None = None  # what the engine has instead of `dims`
    is_optional: bool = False
    labels: tuple[str, ...] = ()  # of an output: names of its elements, for classification
    label_file: str = ""  # they come from


@dataclass(frozen=True)
class InstanceGroup:
    """`count` instances on each of `gpus`; without any, on the server's device."""

    count: int = 1
    kind: Literal["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"] = "KIND_AUTO"
    gpus: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class VersionPolicy:
    kind: Literal["latest", "all", "specific"] = "latest"
    count: int = 1  # of the latest
    versions: tuple[int, ...] = ()  # the specific ones


@dataclass(frozen=True)
class WarmUpInput:
    name: str
    datatype: str
    dims: tuple[int, ...]
    source: Literal["zero", "random", "file"] = "zero"
    file: str = ""  # in the model's folder `warmup`


@dataclass(frozen=True)
class WarmUp:
    """A request that every instance answers `count` times before the model is ready."""

    name: str
    batch_size: int = 1  # its inputs so many times; 1 for a model without a batch dim
    count: int = 1
    inputs: tuple[WarmUpInput, ...] = ()


@dataclass(frozen=True)
class EnsembleStep:
    """Maps go from the step's own tensor to the ensemble's."""

    model: str
    version: str = ""  # the newest one
    input_map: Mapping[str, str] = field(default_factory=dict)
    output_map: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ensemble:
    steps: tuple[EnsembleStep, ...]
    max_inflight_requests: int = 0


@dataclass(frozen=True)
class ModelSpec:
    """One model, all of its versions. Response caches and decoupled models are refused, so are not told."""

    name: str
    platform: str = ENGINE
    backend: str = BACKENDS[ENGINE]
    max_batch_size: int = 0  # 0: no batch dim, shapes are those of the engine
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    batching: BatchPolicy = BatchPolicy()
    instances: tuple[InstanceGroup, ...] = (InstanceGroup(),)
    versions: VersionPolicy = VersionPolicy()
    warmups: tuple[WarmUp, ...] = ()
    ensemble: Ensemble | None = None
    idempotent: bool = False  # a batch whose worker died may run once more
    pad_dims: tuple[str, ...] = ()  # names of dims that may be padded to the longest of a batch
    pad_values: Mapping[str, float] = field(default_factory=dict)  # by input; 0 where none is told
    build: Mapping[str, Any] = field(default_factory=dict)  # of `ridgeline.build`: threads, level, …
    parameters: Mapping[str, str] = field(default_factory=dict)  # the user's own
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    default_model_filename: str = ""
    preprocess: str = ""  # Python files of the model's folder, "" for none
    postprocess: str = ""

    @property
    def has_batch(self) -> bool:
        return self.max_batch_size > 0

    def input(self, name: str) -> TensorSpec | None:
        return next((each for each in self.inputs if each.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        return next((each for each in self.outputs if each.name == name), None)

    def whole_dims(self, tensor: TensorSpec) -> tuple[int, ...]:
        """As the protocol tells a shape: with -1 for the batch."""
        return (-1, *tensor.dims) if self.has_batch else tensor.dims

    def padded_axes(self, tensor: TensorSpec) -> Mapping[int, str]:
        """Axes of the whole shape that may be padded (of an output: cut back), with their dims' names."""
        first = 1 if self.has_batch else 0
        return {first + at: name for at, name in enumerate(tensor.names) if name and name in self.pad_dims}
