"""Inputs that fit no profile, run at the shapes of a larger one: last rows repeated, results cut again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import InputError, OptionError, first_line
from ridgeline.options import DimRange
from ridgeline.passes.padding import padded_axes
from ridgeline.passes.padding_rules import Forbidden
from ridgeline.plan.plan import Plan
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.io import AnyBinding
from ridgeline.runtime.signature import Signature

Cut = tuple[int, int]  # axis, real size


def pad_to_profile(
    inference: Inference,
    signature: Signature,
    specs: Mapping[str, TensorSpec],
) -> tuple[dict[str, TensorSpec], dict[str, Cut | None]]:
    """The smallest larger shapes that some profile takes, and where each output is cut; or the refusal."""
    larger = [made for bounds in signature.bounds if (made := bounds.padded(specs)) is not None]
    larger = [made for made in larger if signature.find(made) is not None and not signature.broken(made)]
    if not larger:
        signature.require(specs, "no profile has room for them")
        raise InputError("no profile has room for these inputs")
    chosen = min(larger, key=lambda made: sum(math.prod(spec.shape) for spec in made.values()))
    try:
        return chosen, why_or_cuts(inference, specs, chosen)
    except Forbidden as error:
        signature.require(specs, str(error))
        raise InputError("these inputs cannot be padded", got=str(error)) from error


def why_or_cuts(
    inference: Inference,
    real: Mapping[str, TensorSpec],
    padded: Mapping[str, TensorSpec],
) -> dict[str, Cut | None]:
    """Where each output ends when padding is cut off; `Forbidden` where padding would change results."""
    at_real = inference.at(real)
    axes = padded_axes(inference.program, at_real, inference.at(padded))
    return {
        name: None if axis is None else (axis, at_real.specs[name].shape[axis]) for name, axis in axes.items()
    }


def require_paddable(inference: Inference, plans: Sequence[Plan]) -> None:
    """Refuse at build time, with the op that forbids it, padding along a dim of which profiles differ.

    With one size for every dim it is enough that one of them can be padded.
    """
    if not plans[0].pads:
        return
    dims = dict.fromkeys(dim for port in plans[0].inputs for dim in port.dims or () if isinstance(dim, str))
    moving = [dim for dim in dims if len({_range_of(plan, dim) for plan in plans}) > 1]
    asked = {dim: _why_not(inference, plans, dim) for dim in moving or dims}
    refused = {dim: why for dim, why in asked.items() if why}
    if refused and (moving or "" not in asked.values()):
        raise OptionError(
            f"padding along {next(iter(refused))!r} would change results",
            rows=[f"{dim}: {why}" for dim, why in refused.items()],
            want="ops that keep rows apart from the input to the output",
            help="give that dim a range instead of fixed sizes, or leave out --pad",
        )


def shapes_to_pad(plans: Sequence[Plan], signature: Signature) -> Iterator[tuple[str, dict[str, TensorSpec]]]:
    """For every profile and dim: inputs one row short of it, which no profile takes as they are."""
    for plan in plans if plans[0].pads else ():
        dims = dict.fromkeys(d for port in plan.inputs for d in port.dims or () if isinstance(d, str))
        for dim in dims:
            smaller = _one_less(plan, dim)
            if smaller is not None and signature.find(smaller) is None:
                yield dim, smaller


def _range_of(plan: Plan, dim: str) -> DimRange | None:
    pairs = ((port.dims or (), plan.profile.get(port.name, ())) for port in plan.inputs)
    return next((r for dims, ranges in pairs for d, r in zip(dims, ranges, strict=False) if d == dim), None)


def _why_not(inference: Inference, plans: Sequence[Plan], dim: str) -> str | None:
    """The op that forbids padding along a dim; "" where none does, None where no size is left out."""
    found: str | None = None
    for plan in plans:
        smaller = _one_less(plan, dim)
        if smaller is None:
            continue
        try:
            why_or_cuts(inference, smaller, plan.planned_shapes)
        except (Forbidden, InputError) as error:
            return first_line(error)
        found = ""
    return found


def _one_less(plan: Plan, dim: str) -> dict[str, TensorSpec] | None:
    """Planned inputs, along a dim one row short of the profile; None where it leaves no such inputs out."""
    made, is_left_out = {}, False
    for port in plan.inputs:
        spec = plan.planned_shapes[port.name]
        ranges = plan.profile.get(port.name, ())
        shape = list(spec.shape)
        for axis, (own, bound) in enumerate(zip(port.dims or (), ranges, strict=False)):
            if own == dim and bound.min > 1:
                is_left_out = True
                shape[axis] = bound.min - 1
        made[port.name] = replace(spec, shape=tuple(shape))
    return made if is_left_out else None


class PaddedBorder:
    """Between a caller with small inputs and an instance at the shapes of a profile."""

    def __init__(
        self,
        inner: AnyBinding,
        specs: Mapping[str, TensorSpec],
        larger: Mapping[str, TensorSpec],
        cuts: Mapping[str, Cut | None],
    ) -> None:
        self._inner, self._cuts = inner, dict(cuts)
        self._specs = dict(specs)
        self._pads = {name: _pad_of(specs[name].shape, larger[name].shape) for name in specs}

    @property
    def instance(self) -> Instance:
        return self._inner.instance

    def run(self, feeds: Mapping[str, Any], execute: Callable[[Instance], object]) -> dict[str, Any] | None:
        if feeds.__class__ is not dict or len(feeds) != len(self._specs):
            return None
        for name, spec in self._specs.items():
            array = feeds.get(name)
            if array.__class__ is not np.ndarray or array.shape != spec.shape:
                return None
        padded = {name: _repeated(feeds[name], pad) for name, pad in self._pads.items()}
        made = self._inner.run(padded, execute)
        return None if made is None else {name: _cut(made[name], self._cuts[name]) for name in made}

    def run_tensors(self, arrays: Sequence[Any], execute: Callable[[Instance], object]) -> dict[str, Tensor]:
        made = self._inner.run_tensors(self._padded(arrays), execute)
        return {name: _cut(made[name], self._cuts[name]) for name in made}

    def load(self, arrays: Sequence[Any]) -> None:
        self._inner.load(self._padded(arrays))

    def _padded(self, arrays: Sequence[Any]) -> list[Any]:
        return [_repeated(array, pad) for array, pad in zip(arrays, self._pads.values(), strict=True)]


def _pad_of(real: Sequence[int], padded: Sequence[int]) -> Cut | None:
    """The axis to pad, and by how many rows."""
    changed = [(axis, b - a) for axis, (a, b) in enumerate(zip(real, padded, strict=True)) if a != b]
    return changed[0] if changed else None


def _repeated(array: Any, pad: Cut | None) -> Any:
    """With its last row repeated: a padded row is then a real one, and goes wherever that goes."""
    if pad is None:
        return array
    axis, more = pad
    if isinstance(array, Tensor):
        last = array.narrow(axis, array.shape[axis] - 1, 1)
        return torch.cat([array, last.expand(*array.shape[:axis], more, *array.shape[axis + 1 :])], axis)
    last = array[(slice(None),) * axis + (slice(-1, None),)]
    return np.concatenate([array, np.repeat(last, more, axis)], axis)


def _cut(result: Any, cut: Cut | None) -> Any:
    if cut is None:
        return result
    axis, size = cut
    kept = result[(slice(None),) * axis + (slice(0, size),)]
    return kept.contiguous() if isinstance(kept, Tensor) else np.ascontiguousarray(kept)
