"""The steps of one plan over the fused model: their sites, their launches, and instances at given shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakSet

import torch
from torch import Tensor

from ridgeline.base.gpu_graph import finish_current
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.ir.infer import Inferred
from ridgeline.ir.sites import merge
from ridgeline.plan.plan import Step
from ridgeline.plan.streams import schedule_of
from ridgeline.runtime.cuda_instance import CudaInstance, gpu_memory
from ridgeline.runtime.device import gpu_errors, require_here
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.instance import Instance, PlacedSite, sites_of
from ridgeline.runtime.islands import Islands
from ridgeline.runtime.launches import Launches
from ridgeline.tactics.base import Launch
from ridgeline.tactics.shared_copies import held_bytes


class Executable:
    """Runs steps at any shapes. All instances share its launches; each has memory of its own."""

    def __init__(
        self,
        fused: FusedModel,
        steps: Sequence[Step],
        planned_shapes: Mapping[str, TensorSpec],
        islands: Islands | None = None,
    ) -> None:
        self.fused, self.steps, self.planned_shapes = fused, tuple(steps), dict(planned_shapes)
        by_name = {region.name: region for region in fused.program.regions}
        self.schedule = schedule_of(self.steps)
        self.regions = [merge(fused.program, [by_name[n] for n in step.regions]) for step in steps]
        self.islands = islands or Islands(fused, {})
        self.launches = Launches(fused, self.steps, self.regions, self.islands, self.planned_sites)
        self._instances: WeakSet[CudaInstance] = WeakSet()

    @property
    def packed_bytes(self) -> int:
        return held_bytes(self.launches.values())

    def sites(self, inferred: Inferred) -> list[PlacedSite]:
        """The steps that do work at these shapes: index in the plan, region, site."""
        return sites_of(self.fused.program, self.regions, inferred, self.fused.target)

    def planned_sites(self) -> list[tuple[Step, Site]]:
        """Every step with its site at the planned shapes."""
        inferred = self.fused.inference.at(self.planned_shapes)
        return [(self.steps[index], site) for index, _, site in self.sites(inferred)]

    def every_planned_site(self) -> list[tuple[Step, Site]]:
        """As `planned_sites`, with those of planned subgraphs."""
        bodies = [body for _, body in self.islands.found()]
        return [*self.planned_sites(), *(pair for body in bodies for pair in body.every_planned_site())]

    def require_kernels(self) -> None:
        """Raise where kernels of the plan are neither embedded nor can be compiled here."""
        self.fused.kernels.require(self.every_planned_site, self.fused.tactics)

    def instance(
        self,
        inputs: Mapping[str, TensorSpec],
        *,
        compiles: bool = True,
        given: Mapping[str, Tensor] | None = None,
    ) -> Instance:
        """The steps at these shapes, in new memory; on a GPU over the caller's own inputs if they are given.

        Without compiling, steps that would need a compiler run on the floor.
        """
        fused = self.fused
        require_here(fused.target)
        if dict(inputs) == self.planned_shapes:
            self.require_kernels()
        inferred = fused.inference.at(inputs)
        sites = self.sites(inferred)
        with gpu_errors(), torch.inference_mode():
            if compiles:
                self.launches.compile_ahead([(index, site) for index, _, site in sites])
            bind = self.launches.launch if compiles else self.launches.uncompiled
            instance = fused.instance_type(
                fused.program, inferred, sites, fused.placed_weights, bind, given, self.schedule
            )
            if fused.is_gpu:
                finish_current()  # what was packed on this stream is there for whoever runs on another
        if isinstance(instance, CudaInstance):
            instance.notes, instance.run_parts, instance.name = fused.notes, fused.run_parts, fused.name
            self._instances.add(instance)
        return instance

    def gpu_memory(self, launches: Iterable[Launch]) -> dict[str, int]:
        """Device bytes by kind: of these launches, and of an instance, at the planned shapes if possible."""
        alive = sorted(self._instances, key=lambda instance: instance.is_at(self.planned_shapes))
        instance = alive[-1] if alive else self.instance(self.planned_shapes)
        assert isinstance(instance, CudaInstance), "only asked on a GPU"
        return gpu_memory(instance, launches, self.fused.placed_weights)
