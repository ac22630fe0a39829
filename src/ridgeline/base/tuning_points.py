"""Points of a range that an engine is tuned at, as users name them: `N=1,8,32`, `x=1x3x8x8`, `min,max`.

Which sizes they stand for in a model is for `frontend/tuned_parts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias, cast, get_args

from ridgeline.errors import OptionError, did_you_mean

Corner: TypeAlias = Literal["min", "opt", "max"]
CORNERS: tuple[str, ...] = get_args(Corner)
MAX_POINTS = 256
WANTED = "min, max, or NAME=SIZE,SIZE, such as N=1,8,32 or x=1x3x224x224,8x3x224x224"


@dataclass(frozen=True)
class NamedPoint:
    """Sizes of dims, and shapes of inputs; what is not named is at the `opt` of its profile."""

    sizes: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        return " ".join(f"{name}={'x'.join(map(str, sizes))}" for name, sizes in self.sizes)


Point: TypeAlias = Corner | NamedPoint


def parse_points(given: Any) -> tuple[Point, ...]:
    """Points as text, as a mapping of names to lists of sizes, or as a list of such."""
    listed = [given] if isinstance(given, (str, Mapping)) else given
    if not isinstance(listed, (list, tuple)):
        raise OptionError("tune_at is not a list of points", got=repr(given), want=WANTED)
    points: dict[Point, None] = {}
    for point in (point for each in listed for point in _points(each)):
        if isinstance(point, NamedPoint) and point in points:
            raise OptionError("tune_at names a point twice", got=str(point))
        points[point] = None
        if len(points) > MAX_POINTS:
            raise OptionError(
                "tune_at names too many points: each is a plan of its own",
                got=f"more than {MAX_POINTS}",
                want=f"at most {MAX_POINTS}",
            )
    return tuple(points)


def _points(given: Any) -> Iterator[Point]:
    if isinstance(given, Mapping):
        yield from _combined(given)
    elif isinstance(given, NamedPoint) or given in CORNERS:
        yield cast("Point", given)
    elif isinstance(given, str) and given.strip():
        words = given.split()
        for name in (name for word in words if "=" not in word for name in word.split(",")):
            if name not in CORNERS:
                raise OptionError(
                    f"tune_at does not know {name!r}", want=WANTED, help=did_you_mean(name, CORNERS)
                )
            yield cast("Corner", name)
        named = [word.partition("=") for word in words if "=" in word]
        names = [name for name, _, _ in named]
        for name in names:
            if names.count(name) > 1:
                raise OptionError(f"tune_at names {name!r} twice in one point", got=given, want=WANTED)
        if named:
            yield from _combined({name: sizes.split(",") for name, _, sizes in named})
    else:
        raise OptionError("tune_at does not read as points", got=repr(given), want=WANTED)


def _combined(given: Mapping[Any, Any]) -> Iterator[NamedPoint]:
    """Every combination of the sizes that each name has."""
    listed = [[(name, sizes) for sizes in _each_size(name, value)] for name, value in given.items()]
    yield from (NamedPoint(tuple(pairs)) for pairs in product(*listed))


def _each_size(name: Any, given: Any) -> list[tuple[int, ...]]:
    """One number or shape, or several: `8`, `[1, 8]`, `["1x3", (8, 3)]`."""
    several: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    made = [_sizes(each) for each in several]
    sizes = [each for each in made if each]
    if not isinstance(name, str) or not name or not sizes or len(sizes) < len(made):
        raise OptionError("tune_at does not read as points", got=f"{name}={given}", want=WANTED)
    return sizes


def _sizes(given: Any) -> tuple[int, ...]:
    """Empty for what is neither a size nor a shape."""
    parts = given.split("x") if isinstance(given, str) else given
    parts = parts if isinstance(parts, (list, tuple)) else [parts]
    try:
        sizes = tuple(int(part) for part in parts if not isinstance(part, (bool, float)))
    except (TypeError, ValueError):
        return ()
    return sizes if len(sizes) == len(parts) and all(size >= 0 for size in sizes) else ()
