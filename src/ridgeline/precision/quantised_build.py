"""From a float32 model to a quantised engine: as far as the budget goes, and only where it pays.

The same model is built in the high precision of the target first: that is what quantised products must beat,
one by one and as a whole, with the QuantizeLinear and Cast steps that they cause.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ridgeline.passes.pipeline import canonicalise
from ridgeline.plan.plan import Plan, Step
from ridgeline.plan.report import Kept, Precision
from ridgeline.precision.budget import Judgement, costs_most, over_budget
from ridgeline.precision.half_build import NOT_TIMED, LoweredBuild, compared_us, with_times, with_warning
from ridgeline.precision.patterns import kept_patterns
from ridgeline.precision.place import EXCLUDED, is_quantised
from ridgeline.precision.quantised import MARGIN, Quantiser
from ridgeline.precision.samples import Feeds
from ridgeline.precision.schemes import scheme_named
from ridgeline.precision.search import Found
from ridgeline.runtime.engine import Engine

CONVERTS = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "DynamicQuantizeLinear"})
# samples that products are searched with: the worst of them counts, as it does of those held out
EMULATED_ROWS = 8
# of the whole time, lost by products that are slower with codes: less is not worth another build
WORTH_A_BUILD = 0.005
# engines that are built until one is inside the budget
MOST_ATTEMPTS = 5
# the error of held-out samples against that of samples seen, beyond which ranges or scales do not fit others
MUCH_WORSE = 1.25
UNLIKE = (
    "held-out samples are unlike those to calibrate with, and helped to decide which products are quantised: "
    "give more samples"
)
# people quantise weights alone for their size as well: they stay unless they cost more than this of the time
SIZE_MAY_COST = 1.05
KEEP_SIZE = "; for its size: ridge quantize MODEL --format {0} -o q.onnx, then ridge build q.onnx"
ATTENTION = "codes for its operands cost three QuantizeLinear, which no product in front of it makes"
AS_IT_IS = (
    "the model is quantised already ({}): it is taken as it is, and --precision {} changes nothing in it"
)


@dataclass
class _Attempt:
    """One engine with some products left in float, and how far off it is."""

    floats: Mapping[str, str]  # by product, why it is not quantised
    engine: Engine
    judged: Judgement
    found: Found
    sees_held_out: bool = False  # which products are quantised was decided on held-out samples too


def build_quantised(task: LoweredBuild) -> Engine:
    """Quantise, leave out what breaks the budget, then what does not pay; compare with the plain engine."""
    options = task.options
    scheme = scheme_named(options.precision)
    patterns = kept_patterns(options.keep)
    if is_quantised(task.model):
        return _as_it_is(task)
    reasons = {EXCLUDED.format(pattern): "asked for" for pattern in patterns}
    # codes for attention cost a QuantizeLinear on each of its three operands, which no product makes for it
    has_attention = any(node.op_type == "Attention" for node in task.model.graph)
    if has_attention and scheme.activation is not None and not scheme.activation.is_integer:
        patterns += ("Attention",)
        reasons.setdefault(EXCLUDED.format("Attention"), ATTENTION)
    quantiser = Quantiser(
        task.model,
        scheme,
        task.original.samples[0],
        options.limits,
        patterns,
        task.emulated_on,
        metric=options.metric,
        reasons=reasons,
    )
    products = quantiser.products
    plain = _plain(task) if task.machine.is_here else None
    # a product saves about in proportion to the time of its step
    saved = {} if plain is None else _step_us(products, plain.plan)
    quantiser, best = _inside(task, quantiser, saved)
    times = None if plain is None else compared_us(best.engine, plain)
    if plain is None or times is None:
        untimed = NOT_TIMED.format(scheme.name, task.why_untimed)
        return with_warning(_reported(task, quantiser, best), untimed)
    high = plain.plan.precision
    if scheme.is_weight_only and times[0] <= SIZE_MAY_COST * times[1]:
        return with_times(_reported(task, quantiser, best), high, times)
    slow = _slow(products, plain.plan, best)
    whole = sum(step.median_us or 0.0 for step in best.engine.plan.steps)
    if sum(slow.values()) > WORTH_A_BUILD * whole and len(slow) + len(best.floats) < len(products):
        why = {name: f"{scheme.name} is no faster here ({us:.2g} us lost)" for name, us in slow.items()}
        fewer = _attempt(task, quantiser, {**best.floats, **why}, best.found)
        is_inside = fewer.judged.error <= options.budget_or_default
        if is_inside and _is_faster(fewer.engine, best.engine):
            best = replace(fewer, sees_held_out=best.sees_held_out)
    times = compared_us(best.engine, plain) or times
    if times[0] < times[1] or (scheme.is_weight_only and times[0] <= SIZE_MAY_COST * times[1]):
        return with_times(_reported(task, quantiser, best), high, times)
    plain = with_times(_left_alone(task, quantiser, plain, best), high, times)
    size = KEEP_SIZE.format(scheme.name) if scheme.is_weight_only else ""
    return with_warning(plain, task.no_gain(scheme.name, high, times) + size)


def _as_it_is(task: LoweredBuild) -> Engine:
    """A model with codes in it is built in its own types."""
    task.check_data()
    engine = task.build_float(task.model.clone())
    said = ", ".join(f"{count} in {kind}" for kind, count in engine.report.codes.items())
    return with_warning(engine, AS_IT_IS.format(said or "in integers", task.options.precision))


def _plain(task: LoweredBuild) -> Engine:
    """The model without quantisation, in the high precision of its target."""
    if task.machine.half_always_pays:
        return task.build_half(task.machine.half_types[0])
    return task.build_wide()


def _inside(
    task: LoweredBuild, quantiser: Quantiser, saved: Mapping[str, float]
) -> tuple[Quantiser, _Attempt]:
    """The first attempt whose engine is inside the budget on held-out samples.

    Ranges that clip outliers are tried first; a model that would be over the budget is smoothed, and its
    codes make up for one another's rounding. Products that save least are the first to stay float. Where
    held-out samples are much worse than those that were seen, the ranges become the widest seen, then without
    what fits samples; and then the products that cost most on held-out samples stay float too. Where they are
    a little worse, the budget of the search becomes as much tighter.
    """
    budget, kind = task.options.budget_or_default, quantiser.scheme.name
    fitting, judging = task.original.samples
    rows = list(islice(iter(fitting), EMULATED_ROWS))
    first = quantiser.nearer(rows, budget)
    # scales of channels, and codes that make up for others, fit the samples that were seen
    ways = [first] if first is quantiser else [first, quantiser]
    if not quantiser.scheme.is_weight_only:
        ways[1:] = [replace(way, method="max") for way in ways]
    allowed, best, sees_held_out = budget, math.inf, fitting is judging
    for _ in range(MOST_ATTEMPTS):
        each = ways[0]
        found = each.search(rows, allowed, saved, task.options.tell)
        if found.error > allowed or len(found.raised) == len(each.products):
            if len(ways) == 1:
                break
            ways, allowed = ways[1:], budget
            continue
        attempt = _attempt(task, each, found.reasons, found)
        judged = attempt.judged.error
        if judged <= budget:
            return each, replace(attempt, sees_held_out=sees_held_out and fitting is not judging)
        best, is_much_worse = min(best, judged), judged > MUCH_WORSE * found.error
        if is_much_worse and len(ways) > 1:
            ways, allowed = ways[1:], budget
        elif is_much_worse and not sees_held_out:
            rows, allowed, sees_held_out = [*_worst(each, task.original.held_out), *rows], budget, True
        elif found.error:
            allowed = found.error * budget / judged * MARGIN
        else:  # the same engine would be built again
            break
    least = best if math.isfinite(best) else min(found.alone.values(), default=found.error)
    raise over_budget(kind, costs_most(found.alone, each.products), least, budget)


def _worst(quantiser: Quantiser, rows: Sequence[Feeds]) -> list[Feeds]:
    """The samples on which an emulated run is furthest off."""
    return sorted(rows, key=lambda row: -quantiser.error_of_row(row))[:EMULATED_ROWS]


def _attempt(task: LoweredBuild, quantiser: Quantiser, floats: Mapping[str, str], found: Found) -> _Attempt:
    model = task.whole(quantiser.without(floats))
    canonicalise(model, limits=task.options.limits)
    inner = replace(task, quantised=model)
    if task.machine.half_always_pays:
        half = task.machine.half_types[0]
        plain = task.built or task.decide(half)
        engine = inner.build_unsearched(half, plain.kept)
    else:
        engine = inner.build_float(model.clone())
    return _Attempt(floats, engine, _judged(task, engine), found)


def _judged(task: LoweredBuild, engine: Engine) -> Judgement:
    return task.original.judge(engine) if task.machine.is_here else Judgement()


def _slow(products: Mapping[str, tuple[str, ...]], plain: Plan, best: _Attempt) -> dict[str, float]:
    """Products that are slower with codes, and by how many microseconds."""
    saved = product_savings_us(products, plain, best.engine.plan)
    return {name: -us for name, us in saved.items() if us <= 0 and name not in best.floats}


def _is_faster(one: Engine, other: Engine) -> bool:
    times = compared_us(one, other)
    return times is not None and times[0] < times[1]


def product_savings_us(
    products: Mapping[str, tuple[str, ...]], plain: Plan, coarse: Plan
) -> dict[str, float]:
    """By product: how much faster its step is, with the conversions in front of it."""
    before, after = _step_us(products, plain), _step_us(products, coarse)
    return {name: before[name] - after[name] for name in products if name in before and name in after}


def _step_us(products: Mapping[str, tuple[str, ...]], plan: Plan) -> dict[str, float]:
    """The time of each product's step, shared by the products in it; none if a step of it was not timed."""
    by_source = {source: name for name, sources in products.items() for source in sources}
    made: dict[str, float] = {}
    readers: dict[str, list[str]] = {}  # by value: the products whose steps read it
    for step in plan.steps:
        inside = list(dict.fromkeys(by_source[s] for s in step.sources if s in by_source))
        _share(step, inside, made)
        for value in step.inputs:
            readers.setdefault(value, []).extend(inside)
    for step in plan.steps:
        if CONVERTS.issuperset(step.op_types):
            _share(step, {name for value in step.outputs for name in readers.get(value, ())}, made)
    return {name: us for name, us in made.items() if not math.isnan(us)}


def _share(step: Step, names: Collection[str], made: dict[str, float]) -> None:
    """Add the step's time in equal parts; a step that was not timed makes NaN of them."""
    us = math.nan if step.median_us is None else step.median_us
    for name in names:
        made[name] = made.get(name, 0.0) + us / len(names)


def _reported(task: LoweredBuild, quantiser: Quantiser, best: _Attempt) -> Engine:
    high, kind = best.engine.plan.precision, quantiser.scheme.name
    kept = [*quantiser.refused, *(Kept(name, why) for name, why in best.floats.items())]
    found = Precision(
        asked=kind,
        nodes={kind: len(quantiser.products) - len(best.floats), high: len(kept)},
        counted="products",
        kept=tuple(kept),
        helped_by=quantiser.helped_by(task.model),
        emulated=best.found.error,
        sensitivity=dict(best.found.alone),
    )
    engine = task.reported(best.engine, best.judged, found)
    if not best.sees_held_out:
        return engine
    assert engine.report.precision is not None, "just reported"
    engine.report = replace(engine.report, precision=replace(engine.report.precision, held_out=False))
    return with_warning(engine, UNLIKE)


def _left_alone(task: LoweredBuild, quantiser: Quantiser, plain: Engine, tried: _Attempt) -> Engine:
    """The engine without quantisation, with the times of each product in both precisions."""
    before, after = (_step_us(quantiser.products, each.plan) for each in (plain, tried.engine))
    high, kind = plain.plan.precision, quantiser.scheme.name

    def why(name: str) -> str:
        if name not in before or name not in after:
            return f"its steps were not timed in both; the whole model was no faster in {kind}"
        both = f"its steps took {after[name]:.3g} us in {kind} and {before[name]:.3g} us in {high}"
        return f"{both}; the whole model was no faster in {kind}"

    slowest_first = sorted(
        quantiser.products, key=lambda name: before.get(name, 0.0) - after.get(name, math.inf)
    )
    kept = [*quantiser.refused, *(Kept(name, why(name)) for name in slowest_first)]
    found = Precision(asked=kind, nodes={high: len(kept)}, counted="products", kept=tuple(kept))
    return task.reported(plain, task.original.judge(plain), found)
