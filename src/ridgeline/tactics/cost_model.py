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

from ridgeline.base.ceilings import Ceilings, Point
from ridgeline.base.devices import Device, device_with
from ridgeline.base.grouping import grouped
from ridgeline.base.spec import Config, Site
from ridgeline.ir.work import body_bytes, body_flops
from ridgeline.tactics.base import Offer, Tactic
from ridgeline.tactics.cost_features import Features, features_of
from ridgeline.tactics.offer import read_offer
from ridgeline.tactics.predict import predict_us

NEAREST = 4
# a neighbour this far away (in doublings of the sizes) counts half; one far outside hardly corrects at all
HALF_WEIGHT = 1.0
# the first two features are bytes and flops: they follow from the sizes that come after them
WORK_WEIGHT = 0.3


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
        return round(modelled * self.correction(features_of(site)), 3)

    def site_us(self, site: Site, tactics: Sequence[Tactic]) -> float | None:
        """The time of a region by its best candidate; None if its shapes are not known."""
        modelled = self.modelled_us(site, tactics)
        return None if modelled is None else modelled * self.correction(features_of(site))

    def modelled_us(self, site: Site, tactics: Sequence[Tactic]) -> float | None:
        """The first factor alone."""
        if not site.is_inferred:
            return None
        if not site.target.traits.is_gpu:
            return self.roofline_us(site)
        times = []
        for tactic in tactics:
            offer = read_offer(tactic, site)
            if isinstance(offer, Offer):
                times += [
                    predict_us(offer, site, config, rank=rank, device=self.device)
                    for rank, config in enumerate(offer.configs)
                ]
        return min(times, default=None)

    def roofline_us(self, site: Site) -> float:
        """A launch, and then bytes or arithmetic: what no implementation can beat by much."""
        nbytes, flops = body_bytes(site.body, site.specs), body_flops(site.body, site.specs)
        moving_us = nbytes / self.ceilings.bytes_per_us(nbytes) if nbytes else 0.0
        computing_us = flops / self.ceilings.flops_per_us(features_of(site).dtype) if flops else 0.0
        return self.ceilings.least_launch_us + max(moving_us, computing_us)

    def correction(self, features: Features) -> float:
        """By what factor regions of these sizes took longer than the first factor says."""
        points = [p for p in self._points.get(features.family, ()) if len(p.features) == len(features.values)]
        if not points:
            return 1.0
        near = sorted((_distance(point.features, features.values), point.log_ratio) for point in points)
        weights = [1 / (1 + (distance / HALF_WEIGHT) ** 2) for distance, _ in near[:NEAREST]]
        ratios = [ratio for _, ratio in near[:NEAREST]]
        return math.exp(math.fsum(w * r for w, r in zip(weights, ratios, strict=True)) / math.fsum(weights))


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    weights = [WORK_WEIGHT, WORK_WEIGHT, *(1.0 for _ in a[2:])]
    return math.sqrt(math.fsum(w * (x - y) ** 2 for w, x, y in zip(weights, a, b, strict=True)))
