"""The cost model: the time a region should take on a machine, whoever asks.

Selection for a GPU that is not here ranks candidates with it, `ridge predict` adds it up over a plan, and
findings ask it what a change would gain. It has two factors. The first counts what a launch does
(`tactics/predict.py` on a GPU, a roofline on a processor). The second corrects the first by what networks of
a calibration took on the machine, at the sizes nearest to the region's; without one it is 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

from ridgeline.base.ceilings import Ceilings, Point
from ridgeline.base.devices import Device, device_with
from ridgeline.base.grouping import grouped
from ridgeline.base.spec import Config, Site
from ridgeline.ir.work import body_bytes, body_flops
from ridgeline.tactics.base import Offer, Refused, Tactic
from ridgeline.tactics.cost_features import Features, features_of
from ridgeline.tactics.offer import read_offer
from ridgeline.tactics.predict import predict_us

NEAREST = 4
# one doubling of a size counts 1; the first two features follow from the others, and count less; so does the
# time that the first factor gives: whether a region is bound by its launch or by its work. With these weights
# points of a calibration are predicted best from the graphs that they are not in
WORK_WEIGHT, TIME_WEIGHT = 0.5, 0.25
MOVERS = ("movement", "pointwise")
SAME = 0.05  # squared: nearer points are all as good


class Best(NamedTuple):
    """A candidate, and what the first factor says of it."""

    offer: Offer
    config: Config
    us: float


@dataclass(frozen=True)
class CostModel:
    """Times of regions on one machine."""

    ceilings: Ceilings

    @cached_property
    def device(self) -> Device:
        return device_with(self.ceilings)

    @cached_property
    def _points(self) -> Mapping[str, Sequence[Point]]:
        return grouped((point.family, point) for point in self.ceilings.points)

    def candidate_us(self, offer: Offer, site: Site, config: Config, *, rank: int = 0) -> float:
        """The time of one config of a tactic; `rank` is its place in the tactic's own order."""
        modelled = predict_us(offer, site, config, rank=rank, device=self.device)
        return round(modelled * self._correction(site, modelled), 3)

    def site_us(self, site: Site, tactics: Sequence[Tactic]) -> float | None:
        """The time of a region by its best candidate; None if its shapes are not known."""
        modelled = self.modelled_us(site, tactics)
        return None if modelled is None else modelled * self._correction(site, modelled)

    def modelled_us(self, site: Site, tactics: Sequence[Tactic]) -> float | None:
        """The first factor alone."""
        if not site.is_inferred:
            return None
        if not site.target.traits.is_gpu:
            return self.roofline_us(site)
        best = self.best(site, tactics)
        return None if best is None else best.us

    def best(self, site: Site, tactics: Sequence[Tactic]) -> Best | None:
        """The candidate with the least time; on a processor, where all have the same, the first."""
        found = None
        for tactic in tactics:
            offer = read_offer(tactic, site)
            if isinstance(offer, Refused):
                continue
            if not site.target.traits.is_gpu:
                return Best(offer, offer.configs[0], math.nan)
            for rank, config in enumerate(offer.configs):
                us = predict_us(offer, site, config, rank=rank, device=self.device)
                if found is None or us < found.us:
                    found = Best(offer, config, us)
        return found

    def roofline_us(self, site: Site) -> float:
        """A launch, and then bytes or arithmetic: what no implementation can beat by much."""
        nbytes, flops = body_bytes(site.body, site.specs), body_flops(site.body, site.specs)
        moving_us = nbytes / self.ceilings.bytes_per_us(nbytes) if nbytes else 0.0
        computing_us = flops / self.ceilings.flops_per_us(features_of(site).dtype) if flops else 0.0
        return self.ceilings.least_launch_us + max(moving_us, computing_us)

    def _correction(self, site: Site, modelled_us: float) -> float:
        return self.correction(features_of(site), modelled_us) if self.ceilings.points else 1.0

    def is_calibrated(self, family: str) -> bool:
        """Whether regions like these were measured; others are corrected as those that move elements are."""
        return family in self._points

    def other_sizes(self, features: Features) -> int | None:
        """How many sizes the points of this family have, if not as many as its regions: a calibration by
        another version, whose points correct nothing."""
        counts = {len(point.features) for point in self._points.get(features.family, ())}
        return None if not counts or len(features.values) in counts else min(counts)

    def correction(self, features: Features, modelled_us: float) -> float:
        """By what factor regions of these sizes took longer than the first factor says."""
        points = [p for p in self._points.get(features.family, ()) if len(p.features) == len(features.values)]
        if not points:
            return self._common_correction(features.dtype)
        near = sorted((_apart(point, features, modelled_us), point.log_ratio) for point in points)[:NEAREST]
        weights = [1 / (SAME + squared) for squared, _ in near]
        total = math.fsum(weight * ratio for weight, (_, ratio) in zip(weights, near, strict=True))
        return math.exp(total / math.fsum(weights))

    def _common_correction(self, dtype: str) -> float:
        """Of ops that the calibration has none of: they mostly move elements, and err as those that do."""
        movers = [p for kind in MOVERS for p in self._points.get(f"{kind} {dtype}", ())]
        return math.exp(median(point.log_ratio for point in movers)) if movers else 1.0


def _apart(point: Point, features: Features, modelled_us: float) -> float:
    """The squared distance of a measured region."""
    weights = [WORK_WEIGHT, WORK_WEIGHT, *(1.0 for _ in features.values[2:])]
    sizes = zip(weights, point.features, features.values, strict=True)
    by_time = TIME_WEIGHT * math.log2(point.modelled_us / modelled_us) ** 2
    return by_time + math.fsum(weight * (a - b) ** 2 for weight, a, b in sizes)
