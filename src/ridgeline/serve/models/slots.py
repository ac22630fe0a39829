"""What a server knows of each model: its versions, through all their generations."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ridgeline.serve.models.loading import Loaded
from ridgeline.serve.telemetry.statistics import ModelStatistics

READY, LOADING, UNAVAILABLE = "READY", "LOADING", "UNAVAILABLE"


@dataclass
class Slot:
    """One version of a model, through all its generations."""

    name: str
    version: int
    statistics: ModelStatistics
    state: str = LOADING
    reason: str = ""
    loaded: Loaded | None = None
    files: object = None  # as they were when it was loaded last, be it in vain


@dataclass
class Entry:
    """A model by its name: its versions, and the one of its loads and unloads that is under way."""

    versions: dict[int, Slot] = field(default_factory=dict)
    problem: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def slot(self, name: str, version: int) -> Slot:
        if version not in self.versions:
            self.versions[version] = Slot(name, version, ModelStatistics(name, str(version)))
        return self.versions[version]

    @property
    def is_served(self) -> bool:
        return any(slot.loaded is not None for slot in self.versions.values())

    def is_loaded(self, version: int) -> bool:
        return version in self.versions and self.versions[version].loaded is not None
