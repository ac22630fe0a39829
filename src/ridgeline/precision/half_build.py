"""From a float32 model to an engine in a half type: decide, lower, build, judge.

`build` is the build of a typed model; it is handed in, since the builder itself calls this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import ClassVar, TypeAlias

import onnx_ir as ir

from ridgeline.base.formats import HALF_NAMES, SHORT_NAMES
from ridgeline.errors import OptionError, PrecisionError
from ridgeline.frontend.from_onnx import Source
from ridgeline.frontend.from_torch import Sample
from ridgeline.frontend.torch_export import as_source
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.options import Options
from ridgeline.passes.clean import remove_unused
from ridgeline.plan.plan import total_us
from ridgeline.plan.report import Kept, Precision
from ridgeline.precision.budget import Judgement, costs_most, over_budget
from ridgeline.precision.decide import Asked, Decision, Lowering
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.lower import lower, lowerable, value_key, widen
from ridgeline.precision.original import Original
from ridgeline.precision.patterns import kept_patterns
from ridgeline.precision.ranges import Statistics
from ridgeline.precision.samples import division_warnings
from ridgeline.runtime.engine import Engine
from ridgeline.targets import Machine, machine_of, target_named

Build: TypeAlias = Callable[[Source, Options, Sample | None], Engine]
# builds that may follow one whose engine was over the budget although its emulation was not
MORE_BUILDS = 2
# samples that decisions are emulated with
EMULATED = 2
DRAWN = (
    "precision was decided and judged on random inputs, which prove little: give data (--data FOLDER, in "
    "Python data=)"
)
NO_HALF = "{} computes no half type faster than float32: the model stays in float32"
NO_GAIN = "{} was no faster than {} here ({:.3g} against {:.3g} us): the model stays in {}"
SLOWER = (
    "{0} is slower than float32 here ({1:.3g} against {2:.3g} us): it saves memory, not time; "
    "precision auto takes it only where it is faster"
)
AT_LEVEL_0 = (
    "; level 0 tunes nothing, so these times say little: build with --level 3 (in Python level=3) to have "
    "them tuned"
)
NO_NODE = "no node is faster and exact enough in {} here: the model stays in float32"
NOT_TIMED = "where {} pays was not measured: {}"
NOT_HERE = "the machine that it is built for is not here"
NO_TIMES = "neither runs nor all steps were timed (verify='fast' times a run, level 1 the steps)"
STORAGE = "this processor has no {} arithmetic: values are stored in it and computed in float32"


@dataclass
class LoweredBuild:
    """One model on its way to an engine of lower precision."""

    counted: ClassVar[str] = "nodes"  # what reports of it count

    original: Original
    options: Options
    sample: Sample | None
    build: Build
    quantised: ir.Model | None = None  # the model to lower, if it is no longer the original
    built: Decision | None = None  # what the last engine in half was built from

    @property
    def model(self) -> ir.Model:
        return self.original.loaded.model if self.quantised is None else self.quantised

    @cached_property
    def machine(self) -> Machine:
        return machine_of(target_named(self.options))

    @property
    def emulated_on(self) -> str:
        return self.machine.target.traits.device if self.machine.is_here else "cpu"

    @cached_property
    def lowering(self) -> Lowering:
        emulator = Emulator(self.model, self.options.limits, self.emulated_on)
        patterns = kept_patterns(self.options.keep)
        asked = Asked(self.options.budget_or_default, self.options.metric, patterns)
        return Lowering(self.model, emulator, asked, self.options.tell)

    @cached_property
    def seen(self) -> Statistics:
        return self.lowering.statistics(self.original.samples[0])

    def check_data(self) -> None:
        """Refuse wrong data although nothing is to be decided with it."""
        if self.options.data is not None:
            deque((row for part in self.original.samples for row in part), maxlen=0)

    def decide(
        self,
        half: str,
        *,
        keep: Mapping[str, str] | None = None,
        saved_us: Mapping[str, float] | None = None,
        budget: float | None = None,
    ) -> Decision:
        limit = self.options.budget_or_default if budget is None else budget
        self.lowering.asked = replace(self.lowering.asked, budget=limit)
        rows = list(islice(iter(self.original.samples[0]), EMULATED))
        return self.lowering.decide(half, self.seen, rows, keep=keep, saved_us=saved_us)

    def build_half(self, half: str) -> Engine:
        """Every node that bears it in this type."""
        engine, short = self._finish(self.decide(half)), SHORT_NAMES[half]
        if half not in self.machine.half_types:
            engine = with_warning(engine, STORAGE.format(short))
        # level 0 tunes nothing, so its times compare nothing
        if self.machine.half_always_pays or not self.machine.is_here or not self.options.level:
            return engine
        times = compared_us(engine, self._timed_wide())
        if times is None:
            return engine
        engine = with_times(engine, "fp32", times)
        return with_warning(engine, SLOWER.format(short, *times)) if times[0] > times[1] else engine

    def _timed_wide(self) -> Engine:
        """The model in float32, to compare times with: it is not verified further than that needs."""
        verify = self.options.verify if self.options.verify == "off" else "fast"
        model = self.model.clone()
        widen(model)
        return replace(self, options=replace(self.options, verify=verify)).build_float(model)

    def build_unsearched(self, half: str, keep: Mapping[str, str]) -> Engine:
        """Every node in this type but those that guards or `keep` name.

        Of a quantised model: a value that rounds to half may round to another code then, and a search would
        take that for the node's own error. What the model cannot bear was found without the codes.
        """
        known = {node: why for node, why in keep.items() if node in self.lowering.names}
        return self.build_model(self._lowered(self.lowering.decide(half, self.seen, (), keep=known)))

    def build_wide(self) -> Engine:
        """The model in float32, whatever types it has; its ports are in the types that were asked for."""
        model = self.model.clone()
        widen(model)
        engine = self.build_float(model)
        if self.options.io and self.machine.is_here:
            self._require_ports(self.original.judge(engine).error)
        return engine

    def build_float(self, model: ir.Model) -> Engine:
        """A model of which no node is lowered; it is rewritten."""
        lower(model, {}, io=HALF_NAMES.get(self.options.io or ""))
        return self.build_model(self.whole(model))

    def _require_ports(self, error: float) -> None:
        """Raise if half ports alone are over the budget."""
        budget = self.options.budget_or_default
        if error > budget:
            raise PrecisionError(
                f"ports of {self.options.io} are over the budget, with every node in float32",
                got=f"an error of {error:.3g}",
                want=f"at most {budget:.3g}",
                help="leave io out, or raise the budget (--budget, in Python budget=)",
            )

    def build_auto(self) -> Engine:
        """The fastest mixture: half where it is faster, float32 where it is not or where the error is."""
        halves = self.machine.half_types
        if not halves:
            self.check_data()
            return self.left_in_float32(self.build_wide(), NO_HALF.format(self.machine.target))
        decisions = [self.decide(half) for half in halves[:1]]
        if decisions[0].alone:  # a search was needed: the next type may bear more
            decisions += [self.decide(half) for half in halves[1:]]
        best = max(decisions, key=lambda each: (each.error <= self.lowering.asked.budget, len(each.lowered)))
        if self.machine.half_always_pays and not best.alone:
            return self._finish(best)
        wide = self.build_wide()
        coarse = self.build_model(self._lowered(best))
        saved = node_savings_us(best, wide, coarse)
        useless = {n: "half is no faster here" for n, us in saved.items() if us <= 0 and n in best.lowered}
        chosen = self.decide(best.half, keep=useless, saved_us=saved)
        engine, half = self._finish(chosen), SHORT_NAMES[best.half]
        found = engine.report.precision
        if found is not None and not found.is_lowered:
            return with_warning(engine, NO_NODE.format(half))
        times = compared_us(engine, wide)
        if times is None:
            return with_warning(engine, NOT_TIMED.format(half, self.why_untimed))
        if times[0] >= times[1]:
            wide = self.left_in_float32(wide, self.no_gain(half, "float32", times))
            return with_times(wide, "fp32", times)
        return with_times(engine, "fp32", times)

    def no_gain(self, kind: str, high: str, times: tuple[float, float]) -> str:
        """Why the engine of high precision was taken."""
        return NO_GAIN.format(kind, high, *times, high) + ("" if self.options.level else AT_LEVEL_0)

    def left_in_float32(self, engine: Engine, why: str) -> Engine:
        """The engine in float32, where that is what a lower precision came to."""
        judged = self.original.judge(engine) if self.machine.is_here else Judgement()
        undecided = Decision(next(iter(HALF_NAMES.values())), frozenset(), {}, self.lowering.names)
        found = Precision(asked=self.options.precision, nodes=self._counts(undecided), counted=self.counted)
        return with_warning(self.reported(engine, judged, found), why)

    @property
    def why_untimed(self) -> str:
        return NO_TIMES if self.machine.is_here else NOT_HERE

    def _finish(self, decision: Decision) -> Engine:
        """Build, judge, and tighten where the engine is further off than its emulation."""
        budget = self.options.budget_or_default
        for attempt in range(1 + MORE_BUILDS):
            if decision.error > budget:
                raise self._over(decision, decision.error)
            self.built = decision
            engine = self.build_model(self._lowered(decision))
            if not self.machine.is_here:
                judged = Judgement()
                break
            judged = self.original.judge(engine)
            if judged.error <= budget:
                break
            if attempt == MORE_BUILDS or not decision.lowered:
                raise self._over(decision, judged.error)
            tighter = decision.error * budget / judged.error * 0.9
            decision = self.decide(decision.half, budget=tighter)
        kept = [Kept(decision.named(node), why) for node, why in sorted(decision.kept.items())]
        alone = {decision.named(node): error for node, error in decision.alone.items()}
        found = Precision(
            asked=self.options.precision,
            nodes=self._counts(decision),
            counted=self.counted,
            kept=tuple(kept),
            emulated=decision.error,
            sensitivity=alone,
        )
        return self.reported(engine, judged, found)

    def _over(self, decision: Decision, error: float) -> PrecisionError:
        worst = costs_most(decision.alone, decision.names)
        kind = decision.half if decision.lowered else "float32"
        return over_budget(kind, worst, error, self.options.budget_or_default)

    def reported(self, engine: Engine, judged: Judgement, found: Precision) -> Engine:
        """The engine, with what its report says of precision: what was found, and how it was judged."""
        fitting, judging = self.original.samples
        found = replace(
            found,
            nodes={kind: count for kind, count in sorted(found.nodes.items()) if count},
            budget=self.options.budget_or_default,
            error=judged.error if judged.samples else None,
            errors=dict(judged.worst),
            samples=judged.samples,
            drawn=judging.drawn,
            held_out=fitting is not judging,
            sensitivity=dict(sorted(found.sensitivity.items(), key=lambda item: -item[1])),
            metric=getattr(self.options.metric, "__name__", "a metric") if self.options.metric else "",
        )
        is_float32 = set(found.nodes) <= {"fp32"}  # then nothing rests on the samples
        drawn = [DRAWN] if fitting.drawn and not is_float32 else []
        divided = [] if is_float32 else division_warnings(fitting, judging)
        warnings = [*drawn, *divided, *judged.left_out.lines]
        engine.report = replace(engine.report, precision=found)
        return with_warnings(engine, warnings)

    def _lowered(self, decision: Decision) -> ir.Model:
        """The model with these nodes in half; the one that was loaded stays as it is."""
        model = self.model.clone()
        io = HALF_NAMES.get(self.options.io or "")
        if io is not None and io != decision.half:
            raise OptionError(
                f"ports of {self.options.io} do not go with nodes of {SHORT_NAMES[decision.half]}",
                help=f"io={SHORT_NAMES[decision.half]!r}, or no io",
            )
        lower(
            model,
            dict.fromkeys(decision.lowered, decision.half),
            io=io,
            keep=self.lowering.user_kept,
            masks=decision.masks,
        )
        return self.whole(model)

    def whole(self, model: ir.Model) -> ir.Model:
        """A model to build: what it no longer reads is gone, and its weights lie in memory."""
        remove_unused(model)
        ir.external_data.load_to_model(model)
        model.graph.name = self.original.loaded.name
        return model

    def build_model(self, model: ir.Model) -> Engine:
        self.options.tell("engine", 0, 0, label_of(model, self.options.precision))
        with as_source(model) as source:
            return self.build(source, typed_options(self.options), self.sample)

    def _counts(self, decision: Decision) -> dict[str, int]:
        """How many nodes of the model as it was given compute in which type.

        What only moves elements is not counted, unless somebody keeps it. A node that was written out as
        several is kept if one of them is.
        """
        graph, version = self.model.graph, self.model.opset_imports.get("", 1)
        able = [n for n in graph if lowerable(n, decision.half, version) and not is_a(n, Kind.MOVEMENT)]
        counted = [*map(value_key, able), *decision.kept]
        high = {name for n in counted if n not in decision.lowered for name in decision.names[n]}
        low = {name for n in counted for name in decision.names[n]} - high
        return {SHORT_NAMES[decision.half]: len(low), "fp32": len(high)}


def label_of(model: ir.Model, asked: str) -> str:
    """What progress calls the engine of a model: the quantised one is what was asked for."""
    if any(node.op_type == "DequantizeLinear" for node in model.graph):
        return asked
    made = {tensor.dtype for value in model.graph.initializers.values() if (tensor := value.const_value)}
    made |= {value.dtype for node in model.graph for value in node.outputs}
    halves = [HALF_NAMES[n] for n in HALF_NAMES if ir.DataType[HALF_NAMES[n].upper()] in made]
    return SHORT_NAMES[halves[0]] if halves else "fp32"


def node_savings_us(decision: Decision, wide: Engine, coarse: Engine) -> dict[str, float]:
    """By node: how much faster its region is in half. A region's time is shared by its nodes."""
    before, after = _node_us(wide), _node_us(coarse)
    made = {}
    for node, names in decision.names.items():
        known = [name for name in names if name in before and name in after]
        if known:
            made[node] = sum(before[name] - after[name] for name in known)
    return made


def _node_us(engine: Engine) -> dict[str, float]:
    made: dict[str, float] = {}
    for note in engine.plan.regions:
        best = next((c.median_us for c in note.candidates if c.median_us is not None), None)
        if best is not None:
            made.update((name, best / len(note.sources)) for name in note.sources)
    return made


def compared_us(one: Engine, other: Engine) -> tuple[float, float] | None:
    """The times of two engines, measured in the same way; None if they were not.

    A run as a whole, or where verification timed none, the sum of the steps.
    """
    runs = one.report.run_us, other.report.run_us
    sums = total_us(one.plan.steps), total_us(other.plan.steps)
    for first, second in (runs, sums):
        if first is not None and second is not None:
            return first, second
    return None


def with_times(engine: Engine, plain: str, times: tuple[float, float]) -> Engine:
    """With the times of the lowered engine and of the plain one in its report."""
    if engine.report.precision is not None:
        found = replace(engine.report.precision, plain=plain, lowered_us=times[0], plain_us=times[1])
        engine.report = replace(engine.report, precision=found)
    return engine


def typed_options(options: Options) -> Options:
    return replace(options, precision="typed", keep=(), metric=None, budget=None, io=None, data=None)


def with_warning(engine: Engine, text: str) -> Engine:
    return with_warnings(engine, [text])


def with_warnings(engine: Engine, lines: Sequence[str]) -> Engine:
    """With these lines in its report, each once."""
    warnings = tuple(dict.fromkeys((*engine.report.warnings, *lines)))
    engine.report = replace(engine.report, warnings=warnings)
    return engine
