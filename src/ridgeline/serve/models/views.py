"""What a server tells of its models: the protocol's answers, the status page's rows, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.serve.config.json import config_json, metadata_json
from ridgeline.serve.errors import RequestError
from ridgeline.serve.models.ensemble import Runnable
from ridgeline.serve.models.models import Models
from ridgeline.serve.models.slots import READY, UNAVAILABLE, Slot
from ridgeline.serve.telemetry.statistics import ModelStatistics


class ModelViews:
    """Each answer is made of what is there now; nothing is kept."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def is_ready(self, name: str, version: str = "") -> bool:
        try:
            return self._models.find(name, version).is_ready
        except RequestError:
            self._models.slot(name, version)  # an unknown model is an error, one that loads is not ready
            return False

    @property
    def are_ready(self) -> bool:
        """What should be there from the start is, and every model that was loaded can answer."""
        loaded = [slot.loaded.runnable for slot in self._models.slots() if slot.loaded is not None]
        return not self._models.missing and all(runnable.is_ready for runnable in loaded)

    async def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        runnable = self._models.find(name, version)
        versions = [slot.version for slot in self._ready_slots() if slot.name == name]
        return metadata_json(runnable.spec, sorted(versions))

    async def config(self, name: str, version: str = "") -> dict[str, Any]:
        return config_json(self._models.find(name, version).spec)

    async def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        if name:
            slots = [self._models.slot(name, version)] if version else self._of(name)
        else:
            slots = list(self._ready_slots())
        return {"model_stats": [slot.statistics.json() for slot in slots]}

    def _of(self, name: str) -> list[Slot]:
        self._models.slot(name, "")  # an unknown model is an error
        return [slot for slot in self._ready_slots() if slot.name == name]

    async def index(self, ready: bool = False) -> list[dict[str, str]]:
        """As Triton's index: a row for each version, and for each model that has none."""
        rows = []
        for name, entry in sorted(self._models.entries.items()):
            slots = sorted(entry.versions.values(), key=lambda slot: slot.version)
            rows += [
                {"name": name, "version": str(slot.version), "state": slot.state, "reason": slot.reason}
                for slot in slots
                if slot.state == READY or not ready
            ]
            if not slots and not ready:
                rows.append({"name": name, "version": "", "state": UNAVAILABLE, "reason": entry.problem})
        return rows

    def status(self, now: float) -> list[dict[str, Any]]:
        rows = []
        for name, entry in sorted(self._models.entries.items()):
            if not entry.versions:
                rows.append({"name": name, "version": "", "state": UNAVAILABLE, "reason": entry.problem})
            for slot in sorted(entry.versions.values(), key=lambda slot: slot.version):
                about = {
                    "name": name, "version": str(slot.version), "state": slot.state,
                    "reason": slot.reason or entry.problem,
                }  # fmt: skip
                rows.append({**slot.statistics.snapshot(now), **about})
        return rows

    def counted(self) -> list[ModelStatistics]:
        """Of every version that was ever loaded: counters never fall."""
        return [slot.statistics for slot in self._models.slots()]

    def summary(self) -> Iterator[str]:
        """A line for each model, as the command prints it."""
        for name, entry in sorted(self._models.entries.items()):
            for slot in sorted(entry.versions.values(), key=lambda slot: slot.version):
                what = "" if slot.loaded is None else f"  {_ports(slot.loaded.runnable)}"
                yield f"{name} {slot.version}: {slot.state}{what}" + (
                    f" ({slot.reason})" if slot.reason else ""
                )
            if not entry.versions:
                yield f"{name}: {UNAVAILABLE} ({entry.problem})"

    def _ready_slots(self) -> Iterator[Slot]:
        return (slot for slot in self._models.slots() if slot.state == READY and slot.loaded is not None)


def _ports(runnable: Runnable) -> str:
    spec = runnable.spec
    sides = [
        ", ".join(f"{port.name} {port.datatype}{list(spec.whole_dims(port))}" for port in ports)
        for ports in (spec.inputs, spec.outputs)
    ]
    return f"{sides[0]} → {sides[1]}"
