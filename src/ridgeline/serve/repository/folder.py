"""One model of a repository: its configuration, its versions, its Python steps.

`name/version/model.onnx`, `model.ridge`, `model.py` or the file that the configuration names. For one
version only, `name/model.onnx` or, directly in the repository, `name.onnx` and `name.ridge` will do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ridgeline.serve.config.config import platform_of
from ridgeline.serve.config.files import contained, real_inside, require_regular
from ridgeline.serve.config.text import ConfigError, Given, no_config, read_config
from ridgeline.serve.repository.files import Fingerprint, Stamp, fingerprint, is_ignored, is_unfinished, stamp
from ridgeline.serve.spec import ENGINE, ENSEMBLE, PYTHON

CONFIG = "config.pbtxt"
CONFIGS = "configs"  # Triton's place for others to choose from; not read
STEPS = ("preprocess.py", "postprocess.py")
MODELS = ("model.ridge", "model.onnx")
PYTHON_MODEL = "model.py"
LONGEST_VERSION = 18  # digits; versions are 64-bit numbers
_OTHERS = ("warmup", CONFIGS)
_NEEDS_STEPS = "runs Python code of its folder, which is off: --python-steps allows it"

Kind = Literal["engine", "onnx", "python", "ensemble"]
SUFFIXES: Mapping[str, Kind] = {".ridge": "engine", ".onnx": "onnx", ".py": "python"}


@dataclass(frozen=True)
class FoundVersion:
    number: int
    kind: Kind
    path: Path | None  # real; None of an ensemble
    files: Fingerprint = ()  # of all in its folder: an ONNX model may have its weights there


@dataclass(frozen=True)
class Found:
    """Equal if nothing that matters was changed."""

    name: str
    folder: Path | None  # real; None for a file that lies in the repository itself
    versions: tuple[FoundVersion, ...]  # ascending, at least one
    files: Fingerprint = ()  # of what all versions share: configuration, labels, warm-ups, steps
    preprocess: Path | None = None
    postprocess: Path | None = None
    broken: Mapping[int, str] = field(default_factory=dict)  # versions that cannot be served, and why
    notes: tuple[str, ...] = field(default=(), compare=False)
    given: Given = field(default_factory=no_config, compare=False)

    @property
    def platform(self) -> str:
        """What its files are; the newest decides."""
        return {"python": PYTHON, "ensemble": ENSEMBLE}.get(self.versions[-1].kind, ENGINE)


def look_into(root: Path, name: str, *, given: Given | None, python_steps: bool) -> Found:
    """The model in the folder of this name. `ValueError` and `OSError` say why there is none to serve.

    `given` stands in for the folder's own configuration.
    """
    folder = real_inside(root, root / name)
    entries = sorted(os.listdir(folder))
    if given is None:
        given = _config_of(folder, entries)
    steps = {step: require_regular(folder, folder / step) for step in STEPS if step in entries}
    if steps and not python_steps:
        raise ValueError(f"{' and '.join(steps)} {_NEEDS_STEPS}")
    numbers, notes = _versions_among(folder, entries)
    found, broken = [], {}
    for number in numbers:
        try:
            found.append(_version(folder, folder / str(number), number, given, python_steps))
        except (ValueError, OSError) as error:
            broken[number] = reason_of(error)
    if not numbers:
        # what all versions share is not part of this one
        without = (CONFIG, *_OTHERS, *STEPS)
        found.append(_version(folder, folder, 1, given, python_steps, without=without))
    elif any(file in entries for file in MODELS):
        notes.append("its model file outside of a version's folder is left alone")
    if not found:
        number, why = max(broken.items())
        raise ValueError(f"version {number}: {why}")
    shared = fingerprint(folder, folder, without=map(str, numbers))
    return Found(
        name, folder, tuple(found), shared, steps.get(STEPS[0]), steps.get(STEPS[1]),
        broken, tuple(notes), given,
    )  # fmt: skip


def look_at_file(root: Path, file: str, given: Given | None) -> Found:
    """A model that is a file of the repository itself; weights beside it are files whose names go on."""
    path = require_regular(root, root / file)
    stem, dot, _ = file.rpartition(".")
    beside = [
        stamp(root / each, each)
        for each in sorted(os.listdir(root))
        if each.startswith(stem + dot)
        and not is_ignored(each)
        and (each == file or Path(each).suffix not in SUFFIXES)
        and (root / each).is_file()
    ]
    _require_content(path)
    version = FoundVersion(1, SUFFIXES[path.suffix], path, tuple(beside))
    return Found(stem, None, (version,), given=given or no_config())


def reason_of(error: Exception) -> str:
    """Without the paths that an `OSError` tells: clients read it."""
    return str(error.strerror if isinstance(error, OSError) else error)


def _config_of(folder: Path, entries: list[str]) -> Given:
    path = folder / CONFIG
    if CONFIG not in entries:
        if unfinished := [each for each in entries if is_unfinished(each) and each.startswith(CONFIG)]:
            raise ValueError(f"its configuration is being written: {unfinished[0]}")
        return no_config()
    path = require_regular(folder, path)
    given, problem = _read(path, stamp(path, path.name))
    if problem:
        raise ValueError(problem)
    return given


@lru_cache(maxsize=4096)
def _read(path: Path, _stamp: Stamp) -> tuple[Given, str]:
    """A folder is looked into again and again; its configuration is read once."""
    try:
        return read_config(path), ""
    except ConfigError as error:
        return no_config(), str(error)


def _versions_among(folder: Path, entries: list[str]) -> tuple[list[int], list[str]]:
    numbers, notes = [], []
    for entry in entries:
        if is_unfinished(entry):
            notes.append(f"{entry!r} is being written")
        elif is_ignored(entry) or entry in _OTHERS or not (folder / entry).is_dir():
            continue
        elif entry.isascii() and entry.isdigit() and entry[0] != "0" and len(entry) <= LONGEST_VERSION:
            numbers.append(int(entry))
        else:
            notes.append(f"folder {entry!r} is no version: those are whole numbers from 1")
    return sorted(numbers), notes


def _version(
    folder: Path,
    version: Path,
    number: int,
    given: Given,
    python_steps: bool,
    *,
    without: tuple[str, ...] = (),
) -> FoundVersion:
    real_inside(folder, version)
    if platform_of(given.config) == ENSEMBLE:
        return FoundVersion(number, "ensemble", None)
    path = _model_file(folder, version, given)
    kind = SUFFIXES.get(path.suffix)
    if kind is None:
        raise ValueError(f"{path.name!r} is no model file: those end in {', '.join(SUFFIXES)}")
    # without a backend, the file says what kind of model it is
    told = given.config.backend or given.config.platform
    if told and (kind == "python") != (platform_of(given.config) == PYTHON):
        raise ValueError(f"{path.name!r} is not what backend {told!r} runs")
    if kind == "python" and not python_steps:
        raise ValueError(f"{path.name} {_NEEDS_STEPS}")
    _require_content(path)
    return FoundVersion(number, kind, path, fingerprint(version, folder, without=without))


def _model_file(folder: Path, version: Path, given: Given) -> Path:
    entries = sorted(os.listdir(version))
    named = given.config.default_model_filename
    if named:
        wanted: tuple[str, ...] = (named,)
    elif platform_of(given.config) == PYTHON:
        wanted = (PYTHON_MODEL,)
    else:
        wanted = (*MODELS, PYTHON_MODEL)
    for name in wanted:
        if name in entries:
            prefix = version.relative_to(folder).as_posix()
            return contained(folder, name if prefix == "." else f"{prefix}/{name}")
    if unfinished := [each for each in entries if is_unfinished(each)]:
        raise ValueError(f"is being written: {unfinished[0]!r}")
    if "model.plan" in entries:
        raise ValueError("has TensorRT's model.plan alone: an engine is built from its ONNX model")
    where = "has no folder of a version, and itself no" if version == folder else "has no"
    raise ValueError(f"{where} {' or '.join(wanted[:2])}")


def _require_content(path: Path) -> None:
    if not path.stat().st_size:
        raise ValueError(f"{path.name!r} is empty: it may be being written")
