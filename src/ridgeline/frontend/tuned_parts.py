"""The points that a profile is tuned at, and the part of its range that the plan of each point takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ridgeline.base.spec import Port
from ridgeline.base.tuning_points import NamedPoint, Point
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.frontend.profiles import Resolved, dims_of, profile_shapes
from ridgeline.options import DimRange

Sizes = dict[str, int]  # of dims, by name


def tuned_parts(
    inputs: Sequence[Port],
    profiles: Sequence[Resolved],
    asked: Sequence[Point] | None,
    usual: Sequence[Point],
    why_not: Callable[[Resolved], Sequence[str]],
) -> list[list[Resolved]]:
    """The parts of every profile, the one tuned at `opt` first; one that is all of it where nothing moves.

    `usual` points are for profiles that give every input its sizes, where nobody asked for any. `why_not`
    says what forbids the sizes that a part is tuned at: an error if they were asked for, else they are left
    out.
    """
    if asked is None:
        return [_usual_parts(inputs, profile, usual, why_not) for profile in profiles]
    if any(point != "opt" for point in asked) and not any(_moving(profile) for profile in profiles):
        raise OptionError(
            "there is no range of sizes to tune in",
            got=f"tune_at {', '.join(map(str, asked))}",
            help="give a dim a range: --shapes x=1..8..32x3x224x224",
        )
    named = {point: _named_sizes(inputs, point) for point in asked if isinstance(point, NamedPoint)}
    for point, sizes in named.items():
        if not any(_holds(profile, sizes) for profile in profiles):
            raise _outside(point, sizes, profiles)
    made = [_parts(inputs, profile, asked, named) for profile in profiles]
    for part in (part for _, *further in made for part in further):
        if rows := why_not(part):
            raise OptionError(
                "the model cannot be tuned at sizes that tune_at names",
                rows=rows,
                got=" ".join(f"{name}={sizes.opt}" for name, sizes in part.symbols.items()),
                help="leave the point out, or move the end of the range",
            )
    return made


def _usual_parts(
    inputs: Sequence[Port],
    profile: Resolved,
    points: Sequence[Point],
    why_not: Callable[[Resolved], Sequence[str]],
) -> list[Resolved]:
    tensors = [port for port in inputs if not port.is_non_tensor]
    is_whole = profile_shapes(tensors, profile, "opt") is not None
    kept = [
        point
        for point in points
        if is_whole and not any(why_not(part) for part in _parts(inputs, profile, [point], {})[1:])
    ]
    return _parts(inputs, profile, kept, {})


def _parts(
    inputs: Sequence[Port],
    profile: Resolved,
    points: Sequence[Point],
    named: Mapping[NamedPoint, Sizes],
) -> list[Resolved]:
    opt = _corner(profile, "opt")
    found = {_key(opt): (opt, "opt")}  # sizes, and which of the values of shape tensors
    taken: dict[tuple[int, ...], NamedPoint] = {}
    for point in points:
        if not isinstance(point, NamedPoint):
            found.setdefault(_key(sizes := _corner(profile, point)), (sizes, point))
        elif _holds(profile, named[point]):
            key = _key(sizes := opt | named[point])
            if key in taken:
                raise OptionError(
                    "tune_at names a point twice", rows=[f"{taken[key]}: as {point}"], got=str(point)
                )
            taken[key] = point
            found.setdefault(key, (sizes, "opt"))
    if len(found) == 1 or not _moving(profile):
        return [profile]
    first, *others = found
    ranges = _ranges(profile, sorted(found))
    return [_part(inputs, profile, ranges[key], found[key][1]) for key in (first, *sorted(others))]


def _ranges(
    profile: Resolved, points: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], dict[str, DimRange]]:
    """Every dim's range in the part of each point: split where one dim moves, else the whole."""
    names = list(profile.symbols)
    moving = _moving(profile)
    made = {
        point: {
            name: replace(profile.symbols[name], opt=size) for name, size in zip(names, point, strict=True)
        }
        for point in points
    }
    if len(moving) > 1 or any(v.min < v.max for values in profile.values.values() for v in values):
        return made
    (name,) = moving
    sizes = [made[point][name].opt for point in points]
    ends = [math.isqrt(a * b) for a, b in pairwise(sizes)]
    whole = profile.symbols[name]
    starts = [whole.min, *(end + 1 for end in ends)]
    for point, low, size, high in zip(points, starts, sizes, [*ends, whole.max], strict=True):
        made[point][name] = DimRange(low, size, high)
    return made


def _part(
    inputs: Sequence[Port], profile: Resolved, ranges: Mapping[str, DimRange], values_at: str
) -> Resolved:
    known = {port.name: port for port in inputs}
    shapes = {}
    for name, old in profile.shapes.items():
        dims = dims_of(known[name], len(old))
        shapes[name] = tuple(
            ranges.get(dim, r) if isinstance(dim, str) else r for dim, r in zip(dims, old, strict=True)
        )
    values = {
        name: tuple(replace(v, opt=getattr(v, values_at)) for v in each)
        for name, each in profile.values.items()
    }
    return Resolved(shapes, values, {**profile.symbols, **ranges})


def _named_sizes(inputs: Sequence[Port], point: NamedPoint) -> Sizes:
    """The sizes of dims that a point names, itself or by the shape of an input."""
    known = {port.name: port for port in inputs}
    dims = list(dict.fromkeys(dim for port in inputs for dim in port.dims or () if isinstance(dim, str)))
    found: Sizes = {}
    for name, sizes in point.sizes:
        if name in known:
            pairs = _of_shape(known[name], sizes)
        elif name in dims and len(sizes) == 1:
            pairs = {name: sizes[0]}
        elif name in dims:
            raise OptionError(f"{name!r} is one dim", got=str(point), want=f"a size, such as {name}=8")
        else:
            raise OptionError(
                f"tune_at names {name!r}, which the model does not have",
                got=str(point),
                want="the name of a dim or of an input",
                help=did_you_mean(name, [*dims, *known]),
            )
        for dim, size in pairs.items():
            if found.setdefault(dim, size) != size:
                raise OptionError(
                    f"dim {dim!r} has two sizes in one point", got=str(point), want="one size for each dim"
                )
    return found


def _of_shape(port: Port, sizes: Sequence[int]) -> Sizes:
    dims = dims_of(port, len(sizes))
    fits = len(dims) == len(sizes) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(dims, sizes, strict=True)
    )
    pairs = [pair for pair in zip(dims, sizes, strict=False) if isinstance(pair[0], str)]
    made = {str(dim): size for dim, size in pairs}
    if not fits or any(made[str(dim)] != size for dim, size in pairs):
        raise OptionError(
            f"the point given for input {port.name!r} does not fit the model",
            got="x".join(map(str, sizes)),
            want=str(port),
            help=f"a shape, such as {port.name}=1x3x224x224; a dim by itself by its name, such as N=8",
        )
    return made


def _outside(point: NamedPoint, sizes: Sizes, profiles: Sequence[Resolved]) -> OptionError:
    def wanted(profile: Resolved) -> str:
        ranges = {dim: profile.symbols.get(dim) for dim in sizes}
        return " ".join(
            f"{dim}=any size: it has no range" if r is None else f"{dim}={r}" for dim, r in ranges.items()
        )

    which = [wanted(profile) for profile in profiles]
    return OptionError(
        f"tune_at names the point {point}, which no profile holds",
        got=" ".join(f"{dim}={size}" for dim, size in sizes.items()),
        want=" or ".join(dict.fromkeys(which)),
        help="widen the range (--shapes), or leave the point out",
    )


def _holds(profile: Resolved, sizes: Sizes) -> bool:
    ranges = profile.symbols
    return all(dim in ranges and ranges[dim].min <= size <= ranges[dim].max for dim, size in sizes.items())


def _moving(profile: Resolved) -> list[str]:
    return [name for name, sizes in profile.symbols.items() if sizes.min < sizes.max]


def _corner(profile: Resolved, which: str) -> Sizes:
    return {name: int(getattr(sizes, which)) for name, sizes in profile.symbols.items()}


def _key(sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes.values())
