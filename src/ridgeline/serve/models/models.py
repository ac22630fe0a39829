"""All models of a server: found, loaded, swapped without losing a request, unloaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from ridgeline.serve.config.config import Configured
from ridgeline.serve.config.text import Given, parse_json
from ridgeline.serve.errors import invalid, not_found, unavailable
from ridgeline.serve.hosts.hosting import Hosted, LoadError, WorkerLostError
from ridgeline.serve.hosts.hosts import Hosts
from ridgeline.serve.models.ensemble import Runnable
from ridgeline.serve.models.loading import Loaded, Loader, Source
from ridgeline.serve.models.slots import LOADING, READY, UNAVAILABLE, Entry, Slot
from ridgeline.serve.repository.folder import Found, FoundVersion, reason_of
from ridgeline.serve.repository.repository import Scan, changes, chosen_versions, configure_found, scan
from ridgeline.serve.settings import Settings
from ridgeline.serve.spec import ENSEMBLE

ALL = "*"
_log = logging.getLogger(__name__)


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
        hosts.on_lost, hosts.on_back = self._loader.lose, self._gain

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
        self._loader.refuse_waiting(unavailable("the server is stopping"))
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
        """As a client asks for it: the newest files, with what they need; `RequestError` if that fails.

        A client that goes away stops nothing: whoever asks again would begin a long build anew.
        """
        await asyncio.shield(self._keep(self._load_asked(name, config)))

    async def _load_asked(self, name: str, config: str) -> None:
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
        await asyncio.shield(self._keep(self._unload_asked(name, dependents=dependents)))

    async def _unload_asked(self, name: str, *, dependents: bool) -> None:
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
        single = [name for name in order if name not in made]
        were_lost = await asyncio.gather(*(self._try_load(name) for name in single))
        # one of them may have ended the worker that the others were being loaded into: now one by one
        for name in [name for name, was_lost in zip(single, were_lost, strict=True) if was_lost]:
            _log.info("model %s is tried once more", name)
            await self._try_load(name)
        for name in made:
            await self._try_load(name)

    async def _try_load(self, name: str) -> bool:
        """Whether it failed because a worker was lost."""
        try:
            return await self._load(self._found.models[name])
        except LoadError as error:
            self.entries.setdefault(name, Entry()).problem = str(error)
            _log.error("model %s: %s", name, error)
            return False

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
                why = self._found.problems.get(name, "")
                if inside:
                    why = f": {why}" if why else ", which is not in the repository"
                    raise LoadError(f"{inside[-1]!r} needs model {name!r}{why}")
                raise LoadError(why or f"model {name!r} is not in the repository")
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

    async def _load(self, found: Found, *, is_asked: bool = False) -> bool:
        """Every chosen version that is new or has changed; the others go. `is_asked`: changed or not.

        Whether one failed because a worker was lost. While any fails, what was served goes on.
        """
        name = found.name
        entry = self.entries.setdefault(name, Entry())
        async with entry.turn:
            configured = await asyncio.to_thread(self._configure, found)
            versions = {each.number: each for each in found.versions}
            # one that is being written anew, or was damaged, goes on as it was loaded
            kept = {number for number in found.broken if entry.is_loaded(number)}
            chosen = chosen_versions(configured.spec.versions, versions.keys() | kept)
            if not chosen:
                raise LoadError("its version policy leaves none of its versions")
            failed: list[LoadError] = []
            for version in chosen:
                if version in kept:
                    continue
                slot = entry.slot(name, version)
                files = (found.files, versions[version].files)
                if is_asked or slot.state != READY or slot.files != files:
                    slot.files = files
                    failed += await self._load_version(slot, versions[version], configured, found.folder)
            for version, slot in list(entry.versions.items()):
                if version not in chosen and not failed:
                    self._drop(slot, "its version policy leaves it out")
            for version, why in found.broken.items():
                slot = entry.slot(name, version)
                if slot.reason != why:
                    _log.warning("model %s version %d: %s", name, version, why)
                slot.state, slot.reason = (UNAVAILABLE if slot.loaded is None else READY), why
            entry.problem = "; ".join(map(str, failed))
            self._update_newest(name)
            return any(isinstance(each, WorkerLostError) for each in failed)

    async def _load_version(
        self, slot: Slot, version: FoundVersion, configured: Configured, folder: Path | None
    ) -> list[LoadError]:
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
            _log.error("model %s version %d: %s", slot.name, slot.version, error)
            return [self._failed(slot, error)]
        except Exception as error:
            # nothing that is wrong with one model may keep others from being served; the log has it whole
            _log.exception("model %s version %d could not be loaded", slot.name, slot.version)
            return [self._failed(slot, LoadError(f"{type(error).__name__}: {reason_of(error)}"))]
        except asyncio.CancelledError:
            self._failed(slot, LoadError("the server stopped while it was loaded"))
            raise
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

    @staticmethod
    def _failed(slot: Slot, error: LoadError) -> LoadError:
        """What was loaded before goes on. The error, as it is told of the model."""
        slot.reason = str(error)
        slot.state = UNAVAILABLE if slot.loaded is None else READY
        kind = WorkerLostError if isinstance(error, WorkerLostError) else LoadError
        return kind(f"version {slot.version}: {error}")

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
        self._keep(loaded.retire())

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """As a task that nobody else need hold."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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
        for name in self._gone():
            await self._unload_asked(name, dependents=False)
            self.entries[name].problem = ""
        found = changes(before, self._found)
        names = [*found.added, *found.changed]
        if names:  # what waited for one of them may work now
            waiting = [name for name, entry in self.entries.items() if entry.problem]
            names += [name for name in waiting if name not in names and self._is_ensemble(name)]
        await self._load_all(names)

    def _gone(self) -> list[str]:
        """Models that were served, or should have been, and of which no file is left."""
        if self._found.unreadable:
            return []
        there = self._found.models.keys() | self._found.problems.keys()
        return [
            name
            for name, entry in self.entries.items()
            if name not in there and (name in self.missing or entry.problem or entry.is_served)
        ]

    def _gain(self, device: str, hosted: Sequence[Hosted]) -> None:
        self._loader.gain(device, hosted)
        for slot in self.slots():
            if slot.loaded is not None and any(part.is_gone for part in slot.loaded.parts):
                _log.error("model %s version %d could not be loaded again", slot.name, slot.version)
                self._drop(slot, "it could not be loaded again after its worker ended")

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
        slot = next((each for each in entry.versions.values() if str(each.version) == version), None)
        if slot is None:
            raise not_found(f"Request for unknown model: {name!r} has no version {version}")
        return slot
