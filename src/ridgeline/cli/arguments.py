"""The words of the command line, each meaning one thing in every command, and how their values are read."""

from __future__ import annotations

import functools
import re
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ridgeline.errors import OptionError, did_you_mean
from ridgeline.options import HALF_PORTS, PRECISIONS, VERIFY_MODES, Limits

# separates inputs; the spaces inside the values of a shape tensor, [1, 2], separate nothing
_SPACES = re.compile(r"\s+(?![^\[]*\])")
# options under this heading are errors beside an engine file, which is built already
_building = partial(typer.Option, rich_help_panel="Building")
# options with another name than their keyword
_FLAGS = {
    "profiles": "--shapes", "timing_cache": "--cache", "time_limit": "--time-limit", "tune_at": "--tune-at",
}  # fmt: skip

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file", show_default=False)]
EngineFile = Annotated[
    Path, typer.Argument(metavar="ENGINE", help="engine file (.ridge)", show_default=False)
]
EngineOrModel = Annotated[
    Path,
    typer.Argument(metavar="ENGINE|MODEL", help="engine file (.ridge) or ONNX file", show_default=False),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="use the compiled kernels in an engine file that was made on another machine"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="machine-readable result on stdout, nothing else there")]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE", help="input from a .npy file; or FILE.npz for several"),
]
Seed = Annotated[int, typer.Option(min=0, help="seed of the random inputs that stand in for those not given")]

Shapes = Annotated[
    list[str] | None,
    _building(
        "--shapes",
        metavar="NAME=SHAPE",
        help="sizes an input may take: 1..8x3x224x224, or 1..4..8x… to name the one to tune for",
    ),
]
Profiles = Annotated[
    list[str] | None,
    _building(
        "--profile",
        metavar="'NAME=SHAPE …'",
        help="one set of sizes to plan for, all inputs in one word; give it several times",
    ),
]
TuneAt = Annotated[
    list[str] | None,
    _building(
        "--tune-at",
        metavar="POINTS",
        help="tune a range at further points: N=1,8,32, x=1x3x224x224,8x3x224x224, or min,max",
    ),
]
Threads = Annotated[
    int | None,
    _building("--threads", min=1, help="threads to plan for (default: all cores)"),
]
Level = Annotated[
    int | None,
    _building(
        "--level",
        min=0,
        max=5,
        help="0 takes the first willing tactic, 5 times everything at length (default: 3)",
    ),
]
TimeLimit = Annotated[
    float | None,
    _building(
        "--time-limit",
        metavar="SECONDS",
        help="how long a build may take; what it does not get to time is reported (default at level 3 on a "
        "CPU: 30)",
    ),
]
Cache = Annotated[Path | None, _building("--cache", metavar="FILE", help="timing cache, read and written")]
Lock = Annotated[
    Path | None,
    _building("--lock", metavar="FILE", help="choices are pinned here: read when it exists, else written"),
]
VerifyMode = Annotated[
    str | None,
    _building(
        "--verify", metavar="|".join(VERIFY_MODES), help="how thoroughly to check the outputs (default: full)"
    ),
]
Without = Annotated[
    list[str] | None,
    _building("--without", metavar="TACTIC", help="a tactic or family that must not be used, such as ort"),
]
Target = Annotated[
    str | None,
    typer.Option(help="cpu (default), cuda (the GPU here), or a GPU elsewhere, such as cuda:sm_90"),
]
Pad = Annotated[
    bool, typer.Option("--pad", help="pad inputs to the next profile, where that cannot change results")
]
Deterministic = Annotated[bool, typer.Option(help="only tactics that give the same bits every run")]
NewEngine = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="engine file (default: MODEL's name with .ridge, here)"
    ),
]
Data = Annotated[
    Path | None,
    _building(
        "--data",
        metavar="DIR",
        help="folder of .npz files, or one: to verify with, and to decide precision with",
    ),
]
_lowering = partial(typer.Option, rich_help_panel="Precision")
PrecisionOption = Annotated[
    str | None,
    _lowering(
        "--precision",
        metavar="|".join(PRECISIONS),
        help="types to compute in (default: typed, the model's); tf32: float32 whose products may round",
    ),
]
Budget = Annotated[
    float | None,
    _lowering(
        "--budget",
        metavar="ERROR",
        help="relative L2 error that lower precision may cause (default: 0.01, quantised 0.05)",
    ),
]
Keep = Annotated[
    list[str] | None,
    _lowering(
        "--keep",
        metavar="fp32:PATTERN",
        help="nodes that stay float32, by name or op type; may be repeated",
    ),
]
MetricOption = Annotated[
    str | None,
    _lowering(
        "--metric", metavar="FILE.py:FUNCTION", help="your own error, in place of the relative L2 error"
    ),
]
Io = Annotated[
    str | None, _lowering("--io", metavar="|".join(HALF_PORTS), help="half inputs and outputs as well")
]

LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=NUMBER",
        help=f"raise or lower a budget: {', '.join(field.name for field in fields(Limits))}",
    ),
]


def share_given(flag: str, text: str) -> float:
    """A part of the whole, as ``1%`` or ``0.01``."""
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise OptionError(f"{flag} is no part of a whole", got=text, want="a percentage such as 1%")
    return share


def parse_limits(given: Sequence[str] | None) -> dict[str, int] | None:
    """``["loop_trips=1000000"]`` as ``{"loop_trips": 1000000}``; `Options` knows the names."""
    pairs = parse_pairs(given or (), option="--limit", example="--limit loop_trips=1000000")
    try:
        return {name: int(value) for name, value in pairs.items()} or None
    except ValueError:
        raise OptionError("--limit wants whole numbers", got=" ".join(given or ())) from None


def parse_profiles(
    shapes: Sequence[str] | None, profiles: Sequence[str] | None
) -> dict[str, str] | list[dict[str, str]] | None:
    """The one profile of ``--shapes``, or one for every ``--profile 'x=1x8 y=1x4'``.

    ``["x=1..8x3"]`` is ``{"x": "1..8x3"}``; the shapes themselves are read by `Options`.
    """
    if not profiles:
        return parse_pairs(shapes or (), option="--shapes", example="--shapes x=1..8x3x224x224") or None
    if shapes:
        raise OptionError(
            "--shapes and --profile are given together",
            help="--shapes is the only profile there is; write it as one more --profile",
        )
    example = "--profile 'x=1..8x128 mask=1..8x128'"
    return [
        parse_pairs(_SPACES.split(text.strip()), option="--profile", example=example) for text in profiles
    ]


def read_metric(given: str | None) -> Callable[..., float] | None:
    """The function of ``script.py:function``. It is the user's own code, and is run."""
    if given is None:
        return None
    path, colon, name = given.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise OptionError("--metric does not read as FILE.py:FUNCTION", got=given)
    if not Path(path).is_file():
        raise OptionError(f"--metric names no file: {path}", want="a Python file")
    try:
        with redirect_stdout(sys.stderr):  # results alone go to standard output
            found = runpy.run_path(path).get(name)
    except Exception as error:
        raise OptionError(f"{path} does not run", got=f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise OptionError(f"{path} has no function {name!r}")

    @functools.wraps(found)
    def metric(*given: Any) -> float:
        with redirect_stdout(sys.stderr):
            return cast("float", found(*given))

    return metric


def parse_without(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """``["ort,cpp", "onednn"]`` as three names."""
    return tuple(name for text in given or () for name in text.split(",") if name) or None


def build_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `ridgeline.build` from the options of a command, without those the user left alone."""
    read = {
        "profiles": parse_profiles(given["shapes"], given.get("profile")),
        "tune_at": given["tune_at"],
        "timing_cache": given["cache"],
        "without": parse_without(given["without"]),
        "limits": parse_limits(given["limit"]),
        "keep": tuple(given.get("keep") or ()) or None,
        "metric": read_metric(given.get("metric")),
    }
    same = (
        "threads", "level", "time_limit", "verify", "pad", "target", "lock", "data", "deterministic",
        "precision", "budget", "io",
    )  # fmt: skip
    options = read | {name: given.get(name) for name in same}
    return {name: value for name, value in options.items() if value is not None and value is not False}


def refuse_build_options(path: Path, options: Mapping[str, Any], *, planned_threads: int) -> None:
    """Raise if build options were given beside an engine file. Limits hold for one call and are allowed."""
    given = [name for name in options if name not in ("limits", "threads")]
    if given:
        flags = [_FLAGS.get(name, f"--{name}") for name in given]
        raise OptionError(
            f"{path} is built already, and {', '.join(flags)} can only be given to a build",
            help=f"ridge build MODEL {flags[0]} …, or name the ONNX file here",
        )
    threads = options.get("threads")
    if threads is not None and threads != planned_threads:
        raise OptionError(
            f"{path} was planned for {planned_threads} thread{'s' if planned_threads != 1 else ''}",
            got=f"--threads {threads}",
            help=f"ridge build MODEL --threads {threads}",
        )


def parse_names(text: str, *, option: str, known: Sequence[str]) -> tuple[str, ...]:
    """Read ``ort,torch`` as names. Each must be known and counts once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known:
            raise OptionError(
                f"{option} has no {name!r}", want=", ".join(known), help=did_you_mean(name, known)
            )
    return names


def parse_pairs(given: Sequence[str], *, option: str, example: str) -> dict[str, str]:
    """``["x=1"]`` as ``{"x": "1"}``, each name once."""
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise OptionError(f"{option} does not read as NAME=VALUE", got=text, want=example)
        if name in pairs:
            raise OptionError(f"{option} names {name!r} twice", got=text)
        pairs[name] = value
    return pairs
