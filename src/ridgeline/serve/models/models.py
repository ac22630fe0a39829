"""All models of a server: found, loaded, swapped without losing a request, unloaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from ridgeline.serve.config.config import Configured
from ridgeline.serve.config.text import Given, parse_json
from ridgeline.serve.errors import invalid, not_found, unavailable
from ridgeline.serve.hosts.hosting import Hosted, LoadError
from ridgeline.serve.hosts.hosts import Hosts
from ridgeline.serve.models.ensemble import Runnable
from ridgeline.serve.models.loading import Loaded, Loader, Part, Source
from ridgeline.serve.repository.folder import Found, FoundVersion
from ridgeline.serve.repository.repository import Scan, changes, chosen_versions, configure_found, scan
from ridgeline.serve.settings import Settings
from ridgeline.serve.spec import ENSEMBLE
from ridgeline.serve.telemetry.statistics import ModelStatistics

READY, LOADING, UNAVAILABLE = "READY", "LOADING", "UNAVAILABLE"
ALL = "*"
_log = logging.getLogger(__name__)


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

    def is_loaded(self, version: int) -> bool:
        return version in self.versions and self.versions[version].loaded is not None


class Models:
    def __init__(self, settings: Settings, hosts: Hosts) -> None:
        self._settings = settings
        self.entries: dict[str, Entry] = {}
        self._ready: dict[tuple[str, str], Runnable] = {}  # what requests find, by name and version
        self._loader = Loader(settings, hosts, self.find)
        self._tasks: set[asyncio.Task[None]] = set()  # generations that are being retired
        self._poll: asyncio.Task[None] | None = None
        self._found = Scan({})
        self._noted: set[str] = set()  # what was logged of the repositories the last time
        self._has_scanned = False
        self.missing: set[str] = set()  # what should have been there from the start, and is not
        hosts.on_lost, hosts.on_back = self._lose, self._gain

    async def start(self) -> None:
        """Load what the settings name; a model that cannot be served keeps none of the others back."""
        await self._scan()
        wanted: Iterable[str] = self._found.models
        if self._settings.mode == "explicit":
            asked = self._settings.load
            wanted = self._found.models if ALL in asked else asked
        self.missing = {*wanted, *(self._found.problems if self._settings.mode != "explicit" else ())}
        await self._load_all(wanted)
        if self._settings.mode == "poll":
            self._poll = asyncio.ensure_future(self._keep_polling())

    async def stop(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
        for loaded in [slot.loaded for slot in self.slots() if slot.loaded is not None]:
            loaded.runnable.refuse_waiting(unavailable("the server is stopping"))
            for part in loaded.parts:
                part.model.refuse_waiting(unavailable("the server is stopping"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def find(self, name: str, version: str) -> Runnable:
        found = self._ready.get((name, version))
        if found is not None:
            return found
        slot = self.slot(name, version)
        raise unavailable(f"model {name!r} is not ready: {slot.reason or slot.state.lower()}")

    async def load(self, name: str, config: str = "") -> None:
        """As a client asks for it: the newest files, with what they need; `RequestError` if that fails."""
        await self._scan()
        try:
            # another configuration may name another file
            found = await self._look(only=name, given=parse_json(config)) if config else self._found
        except LoadError as error:
            raise invalid(f"model {name!r} cannot be loaded: {error}") from error
        if problem := found.problems.get(name):
            raise invalid(f"model {name!r} cannot be loaded: {problem}")
        if name not in found.models:
            raise not_found(f"model {name!r} is not in the repository")
        known = {**self._found.models, name: found.models[name]}
        try:
            for each in self._order_of([name], known):
                if each == name or not self._is_served(each):
                    await self._load(known[each], is_asked=each == name)
        except LoadError as error:
            raise invalid(f"model {name!r} cannot be loaded: {error}") from error
        entry = self.entries[name]
        if entry.problem:
            raise invalid(f"model {name!r} cannot be loaded: {entry.problem}")

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """It is not found any more from now on; what it accepted is answered."""
        if name not in self.entries:
            raise not_found(f"model {name!r} is not loaded")
        names = [name, *(self._steps_of(name) if dependents else ())]
        for each in names:
            self.missing.discard(each)
            entry = self.entries.get(each)
            if entry is not None:
                async with entry.turn:
                    for slot in list(entry.versions.values()):
                        self._drop(slot, "unloaded")

    def _steps_of(self, name: str) -> list[str]:
        """The models that an ensemble is made of."""
        return [
            step.model
            for slot in self.entries[name].versions.values()
            if slot.loaded is not None and slot.loaded.runnable.spec.ensemble is not None
            for step in slot.loaded.runnable.spec.ensemble.steps
        ]

    async def _scan(self) -> None:
        self._found = await self._look()
        notes = {*self._found.notes}
        notes |= {f"model {name}: {note}" for name, each in self._found.models.items() for note in each.notes}
        for note in sorted(notes - self._noted):
            _log.info("%s", note)
        self._noted = notes
        for name, problem in self._found.problems.items():
            entry = self.entries.setdefault(name, Entry())
            if entry.problem != problem:
                _log.warning("model %s: %s", name, problem)
            entry.problem = problem
        self._has_scanned = True

    async def _look(self, only: str | None = None, given: Given | None = None) -> Scan:
        settings = self._settings
        return await asyncio.to_thread(
            scan, settings.repositories, only=only, given=given, python_steps=settings.python_steps
        )

    async def _load_all(self, names: Iterable[str]) -> None:
        """Single models side by side, then those that are made of others, in an order that works."""
        order = []
        for name in names:
            try:
                order += [each for each in self._order_of([name], self._found.models) if each not in order]
            except LoadError as error:
                self.entries.setdefault(name, Entry()).problem = str(error)
                _log.error("model %s: %s", name, error)
        made = [name for name in order if self._is_ensemble(name)]
        await asyncio.gather(*(self._try_load(name) for name in order if name not in made))
        for name in made:
            await self._try_load(name)

    async def _try_load(self, name: str) -> None:
        try:
            await self._load(self._found.models[name])
        except LoadError as error:
            self.entries.setdefault(name, Entry()).problem = str(error)
            _log.error("model %s: %s", name, error)

    def _is_ensemble(self, name: str) -> bool:
        found = self._found.models.get(name)
        return found is not None and found.platform == ENSEMBLE

    def _order_of(
        self, names: Sequence[str], known: Mapping[str, Found], inside: tuple[str, ...] = ()
    ) -> list[str]:
        """The models with those that they need before them; `LoadError` if they need themselves."""
        order: list[str] = []
        for name in names:
            if name in inside:
                raise LoadError(f"an ensemble needs itself: {' needs '.join((*inside, name))}")
            found = known.get(name)
            if found is None:
                if inside and name not in self._found.problems:
                    raise LoadError(f"{inside[-1]!r} needs model {name!r}, which is not in the repository")
                if inside:
                    raise LoadError(f"{inside[-1]!r} needs model {name!r}: {self._found.problems[name]}")
                raise LoadError(f"model {name!r} is not in the repository")
            if found.platform == ENSEMBLE:
                ensemble = self._configure(found).spec.ensemble
                assert ensemble is not None, "its platform says so"
                steps = [step.model for step in ensemble.steps]
                needed = self._order_of(steps, known, (*inside, name))
                order += [each for each in needed if each not in order]
            if name not in order:
                order.append(name)
        return order

    def _is_served(self, name: str) -> bool:
        entry = self.entries.get(name)
        return entry is not None and any(slot.state == READY for slot in entry.versions.values())

    def _configure(self, found: Found) -> Configured:
        return configure_found(found, python_steps=self._settings.python_steps)

    async def _load(self, found: Found, *, is_asked: bool = False) -> None:
        """Every chosen version that is new or has changed; the others go. `is_asked`: changed or not."""
        name = found.name
        entry = self.entries.setdefault(name, Entry())
        async with entry.turn:
            configured = self._configure(found)
            versions = {each.number: each for each in found.versions}
            # one that is being written anew, or was damaged, goes on as it was loaded
            kept = {number for number in found.broken if entry.is_loaded(number)}
            chosen = chosen_versions(configured.spec.versions, versions.keys() | kept)
            if not chosen:
                raise LoadError("its version policy leaves none of its versions")
            failed = []
            for version in chosen:
                if version in kept:
                    continue
                slot = entry.slot(name, version)
                files = (found.files, versions[version].files)
                if is_asked or slot.state != READY or slot.files != files:
                    slot.files = files
                    failed += await self._load_version(slot, versions[version], configured, found.folder)
            for version, slot in list(entry.versions.items()):
                if version not in chosen:
                    self._drop(slot, "its version policy leaves it out")
            for version, why in found.broken.items():
                slot = entry.slot(name, version)
                if slot.reason != why:
                    _log.warning("model %s version %d: %s", name, version, why)
                slot.state, slot.reason = (READY if version in kept else UNAVAILABLE), why
            entry.problem = "; ".join(failed)
            self._update_newest(name)

    async def _load_version(
        self, slot: Slot, version: FoundVersion, configured: Configured, folder: Path | None
    ) -> list[str]:
        """Load the new generation beside the old one, then swap. Returns what failed; the old one goes on."""
        if slot.loaded is None:
            slot.state = LOADING
        began = monotonic()

        def tell(text: str) -> None:
            if text.split(" ")[:2] != slot.reason.split(" ")[:2]:  # another stage, not only further on in it
                _log.info("model %s version %d: %s", slot.name, slot.version, text)
            slot.reason = text

        try:
            source = Source(slot.name, str(slot.version), folder, version.path, configured)
            loaded = await self._loader.load(source, slot.statistics, tell)
        except LoadError as error:
            slot.reason = str(error)
            slot.state = UNAVAILABLE if slot.loaded is None else READY
            _log.error("model %s version %d: %s", slot.name, slot.version, error)
            return [f"version {slot.version}: {error}"]
        old, slot.loaded = slot.loaded, loaded
        slot.state, slot.reason = READY, ""
        self.missing.discard(slot.name)
        slot.statistics.loaded(monotonic() - began)
        slot.statistics.tags = loaded.runnable.spec.metric_tags
        slot.statistics.pending = loaded.waiting
        self._ready[slot.name, str(slot.version)] = loaded.runnable
        self._update_newest(slot.name)
        for note in loaded.notes:
            _log.info("model %s: %s", slot.name, note)
        _log.info("model %s version %d is ready after %.1f s", slot.name, slot.version, monotonic() - began)
        if old is not None:
            self._retire(old)
        return []

    def _drop(self, slot: Slot, reason: str) -> None:
        loaded, slot.loaded = slot.loaded, None
        slot.state, slot.reason = UNAVAILABLE, reason
        slot.files = None
        slot.statistics.unloaded()
        self._ready.pop((slot.name, str(slot.version)), None)
        self._update_newest(slot.name)
        if loaded is not None:
            self._retire(loaded)

    def _update_newest(self, name: str) -> None:
        versions = self.entries[name].versions
        ready = [slot for slot in versions.values() if slot.state == READY and slot.loaded is not None]
        if not ready:
            self._ready.pop((name, ""), None)
            return
        newest = max(ready, key=lambda slot: slot.version)
        assert newest.loaded is not None, "it is ready"
        self._ready[name, ""] = newest.loaded.runnable

    def _retire(self, loaded: Loaded) -> None:
        task = asyncio.ensure_future(loaded.retire())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            try:
                await self._poll_once()
            except Exception:
                _log.exception("the repository could not be polled")

    async def _poll_once(self) -> None:
        """A model that cannot be read any more goes on as it is."""
        before = self._found
        await self._scan()
        found = changes(before, self._found)
        for name in found.removed:
            await self.unload(name)
        await self._load_all([*found.added, *found.changed])

    def _lose(self, device: str) -> None:
        for part in self._parts():
            for hosted in list(part.model.hosted):
                if part.hosts[hosted.key].device == device:
                    part.model.lose(hosted)

    def _gain(self, hosted: Sequence[Hosted]) -> None:
        by_key = {each.key: each for each in hosted}
        for part in self._parts():
            for key in part.hosts.keys() & by_key.keys():
                part.model.gain(by_key[key])

    def _parts(self) -> Iterator[Part]:
        for slot in self.slots():
            if slot.loaded is not None:
                yield from slot.loaded.parts

    def slots(self) -> Iterator[Slot]:
        for entry in self.entries.values():
            yield from entry.versions.values()

    def slot(self, name: str, version: str) -> Slot:
        entry = self.entries.get(name)
        if entry is None and not self._has_scanned:
            raise unavailable("the server is starting")
        if entry is None or not entry.versions:
            if entry is not None and entry.problem:
                raise unavailable(f"model {name!r} is not ready: {entry.problem}")
            raise not_found(f"Request for unknown model: {name!r} is not found")
        if not version:
            return max(entry.versions.values(), key=lambda slot: (slot.state == READY, slot.version))
        slot = entry.versions.get(int(version)) if version.isdecimal() else None
        if slot is None:
            raise not_found(f"Request for unknown model: {name!r} has no version {version}")
        return slot
