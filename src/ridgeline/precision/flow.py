"""Which way a build goes whose precision is not the model's own."""

from __future__ import annotations

import time
from dataclasses import replace

from ridgeline.base.formats import HALF_NAMES
from ridgeline.base.spec import TF32, Target
from ridgeline.frontend.from_onnx import Loaded, Source, load
from ridgeline.frontend.from_torch import Sample
from ridgeline.frontend.functions import count_nodes
from ridgeline.options import QUANTISED, Options
from ridgeline.passes.outline import name_nodes
from ridgeline.passes.pipeline import canonicalise
from ridgeline.plan.report import Check
from ridgeline.precision.half_build import Build, LoweredBuild
from ridgeline.precision.original import Original
from ridgeline.precision.patterns import keep_by_name, op_types
from ridgeline.precision.quantised_build import build_quantised
from ridgeline.precision.tf32_build import build_tf32
from ridgeline.runtime.engine import Engine
from ridgeline.targets import target_named
from ridgeline.verify.module import check_export


class _EveryEngine:
    """A build whose stages are added up over all engines that a lowering makes."""

    def __init__(self, build: Build) -> None:
        self._build, self._began = build, time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._engines, self._timed, self._cached = 0, 0, 0

    def __call__(self, source: Source, options: Options, sample: Sample | None) -> Engine:
        engine = self._build(source, options, sample)
        report = engine.report
        self._engines += 1
        self._timed += report.sites_timed
        self._cached += report.sites_cached
        for name, seconds in report.stage_seconds.items():
            if name != "export":
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        return engine

    def reported(self, engine: Engine, loaded: Loaded) -> Engine:
        """The engine that was chosen, with the figures of all, and the nodes of the model as it was given."""
        others = time.perf_counter() - self._began - sum(self._seconds.values())
        exported = {n: s for n, s in engine.report.stage_seconds.items() if n == "export"}
        seconds = {**exported, "lowering": others, **self._seconds}
        engine.report = replace(
            engine.report,
            nodes=count_nodes(loaded.original.graph.node),
            stage_seconds={name: round(s, 3) for name, s in seconds.items()},
            engines_built=self._engines,
            sites_timed=self._timed,
            sites_cached=self._cached,
        )
        return engine


def build_lowered(source: Source, options: Options, sample: Sample | None, build: Build) -> Engine:
    """An engine in the types that the options ask for, inside the budget.

    The export of a module is compared with it here, where it is still what the module computes.
    """
    every = _EveryEngine(build)
    options.tell("ranges", 0, 0)
    loaded = load(source, options.limits)
    is_quantised = options.precision in QUANTISED
    name_nodes(loaded.model.graph)  # decisions are by name
    types = op_types(loaded.model)
    # products that a target merges are merged before they are quantised: afterwards their scales differ
    target = target_named(options) if is_quantised else Target()
    canonicalise(loaded.model, target=target, limits=options.limits)
    options = replace(options, keep=keep_by_name(options.keep, types, loaded.model))
    original = Original(loaded, options, sample)
    rows: list[Check] = []
    if sample is not None and options.verify != "off":
        sample, rows = check_export(original.reference, sample)
    engine = every.reported(_built(LoweredBuild(original, options, sample, every)), loaded)
    engine.report = replace(engine.report, checks=(*engine.report.checks, *rows))
    return engine


def _built(task: LoweredBuild) -> Engine:
    precision = task.options.precision
    if precision == "fp32":
        task.check_data()
        return task.build_wide()
    if precision == "auto":
        return task.build_auto()
    if precision == TF32:
        return build_tf32(task)
    if precision in QUANTISED:
        return build_quantised(task)
    return task.build_half(HALF_NAMES[precision])
