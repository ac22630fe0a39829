"""Which way a build goes whose precision is not the model's own."""

from __future__ import annotations

from ridgeline.frontend.from_onnx import Source, load
from ridgeline.frontend.from_torch import Sample
from ridgeline.options import QUANTISED, Options
from ridgeline.passes.pipeline import canonicalise
from ridgeline.precision.half_build import HALF_NAMES, Build, LoweredBuild
from ridgeline.precision.original import Original
from ridgeline.precision.quantised_build import build_quantised
from ridgeline.runtime.engine import Engine


def build_lowered(source: Source, options: Options, sample: Sample | None, build: Build) -> Engine:
    """An engine in the types that the options ask for, inside the budget."""
    options.tell("ranges", 0, 0)
    loaded = load(source, options.limits)
    canonicalise(loaded.model, limits=options.limits)
    task = LoweredBuild(Original(loaded, options, sample), options, sample, build)
    if options.precision == "fp32":
        return task.build_wide()
    if options.precision == "auto":
        return task.build_auto()
    if options.precision in QUANTISED:
        return build_quantised(task)
    return task.build_half(HALF_NAMES[options.precision])
