"""Which inputs may be padded to a larger profile, and where results are cut again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import InputError, OptionError, first_line
from ridgeline.options import DimRange
from ridgeline.passes.padding import padded_axes
from ridgeline.passes.padding_rules import Forbidden
from ridgeline.plan.plan import Plan
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.padded import Cut, NotPaddable
from ridgeline.runtime.signature import Signature


def padded_cuts(
    inference: Inference, real: Mapping[str, TensorSpec], padded: Mapping[str, TensorSpec]
) -> dict[str, Cut | None]:
    """Where each output ends when padding is cut off; `NotPaddable` where padding changes results."""
    at_real = inference.at(real)
    try:
        axes = padded_axes(inference.program, at_real, inference.at(padded))
    except Forbidden as error:
        raise NotPaddable(str(error)) from error
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
            padded_cuts(inference, smaller, plan.planned_shapes)
        except (NotPaddable, InputError) as error:
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
