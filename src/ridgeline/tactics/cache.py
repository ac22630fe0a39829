"""The timing cache and the lock file: every candidate of every site, as text that people read, diff and edit.

One format for both. A cache entry counts only where it was measured (same code, versions, machine); a lock
pins choices wherever it is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import platform
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from ridgeline.base.choices import Candidate
from ridgeline.base.files import open_regular, place_of, require_place, whole_file
from ridgeline.base.typed_json import parse_json, read_as
from ridgeline.errors import OptionError, first_line
from ridgeline.kernels.triton.source import triton_version

FORMAT = 1
CACHE_TITLE = "# Ridgeline timing cache. An entry counts in the context it was measured in.\n"
OWN = b"# Ridgeline"
LOCK_TITLE = "# Ridgeline lock. `chosen` counts from 0; edit it to pin another candidate.\n"


@dataclass
class Entry:
    """All candidates of one site; `chosen` is the index of the winner."""

    title: str
    candidates: tuple[Candidate, ...]
    chosen: int = 0
    context: str = ""
    is_unsteady: bool = False  # the winner's samples were far apart; not kept in files
    is_partial: bool = False  # the time was over before all were tried: kept in locks, never in a cache

    @property
    def chosen_us(self) -> float | None:
        return self.candidates[self.chosen].median_us

    def changed(self, place: int, **fields: Any) -> Entry:
        """The same choice, with one of its candidates timed anew or refused."""
        candidates = list(self.candidates)
        candidates[place] = replace(candidates[place], **fields)
        return replace(self, candidates=tuple(candidates))


@dataclass
class TimingCache:
    """Entries by site key. What it could not read is said in `problems`: a build goes on without it."""

    entries: dict[str, Entry] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    read_before: Mapping[str, Entry] = field(default_factory=dict)  # as the file had them

    @staticmethod
    def read(path: Path) -> TimingCache:
        cache = TimingCache()
        if not path.exists():
            return cache
        try:
            with open_regular(path) as file:
                raw = tomllib.load(file)
            if raw.get("format") != FORMAT:
                cache.problems.append(f"{path.name}: format {raw.get('format')!r}, want {FORMAT}")
                return cache
            cache.entries = {key: _entry(value) for key, value in raw.get("site", {}).items()}
            cache.read_before = dict(cache.entries)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            cache.problems.append(f"{path.name} is damaged ({first_line(error)})")
        return cache

    def find(self, key: str, context: str) -> Entry | None:
        entry = self.entries.get(key)
        return entry if entry is not None and entry.context == context else None

    def find_anywhere(self, key: str) -> Entry | None:
        """Candidate on whatever machine, against whatever rivals: for a build that cannot measure itself."""
        same_site = (entry for known, entry in self.entries.items() if site_of(known) == site_of(key))
        return self.entries.get(key) or next(same_site, None)

    def write(self, path: Path) -> None:
        """Add what is new here to the file: another build may have written to it since it was read."""
        whole = {key: entry for key, entry in self.entries.items() if not entry.is_partial}
        news = {key: entry for key, entry in whole.items() if self.read_before.get(key) is not entry}
        with locked(path):
            merged = whole | TimingCache.read(path).entries | news
            write_text(path, "".join(_lines(merged, CACHE_TITLE)))

    def write_lock(self, path: Path, keys: Iterable[str]) -> None:
        """Only these entries, by site alone: a lock pins choices whatever level or rivals are asked for."""
        pinned = {site_of(key): replace(self.entries[key], context="") for key in keys}
        write_text(path, "".join(_lines(pinned, LOCK_TITLE)))


def require_own(path: Path | None) -> None:
    """Refuse a file that is no timing cache: the next write would replace it."""
    if path is None or not require_place(path).exists() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        is_titled = file.read(len(OWN)) == OWN
    if not is_titled and TimingCache.read(path).problems:
        raise OptionError(
            f"{str(path)!r} is not a timing cache",
            want="a cache of an earlier build, or a new file",
            help="name another file: --cache timings.toml",
        )


def read_lock(path: Path | None) -> TimingCache | None:
    """The choices that are pinned; None where there is no such file yet. A damaged lock is refused."""
    if path is None or not require_place(path).exists():
        return None
    lock = TimingCache.read(path)
    if lock.problems:
        raise OptionError(
            f"the lock {str(path)!r} cannot be used",
            rows=lock.problems,
            help="name another file; a lock that is damaged can be deleted, and is then written anew",
        )
    return lock


def site_of(key: str) -> str:
    return key.split("-")[0]


@dataclass(frozen=True)
class _Row:
    """A candidate as the file has it."""

    tactic: str
    config: str = "{}"
    us: float | None = None
    predicted: float | None = None
    refused: str | None = None
    untimed: str | None = None

    def measured(self) -> Candidate:
        config = read_as(dict[str, int | float | str | bool], parse_json(self.config))
        if not all(us is None or 0 <= us < math.inf for us in (self.us, self.predicted)):
            raise ValueError(f"{self.tactic} took {self.us} µs")
        return Candidate(self.tactic, config, self.us, self.refused, self.predicted, self.untimed)


@dataclass(frozen=True)
class _Site:
    """An entry as the file has it."""

    candidates: tuple[_Row, ...]
    chosen: int
    title: str = ""
    context: str = ""


def _entry(raw: Any) -> Entry:
    site = read_as(_Site, raw)
    if not 0 <= site.chosen < len(site.candidates):
        raise ValueError(f"chosen = {site.chosen} names none of {len(site.candidates)} candidates")
    return Entry(site.title, tuple(row.measured() for row in site.candidates), site.chosen, site.context)


def _lines(entries: Mapping[str, Entry], title: str) -> Iterable[str]:
    yield title
    yield f"format = {FORMAT}\n"
    for key, entry in entries.items():
        yield f"\n[site.{key}]\ntitle = {_quote(entry.title)}\nchosen = {entry.chosen}\n"
        if entry.context:
            yield f"context = {_quote(entry.context)}\n"
        yield "candidates = [\n"
        for c in entry.candidates:
            parts = [f"tactic = {_quote(c.tactic)}"]
            if c.config:
                parts.append(f"config = {_quote(json.dumps(dict(c.config), sort_keys=True))}")
            times = {"us": c.median_us, "predicted": c.predicted_us}
            parts += [f"{name} = {us:.3f}" for name, us in times.items() if us is not None]
            texts = {"refused": c.refused, "untimed": c.untimed}
            parts += [f"{name} = {_quote(text)}" for name, text in texts.items() if text is not None]
            yield f"  {{ {', '.join(parts)} }},\n"
        yield "]\n"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time reads and writes the file. The lock is a file beside it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place = place_of(path)
        lock = open_regular(place.with_name(f".{place.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written", got=str(error)) from error
    with lock:
        with suppress(OSError):  # a file system without locks: the last writer wins there
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a reader never meets half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, mode=0o600) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written", got=str(error)) from error


@lru_cache(maxsize=4)
def measuring_context(threads: int, device_key: str = "") -> str:
    """What a timing depends on besides its site: our code, the libraries, the machine."""
    if device_key:
        here = [f"Triton {triton_version()}", device_key]
    else:
        here = [ort.__version__, np.__version__, cpu_name(), f"{threads} threads"]
    return " | ".join([_code_digest(), torch.__version__, *here])


def _code_digest() -> str:
    """Of everything that decides how a site is run."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for folder in ("kernels", "tactics"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
