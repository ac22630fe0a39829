"""`build()`: a model goes in, a verified engine comes out. `build_with` reads as the table of contents."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import Tensor

from ridgeline import checks
from ridgeline.compose import Selection, Workshop, select
from ridgeline.errors import BuildError, InputError, OptionError, PlanError, first_line
from ridgeline.frontend.from_onnx import Loaded, Source, load
from ridgeline.frontend.ports import check_profile, guessed_shapes, ports, profile_shapes
from ridgeline.options import Options, Progress, make_options
from ridgeline.passes.body import Program, read_program
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.partition import partition
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.rule import Refusal
from ridgeline.passes.settle import Settled
from ridgeline.passes.sites import merge
from ridgeline.plan.make import candidates, reason, region_note, step_of
from ridgeline.plan.memory import account
from ridgeline.plan.plan import Memory, Plan
from ridgeline.plan.plan import Refusal as PlanRefusal
from ridgeline.plan.report import Report
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.file import DAMAGE, read_engine
from ridgeline.runtime.instance import settle_program
from ridgeline.spec import Target, TensorSpec
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cache import TimingCache
from ridgeline.tactics.registry import cpu_tactics, leave_out
from ridgeline.verify import Reference


def build(
    source: Source,
    *,
    target: str = "cpu",
    profiles: Mapping[str, Any] | None = None,
    precision: str = "fp32",
    level: int = 3,
    timing_cache: str | Path | None = None,
    lock: str | Path | None = None,
    verify: str = "full",
    deterministic: bool = False,
    workspace_bytes: int | None = None,
    progress: Progress | None = None,
    threads: int = 0,
    without: str | Sequence[str] = (),
    data: str | Path | None = None,
    **unknown: Any,
) -> Engine:
    """Build an engine from an ONNX file, bytes, `onnx.ModelProto` or `onnx_ir.Model`.

    `Options` says what each keyword means; one that does not exist is an error with the near match.
    """
    given = {name: value for name, value in locals().items() if name not in ("source", "unknown")}
    return build_with(source, make_options({**given, **unknown}))


def build_with(source: Source, options: Options) -> Engine:
    """The table of contents."""
    clock = Clock(options)
    check_choices(options)
    with clock.stage("load"):
        loaded = load(source)
        reference = Reference(loaded, threads=options.cores) if options.verify != "off" else None
    with clock.stage("passes"):
        refusals = canonicalise(loaded.model)
        shapes = choose_shapes(loaded, reference, options)
        refusals += fuse(loaded.model, shapes)
    with clock.stage("select"):
        shop = open_workshop(loaded.model, shapes, options)
        selection = select(shop, shapes.opt, shapes.feeds(shop.program, shop.weights))
        write_timings(shop, selection)
    with clock.stage("plan"):
        plan = make_plan(loaded, shop, shapes, selection, refusals)
        engine = Engine(plan, Report(), loaded.model, shop.weights, shop.tactics)
        engine.plan = with_memory(engine, shapes)
    with clock.stage("verify"):
        report = checks.verify(engine, reference, shapes, options) if reference is not None else Report()
    engine.report = replace(
        report,
        stage_seconds=clock.seconds,
        sites_timed=selection.timed,
        sites_cached=selection.cached,
        warnings=(*build_warnings(shapes, selection), *report.warnings, *shop.cache.problems),
        versions=versions(),
    )
    return engine


def load_engine(path: str | Path) -> Engine:
    """An engine from its file. Nothing in the file is executed; kernels are made again from the bodies."""
    plan, report, model, weights = read_engine(Path(path))
    tactics = cpu_tactics(dict(model.opset_imports))
    try:
        return Engine(plan, report, model, weights, tactics)
    except DAMAGE as error:
        raise PlanError(f"the plan in {str(path)!r} does not fit its graph", got=repr(error)) from error


def check_choices(options: Options) -> None:
    """What can be refused at once is refused before any work."""
    leave_out(cpu_tactics({}), options.without)
    if options.data is not None and not options.data.exists():
        raise OptionError(f"there is no folder {str(options.data)!r}", want="a folder of .npz files, or one")


class Clock:
    """Seconds per stage, told as progress."""

    def __init__(self, options: Options) -> None:
        self.options, self.seconds = options, dict[str, float]()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.options.tell(name, 0, 0)
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)


def choose_shapes(loaded: Loaded, reference: Reference | None, options: Options) -> checks.Shapes:
    """Shapes to plan for: the profile's, else the first guess that the model takes."""
    inputs = ports(loaded.model.graph.inputs, what="input")
    check_profile(inputs, options.profiles)
    corners = {which: profile_shapes(inputs, options.profiles, which) for which in ("min", "opt", "max")}
    program, weights = read_program(loaded.model), read_weights(loaded.model)
    opt = corners["opt"]
    if opt is not None:
        settle_program(program, opt, weights)
        return checks.Shapes(inputs, opt, corners["min"], corners["max"])
    problems = []
    for guess in guessed_shapes(inputs, options.profiles):
        try:
            refuse_empty(settle_program(program, guess, weights), weights)
            if reference is not None:
                reference.run(example_feeds(program, guess, weights, seed=0))
        except Exception as error:  # not a shape this model takes: the next guess may be
            problems.append(f"{_shapes_text(guess)}: {first_line(error, 120)}")
            continue
        return checks.Shapes(inputs, guess, None, None, is_guess=True)
    raise BuildError(
        "no shape could be guessed that this model takes",
        rows=problems,
        help="say which: ridge build MODEL --shapes " + _shapes_text(guess),
    )


def refuse_empty(settled: Settled, weights: Mapping[str, Tensor]) -> None:
    """A guess that leaves nothing to compute is no shape the model was made for."""
    empty = [n for n, spec in settled.specs.items() if not spec.numel and n not in weights]
    if empty:
        raise InputError(f"{empty[0]!r} would be empty")


def _shapes_text(shapes: Mapping[str, TensorSpec]) -> str:
    return " ".join(f"{name}={'x'.join(map(str, spec.shape))}" for name, spec in shapes.items())


def fuse(model: ir.Model, shapes: checks.Shapes) -> list[Refusal]:
    """Partition at the planned shapes; what a region computes holds at any."""
    settled = settle_program(read_program(model), shapes.opt, read_weights(model))
    refusals = partition(model, settled)
    remove_unused(model)  # constants that now live inside functions
    return refusals


def read_weights(model: ir.Model) -> dict[str, Tensor]:
    """Initializers as tensors, without copying where numpy can share."""
    return {
        str(name): checks.shared_tensor(value.const_value.numpy())
        for name, value in model.graph.initializers.items()
    }


def open_workshop(model: ir.Model, shapes: checks.Shapes, options: Options) -> Workshop:
    program, weights = read_program(model), read_weights(model)
    target = Target("cpu", platform.machine(), options.cores)
    if torch.get_num_threads() != target.threads:
        torch.set_num_threads(target.threads)
    tactics: tuple[Tactic, ...] = cpu_tactics(
        dict(model.opset_imports), fixed_shapes=shapes.are_fixed, deterministic=options.deterministic
    )
    tactics = leave_out(tactics, options.without)
    lock = None
    if options.lock is not None and options.lock.exists():
        lock = TimingCache.read(options.lock)
        if lock.problems:
            raise OptionError(f"the lock {str(options.lock)!r} cannot be used", rows=lock.problems)
    cache = TimingCache.read(options.timing_cache) if options.timing_cache is not None else TimingCache()
    return Workshop(
        program=program,
        settled=settle_program(program, shapes.opt, weights),
        weights=weights,
        target=target,
        tactics=tactics,
        options=options,
        cache=cache,
        lock=lock,
        elsewhere=[settle_program(program, s, weights) for s in (shapes.low, shapes.high) if s is not None],
    )


def write_timings(shop: Workshop, selection: Selection) -> None:
    """Keep what was measured: the cache for the next build, the lock for the same build again."""
    options = shop.options
    if options.timing_cache is not None and selection.timed:
        shop.cache.write(options.timing_cache)
    if options.lock is not None and shop.lock is None:
        shop.cache.write_lock(options.lock, selection.keys)


def make_plan(
    loaded: Loaded, shop: Workshop, shapes: checks.Shapes, selection: Selection, refusals: list[Refusal]
) -> Plan:
    program: Program = shop.program
    settled: Settled = shop.settled
    steps = tuple(
        step_of(
            merge(program, choice.regions),
            choice.regions,
            tactic=choice.tactic,
            config=choice.config,
            site=choice.site,
            entry=choice.entry,
        )
        for choice in selection.steps
    )
    ranked = candidates(selection.alternatives) if selection.alternatives is not None else ()
    hosts = [n for r in program.regions if settled.is_host(r) for n in r.outputs]
    return Plan(
        model=loaded.name,
        target=shop.target,
        precision=shop.options.precision,
        inputs=shapes.inputs,
        outputs=ports(loaded.model.graph.outputs, what="output"),
        profile={name: tuple(ranges) for name, ranges in shop.options.profiles.items()},
        planned_shapes=dict(shapes.opt),
        steps=steps,
        memory=Memory(0, 0, 0, 0, 0, 0),
        regions=tuple(
            region_note(r, selection.sites[r.name], selection.entries.get(r.name))
            for r in program.regions
            if r.name in selection.sites
        ),
        host_values=tuple(hosts),
        refusals=tuple(PlanRefusal(r.rule, r.reason, r.at, r.bytes_lost) for r in refusals),
        alternatives=ranked,
        why=reason(ranked) if len(ranked) > 1 else "the only plan there is",
    )


def with_memory(engine: Engine, shapes: checks.Shapes) -> Plan:
    """The plan with what binding it at the planned shapes tells: memory, and ops that run slowly."""
    instance = engine.instance(dict(shapes.opt))
    memory = account(
        instance.layout,
        [step.io for step in instance.steps],
        instance.settled.specs,
        io_bytes=sum(t.nbytes for t in instance.inputs.values()),
        weight_bytes=sum(t.nbytes for t in engine.weights.values()),
        packed_bytes=engine.packed_bytes,
    )
    notes = {s.index: s.launch.note for s in instance.steps if s.launch is not None and s.launch.note}
    steps = tuple(
        replace(step, notes=(notes[i],)) if i in notes else step for i, step in enumerate(engine.plan.steps)
    )
    return replace(engine.plan, steps=steps, memory=memory, slow_ops=tuple(dict.fromkeys(notes.values())))


def build_warnings(shapes: checks.Shapes, selection: Selection) -> Iterator[str]:
    if shapes.is_guess:
        yield f"shapes were guessed; say which ones matter: --shapes {_shapes_text(shapes.opt)}"
    if selection.unsteady:
        yield (
            f"{selection.unsteady} of {selection.timed} timings were unsteady: the machine was busy; "
            "build again when it is quiet before you trust the choices"
        )


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": ort.__version__,
        "onnx": onnx.__version__,
        "onnx_ir": ir.__version__,
        "numpy": np.__version__,
    }
