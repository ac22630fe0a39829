"""Ridgeline's own settings, which stand among a configuration's `parameters`. Other keys are the user's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from typing import Any

from ridgeline.errors import RidgelineError, did_you_mean
from ridgeline.options import MAX_LEVEL, MAX_THREADS, PRECISIONS, parse_profile
from ridgeline.serve.config.text import Problems

# not inside the brackets of a shape tensor's values
_SPACES = re.compile(r"\s+(?![^\[]*\])")


@dataclass
class Own:
    idempotent: bool = False
    pad_dims: tuple[str, ...] = ()
    pad_values: dict[str, float] = field(default_factory=dict)
    build: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, str] = field(default_factory=dict)


def read_parameters(given: Mapping[str, Any], problems: Problems) -> Own:
    own = Own()
    for key in sorted(given):
        text = given[key].string_value
        reader = _READERS.get(key)
        if reader is None:
            own.rest[key] = text
            continue
        try:
            reader(own, text.strip())
        except ValueError as error:
            problems.add(f"parameters {key!r}", repr(text), str(error))
    return own


def parameter_notes(own: Own) -> Iterator[str]:
    for key in own.rest:
        if near := get_close_matches(key, _READERS, n=1, cutoff=0.8):
            yield f"parameter {key!r} is kept as your own; {did_you_mean(key, near)}"


def written(own: Own) -> dict[str, str]:
    """The parameters that read as these."""
    texts = dict(own.rest)
    if own.idempotent:
        texts["idempotent"] = "true"
    if own.pad_dims:
        texts["pad_dims"] = ", ".join(own.pad_dims)
    if own.pad_values:
        texts["pad_values"] = ", ".join(f"{name}={_number(value)}" for name, value in own.pad_values.items())
    for key in ("threads", "precision", "level"):
        if key in own.build:
            texts[key] = str(own.build[key])
    if "profiles" in own.build:
        texts["profile"] = " ".join(f"{name}={shape}" for name, shape in own.build["profiles"].items())
    return texts


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _idempotent(own: Own, text: str) -> None:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    own.idempotent = text == "true"


def _pad_dims(own: Own, text: str) -> None:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of dims, each once, such as 'seq' or 'height, width'")
    own.pad_dims = names


def _pad_values(own: Own, text: str) -> None:
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not name or not isfinite(value) or name in own.pad_values:
            raise ValueError("a finite number for each input, each once, such as 'input_ids=1, mask=0'")
        own.pad_values[name] = value


def _whole(key: str, most: int) -> Callable[[Own, str], None]:
    def read(own: Own, text: str) -> None:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most):
            raise ValueError(f"a whole number, 0 to {most}")
        own.build[key] = int(text)

    return read


def _precision(own: Own, text: str) -> None:
    if text not in PRECISIONS:
        raise ValueError(f"one of {', '.join(PRECISIONS)}; {did_you_mean(text, PRECISIONS)}")
    own.build["precision"] = text


def _profile(own: Own, text: str) -> None:
    shapes: dict[str, str] = {}
    for part in _SPACES.split(text):
        name, _, shape = part.rpartition("=")
        if not name or not shape or name in shapes:
            raise ValueError("shapes as `ridge build --shapes` takes them: 'x=1..8x128 mask=1..8x128'")
        shapes[name] = "".join(shape.split())
    try:
        parse_profile(shapes)
    except RidgelineError as error:
        raise ValueError(f"{error.want or 'shapes'} ({error.what})") from error
    own.build["profiles"] = shapes


_READERS: dict[str, Callable[[Own, str], None]] = {
    "idempotent": _idempotent,
    "pad_dims": _pad_dims,
    "pad_values": _pad_values,
    "threads": _whole("threads", MAX_THREADS),
    "precision": _precision,
    "profile": _profile,
    "level": _whole("level", MAX_LEVEL),
}
