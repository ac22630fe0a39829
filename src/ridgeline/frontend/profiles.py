"""Profiles against a model's inputs: dims by name, one size per name, values of shape tensors."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from ridgeline.base.grouping import grouped
from ridgeline.base.spec import Port, TensorSpec
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.options import DimRange, Profile, Ranges, ValueRange, Values


@dataclass(frozen=True)
class Resolved:
    """A profile for the inputs of a model: the ranges of every input and of every named dim."""

    shapes: dict[str, Ranges] = field(default_factory=dict)
    values: dict[str, Values] = field(default_factory=dict)  # of shape tensors
    symbols: dict[str, DimRange] = field(default_factory=dict)


def resolve_profile(inputs: Sequence[Port], profile: Profile) -> Resolved:
    """Check a profile, and apply the range of a named dim to all inputs that have it."""
    known = {port.name: port for port in inputs}
    dims = [dim for port in inputs for dim in port.dims or () if isinstance(dim, str)]
    made = Resolved()
    origin: dict[str, str] = {}
    for name, ranges in profile.items():
        if name in known and _are_values(ranges):
            made.values[name] = _checked_values(known[name], cast("Values", ranges))
        elif name in known:
            _take_shape(made, origin, known[name], cast("Ranges", ranges))
        elif name in dims and len(ranges) == 1 and not _are_values(ranges):
            _agree(made, origin, name, cast("Ranges", ranges)[0], name)
        else:
            names = [*known, *dict.fromkeys(dims)]
            raise OptionError(f"the model has no input {name!r}", help=did_you_mean(name, names))
    for port in inputs if made.symbols else ():
        if port.name not in made.shapes and port.dims is not None:
            _apply_named_dims(made, port, port.dims)
    return made


def with_own_names(inputs: Sequence[Port], profiles: Sequence[Profile]) -> tuple[Port, ...]:
    """Give dims that share a name but have several sizes a name each.

    Exporters write one name for all dims they do not know; only exact sizes tell, ranges may be a slip.
    """
    misused: set[str] = set()
    for profile in profiles:
        given: list[tuple[int | str, DimRange]] = []
        for port in inputs:
            ranges = profile.get(port.name, ())
            if port.dims is not None and len(ranges) == len(port.dims) and not _are_values(ranges):
                given += zip(port.dims, cast("Ranges", ranges), strict=True)
        for dim, found in grouped(given).items():
            if all(r.min == r.max for r in found) and len(set(found)) > 1:
                misused.add(str(dim))
    return _apart(inputs, misused)


def with_names_that_fit(inputs: Sequence[Port], shapes: Mapping[str, TensorSpec]) -> tuple[Port, ...]:
    """As `with_own_names`, for shapes that were found."""
    known = (port for port in inputs if port.name in shapes and port.dims is not None)
    found = grouped(p for port in known for p in zip(port.dims or (), shapes[port.name].shape, strict=True))
    return _apart(inputs, {str(dim) for dim, sizes in found.items() if len(set(sizes)) > 1})


def _apart(inputs: Sequence[Port], misused: Collection[str]) -> tuple[Port, ...]:
    return tuple(
        port
        if port.dims is None
        else replace(
            port, dims=tuple(f"{port.name}.{i}" if dim in misused else dim for i, dim in enumerate(port.dims))
        )
        for port in inputs
    )


def dims_of(port: Port, rank: int) -> Sequence[int | str]:
    """The dims of an input. One that the model gives none has names of its own for its axes."""
    return [f"{port.name}.{axis}" for axis in range(rank)] if port.dims is None else port.dims


def _are_values(ranges: Ranges | Values) -> bool:
    return bool(ranges) and isinstance(ranges[0], ValueRange)


def _take_shape(made: Resolved, origin: dict[str, str], port: Port, ranges: Ranges) -> None:
    dims = dims_of(port, len(ranges))
    fits = len(ranges) == len(dims) and all(
        isinstance(dim, str) or r.min == dim == r.max for r, dim in zip(ranges, dims, strict=True)
    )
    if not fits:
        raise OptionError(
            f"the shape given for input {port.name!r} does not fit the model",
            got="x".join(map(str, ranges)),
            want=str(port),
        )
    for dim, size in zip(dims, ranges, strict=True):
        if isinstance(dim, str):
            _agree(made, origin, dim, size, port.name)
    made.shapes[port.name] = ranges


def _agree(made: Resolved, origin: dict[str, str], dim: str, size: DimRange, where: str) -> None:
    """Raise if one name has two ranges."""
    other = made.symbols.setdefault(dim, size)
    if other != size:
        raise OptionError(
            f"dim {dim!r} is given two ranges",
            rows=[f"{origin[dim]}: {other}", f"{where}: {size}"],
            want="one range: inputs that share a dim share its size",
            help=f"name the dim once: --shapes {dim}={size}",
        )
    origin.setdefault(dim, where)


def _apply_named_dims(made: Resolved, port: Port, dims: Sequence[int | str]) -> None:
    ranges = [DimRange(d, d, d) if isinstance(d, int) else made.symbols.get(d) for d in dims]
    if any(isinstance(dim, str) for dim in dims) and None not in ranges:
        made.shapes[port.name] = tuple(r for r in ranges if r is not None)


def _checked_values(port: Port, values: Values) -> Values:
    is_short_list = port.dims is not None and len(port.dims) <= 1 and "int" in port.dtype
    wanted = port.dims[0] if is_short_list and port.dims else 1
    if not is_short_list or (isinstance(wanted, int) and wanted != len(values)):
        raise OptionError(
            f"values are given for input {port.name!r}, which does not take them",
            got=f"[{', '.join(map(str, values))}]",
            want=f"{port}: values are for lists of whole numbers with one axis at most",
        )
    return values


def profile_shapes(inputs: Sequence[Port], profile: Resolved, which: str) -> dict[str, TensorSpec] | None:
    """The inputs at the profile's ``min``, ``opt`` or ``max``; None if a dim has no size."""
    made = {}
    for port in inputs:
        sizes = _sizes(port, profile)
        if sizes is None:
            return None
        shape = tuple(size if isinstance(size, int) else int(getattr(size, which)) for size in sizes)
        made[port.name] = TensorSpec(port.dtype, shape)
    return with_values(made, profile, which)


def _sizes(port: Port, profile: Resolved) -> Sequence[int | DimRange] | None:
    if port.name in profile.shapes:
        return profile.shapes[port.name]
    if port.dims is None:
        return None
    dims: Sequence[int | str] = port.dims
    if port.name in profile.values and len(dims) == 1:
        dims = (len(profile.values[port.name]),)
    sizes = [dim if isinstance(dim, int) else profile.symbols.get(dim) for dim in dims]
    return None if None in sizes else [size for size in sizes if size is not None]


def with_values(specs: Mapping[str, TensorSpec], profile: Resolved, which: str) -> dict[str, TensorSpec]:
    """Specs that carry the values of shape tensors, where the profile gives them."""
    made = dict(specs)
    for name, values in profile.values.items():
        made[name] = replace(made[name], value=tuple(int(getattr(v, which)) for v in values))
    return made


def shapes_text(shapes: Mapping[str, TensorSpec]) -> str:
    """``x=1x4 sizes=[2, 3]``: inputs without axes and without values are left out."""
    return " ".join(_pairs(shapes))


def shapes_flags(shapes: Mapping[str, TensorSpec]) -> str:
    """The shapes as `--shapes` options."""
    return " ".join(f"--shapes {shlex.quote(pair)}" for pair in _pairs(shapes))


def _pairs(shapes: Mapping[str, TensorSpec]) -> list[str]:
    return [
        f"{name}=[{', '.join(map(str, spec.value))}]"
        if spec.value
        else f"{name}={'x'.join(map(str, spec.shape))}"
        for name, spec in shapes.items()
        if spec.value or spec.shape
    ]
