"""Which way a build goes whose precision is not the model's own."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.base.formats import HALF_NAMES
from ridgeline.base.spec import TF32, Target
from ridgeline.frontend.from_onnx import Source, load
from ridgeline.frontend.from_torch import Sample
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


def build_lowered(source: Source, options: Options, sample: Sample | None, build: Build) -> Engine:
    """An engine in the types that the options ask for, inside the budget.

    The export of a module is compared with it here, where it is still what the module computes.
    """
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
    engine = _lowered(LoweredBuild(original, options, sample, build))
    engine.report = replace(engine.report, checks=(*engine.report.checks, *rows))
    return engine


def _lowered(task: LoweredBuild) -> Engine:
    options = task.options
    if options.precision == "fp32":
        task.check_data()
        return task.build_wide()
    if options.precision == "auto":
        return task.build_auto()
    if options.precision == TF32:
        return build_tf32(task)
    if options.precision in QUANTISED:
        return build_quantised(task)
    return task.build_half(HALF_NAMES[options.precision])
