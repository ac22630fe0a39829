"""The fused model: what the plans of every profile run over."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakValueDictionary

import onnx_ir as ir
from torch import Tensor

from ridgeline.base.spec import Target
from ridgeline.ir.body import Program
from ridgeline.plan.report import RunPart
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.embedded_kernels import EmbeddedKernels
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.weights import DeviceWeights
from ridgeline.tactics.base import Launch, Tactic


@dataclass(frozen=True, eq=False)
class FusedModel:
    """The fused graph with its weights, the target, its tactics by name and the kernels of its file."""

    graph: ir.Model
    inference: Inference
    tactics: Mapping[str, Tactic]
    target: Target
    kernels: EmbeddedKernels = field(default_factory=EmbeddedKernels)
    notes: list[str] = field(default_factory=list)  # what did not go as planned on this machine
    name: str = ""  # of the subgraph that this is, by `step.attribute`; empty for a model
    # on a GPU, what of a run is in which CUDA graph, by subgraph: known once each has run
    run_parts: dict[str, tuple[RunPart, ...]] = field(default_factory=dict)
    # launches for any shape, by regions, tactic and config: the plans of all profiles share them
    shape_free: WeakValueDictionary[Hashable, Launch] = field(
        default_factory=WeakValueDictionary, init=False, repr=False
    )

    def tell(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    @property
    def program(self) -> Program:
        return self.inference.program

    @property
    def weights(self) -> dict[str, Tensor]:
        """On the host, as they are saved."""
        return self.inference.weights

    @property
    def is_gpu(self) -> bool:
        return self.target.traits.is_gpu

    @property
    def instance_type(self) -> type[Instance]:
        return CudaInstance if self.is_gpu else Instance

    @cached_property
    def placed_weights(self) -> Mapping[str, Tensor]:
        """Where the target reads them."""
        return DeviceWeights(self.weights) if self.is_gpu else self.weights
