"""`build()`: a model goes in, a verified engine comes out. `build_typed` reads as the table of contents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.export import ExportedProgram

from ridgeline.base.arrays import data_files
from ridgeline.base.choices import Refusal
from ridgeline.base.progress import Progress, shown
from ridgeline.base.spec import TF32, Op, Target, TensorSpec
from ridgeline.base.timing import gc_paused
from ridgeline.errors import InputError, ModelError, PlanError
from ridgeline.frontend.declared import correct_outputs
from ridgeline.frontend.from_onnx import Loaded, Source, load, refuse_model
from ridgeline.frontend.from_torch import Exported, Sample, export, home_of
from ridgeline.frontend.functions import count_nodes
from ridgeline.frontend.torch_dims import refuse_example
from ridgeline.frontend.torch_export import as_source
from ridgeline.ir.infer import Inferred
from ridgeline.ir.quant import coded_products
from ridgeline.options import Limits, Options, logger, make_limits, make_options
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.contradictions import explaining_contradictions
from ridgeline.passes.keep import require_kept
from ridgeline.passes.outline import name_nodes
from ridgeline.passes.partition import partition
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.tf32 import mark_products
from ridgeline.plan.check import check_ports
from ridgeline.plan.report import Report
from ridgeline.plugins.entry_points import load_plugins
from ridgeline.precision.flow import build_lowered
from ridgeline.precision.quantize import Quantized
from ridgeline.runtime.embedded_kernels import EmbeddedKernels
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.file import DAMAGE, read_engine
from ridgeline.runtime.forking import require_process
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.island_report import report_islands
from ridgeline.runtime.profiles import load_variants
from ridgeline.runtime.versions import versions
from ridgeline.runtime.weights import default_weights, weights_of
from ridgeline.select.choice_warnings import build_warnings, every_selection, time_limit_warning
from ridgeline.select.context import Selection, SelectionContext
from ridgeline.select.deadline import Deadline
from ridgeline.select.loop import select
from ridgeline.select.padding import require_paddable
from ridgeline.select.planner import SelectingPlanner
from ridgeline.select.planning import plan_variant
from ridgeline.select.shapes import Shapes, choose_every_shapes, require_tensors
from ridgeline.select.subgraphs import with_bodies
from ridgeline.tactics.cache import TimingCache, read_lock, require_own
from ridgeline.tactics.registry import leave_out
from ridgeline.targets import Machine, TacticOptions, machine_of, target_named
from ridgeline.verify import trials as checks
from ridgeline.verify.compare import load_data
from ridgeline.verify.limited_run import LimitedRun
from ridgeline.verify.module import check_guards, check_sample
from ridgeline.verify.reference import Reference
from ridgeline.verify.remembered import Facts

# what `build` takes besides options
NO_OPTIONS = ("source", "example_inputs", "dynamic_shapes", "unknown")
PLANNER = SelectingPlanner(checks.compare_expected, lambda target: machine_of(target).timer(is_timed=True))
HOST_STAGES = ("load", "passes", "plan")  # they make graphs and drop them


def build(
    source: Source | nn.Module | ExportedProgram | Quantized,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
    target: str | None = None,
    profiles: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    tune_at: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    precision: str = "typed",
    budget: float | None = None,
    keep: str | Sequence[str] = (),
    metric: Callable[..., float] | None = None,
    io: str | None = None,
    level: int = 3,
    time_limit: float | None = None,
    timing_cache: str | Path | None = None,
    lock: str | Path | None = None,
    verify: str = "full",
    deterministic: bool = False,
    workspace_bytes: int | None = None,
    progress: Progress | Literal[False] | None = None,
    threads: int = 0,
    without: str | Sequence[str] = (),
    data: Any = None,
    new_shapes: str = "serve",
    pad: bool = False,
    fusion: bool = True,
    limits: Limits | Mapping[str, int] | None = None,
    **unknown: Any,
) -> Engine:
    """Build an engine from an ONNX file, bytes, `onnx.ModelProto`, `onnx_ir.Model`, a PyTorch module, or
    what `ridgeline.quantize` made.

    A module needs example inputs (a tensor, a tuple of arguments, or a dict by name); `dynamic_shapes` says
    which dims may change, as torch.export takes it or with names as strings. `Options` says what the other
    keywords mean; one that does not exist is an error with the near match.

    Parameters: one keyword for each option, so that editors complete them and a call reads as a sentence.
    """
    given = {name: value for name, value in locals().items() if name not in NO_OPTIONS} | unknown
    options = make_options(given)
    load_plugins()
    with shown(options.progress) as progress:
        options = replace(options, progress=progress)
        if isinstance(source, (nn.Module, ExportedProgram)):
            options.tell("export", 0, 0)
            exported = export(source, example_inputs, dynamic_shapes)
            if target is None:
                options = replace(options, target=home_of(source, tuple(exported.sample.feeds.values())))
            return build_exported(exported, options)
        refuse_example(example_inputs, dynamic_shapes)
        return build_with(source.model if isinstance(source, Quantized) else source, options)


def build_exported(exported: Exported, options: Options) -> Engine:
    """An engine from a module's export."""
    if exported.profile and not options.profiles:
        options = replace(options, profiles=(exported.profile,))
    with as_source(exported.model) as source:
        try:
            return build_with(source, options, exported.sample)
        except (InputError, ModelError) as error:
            exported.sample.require_runs()  # its own error explains a bad argument better than ours
            # the shapes are those of a call, so what does not fit at them says more than a contradiction
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from None
            raise


def build_with(source: Source, options: Options, sample: Sample | None = None) -> Engine:
    """An engine in the model's own types, or in those that `options.precision` asks for."""
    began = time.perf_counter()
    if options.precision == "typed":
        engine = build_typed(source, options, sample)
    else:
        engine = build_lowered(source, options, sample, partial(build_typed, is_judged=True))
    whole_s = time.perf_counter() - began + (0.0 if sample is None else sample.export_s)
    engine.report = replace(engine.report, build_s=round(whole_s, 3))
    return engine


def build_typed(
    source: Source, options: Options, sample: Sample | None = None, *, is_judged: bool = False
) -> Engine:
    """The table of contents. A sample is a call of the PyTorch module that the source came from.

    `is_judged` if the model was lowered: somebody else compares the engine with what it was lowered from.
    """
    clock = Clock(options, {} if sample is None else {"export": round(sample.export_s, 3)})
    target = require_process(target_named(options))
    machine = machine_of(target)
    check_choices(options, machine)
    with clock.stage("load"):
        loaded, facts = load(source, options.limits), Facts.beside(options.timing_cache)
        if options.data is not None:
            load_data(options.data, [str(value.name) for value in loaded.model.graph.inputs])
        limited = LimitedRun.of(loaded.model, options.limits)
        reference = reference_of(loaded, options, facts, limited)
    with explaining_contradictions(loaded.original, loaded.name):
        with clock.stage("passes"):
            refusals = canonicalise(loaded.model, target=target, limits=options.limits)
            guards = check_guards(reference, sample) if sample is not None else ()
            weights = weights_of(loaded.model) | default_weights(loaded.defaults)
            unfused = Inference.of(loaded.model, options.limits, weights)
            require_kept(loaded.model)
            require_tensors(loaded.model, target)
            every_shapes = choose_every_shapes(loaded, unfused, reference, options, sample, guards)
            refusals += fuse(loaded, unfused.at(every_shapes[0].opt), target, options)
            fused = fused_model(loaded, every_shapes, options, machine)
            contexts = selection_contexts(fused, every_shapes, options, machine)
        with clock.stage("reference"):
            made = checks.run_first(reference, limited, fused.inference, every_shapes)
    corrections = correct_outputs(loaded.model.graph, contexts[0].inferred.specs, made)
    with clock.stage("select"):
        limit_s = machine.time_limit_s(options, len(contexts))
        deadline = Deadline.of_choosing(limit_s, spent_s=clock.spent_s, is_verified=reference is not None)
        selections = select_every(contexts, machine, deadline)
        write_timings(contexts, selections)
    with clock.stage("plan"):
        chosen = zip(contexts, every_shapes, selections, strict=True)
        engine = Engine([plan_variant(loaded, *each, refusals) for each in chosen], PLANNER)
        require_paddable(fused.inference, (engine.plan, *engine.plan.others))
    with clock.stage("verify"):
        report = check_engine(engine, reference, options, None if is_judged else sample)
        facts.write()
    engine.report = replace(
        report,
        nodes=count_nodes(loaded.original.graph.node), stage_seconds=clock.seconds,
        sites_timed=sum(selection.timed for selection in selections),
        sites_cached=sum(selection.cached for selection in selections),
        codes=coded_products(*program_ops(contexts[0])),
        islands=report_islands(engine, is_timed=machine.is_here and options.level > 0),
        warnings=tuple(dict.fromkeys((
            *(line for pair in zip(every_shapes, selections, strict=True) for line in build_warnings(*pair)),
            *time_limit_warning(every_selection(contexts, selections), limit_s),
            *(*machine.missing_tools(), *corrections, *report.warnings, *engine.notes),
            *(f"{problem}: ignored" for problem in contexts[0].cache.problems), *facts.problems,
        ))),
        versions=versions(),
    )  # fmt: skip
    return engine


def load_engine(
    path: str | Path, *, trust: bool = False, limits: Limits | Mapping[str, int] | None = None
) -> Engine:
    """An engine from its file. Compiled kernels in it are used if it was made here or is trusted explicitly.

    Otherwise they are left alone, and kernels are made again from the bodies when the engine first runs.
    Limits are this call's, never the file's.
    """
    refuse_model(path)
    allowed = make_limits(limits or {})
    stored = read_engine(Path(path))
    plan, model = stored.plan, stored.model
    kernels = EmbeddedKernels.of(stored.kernels, is_signed_here=stored.is_signed_here, is_trusted=trust)
    try:
        asked = TacticOptions(dict(model.opset_imports), allowed, store=kernels.store)
        tactics = machine_of(plan.target).tactics(asked)
        inference = Inference.of(model, allowed, stored.weights)
        check_ports(plan, inference.program)
        by_name = {tactic.name: tactic for tactic in tactics}
        notes = [kernels.left_out] if kernels.left_out else []
        fused = FusedModel(model, inference, by_name, plan.target, kernels, notes)
        variants = load_variants(plan, fused, PLANNER.bind_body)
        return Engine(variants, PLANNER, report=stored.report, expected=stored.expected)
    except DAMAGE as error:
        raise PlanError(f"the plan in {str(path)!r} does not fit its graph", got=repr(error)) from error


def check_choices(options: Options, machine: Machine) -> None:
    """What can be refused at once is refused before any work."""
    leave_out(machine.tactics(TacticOptions({})), options.without)
    require_own(options.timing_cache)
    read_lock(options.lock)
    if options.data is not None:
        data_files(options.data)


class Clock:
    """Seconds per stage, told as progress."""

    def __init__(self, options: Options, seconds: dict[str, float]) -> None:
        self.options, self.seconds = options, seconds
        self._began = time.perf_counter()

    @property
    def spent_s(self) -> float:
        return time.perf_counter() - self._began

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.options.tell(name, 0, 0)
        start = time.perf_counter()
        # graphs are made and dropped by the thousand: the collector would look at all of them every time
        with gc_paused() if name in HOST_STAGES else nullcontext():
            yield
        self.seconds[name] = round(time.perf_counter() - start, 3)
        logger.info("%s took %.1f s", name, self.seconds[name])


def reference_of(
    loaded: Loaded, options: Options, facts: Facts, limited: LimitedRun | None
) -> Reference | None:
    """What the engine is compared with; None if it is not."""
    if options.verify == "off":
        return None
    rounds = options.precision == TF32
    return Reference(loaded, threads=options.cores, facts=facts, limited=limited, rounds=rounds)


def fuse(loaded: Loaded, inferred: Inferred, target: Target, options: Options) -> list[Refusal]:
    """Partition at the planned shapes; what a region computes holds at any."""
    mark_products(loaded.model, rounds=options.precision == TF32)
    if not options.fusion:
        name_nodes(loaded.model.graph)
        return []
    refusals = partition(loaded.model, inferred, target=target)
    remove_unused(loaded.model)  # constants that now live inside functions
    return refusals


def fused_model(
    loaded: Loaded, every_shapes: Sequence[Shapes], options: Options, machine: Machine
) -> FusedModel:
    """The fused graph with the tactics that may run it."""
    machine.prepare()
    asked = TacticOptions(
        dict(loaded.model.opset_imports),
        options.limits,
        fixed_shapes=len(every_shapes) == 1 and every_shapes[0].are_fixed,
        deterministic=options.deterministic,
    )
    by_name = {tactic.name: tactic for tactic in leave_out(machine.tactics(asked), options.without)}
    weights = weights_of(loaded.model) | default_weights(loaded.defaults)
    inference = Inference.of(loaded.model, options.limits, weights)
    return FusedModel(loaded.model, inference, by_name, machine.target)


def selection_contexts(
    fused: FusedModel, every_shapes: Sequence[Shapes], options: Options, machine: Machine
) -> list[SelectionContext]:
    """What selection needs, for each profile; model and timings are the same for all."""
    lock = read_lock(options.lock)
    cache = TimingCache.read(options.timing_cache) if options.timing_cache is not None else TimingCache()
    return [
        SelectionContext(
            fused=fused,
            inferred=fused.inference.at(shapes.opt),
            inputs=shapes.opt,
            device_key=machine.device_key,
            timer=machine.timer(is_timed=options.level > 0 or lock is not None),
            options=options,
            cache=cache,
            lock=lock,
            profile_corners=[fused.inference.at(corner) for corner in shapes.other_corners],
        )
        for shapes in every_shapes
    ]


def program_ops(context: SelectionContext) -> tuple[Sequence[Op], Mapping[str, TensorSpec]]:
    """Every op of the finished graph, and the values between them."""
    program = context.fused.program
    return program.flat_ops(program.regions)[0], context.inferred.specs


def select_every(contexts: list[SelectionContext], machine: Machine, deadline: Deadline) -> list[Selection]:
    """Choose for each profile; the bodies of control flow first, since plans are timed with them."""
    made = []
    for i in range(len(contexts)):
        context = contexts[i] = replace(contexts[i], deadline=deadline.part(1 / (len(contexts) - i)))
        if machine.plans_bodies:
            contexts[i] = with_bodies(context)
        made.append(select(contexts[i]))
    return made


def write_timings(contexts: Sequence[SelectionContext], selections: Sequence[Selection]) -> None:
    """Keep what was measured: the cache for the next build, the lock for the same build again."""
    options, cache = contexts[0].options, contexts[0].cache
    if options.timing_cache is not None and any(selection.timed for selection in selections):
        cache.write(options.timing_cache)
    if options.lock is not None and contexts[0].lock is None:
        keys = [
            key
            for context, chosen in zip(contexts, selections, strict=True)
            for key in (*context.body_keys, *chosen.keys)
        ]
        cache.write_lock(options.lock, keys)


def check_engine(
    engine: Engine, reference: Reference | None, options: Options, sample: Sample | None
) -> Report:
    """What can be verified here: the engine at every profile, or the graph of one for another machine."""
    runs_here = machine_of(engine.plan.target).is_here
    if reference is None:
        return Report(unverified="" if runs_here else checks.unverified(engine.plan))
    verify = checks.verify_profiles if runs_here else checks.verify_graph
    report = verify(engine, reference, options)
    rows = [] if sample is None else check_sample(engine, reference, sample, runs_here=runs_here)
    return replace(report, checks=(*report.checks, *rows))
