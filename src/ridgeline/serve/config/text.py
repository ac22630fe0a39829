"""Text of a configuration to a `ModelConfig` message, and the error that lists all that is wrong with one."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format

from ridgeline.errors import LISTED, did_you_mean, visible
from ridgeline.serve.config.files import read_text
from ridgeline.serve.hosts.hosting import LoadError
from ridgeline.serve.protocol.messages import POOL, ModelConfig

LARGEST_CONFIG = 2**20
DEEPEST = 20  # messages in messages; ModelConfig itself has 6
LONGEST_SHOWN = 200
# a number that no file can have said by leaving it out
_NOT_SAID = -(2**31)
_PLACE = re.compile(r"(\d+):(\d+) : (.*)", re.DOTALL)
_LINE_ITSELF = re.compile(r"'.*': ")
_UNKNOWN = re.compile(r'Message type "([\w.]+)" has no field named "(.*?)"')


@dataclass(frozen=True)
class Problem:
    where: str
    got: str
    want: str = ""

    def __str__(self) -> str:
        return f"{self.where}: got {self.got}" + (f", want {self.want}" if self.want else "")


class ConfigError(LoadError):
    """A configuration that cannot be served. `problems` has all of them, the text the first ten."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source, self.problems = source, tuple(problems)
        count = len(self.problems)
        lines = [f"{source}: {count} problem{'' if count == 1 else 's'}"]
        lines += [f"  {visible(str(each))}".replace("\n", "\n      ") for each in self.problems[:LISTED]]
        if count > LISTED:
            lines.append(f"  … and {count - LISTED} more")
        super().__init__("\n".join(lines))


class Problems:
    """What was found so far."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, where: str, got: object, want: str = "") -> None:
        text = got if isinstance(got, str) else repr(got)
        self.found.append(Problem(where, shortened(text), want))

    def twice(self, where: str, names: Sequence[str]) -> None:
        """Each name that stands there more than once."""
        for name, count in Counter(names).items():
            if count > 1:
                self.add(where, f"{name!r} {count} times", "each name once")

    def raise_any(self, source: str) -> None:
        if self.found:
            raise ConfigError(source, self.found)


@dataclass(frozen=True)
class Given:
    """A configuration as somebody wrote it. `sets_batch`: max_batch_size is in it, be it as 0."""

    config: Any  # ModelConfig
    sets_batch: bool = False
    source: str = "config.pbtxt"


def no_config() -> Given:
    return Given(ModelConfig())


def read_config(path: Path) -> Given:
    """A config.pbtxt. `ConfigError` for one that does not read."""
    try:
        text = read_text(path, LARGEST_CONFIG)
    except ValueError as error:
        raise ConfigError(path.name, [Problem("the file", str(error))]) from error
    return parse_config(text, path.name)


def parse_config(text: str, source: str = "config.pbtxt") -> Given:
    _bounded(text, source)
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
        said = config
        if not config.max_batch_size:
            # proto3 keeps no difference between 0 and nothing: read over a number that would remain
            said = text_format.Merge(text, ModelConfig(max_batch_size=_NOT_SAID))
    except (text_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(source, [_problem_of(str(error))]) from error
    return Given(config, said.max_batch_size != _NOT_SAID, source)


def parse_json(text: str, source: str = "config") -> Given:
    """The `config` of a load request: the same messages as JSON, names in snake_case or camelCase."""
    _bounded(text, source)
    config = ModelConfig()
    try:
        values = _object_of(text)
        json_format.ParseDict(values, config, max_recursion_depth=DEEPEST)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(source, [_problem_of(str(error))]) from error
    sets_batch = any(values.get(name) is not None for name in ("max_batch_size", "maxBatchSize"))
    return Given(config, sets_batch, source)


def _bounded(text: str, source: str) -> None:
    if len(text) > LARGEST_CONFIG:
        problem = Problem("the text", f"{len(text):,} characters", f"at most {LARGEST_CONFIG:,}")
        raise ConfigError(source, [problem])


def _object_of(text: str) -> dict[str, Any]:
    values = json.loads(text, object_pairs_hook=_without_repeats)
    if not isinstance(values, dict):
        raise TypeError("JSON that is not an object")
    return values


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        name, count = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{name!r} {count} times in one object")
    return made


def _problem_of(message: str) -> Problem:
    """What protobuf says, without the whole line that it quotes; of an unknown field, what may be meant."""
    where, want = "the text", ""
    if place := _PLACE.match(message):
        where, message = f"line {place[1]}, column {place[2]}", _LINE_ITSELF.sub("", place[3], count=1)
    if unknown := _UNKNOWN.search(message):
        known = [field.name for field in POOL.FindMessageTypeByName(unknown[1]).fields]
        message = f"unknown field {shortened(unknown[2])!r} in {unknown[1].removeprefix('inference.')}"
        want = f"a field of Triton's ModelConfig; {did_you_mean(unknown[2], known)}"
    return Problem(where, shortened(" ".join(message.split())), want)


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"
