"""Whether an engine can be padded along a dim, and how much work it does at other shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import InputError, OptionError
from ridgeline.ir.work import body_flops
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.observation import Histogram, Shape
from ridgeline.runtime.padded import NotPaddable
from ridgeline.select.padding import padded_cuts


def padding_verdict(engine: Engine, dims: Sequence[str]) -> str:
    """For each dim: that it can be padded, or the op that forbids it."""
    return "; ".join(f"along {dim!r}: {why_not_pad(engine, dim) or 'cannot change results'}" for dim in dims)


def why_not_pad(engine: Engine, dim: str) -> str | None:
    """The op that forbids padding along a dim of the inputs; None if padding changes no result."""
    padded: dict[str, TensorSpec] = {}
    for port in engine.inputs:
        spec = engine.plan.planned_shapes[port.name]
        shape = [size + (own == dim) for own, size in zip(port.dims or spec.shape, spec.shape, strict=True)]
        padded[port.name] = replace(spec, shape=tuple(shape))
    if padded == engine.plan.planned_shapes:
        raise OptionError(f"no input has a dim {dim!r}")
    try:
        padded_cuts(engine.inference, engine.plan.planned_shapes, padded)
    except NotPaddable as error:
        return str(error)
    except InputError as error:
        return f"the model takes no other size: {error}"
    return None


def work_of_engine(engine: Engine, seen: Histogram) -> Callable[[dict[str, Shape]], float]:
    """Operations at any shapes of the inputs, by the same count as plans and reports."""
    missing = [port.name for port in engine.inputs if port.name not in seen.dims]
    if missing:
        raise OptionError(f"the shapes were observed at another engine: it has no input {missing[0]!r}")

    def work(shapes: dict[str, Shape]) -> float:
        specs = {
            p.name: replace(engine.plan.planned_shapes[p.name], shape=shapes[p.name]) for p in engine.inputs
        }
        sites = engine.variants[0].executable.sites(engine.inference.at(specs))
        return float(sum(body_flops(site.body, site.specs) for _, _, site in sites))

    return work
