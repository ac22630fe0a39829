"""Folders of models: what is there, what of it can be served, what has changed since it was looked at.

A folder that cannot be served is told with its reason and keeps nothing else from being served. Names come
from clients and folders from anybody who may write there: no path leaves its repository, and no link its
model's folder.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.errors import visible
from ridgeline.serve.config.config import Configured, configure
from ridgeline.serve.config.text import Given
from ridgeline.serve.repository.files import is_unfinished
from ridgeline.serve.repository.folder import Found, look_at_file, look_into, reason_of
from ridgeline.serve.spec import VersionPolicy, is_model_name

_FILES = (".ridge", ".onnx")  # of a model that is a file of the repository itself


@dataclass(frozen=True)
class Scan:
    models: Mapping[str, Found]
    problems: Mapping[str, str] = field(default_factory=dict)  # by model, for clients too: no paths
    notes: tuple[str, ...] = ()  # for the operator
    unreadable: tuple[Path, ...] = ()  # repositories; nothing is known of their models


@dataclass(frozen=True)
class Changes:
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def scan(
    roots: Sequence[Path],
    *,
    only: str | None = None,
    given: Given | None = None,
    python_steps: bool = False,
) -> Scan:
    """All models, or the `only` one, for which `given` may stand in for the configuration that it has."""
    places: dict[str, list[tuple[Path, str]]] = {}
    notes: list[str] = []
    unreadable = []
    for root in dict.fromkeys(Path(os.path.realpath(each)) for each in roots):
        try:
            entries = sorted(os.listdir(root))
        except OSError as error:
            unreadable.append(root)
            notes.append(f"repository {visible(str(root))}: {reason_of(error)}")
            continue
        for name, entry in _models_among(root, entries, only, notes):
            places.setdefault(name, []).append((root, entry))
    models: dict[str, Found] = {}
    problems: dict[str, str] = {}
    for name, found in sorted(places.items()):
        try:
            models[name] = _look(name, found, given, python_steps)
        except (ValueError, OSError) as error:
            problems[name] = visible(reason_of(error))
    return Scan(models, problems, tuple(notes), tuple(unreadable))


def _models_among(
    root: Path, entries: Sequence[str], only: str | None, notes: list[str]
) -> Iterable[tuple[str, str]]:
    """Names, and the entries of the repository that they are of."""
    stems = tuple(f"{os.path.splitext(entry)[0]}." for entry in entries if entry.endswith(_FILES))
    for entry in entries:
        stem, suffix = os.path.splitext(entry)
        is_file = suffix in _FILES and not os.path.isdir(root / entry)
        name = stem if is_file else entry
        if entry.startswith(".") or (only is not None and name != only):
            continue
        if is_unfinished(entry):
            notes.append(f"{visible(ascii(entry))} is being written")
        elif not is_file and not os.path.isdir(root / entry) and not os.path.islink(root / entry):
            if not entry.startswith(stems):  # weights of a model that is a file
                notes.append(f"{visible(ascii(entry))} is no model")
        elif not is_model_name(name):
            notes.append(f"{visible(ascii(entry))} is no name of a model: 1 to 128 of A-Z a-z 0-9 . _ -")
        else:
            yield name, entry


def _look(name: str, found: Sequence[tuple[Path, str]], given: Given | None, python_steps: bool) -> Found:
    if len(found) > 1:
        where = ", ".join(f"{root.name}/{entry}" for root, entry in found)
        raise ValueError(f"there is more than one model of this name: {where}")
    root, entry = found[0]
    if entry == name:
        return look_into(root, name, given=given, python_steps=python_steps)
    return look_at_file(root, entry, given)


def configure_found(found: Found, *, python_steps: bool = False) -> Configured:
    """The model's configuration. `ConfigError` lists what is wrong."""
    return configure(
        found.given,
        name=found.name,
        folder=found.folder,
        python_steps=python_steps,
        platform=found.platform,
        preprocess=found.preprocess.name if found.preprocess else "",
        postprocess=found.postprocess.name if found.postprocess else "",
    )


def chosen_versions(policy: VersionPolicy, versions: Collection[int]) -> tuple[int, ...]:
    """Those of the versions that are there which the policy serves, ascending."""
    there = sorted(set(versions))
    if policy.kind == "all":
        return tuple(there)
    if policy.kind == "specific":
        return tuple(version for version in there if version in policy.versions)
    return tuple(there[-policy.count :])


def changes(before: Scan, after: Scan) -> Changes:
    """What can be served now, and could not be or was another."""
    both = before.models.keys() & after.models.keys()
    return Changes(
        added=tuple(sorted(after.models.keys() - before.models.keys())),
        changed=tuple(sorted(name for name in both if before.models[name] != after.models[name])),
    )
