"""What a build may be asked for. One frozen value, checked when it is made; a typo is an error."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

from ridgeline.base.files import path_given
from ridgeline.base.progress import Progress
from ridgeline.base.spec import TF32, TRAITS
from ridgeline.base.tuning_points import Point, parse_points
from ridgeline.errors import OptionError, did_you_mean

logger = logging.getLogger("ridgeline.build")

NewShapes: TypeAlias = Literal["serve", "wait"]
Verify: TypeAlias = Literal["off", "fast", "full"]

VERIFY_MODES = ("off", "fast", "full")
# of no machine: every machine makes the same plan for them, and runs it nowhere
NULL_TARGETS = ("null", "null:sm_90")
# `cuda` alone is the GPU of this machine; with an architecture it need not be here
TARGETS = (
    *TRAITS,
    *(f"{kind}:{arch}" for kind, traits in TRAITS.items() for arch in traits.architectures),
    *NULL_TARGETS,
)
QUANTISED = ("int8", "uint8", "fp8", "w8", "wfp8", "w4", "nvfp4", "mxfp8")
PRECISIONS = ("typed", "fp32", TF32, "fp16", "bf16", "auto", *QUANTISED)
HALF_PORTS = ("fp16", "bf16")
DEFAULT_BUDGET, QUANTISED_BUDGET = 1e-2, 5e-2
MAX_LEVEL = 5
ENDS_FROM_LEVEL = 4  # profiles are tuned at both ends as well, if nothing else is said
MAX_THREADS = 1024
MAX_DIM = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Range:
    min: int
    opt: int
    max: int

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}..{self.opt}..{self.max}"


@dataclass(frozen=True, slots=True)
class DimRange(_Range):
    """The sizes one dimension may take, and the one tactics are chosen for."""

    def __post_init__(self) -> None:
        if self.max > MAX_DIM:
            raise OptionError("a dimension is too large", got=str(self.max), want=f"at most {MAX_DIM:,}")
        if not 0 <= self.min <= self.opt <= self.max:
            raise OptionError(
                "a dimension range is out of order",
                got=f"min {self.min}, opt {self.opt}, max {self.max}",
                want="0 <= min <= opt <= max",
            )


@dataclass(frozen=True, slots=True)
class ValueRange(_Range):
    """The numbers one element of a shape tensor may take; -1 may be among them, as Reshape has it."""

    def __post_init__(self) -> None:
        if not self.min <= self.opt <= self.max:
            raise OptionError(
                "a range of values is out of order",
                got=f"min {self.min}, opt {self.opt}, max {self.max}",
                want="min <= opt <= max",
            )


R = TypeVar("R", DimRange, ValueRange)
Ranges: TypeAlias = tuple[DimRange, ...]
Values: TypeAlias = tuple[ValueRange, ...]
# an input's name -> one range per dimension, or per element of a shape tensor; a dim's name -> its range
Profile: TypeAlias = Mapping[str, Ranges | Values]


@cache
def machine_bytes() -> int:
    """Memory this process may use: the machine's, or what its container is given."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        given = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return total
    return min(total, int(given)) if given.isdigit() else total


@dataclass(frozen=True)
class Limits:
    """The most that a model may cost: what needs more is refused by name, before the cost is paid.

    An engine file holds none of these, so that a stranger's cannot raise them: `load` takes its own.
    """

    inlined_nodes: int = 100_000  # nodes once all functions of the model are written out
    loop_trips: int = 100_000  # of one loop, with those of the loops inside it
    folded_bytes: int = 4 << 30  # made of constants beforehand; what is beyond it is made in every run
    # one value, or all memory of an engine at one set of shapes; verification holds several copies of a value
    planned_bytes: int = field(default_factory=lambda: machine_bytes() // 4)

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"limit {name!r} is not a whole number above 0", got=repr(value))


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Options:
    """Every keyword of `ridgeline.build`."""

    target: str = "cpu"
    profiles: tuple[Profile, ...] = ()  # none: shapes are guessed, and any that the model takes may come
    tune_at: tuple[Point, ...] | None = None  # points of profiles besides `opt`; None: by the level
    precision: str = "typed"  # as the model has it
    level: int = 3
    timing_cache: Path | None = None
    lock: Path | None = None
    time_limit: float | None = None  # seconds that a build should take; None: as the target has it
    verify: Verify = "full"
    deterministic: bool = False
    workspace_bytes: int | None = None  # the most that tactics may keep in packed copies of weights
    progress: Progress | Literal[False] | None = (
        None  # None: a line on a terminal, else the log; False: silence
    )
    threads: int = 0  # 0: as many as the machine has cores
    without: tuple[str, ...] = ()  # tactics (by name or family) that must not be used
    new_shapes: NewShapes = "serve"  # at once, while kernels are compiled behind it; or wait for them
    pad: bool = False  # to the next profile, where that cannot change results
    fusion: bool = True  # False: every op is a step of its own, so that each value exists and can be compared
    # what to calibrate, judge and verify with, besides random inputs: a folder of .npz files, or a data set
    data: Any = None
    budget: float | None = None  # the error that lower precision may cause; None: the default
    keep: tuple[str, ...] = ()  # "fp32:*/norm*": nodes that stay, by name
    metric: Callable[..., float] | None = None  # in place of the relative L2 error
    io: str | None = None  # half ports; None: those of the model
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) or self.target not in TARGETS:
            raise OptionError(
                f"target {self.target!r} cannot be built for",
                want=", ".join(TARGETS),
                help=did_you_mean(str(self.target), TARGETS),
            )
        if self.precision not in PRECISIONS:
            raise OptionError(
                f"precision {self.precision!r} is not known on target {self.target!r}",
                want=", ".join(PRECISIONS),
                help=did_you_mean(str(self.precision), PRECISIONS),
            )
        self._check_budget()
        if self.progress not in (None, False) and not callable(self.progress):
            raise OptionError(
                "progress is not a function",
                got=repr(self.progress),
                want="progress(stage: str, done: int, total: int, detail: str), or False for silence",
            )
        for name in ("deterministic", "pad", "fusion"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is not True or False", got=repr(getattr(self, name)))
        if self.pad and not self.profiles:
            raise OptionError("there is no profile to pad to", help="give the sizes: --profile x=8x128")
        for name in ("level", "threads", "workspace_bytes"):
            value = getattr(self, name)
            if not (isinstance(value, int) and not isinstance(value, bool)) and value is not None:
                raise OptionError(f"{name} is not a whole number", got=repr(value))
        if self.threads > MAX_THREADS:
            raise OptionError("threads is out of range", got=str(self.threads), want=f"0 to {MAX_THREADS}")
        if not 0 <= self.level <= MAX_LEVEL:
            raise OptionError("level is out of range", got=str(self.level), want=f"0 to {MAX_LEVEL}")
        self._check_time_limit()
        if self.verify not in VERIFY_MODES:
            raise OptionError(
                f"verify={self.verify!r} is not a mode",
                want=", ".join(VERIFY_MODES),
                help=did_you_mean(str(self.verify), VERIFY_MODES),
            )
        if self.new_shapes not in ("serve", "wait"):
            raise OptionError(f"new_shapes={self.new_shapes!r} is not known", want="serve or wait")
        if self.threads < 0:
            raise OptionError("threads is negative", got=str(self.threads), want="0 (all cores) or more")
        if self.workspace_bytes is not None and self.workspace_bytes < 0:
            raise OptionError("workspace_bytes is negative", got=str(self.workspace_bytes), want="0 or more")

    def _check_time_limit(self) -> None:
        limit = self.time_limit
        if limit is None:
            return
        if not (_is_number(limit) and 0 < limit < float("inf")):
            raise OptionError(
                "time_limit is not a number of seconds above 0", got=repr(limit), want="60 for a minute"
            )
        if self.level == 0:
            raise OptionError(
                "at level 0 nothing is timed: there is no time to limit",
                help="leave --time-limit out, or raise --level",
            )

    def _check_budget(self) -> None:
        """What is said about precision fits together."""
        given = [name for name in ("budget", "keep", "metric", "io") if _is_given(getattr(self, name))]
        if given and self.precision == "typed":
            raise OptionError(
                f"{given[0]} is for models that are lowered",
                help=f"say to what: precision={HALF_PORTS[0]!r}, or --precision {HALF_PORTS[0]}",
            )
        if self.precision == "typed" and self.data is not None and not isinstance(self.data, Path):
            raise OptionError(
                "data is not a folder", got=type(self.data).__name__,
                want="a folder of .npz files; other data sets are for models that are lowered",
            )  # fmt: skip
        budget = self.budget
        if budget is not None and not (_is_number(budget) and 0 < budget < float("inf")):
            raise OptionError("budget is not a number above 0", got=repr(budget), want="0.01 for one percent")
        if self.metric is not None and not callable(self.metric):
            raise OptionError("metric is not a function", got=repr(self.metric))
        if self.metric is not None and budget is None:
            raise OptionError("a metric needs a budget", help="budget=… says how large its error may be")
        if self.io is not None and self.io not in HALF_PORTS:
            raise OptionError(f"io={self.io!r} is not known", want=" or ".join(HALF_PORTS))
        if self.io is not None and self.precision in ("fp32", TF32):
            raise OptionError(
                f"half ports do not go with precision {self.precision!r}", got=f"io={self.io!r}",
                help="leave io out: ports keep the types of the model",
            )  # fmt: skip
        for each in self.keep:
            kind, colon, pattern = each.partition(":") if isinstance(each, str) else ("", "", "")
            if colon and pattern and kind != "fp32":
                raise OptionError(
                    f"nodes cannot be kept in {kind!r}", got=repr(each), want=f"fp32:{pattern}",
                    help="fp32 is what nodes are kept in; the rest has the type of precision=",
                )  # fmt: skip
            if not colon or not pattern:
                raise OptionError("keep does not read as TYPE:PATTERN", got=repr(each), want="fp32:*/norm*")

    @property
    def budget_or_default(self) -> float:
        default = QUANTISED_BUDGET if self.precision in QUANTISED else DEFAULT_BUDGET
        return default if self.budget is None else self.budget

    @property
    def cores(self) -> int:
        return self.threads or available_cores()

    def tell(self, stage: str, done: int, total: int, detail: str = "") -> None:
        if not done:
            logger.info("%s%s", stage, f" of {total}" if total else "")
        if detail:
            logger.debug("%s: %s", stage, detail)
        if self.progress:
            self.progress(stage, done, total, detail)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_options(given: Mapping[str, Any]) -> Options:
    """Options from keywords as users write them: shapes as text, paths as str. Unknown names are errors."""
    known = [f.name for f in fields(Options)]
    for name in given:
        if name not in known:
            raise OptionError(f"build has no option {name!r}", help=did_you_mean(name, known))
    values = {k: v for k, v in given.items() if v is not None}
    if "profiles" in values:
        values["profiles"] = parse_profiles(values["profiles"])
    if "tune_at" in values:
        values["tune_at"] = parse_points(values["tune_at"])
    for name in ("timing_cache", "lock", "data"):
        if name in values and (name != "data" or isinstance(values[name], (str, Path))):
            values[name] = path_given(values[name], what=name)
    for name, what, want in (
        ("without", "tactics", '("ort", "cpp")'),
        ("keep", "patterns", '("fp32:*/norm*",)'),
    ):
        if name in values:
            names = values[name].split(",") if isinstance(values[name], str) else values[name]
            if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
                raise OptionError(f"{name} is not a list of {what}", got=repr(values[name]), want=want)
            values[name] = tuple(names)
    if "limits" in values:
        values["limits"] = make_limits(values["limits"])
    return Options(**values)


def make_limits(given: Any) -> Limits:
    """``{"loop_trips": 10**6}``: what is not named stays as it is."""
    if isinstance(given, Limits):
        return given
    if not isinstance(given, Mapping):
        raise OptionError("limits is not a mapping", got=repr(given), want='{"loop_trips": 1_000_000}')
    known = [f.name for f in fields(Limits)]
    for name in given:
        if name not in known:
            raise OptionError(f"there is no limit {name!r}", help=did_you_mean(str(name), known))
    return Limits(**given)


def parse_profiles(given: Any) -> tuple[Profile, ...]:
    """One profile or a list of them: ``{"x": "1..8x3x224x224"}`` or ``[{"x": "1x8"}, {"x": "2..9x8"}]``."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    return tuple(parse_profile(profile) for profile in listed if profile != {})


def parse_profile(given: Mapping[str, str | Sequence[int | str | DimRange | Sequence[int]]]) -> Profile:
    """Shapes as ``"1..8x3"`` or ``[(1, 4, 8), 3]``; the values of a shape tensor as ``"[1, 2..8]"``."""
    if not isinstance(given, Mapping):
        raise OptionError(
            "profiles is not a mapping",
            got=type(given).__name__,
            want='{"input": "1..8x3x224x224"}, or a list of such',
        )
    parsed: dict[str, Ranges | Values] = {}
    for name, shape in given.items():
        if not isinstance(name, str):
            raise OptionError("profiles names no input", got=repr(name), want='{"input": "1..8x3x224x224"}')
        if not isinstance(shape, (str, list, tuple)):
            raise OptionError(f"the shape given for {name!r} does not read as one", got=repr(shape))
        if isinstance(shape, str) and shape.strip().startswith("["):
            parsed[name] = _parse_values(shape, name)
            continue
        if shape and all(isinstance(dim, ValueRange) for dim in shape):
            parsed[name] = cast("Values", tuple(shape))
            continue
        dims: Sequence[object] = [d for d in shape.split("x") if d] if isinstance(shape, str) else shape
        parsed[name] = tuple(_parse_dim(dim, name) for dim in dims)
    return parsed


def _parse_values(text: str, name: str) -> Values:
    inside = text.strip().removeprefix("[").removesuffix("]")
    found = [_parse_range(ValueRange, part) for part in inside.split(",")]
    made = tuple(each for each in found if each is not None)
    if len(made) < len(found) or not text.strip().endswith("]"):
        raise OptionError(
            f"the values given for {name!r} do not read as such",
            got=text,
            want="a number, min..max, or min..opt..max per element, such as [1, 2..8, -1]",
        )
    return made


def _parse_dim(dim: object, name: str) -> DimRange:
    found = dim if isinstance(dim, DimRange) else _parse_range(DimRange, dim)
    if found is not None:
        return found
    raise OptionError(
        f"the shape given for {name!r} does not read as one",
        got=str(dim),
        want="a size, min..max, or min..opt..max per dimension, such as 1..8x3x224x224",
        help=f"the values of a shape tensor stand in brackets: '{name}=[{dim}]'" if "," in str(dim) else "",
    )


def _parse_range(kind: type[R], given: Any) -> R | None:
    """A number, min..max or min..opt..max; None for anything else."""
    try:
        parts = str(given).split("..") if isinstance(given, (str, int)) else given
        numbers = [int(part) for part in parts]
    except (TypeError, ValueError):
        return None
    if not 1 <= len(numbers) <= 3:
        return None
    low, high = numbers[0], numbers[-1]
    return kind(low, numbers[1] if len(numbers) == 3 else (low + high) // 2, high)


def _is_given(option: object) -> bool:
    return option is not None and not (isinstance(option, tuple) and not option)
