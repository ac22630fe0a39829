"""Tolerances drawn as far as needed: each moved run of the reference only widens them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from ridgeline.base.grouping import grouped
from ridgeline.frontend.from_onnx import Loaded
from ridgeline.verify.levels import rounds_to_levels
from ridgeline.verify.remembered import FROM_CACHE, Facts
from ridgeline.verify.rounding import Probe, draws_for, run_probe
from ridgeline.verify.tolerance import Tolerance, measured_tolerance

# whether half values reach an output, and whether products that round to TF32 do
Reached: TypeAlias = tuple[bool, bool]
Outputs: TypeAlias = Mapping[str, np.ndarray]


class Movable(Protocol):
    """What draws need of a reference."""

    loaded: Loaded
    facts: Facts

    def half_behind(self, output: str) -> str: ...
    def is_rounded(self, output: str) -> bool: ...
    def probes_for(self, *, is_half: bool, is_rounded: bool) -> list[Probe]: ...
    def fact_key(self, kind: str, feeds: Mapping[str, Any], *more: str) -> str | None: ...


class Draws:
    """How far each output of the reference goes at these inputs, in one moved run, then in twice as many."""

    def __init__(self, reference: Movable, feeds: Mapping[str, Any], expected: Outputs) -> None:
        self._reference, self._feeds, self._expected = reference, feeds, expected
        halves = {name: reference.half_behind(name) for name in expected}
        self._halves = halves
        reached = (((bool(half), reference.is_rounded(name)), name) for name, half in halves.items())
        self._names: Mapping[Reached, list[str]] = grouped(reached)
        self._moved: dict[Reached, list[Outputs | None]] = {kind: [] for kind in self._names}
        self._count = 0  # of runs so far, for each kind
        self.limits: dict[str, Tolerance] = {}

    @property
    def is_open(self) -> bool:
        """Whether there are further runs that may widen the tolerances."""
        return not self._count or self._count < self._most

    @property
    def _most(self) -> int:
        each = (len(self._probes(kind)) for kind in self._names)
        return draws_for(self._expected) * max(each, default=1)

    def widen(self, *, fully: bool = False) -> None:
        """By one run, then by as many as there were; or by all that there are."""
        self._count = self._most if fully else min(max(2 * self._count, 1), self._most)
        is_all = self._count == self._most
        key = self._reference.fact_key("tolerance" if is_all else f"tolerance {self._count}", self._feeds)
        known = self._reference.facts.find_as(dict[str, tuple[float, float, float | None]], key)
        if known is not None and set(known) == set(self._expected):
            self.limits = {n: Tolerance(*measured, note=FROM_CACHE) for n, measured in known.items()}
            return
        self.limits = self._measured()
        made = {name: (limit.distance, limit.share, limit.rms) for name, limit in self.limits.items()}
        self._reference.facts.keep(key, made)

    def _probes(self, kind: Reached) -> list[Probe]:
        return self._reference.probes_for(is_half=kind[0], is_rounded=kind[1])

    def _measured(self) -> dict[str, Tolerance]:
        made = {}
        for kind, names in self._names.items():
            probes, moved = self._probes(kind), self._moved[kind]
            most = draws_for(self._expected) * len(probes)
            moved += [run_probe(probes, self._feeds, i) for i in range(len(moved), min(self._count, most))]
            ended = [outputs for outputs in moved if outputs is not None]
            for name in names:
                limit = measured_tolerance(self._expected[name], [m[name] for m in ended], self._halves[name])
                if not rounds_to_levels(self._reference.loaded.original):
                    limit = replace(limit, rms=None)
                made[name] = limit if ended else replace(limit, note="not measured: no moved run ended")
        return {name: made[name] for name in self._expected}
