"""The time a model should take on a machine that need not be here: region by region, by the one cost model.

The model is read, canonicalised and fused as for a build; nothing is compiled, timed or run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ridgeline.analyze.limiter import PRODUCTS, Limiter, arithmetic_unit
from ridgeline.analyze.predicted_memory import PredictedMemory, predicted_memory
from ridgeline.base.ceilings import Ceilings
from ridgeline.base.spec import Site, Target
from ridgeline.builder import fuse, fused_model
from ridgeline.errors import OptionError, TargetError
from ridgeline.frontend.from_onnx import Loaded, Source, load
from ridgeline.frontend.ports import ports
from ridgeline.ir.body import Region
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import row_of
from ridgeline.ir.views import views_of
from ridgeline.ir.work import body_bytes, body_flops
from ridgeline.options import DEFAULT_LIMITS, Options
from ridgeline.passes.pipeline import canonicalise
from ridgeline.precision.lower import lower, value_key
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.instance import sites_of
from ridgeline.runtime.weights import weights_of
from ridgeline.select.shapes import Shapes, choose_every_shapes
from ridgeline.tactics.cost_features import Features, features_of
from ridgeline.tactics.cost_model import CostModel
from ridgeline.targets import machine_of

# what a prediction can be made for besides the model's own types
HALVES = {"fp16": "float16", "bf16": "bfloat16"}
# a step within this share of a launch's own cost is bound by it
LAUNCH_BOUND = 0.5


@dataclass(frozen=True)
class PredictedStep:
    """One region, and what bounds its time."""

    index: int
    name: str
    ops: tuple[str, ...]
    family: str
    us: float
    bytes: int
    flops: int
    bound_us: float  # what the machine's ceilings allow for these bytes and flops; NaN: not known
    # as a profile has it; latency: far from every ceiling; unknown: the rate of its type is
    limiter: Limiter

    @property
    def roofline(self) -> float:
        return self.bound_us / self.us if self.us else 0.0


@dataclass(frozen=True)
class Prediction:
    """A model on a machine."""

    model: str
    target: str
    title: str
    source: str  # where the machine's figures come from
    precision: str
    shapes: dict[str, str]
    steps: tuple[PredictedStep, ...]
    unknown: tuple[str, ...]  # regions whose shapes depend on data, and control flow: not in the total
    weight_bytes: int
    memory: PredictedMemory
    memory_bytes: int | None  # of the machine
    power_w: float | None
    uncalibrated: tuple[str, ...] = ()  # families of steps that a calibration of the machine has nothing of
    left_out: tuple[str, ...] = ()  # networks that it had no time for
    what_if: dict[str, float] = field(default_factory=dict)  # figures that were multiplied

    @property
    def total_us(self) -> float:
        return math.fsum(step.us for step in self.steps)

    @property
    def bound_us(self) -> float:
        return math.fsum(step.bound_us for step in self.steps)

    @property
    def energy_mj(self) -> float | None:
        """At the machine's power limit; None where nothing states it."""
        return None if self.power_w is None else self.power_w * self.total_us / 1e3

    @property
    def fits(self) -> bool | None:
        return None if self.memory_bytes is None else self.memory.total <= self.memory_bytes


def predict(
    source: Source, ceilings: Ceilings, options: Options, *, what_if: dict[str, float] | None = None
) -> Prediction:
    """Read and fuse the model for the machine, and ask the cost model for every region."""
    target = Target(ceilings.kind, ceilings.arch, ceilings.threads)
    changed = ceilings.what_if(**(what_if or {}))
    loaded, fused, shapes = fused_for(source, target, options)
    cost, tactics = CostModel(changed), tuple(fused.tactics.values())
    steps: list[PredictedStep] = []
    unknown: list[str] = []
    known: dict[str, float | None] = {}
    for region, site in computed_sites(fused, shapes, target):
        if site.key not in known:
            known[site.key] = None if _has_bodies(site) else cost.site_us(site, tactics)
        us = known[site.key]
        if us is None:
            unknown.append(region.name)
        else:
            _require_fitting(cost, site, ceilings.name)
            steps.append(_step(len(steps) + 1, site, us, changed))
    return Prediction(
        model=loaded.name,
        target=ceilings.name,
        title=ceilings.title,
        source=ceilings.source,
        precision=options.precision,
        shapes={name: str(spec) for name, spec in shapes.opt.items()},
        steps=tuple(steps),
        unknown=tuple(unknown),
        weight_bytes=sum(tensor.nbytes for tensor in fused.weights.values()),
        memory=predicted_memory(fused, shapes, target, cost),
        memory_bytes=ceilings.memory_bytes,
        power_w=ceilings.power_w,
        uncalibrated=_uncalibrated(steps, cost) if ceilings.is_measured else (),
        left_out=tuple(ceilings.left_out),
        what_if=dict(what_if or {}),
    )


def _uncalibrated(steps: Sequence[PredictedStep], cost: CostModel) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.family for step in steps if not cost.is_calibrated(step.family)))


def _require_fitting(cost: CostModel, site: Site, target: str) -> None:
    """Raise if a calibration cannot correct what it was made to correct."""
    found = features_of(site)
    others = cost.other_sizes(found)
    if others is not None:
        raise TargetError(
            f"the calibration of {target} was made by another version",
            got=f"points of {found.family!r} with {others} sizes",
            want=f"{len(found.values)} sizes",
            help="ridge calibrate measures the machine again",
        )


def fused_for(source: Source, target: Target, options: Options) -> tuple[Loaded, FusedModel, Shapes]:
    """The model fused for a machine at the shapes that are asked for, with the tactics that may run it."""
    loaded = load(source, options.limits)
    if options.precision in HALVES:
        lower_all(loaded.model, HALVES[options.precision])
    elif options.precision != "typed":
        raise OptionError(
            f"a prediction cannot be made for precision {options.precision!r}",
            want="typed, " + ", ".join(HALVES),
            help="quantise the model first (ridge quantize), then predict its file",
        )
    machine = machine_of(target)
    canonicalise(loaded.model, target=target, limits=options.limits)
    unfused = Inference.of(loaded.model, options.limits, weights_of(loaded.model))
    shapes = choose_every_shapes(loaded, unfused, None, replace(options, precision="typed"))[0]
    fuse(loaded, unfused.at(shapes.opt), target, options)
    return loaded, fused_model(loaded, [shapes], options, machine), shapes


def computed_sites(fused: FusedModel, shapes: Shapes, target: Target) -> Iterator[tuple[Region, Site]]:
    """The regions that a run computes, at the planned shapes; the others are views."""
    inferred = fused.inference.at(shapes.opt)
    for _, region, site in sites_of(fused.program, fused.program.regions, inferred, target):
        if not views_of(site):
            yield region, site


def lower_all(model: ir.Model, half: str) -> None:
    """Every node that can be in the half type, ports as they are: an upper bound of what lowering gains."""
    lower(model, {value_key(node): half for node in model.graph if any(v.name for v in node.outputs)})


def _has_bodies(site: Site) -> bool:
    """Which branch runs, and how often, is not known before it does."""
    return any(row_of(op).kind & Kind.CONTROL for op in site.body.ops)


def _step(index: int, site: Site, us: float, ceilings: Ceilings) -> PredictedStep:
    nbytes, flops = body_bytes(site.body, site.specs), body_flops(site.body, site.specs)
    found = features_of(site)
    bound_us = ceilings.bound_us(nbytes, flops, found.dtype)
    return PredictedStep(
        index=index,
        name=site.name,
        ops=tuple(op.op_type for op in site.body.ops),
        family=found.family,
        us=us,
        bytes=nbytes,
        flops=flops,
        bound_us=bound_us,
        limiter=_limiter(us, bound_us, nbytes, found, ceilings),
    )


def _limiter(us: float, bound_us: float, nbytes: int, features: Features, ceilings: Ceilings) -> Limiter:
    """What a faster machine would have to be better at, in the words of a profile."""
    if math.isnan(bound_us):
        return "unknown"
    if bound_us < LAUNCH_BOUND * us:
        return "launch" if us < 3 * ceilings.least_launch_us else "latency"
    if nbytes / ceilings.best_bytes_per_us(nbytes) >= bound_us:
        return "L2" if ceilings.is_cached(nbytes) else "memory"
    is_product = any(word in PRODUCTS for word in features.family.split())
    return arithmetic_unit(features.dtype, ceilings, is_product=is_product)


def batch_profile(source: Source, batch: int, profile: dict[str, str]) -> dict[str, str]:
    """The profile with the first dim of every input set to this size, where it is open."""
    inputs = ports(load(source, DEFAULT_LIMITS).model.graph.inputs, what="input")
    first = dict.fromkeys(port.dims[0] for port in inputs if port.dims and isinstance(port.dims[0], str))
    if not first:
        raise OptionError(
            "the first dim of every input is fixed",
            got=", ".join(f"{port.name} {port}" for port in inputs),
            help="leave --batch out, or export the model with an open batch",
        )
    return {**profile, **{str(name): str(batch) for name in first}}


def slowest(prediction: Prediction, count: int) -> Sequence[PredictedStep]:
    return sorted(prediction.steps, key=lambda step: -step.us)[:count]
