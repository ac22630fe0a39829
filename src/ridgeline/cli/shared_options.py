"""Options that several commands take: declared once, added to each of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.cli.arguments import (
    Budget,
    Cache,
    Data,
    Deterministic,
    Io,
    Keep,
    Level,
    LimitOption,
    Lock,
    MetricOption,
    Pad,
    PrecisionOption,
    Profiles,
    Shapes,
    Target,
    Threads,
    TimeLimit,
    TuneAt,
    VerifyMode,
    Without,
    build_options,
)

Command = Callable[..., None]
# parameters of commands that are made from options, and are no options themselves
TAKEN = ("options", "settings", "exports")
# of every command that may build an engine, and of `ridge build` alone; each is None or False if not given
BUILDING = {
    "shapes": Shapes, "tune_at": TuneAt, "threads": Threads, "level": Level, "time_limit": TimeLimit,
    "cache": Cache, "verify": VerifyMode, "without": Without, "limit": LimitOption,
    "precision": PrecisionOption, "budget": Budget, "keep": Keep, "metric": MetricOption, "io": Io,
}  # fmt: skip
BUILD_ONLY = {
    "profile": Profiles, "pad": Pad, "target": Target, "lock": Lock, "data": Data,
    "deterministic": Deterministic,
}  # fmt: skip


def with_build_options(command: Command) -> Command:
    """The command with the options of a build, which it gets as `options`: keywords of `ridgeline.build`."""
    return with_options(command, BUILDING, lambda given: {"options": build_options(given)})


def with_target_and_build_options(command: Command) -> Command:
    """As `with_build_options`, for a machine that need not be here: nothing is run."""
    added = {**BUILDING, "target": Target}
    return with_options(command, added, lambda given: {"options": build_options(given)})


def with_all_build_options(command: Command) -> Command:
    """As `with_build_options`, with those that only `ridge build` takes."""
    return with_options(command, BUILDING | BUILD_ONLY, lambda given: {"options": build_options(given)})


def with_options(
    command: Command, added: Mapping[str, Any], take: Callable[[dict[str, Any]], dict[str, Any]]
) -> Command:
    """The command with more options, by name and type. `take` turns their values into its keywords."""

    @functools.wraps(command)
    def wrapped(*args: Any, **given: Any) -> None:
        taken = take({name: given.pop(name) for name in added})
        command(*args, **given, **taken)

    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name not in TAKEN]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(kind), annotation=kind)
        for name, kind in added.items()
    ]
    vars(wrapped)["__signature__"] = signature.replace(parameters=[*own, *more])
    wrapped.__annotations__ = {each.name: each.annotation for each in (*own, *more)}
    return wrapped


def _default(kind: Any) -> bool | None:
    """False for a flag, None for an option with a value."""
    return False if kind.__origin__ is bool else None
