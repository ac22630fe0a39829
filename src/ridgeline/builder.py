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
from ridgeline.compose_cross import select_elsewhere
from ridgeline.compose_cuda import select_cuda
from ridgeline.errors import BuildError, InputError, OptionError, PlanError, first_line
from ridgeline.facts import Facts
from ridgeline.frontend.from_onnx import Loaded, Source, load
from ridgeline.frontend.ports import check_profile, guessed_shapes, ports, profile_shapes
from ridgeline.kernels.triton.compiler import take_aboard
from ridgeline.options import Options, Progress, make_options
from ridgeline.passes.body import read_program
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.partition import partition
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.rule import Refusal
from ridgeline.passes.settle import Settled
from ridgeline.plan.report import Report
from ridgeline.planning import make_plan
from ridgeline.reference import Reference
from ridgeline.runtime.device import current_device, is_here, require_device
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.file import DAMAGE, read_engine
from ridgeline.runtime.instance import settle_program
from ridgeline.runtime.on_board import LEFT_OUT
from ridgeline.runtime.stated import with_foreseen_memory, with_memory
from ridgeline.runtime.weights import DeviceWeights
from ridgeline.settling import settle
from ridgeline.spec import Target, TensorSpec
from ridgeline.tactics.cache import TimingCache
from ridgeline.tactics.registry import leave_out, tactics_for


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
    target = resolve_target(options)
    runs_here = target.kind == "cpu" or is_here(target)
    check_choices(options, target)
    with clock.stage("load"):
        loaded, facts = load(source), Facts.beside(options.timing_cache)
        reference = Reference(loaded, threads=options.cores, facts=facts) if options.verify != "off" else None
    with clock.stage("passes"):
        refusals = canonicalise(loaded.model, target=target)
        shapes = choose_shapes(loaded, reference, options)
        refusals += fuse(loaded.model, shapes, target)
    with clock.stage("select"):
        shop = open_workshop(loaded.model, shapes, options, target)
        choose = select if target.kind == "cpu" else select_cuda if runs_here else select_elsewhere
        selection = choose(shop, shapes.opt, shapes.feeds(shop.program, shop.host_weights))
        write_timings(shop, selection)
    with clock.stage("plan"):
        plan = make_plan(loaded, shop, shapes, selection, refusals)
        engine = Engine(plan, Report(), loaded.model, shop.host_weights, shop.tactics)
        state_memory = with_memory if runs_here else with_foreseen_memory
        engine.plan = state_memory(engine, shapes.opt)
    with clock.stage("verify"):
        report = check_engine(engine, reference, shapes, options)
        facts.write()
    engine.report = replace(
        report,
        stage_seconds=clock.seconds,
        sites_timed=selection.timed,
        sites_cached=selection.cached,
        warnings=(
            *build_warnings(shapes, selection),
            *report.warnings,
            *dict.fromkeys(engine.notes),
            *shop.cache.problems,
            *facts.problems,
        ),
        versions=versions(),
    )
    return engine


def load_engine(path: str | Path, *, trust: bool = False) -> Engine:
    """An engine from its file. Compiled kernels in it are used if it was made here or is trusted explicitly.

    Otherwise they are left alone, and kernels are made again from the bodies when the engine first runs.
    """
    stored = read_engine(Path(path))
    plan, model = stored.plan, stored.model
    tactics = tactics_for(plan.target, dict(model.opset_imports))
    is_trusted = trust or stored.is_sealed
    if is_trusted:
        take_aboard(stored.kernels)
    try:
        return Engine(
            plan, stored.report, model, stored.weights, tactics,
            brought=stored.kernels, left_out=LEFT_OUT if stored.kernels and not is_trusted else "",
            expected=stored.expected, settle=settle,
        )  # fmt: skip
    except DAMAGE as error:
        raise PlanError(f"the plan in {str(path)!r} does not fit its graph", got=repr(error)) from error


def resolve_target(options: Options) -> Target:
    """The machine that is built for: this one's processor, this one's GPU, or a GPU by its architecture."""
    if options.target == "cpu":
        return Target("cpu", platform.machine(), options.cores)
    kind, _, arch = options.target.partition(":")
    return Target(kind, arch or current_device().arch, 1)


def check_choices(options: Options, target: Target) -> None:
    """What can be refused at once is refused before any work."""
    leave_out(tactics_for(target, {}), options.without)
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
    if reference is not None:
        reference.open()
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


def fuse(model: ir.Model, shapes: checks.Shapes, target: Target) -> list[Refusal]:
    """Partition at the planned shapes; what a region computes holds at any."""
    settled = settle_program(read_program(model), shapes.opt, read_weights(model))
    refusals = partition(model, settled, target=target)
    remove_unused(model)  # constants that now live inside functions
    return refusals


def read_weights(model: ir.Model) -> dict[str, Tensor]:
    """Initializers as tensors, without copying where numpy can share."""
    return {
        str(name): checks.shared_tensor(value.const_value.numpy())
        for name, value in model.graph.initializers.items()
    }


def open_workshop(model: ir.Model, shapes: checks.Shapes, options: Options, target: Target) -> Workshop:
    program, weights = read_program(model), read_weights(model)
    has_gpu = target.kind == "cuda" and is_here(target)
    if target.kind == "cpu" and torch.get_num_threads() != target.threads:
        torch.set_num_threads(target.threads)
    tactics = tactics_for(
        target,
        dict(model.opset_imports),
        fixed_shapes=shapes.are_fixed,
        deterministic=options.deterministic,
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
        weights=DeviceWeights(weights) if has_gpu else weights,
        host_weights=weights,
        target=target,
        device_key=require_device(target).key if has_gpu else "",
        tactics=tactics,
        options=options,
        cache=cache,
        lock=lock,
        elsewhere=[settle_program(program, corner, weights) for corner in shapes.other_corners],
    )


def write_timings(shop: Workshop, selection: Selection) -> None:
    """Keep what was measured: the cache for the next build, the lock for the same build again."""
    options = shop.options
    if options.timing_cache is not None and selection.timed:
        shop.cache.write(options.timing_cache)
    if options.lock is not None and shop.lock is None:
        shop.cache.write_lock(options.lock, selection.keys)


def check_engine(
    engine: Engine, reference: Reference | None, shapes: checks.Shapes, options: Options
) -> Report:
    """What can be verified here: the engine itself, or the graph of one that runs elsewhere."""
    runs_here = engine.plan.target.kind == "cpu" or is_here(engine.plan.target)
    if reference is None:
        return Report(unverified="" if runs_here else checks.UNVERIFIED)
    check = checks.verify if runs_here else checks.verify_graph
    return check(engine, reference, shapes, options)


def build_warnings(shapes: checks.Shapes, selection: Selection) -> Iterator[str]:
    if shapes.is_guess:
        yield f"shapes were guessed; say which ones matter: --shapes {_shapes_text(shapes.opt)}"
    if selection.predicted:
        yield f"{selection.predicted} choices were predicted: the first run on the GPU times and settles them"
    for place in selection.measured_at:
        yield f"choices were read from timings measured elsewhere: {place}"
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
