"""What the contests of a build have shown so far: which candidates win and lose on which kinds of regions.

Regions are alike if the same tactics are willing to run them and they do about as much work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site
from ridgeline.ir.work import body_bytes, body_flops

# the tactics that are willing, and the order of magnitude of the work
Kind: TypeAlias = tuple[tuple[str, ...], int]
# a tactic and the place of a config in its own order
Variant: TypeAlias = tuple[str, int]

# a tactic so many times slower than the best on every one of so many like regions is not tried
HOPELESS, LIKE = 2.5, 2
# nor is a further config of a tactic: between configs less of a lead is lost
HOPELESS_CONFIG = 1.3
# what a candidate is taken to lose that nobody has timed on any region
UNKNOWN = 1.5
# a core does about as much in a µs, to compare regions with: nothing is chosen by it
FLOPS_PER_US, BYTES_PER_US = 5e4, 1e4


def work_us(site: Site) -> float:
    """About the time that a region takes."""
    flops, nbytes = body_flops(site.body, site.specs), body_bytes(site.body, site.specs)
    return 1.0 + max(flops / FLOPS_PER_US, nbytes / BYTES_PER_US)


def kind_of(site: Site, willing: Sequence[Candidate]) -> Kind:
    tactics = tuple(dict.fromkeys(candidate.tactic for candidate in willing))
    return tactics, int(math.log10(work_us(site)))


def variants(willing: Sequence[Candidate]) -> list[Variant]:
    """Each candidate as its tactic and its place among that tactic's configs."""
    seen: dict[str, int] = {}
    made = []
    for candidate in willing:
        place = seen[candidate.tactic] = seen.get(candidate.tactic, -1) + 1
        made.append((candidate.tactic, place))
    return made


@dataclass(frozen=True)
class Expected:
    """How many times slower than the best a variant should be, and what that rests on."""

    ratio: float
    basis: str
    is_known: bool = True  # somebody has timed it


class Experience:
    """How many times slower than the best each variant was, by kind of region."""

    def __init__(self) -> None:
        self._ratios: dict[Kind, dict[Variant, list[float]]] = {}

    def learn(self, kind: Kind, times_us: Mapping[Variant, float], best_us: float) -> None:
        known = self._ratios.setdefault(kind, {})
        for variant, us in times_us.items():
            known.setdefault(variant, []).append(us / best_us if best_us else 1.0)

    def why_hopeless(self, kind: Kind, variant: Variant) -> str | None:
        """Why a variant need not be tried on one more region of this kind."""
        ratios = self._ratios.get(kind, {}).get(variant, [])
        if len(ratios) < LIKE or min(ratios) < (HOPELESS_CONFIG if variant[1] else HOPELESS):
            return None
        return f"{min(ratios):.1f} times slower or more on {len(ratios)} like regions"

    def expected(self, kind: Kind, variant: Variant) -> Expected:
        """By like regions, else by those of another size, else by any."""
        of_other_sizes = [ratios for (names, _), ratios in self._ratios.items() if names == kind[0]]
        for what, known in (
            ("like regions", [self._ratios.get(kind, {})]),
            ("such regions of other sizes", of_other_sizes),
            ("other regions", list(self._ratios.values())),
        ):
            ratios = [ratio for each in known for ratio in each.get(variant, [])]
            if ratios:
                return Expected(median(ratios), f"as {len(ratios)} {what} had it")
        return Expected(UNKNOWN, "by preference", is_known=False)
