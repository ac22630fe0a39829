"""What a build may be asked for. One frozen value, checked when it is made; a typo is an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from ridgeline.errors import OptionError, did_you_mean

Verify: TypeAlias = Literal["off", "fast", "full"]
# progress(stage, done, total, detail): called as work gets done; total is 0 while it is not yet known
Progress: TypeAlias = Callable[[str, int, int, str], None]

VERIFY_MODES = ("off", "fast", "full")
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
# `cuda` alone is the GPU of this machine; with an architecture it need not be here
TARGETS = ("cpu", "cuda", *(f"cuda:{arch}" for arch in ARCHITECTURES))
PRECISIONS = ("fp32",)
MAX_LEVEL = 5
MAX_THREADS = 1024
MAX_DIM = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DimRange:
    """The sizes one dimension may take, and the one tactics are chosen for."""

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if self.max > MAX_DIM:
            raise OptionError("a dimension is too large", got=str(self.max), want=f"at most {MAX_DIM:,}")
        if not 0 <= self.min <= self.opt <= self.max:
            raise OptionError(
                "a dimension range is out of order",
                got=f"min {self.min}, opt {self.opt}, max {self.max}",
                want="0 <= min <= opt <= max",
            )

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}..{self.opt}..{self.max}"


# input name -> one range per dimension
Profile: TypeAlias = Mapping[str, tuple[DimRange, ...]]


@dataclass(frozen=True)
class Options:
    """Every keyword of `ridgeline.build`."""

    target: str = "cpu"
    profiles: Profile = field(default_factory=dict)
    precision: str = "fp32"
    level: int = 3
    timing_cache: Path | None = None
    lock: Path | None = None
    verify: Verify = "full"
    deterministic: bool = False
    workspace_bytes: int | None = None  # the most that tactics may keep in packed copies of weights
    progress: Progress | None = None
    threads: int = 0  # 0: as many as the machine has cores
    without: tuple[str, ...] = ()  # tactics (by name or family) that must not be used
    data: Path | None = None  # folder of .npz files to verify with, besides random inputs

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
                want=" or ".join(PRECISIONS),
            )
        if self.progress is not None and not callable(self.progress):
            raise OptionError(
                "progress is not a function",
                got=repr(self.progress),
                want="progress(stage: str, done: int, total: int, detail: str)",
            )
        if not isinstance(self.deterministic, bool):
            raise OptionError("deterministic is not True or False", got=repr(self.deterministic))
        for name in ("level", "threads", "workspace_bytes"):
            value = getattr(self, name)
            if not (isinstance(value, int) and not isinstance(value, bool)) and value is not None:
                raise OptionError(f"{name} is not a whole number", got=repr(value))
        if self.threads > MAX_THREADS:
            raise OptionError("threads is out of range", got=str(self.threads), want=f"0 to {MAX_THREADS}")
        if not 0 <= self.level <= MAX_LEVEL:
            raise OptionError("level is out of range", got=str(self.level), want=f"0 to {MAX_LEVEL}")
        if self.verify not in VERIFY_MODES:
            raise OptionError(
                f"verify={self.verify!r} is not a mode",
                want=", ".join(VERIFY_MODES),
                help=did_you_mean(str(self.verify), VERIFY_MODES),
            )
        if self.threads < 0:
            raise OptionError("threads is negative", got=str(self.threads), want="0 (all cores) or more")
        if self.workspace_bytes is not None and self.workspace_bytes < 0:
            raise OptionError("workspace_bytes is negative", got=str(self.workspace_bytes), want="0 or more")

    @property
    def cores(self) -> int:
        return self.threads or available_cores()

    def tell(self, stage: str, done: int, total: int, detail: str = "") -> None:
        if self.progress is not None:
            self.progress(stage, done, total, detail)


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
    for name in ("timing_cache", "lock", "data"):
        if name in values:
            if not isinstance(values[name], (str, os.PathLike)):
                raise OptionError(f"{name} is not a path", got=repr(values[name]))
            values[name] = Path(values[name])
    if "without" in values:
        without = values["without"]
        names = without.split(",") if isinstance(without, str) else without
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
            raise OptionError("without is not a list of tactics", got=repr(without), want='("ort", "cpp")')
        values["without"] = tuple(names)
    return Options(**values)


def parse_profiles(given: Mapping[str, str | Sequence[int | str | DimRange | Sequence[int]]]) -> Profile:
    """``{"x": "1..8x3x224x224"}`` or ``{"x": [(1, 4, 8), 3, 224, 224]}`` as ranges."""
    if not isinstance(given, Mapping):
        raise OptionError(
            "profiles is not a mapping",
            got=type(given).__name__,
            want='{"input": "1..8x3x224x224"}',
        )
    parsed = {}
    for name, shape in given.items():
        if not isinstance(shape, (str, list, tuple)):
            raise OptionError(f"the shape given for {name!r} does not read as one", got=repr(shape))
        dims: Sequence[object] = [d for d in shape.split("x") if d] if isinstance(shape, str) else shape
        parsed[name] = tuple(_parse_dim(dim, name) for dim in dims)
    return parsed


def _parse_dim(dim: object, name: str) -> DimRange:
    if isinstance(dim, DimRange):
        return dim
    try:
        if isinstance(dim, (str, int)):
            numbers = [int(part) for part in str(dim).split("..")]
        else:
            numbers = [int(part) for part in cast("Sequence[int]", dim)]
    except (TypeError, ValueError):
        numbers = []
    match numbers:
        case [size]:
            return DimRange(size, size, size)
        case [low, high]:
            return DimRange(low, (low + high) // 2, high)
        case [low, opt, high]:
            return DimRange(low, opt, high)
    raise OptionError(
        f"the shape given for {name!r} does not read as one",
        got=str(dim),
        want="a size, min..max, or min..opt..max per dimension, such as 1..8x3x224x224",
    )
