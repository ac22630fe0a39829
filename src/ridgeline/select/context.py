"""What every stage of selection needs, and what it makes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ridgeline.base.spec import Config, Site, Target
from ridgeline.ir.body import Program, Region
from ridgeline.ir.infer import Inferred
from ridgeline.ir.sites import make_site
from ridgeline.options import Options
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.islands import Islands
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cache import Entry, TimingCache, measuring_context, only_offered, site_of


@dataclass(frozen=True)
class StepChoice:
    """A step of a plan in the making."""

    regions: tuple[Region, ...]
    tactic: str
    config: Config
    site: Site
    entry: Entry

    @property
    def median_us(self) -> float | None:
        return self.entry.chosen_us


@dataclass
class Selection:
    """What was chosen, over what, and what that choice rests on."""

    steps: tuple[StepChoice, ...] = ()
    entries: dict[str, Entry] = field(default_factory=dict)  # by region name
    sites: dict[str, Site] = field(default_factory=dict)  # by region name
    alternatives: Entry | None = None
    keys: list[str] = field(default_factory=list)  # cache keys this build used, in order
    timed: int = 0
    unsteady: int = 0  # of those timed
    cached: int = 0
    predicted: int = 0  # sites chosen by a model, where nothing can be timed
    measured_at: tuple[str, ...] = ()  # where others measured what this build only read


@dataclass(frozen=True)
class SelectionContext:
    """What every stage of selection needs."""

    inference: Inference
    inferred: Inferred  # at the shapes to plan for
    weights: Mapping[str, Tensor]  # where the target reads them
    target: Target
    tactics: Sequence[Tactic]
    options: Options
    cache: TimingCache
    lock: TimingCache | None
    device_key: str = ""  # the GPU that timings are taken on; "" for one that is not here
    islands: Islands | None = None  # control flow whose bodies are planned
    body_keys: Sequence[str] = ()  # cache keys that planning those used
    profile_corners: Sequence[Inferred] = ()  # the profile's other corners, where a tactic must be valid too

    @property
    def program(self) -> Program:
        return self.inference.program

    @property
    def context(self) -> str:
        return measuring_context(self.target.threads, self.device_key)

    def site(self, region: Region) -> Site:
        return make_site(self.program, region, self.inferred, self.target)

    def weights_of(self, region: Region, site: Site) -> dict[str, Tensor]:
        return {name: self.weights[region.outer(name)] for name in site.weights}

    def key(self, site: Site) -> str:
        """Timings count for the same rivals at the same effort only."""
        options = self.options
        names = " ".join(t.name for t in self.tactics)
        rivals = f"{options.level} {names} {options.deterministic} {options.workspace_bytes}"
        return f"{site.key}-{hashlib.sha256(rivals.encode()).hexdigest()[:8]}"

    def find(self, key: str) -> Entry | None:
        if self.lock is not None:
            return self.lock.entries.get(site_of(key))
        if self.target.is_null or (self.target.kind == "cpu" and not self.options.level):
            return None  # nothing was timed, and not every candidate was tried
        if self.target.kind == "cuda" and not self.device_key:
            return self.cache.find_anywhere(key)
        return self.cache.find(key, self.context)

    def known(self, site: Site) -> Entry:
        """What a file says about the site, which was found there before."""
        return only_offered(self.find(self.key(site)), site, self.tactics)
