"""The memory of a run on a machine that need not be here: the arena of a plan that nobody has made."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.base.spec import Site, Target
from ridgeline.ir.views import views_of
from ridgeline.plan.memory import account
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.instance import lay_out_steps, sites_of, step_io
from ridgeline.select.shapes import Shapes
from ridgeline.tactics.base import Footprint
from ridgeline.tactics.cost_model import CostModel


@dataclass(frozen=True)
class PredictedMemory:
    """At the planned shapes, in bytes."""

    weights: int
    packed: int  # copies of weights, as kernels read them
    arena: int  # what steps make, each as long as it is needed
    inputs: int
    libraries: int  # what libraries allocate themselves, where most of it is there at once

    @property
    def total(self) -> int:
        return self.weights + self.packed + self.arena + self.inputs + self.libraries


def predicted_memory(fused: FusedModel, shapes: Shapes, target: Target, cost: CostModel) -> PredictedMemory:
    """Laid out as a plan is, with what the candidates say of memory that the cost model finds best."""
    inferred = fused.inference.at(shapes.opt)
    tactics = tuple(fused.tactics.values())
    known: dict[str, Footprint] = {}

    def footprint(site: Site) -> Footprint | None:
        if views_of(site):
            return None
        if site.key not in known:
            best = cost.best(site, tactics)
            told = None if best is None or best.offer.footprint is None else best.offer.footprint(best.config)
            # unless it says otherwise, a library allocates
            known[site.key] = told or Footprint(writes_out=False)
        return known[site.key]

    placed = [
        (region, site, footprint(site))
        for _, region, site in sites_of(fused.program, fused.program.regions, inferred, target)
    ]
    ios = [step_io(region, site, inferred, told) for region, site, told in placed]
    laid_out = account(
        lay_out_steps(fused.program, ios, inferred),
        ios,
        inferred.specs,
        io_bytes=sum(spec.nbytes for spec in shapes.opt.values()),
        weight_bytes=sum(tensor.nbytes for tensor in fused.weights.values()),
        packed_bytes=sum(told.packed_bytes for _, _, told in placed if told is not None),
    )
    return PredictedMemory(
        weights=laid_out.weight_bytes,
        packed=laid_out.packed_bytes,
        arena=laid_out.arena_bytes,
        inputs=laid_out.io_bytes,
        libraries=laid_out.library_bytes,
    )
