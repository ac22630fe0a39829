"""What findings are looked for in: the regions of a plan, with their sites, times and neighbours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ridgeline.analyze.findings.changes import changed_site
from ridgeline.analyze.findings.costs import Costs
from ridgeline.analyze.findings.finding import Evidence, Finding
from ridgeline.analyze.findings.rates import reached_ceilings, step_us
from ridgeline.base.ceilings import Ceilings
from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.errors import TargetError
from ridgeline.ir.body import Program, Region
from ridgeline.ir.infer import Inferred
from ridgeline.ir.sites import make_site
from ridgeline.ir.views import views_of
from ridgeline.plan.plan import Plan, Step
from ridgeline.plan.report import Report
from ridgeline.runtime.engine import Engine
from ridgeline.targets.ceilings import find_ceilings

# of the time of regions: the cost model does not tell smaller differences apart
LEAST_PART = 0.02
# of a region's time, where the model is compared with a measurement, or is a mere roofline
SURE_PART = 0.25
SCALED = "its measured time, against the cost model as scaled to the times of this plan"
MODELLED = "the cost model, asked for the region as it is and as it would be"


@dataclass(frozen=True, eq=False)
class Place:
    """One fused region at the planned shapes, and the part of the run that it takes."""

    region: Region
    site: Site
    step: Step
    us: float | None  # 0 for a view; None if nothing measured or predicted it

    def named(self, *op_types: str) -> tuple[str, ...]:
        """The nodes of the original model behind it; those of some op types, as far as names tell."""
        sources = self.region.sources
        words = [word.lower() for word in op_types]
        near = tuple(name for name in sources if any(word in name.lower() for word in words))
        return near or sources

    def outer(self, inner: str) -> str:
        return self.region.outer(inner)


class Subject:
    """One of an engine's plans, region by region."""

    def __init__(self, engine: Engine, variant_place: int = 0) -> None:
        variant = engine.variants[variant_place]
        self.plan: Plan = variant.plan
        self.report: Report = engine.report
        self.program: Program = engine.program
        self.opsets = self.program.opset_imports
        self.inferred: Inferred = engine.inference.at(self.plan.planned_shapes)
        self.weights = engine.weights
        self.costs = Costs(engine.fused.tactics, _ceilings(self.plan))
        self.places = tuple(self._places())
        self.maker = {name: place for place in self.places for name in place.region.outputs}
        self.readers: dict[str, list[Place]] = {}
        for place in self.places:
            for name in dict.fromkeys(place.region.inputs):
                self.readers.setdefault(name, []).append(place)

    @cached_property
    def total_us(self) -> float:
        """Of all regions whose time is known."""
        return math.fsum(place.us for place in self.places if place.us is not None)

    @property
    def is_gpu(self) -> bool:
        return self.plan.target.traits.is_gpu

    @property
    def is_measured(self) -> bool:
        return all(step.median_us is not None for step in self.plan.steps)

    def model_scale(self, apart_from: Place) -> float | None:
        """How far times are from the cost model here: the median over the others; None if there are none."""
        ratios = [
            place.us / modelled
            for place in self.places
            if place is not apart_from and place.us and (modelled := self.costs.model_us(place.site))
        ]
        return statistics.median(ratios) if ratios else None

    def spec(self, name: str) -> TensorSpec | None:
        return self.inferred.specs.get(name)

    @cached_property
    def ops(self) -> tuple[tuple[Op, Place], ...]:
        """Every op in the main graph's names, with its region."""
        found: list[tuple[Op, Place]] = []
        for place in self.places:
            ops, _ = self.program.flat_ops([place.region])
            found += [(op, place) for op in ops]
        return tuple(found)

    @cached_property
    def constants(self) -> dict[str, np.ndarray]:
        """Those that lie inside regions, in the main graph's names."""
        return self.program.flat_ops([place.region for place in self.places])[1]

    @cached_property
    def op_maker(self) -> dict[str, tuple[Op, Place]]:
        return {name: (op, place) for op, place in self.ops for name in op.outputs if name}

    @cached_property
    def op_readers(self) -> dict[str, list[tuple[Op, Place]]]:
        found: dict[str, list[tuple[Op, Place]]] = {}
        for op, place in self.ops:
            for name in dict.fromkeys(n for n in op.inputs if n):
                found.setdefault(name, []).append((op, place))
        return found

    def changed(
        self, place: Place, *, body: Body | None = None, inputs: Mapping[str, TensorSpec] | None = None
    ) -> Site | None:
        """The place's site after a change; None if that does not fit together."""
        return changed_site(place.site, self.opsets, body=body, inputs=inputs)

    def gain_us(self, old: Sequence[Place], new: Sequence[Site | None]) -> float | None:
        """What a change of these regions into those sites gains: their time now, by the model's ratio.

        None if nothing can tell, or if it is less than the model can tell apart.
        """
        if any(site is None for site in new) or any(place.us is None for place in old):
            return None
        before = self.costs.all_us(place.site for place in old)
        after = self.costs.all_us(site for site in new if site is not None)
        if not before or after is None:
            return None
        now_us, part = math.fsum(place.us or 0.0 for place in old), 1 - after / before
        # a processor's roofline knows nothing of how its libraries differ (bench/results/findings-*.json)
        return now_us * part if part >= (LEAST_PART if self.is_gpu else SURE_PART) else None

    def swap_gain_us(self, place: Place, new: Sequence[Site | None]) -> float | None:
        """What it gains when another implementation runs a region's work, of which the model knows nothing.

        Of measured times, against what the model says of the new sites, scaled as times here differ from it.
        """
        if not self.is_measured:
            return self.gain_us([place], new)
        after, scale = self.costs.all_us(site for site in new if site is not None), self.model_scale(place)
        if any(site is None for site in new) or after is None or not place.us or scale is None:
            return None
        gain = place.us - scale * after
        return gain if gain >= SURE_PART * place.us else None

    def finding(
        self,
        kind: str,
        places: Sequence[Place],
        what: str,
        change: str,
        *,
        gain_us: float | None = None,
        how: str = MODELLED,
        evidence: Evidence | None = None,
        nodes: Sequence[str] = (),
    ) -> Finding:
        """A finding in these regions, its share taken of the whole run.

        Parameters: one for each thing that a finding says.
        """
        share = gain_us / self.total_us if gain_us is not None and self.total_us else None
        named = tuple(dict.fromkeys(nodes or [name for place in places for name in place.region.sources]))
        return Finding(
            kind, named, what, change, dict(evidence or {}),
            None if gain_us is None else round(gain_us, 3), share, "" if gain_us is None else how,
            step=places[0].step.name if len({place.step.name for place in places}) == 1 else "",
        )  # fmt: skip

    def _places(self) -> list[Place]:
        step_of = {name: step for step in self.plan.steps for name in step.regions}
        found = []
        for region in self.program.regions:
            if region.name in step_of and not self.inferred.is_host(region):
                site = make_site(self.program, region, self.inferred, self.plan.target)
                step = step_of[region.name]
                found.append(Place(region, site, step, self._region_us(region, site, step)))
        return found

    def _region_us(self, region: Region, site: Site, step: Step) -> float | None:
        """The step's time, or the region's part of it: by what its regions take one by one."""
        if views_of(site) and len(step.regions) == 1:
            return 0.0
        if len(step.regions) == 1:
            timed = step_us(step)
            if timed is not None:
                return timed
            return self.costs.model_us(site) if site.is_inferred and self.is_gpu else None
        if step.median_us is None:
            return None
        alone = {
            note.name: note.candidates[0].median_us or 0.0 for note in self.plan.regions if note.candidates
        }
        whole = math.fsum(alone.get(name, 0.0) for name in step.regions)
        return step.median_us * alone.get(region.name, 0.0) / whole if whole else None


def _ceilings(plan: Plan) -> Ceilings | None:
    """Of this machine if it was measured, or as its maker states; else what the plan itself shows."""
    try:
        return find_ceilings(plan.target)
    except TargetError:  # a processor that nobody calibrated
        return reached_ceilings(plan)
