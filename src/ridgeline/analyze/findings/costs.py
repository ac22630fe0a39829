"""What regions would take after a change, by the cost model.

Times of a plan say what a region takes now. The model is asked for the region as it is and as it would be,
and only the ratio of the two is used, so that an error which both share cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ridgeline.base.ceilings import Ceilings
from ridgeline.base.spec import Site
from ridgeline.ir.views import views_of
from ridgeline.tactics.base import Offer, Tactic
from ridgeline.tactics.cost_model import CostModel
from ridgeline.tactics.offer import read_offer


class Costs:
    """The cost model of one machine, asked for any site. Equal sites are asked for once."""

    def __init__(self, tactics: Mapping[str, Tactic], ceilings: Ceilings | None) -> None:
        self.tactics = tactics
        self._model = None if ceilings is None else CostModel(ceilings)
        self._known: dict[str, float | None] = {}

    def model_us(self, site: Site) -> float | None:
        """What the fastest way to run it should take; None if nothing can tell."""
        if self._model is None:
            return None
        if views_of(site):
            return 0.0
        if site.key not in self._known:
            self._known[site.key] = self._model.site_us(site, tuple(self.tactics.values()))
        return self._known[site.key]

    def all_us(self, sites: Iterable[Site]) -> float | None:
        """The sum; None if one of them is not known."""
        times = [self.model_us(site) for site in sites]
        known = [us for us in times if us is not None]
        return math.fsum(known) if len(known) == len(times) else None

    def willing(self, site: Site) -> set[str]:
        """The tactics that take a site."""
        return {name for name, tactic in self.tactics.items() if isinstance(read_offer(tactic, site), Offer)}
