"""Repeats the checks of a build whose engine may have been lowered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter

from torch import nn

from ridgeline.base.files import path_given
from ridgeline.base.formats import HALF_NAMES
from ridgeline.base.progress import Progress
from ridgeline.errors import OptionError, VerifyError
from ridgeline.frontend.from_onnx import Loaded, Source, load
from ridgeline.frontend.functions import count_nodes
from ridgeline.frontend.ports import ports
from ridgeline.options import Options
from ridgeline.passes.outline import name_nodes
from ridgeline.passes.pipeline import canonicalise
from ridgeline.plan.report import Check, Precision, Report
from ridgeline.precision.original import Original
from ridgeline.precision.samples import division_warnings
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.versions import versions
from ridgeline.select.shapes import Shapes
from ridgeline.verify.recheck import require_fitting_ports, verify_in_own_types


def verify_engine(
    engine: Engine,
    model: Source,
    *,
    data: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Verify an engine against the model it was made from, as a full build does.

    `data` is a folder of .npz files, or one, to verify with besides random inputs. Raises `VerifyError` when
    the engine does not compute what the model computes. One with nodes or ports in a lower precision is
    judged as its build judged it, at the shapes of its first profile: by its error budget, on the rows of
    `data` that are held out, or on the random inputs of a build without data. Its build also compared it with
    the lowered graph, which is not repeated here.
    """
    precision = engine.report.precision if isinstance(engine, Engine) else None
    if precision is None or isinstance(model, nn.Module) or not _is_lowered(engine, precision):
        return verify_in_own_types(engine, model, data=data, progress=progress)
    if precision.metric:
        raise OptionError(
            f"the engine was judged by {precision.metric}, a function of yours",
            help="ridge compare ENGINE MODEL --data DIR shows how far it is off by our measures",
        )
    if data is None and not precision.drawn:
        raise OptionError(
            f"the engine is in {precision.asked}, and was judged on samples of real data",
            want="samples like those",
            help="ridge verify ENGINE --model MODEL --data DIR",
        )
    start = perf_counter()
    options = Options(
        data=None if data is None else path_given(data, what="data"), progress=progress,
        limits=engine.program.limits,
    )  # fmt: skip
    loaded = load(model, options.limits)
    require_fitting_ports(engine, loaded, are_floats_alike=True)
    name_nodes(loaded.model.graph)
    canonicalise(loaded.model, limits=options.limits)
    original = Original(loaded, options, None, planned=_shapes(engine, loaded))
    judged = original.judge(engine)
    fitting, judging = original.samples
    kind, budget = "random inputs" if judging.drawn else "samples", precision.budget
    name = f"budget, {judged.samples} {kind}"
    checks = tuple(
        Check(name, output, "", error, budget, error <= budget) for output, error in judged.worst.items()
    )
    _require(checks, precision, judged.error)
    found = replace(precision, error=judged.error, errors=dict(judged.worst), samples=judged.samples)
    return Report(
        checks=checks, precision=found, reference=original.reference.who,
        nodes=count_nodes(loaded.original.graph.node), versions=versions(), islands=engine.report.islands,
        stage_seconds={"verify": round(perf_counter() - start, 3)},
        warnings=tuple(dict.fromkeys((*division_warnings(fitting, judging), *engine.notes))),
    )  # fmt: skip


def _is_lowered(engine: Engine, precision: Precision) -> bool:
    """Whether nodes are, or ports: those of a model that was lowered were float32."""
    return precision.is_lowered or any(
        port.dtype in HALF_NAMES.values() for port in (*engine.inputs, *engine.outputs)
    )


def _shapes(engine: Engine, loaded: Loaded) -> Shapes:
    """Those that the engine was planned for, with the types of the model's own ports."""
    planned, inputs = Shapes.of(engine.plan), ports(loaded.model.graph.inputs, what="input")
    own = {port.name: port.dtype for port in inputs}
    opt, low, high = (
        None if specs is None else {name: replace(spec, dtype=own[name]) for name, spec in specs.items()}
        for specs in (planned.opt, planned.low, planned.high)
    )
    assert opt is not None, "an engine is planned for some shapes"
    return replace(planned, inputs=tuple(inputs), opt=opt, low=low, high=high)


def _before(precision: Precision) -> str:
    return "" if precision.error is None else f"; its build saw {precision.error:.3g}"


def _require(checks: tuple[Check, ...], precision: Precision, error: float) -> None:
    failed = [check for check in checks if not check.passed]
    if failed:
        raise VerifyError(
            f"the engine is further from its model than its budget: {len(failed)} of {len(checks)} outputs",
            checks=checks,
            rows=[f"{check.output}: {check.max_error:.3g}" for check in failed],
            got=f"a relative error of {error:.3g}" + _before(precision),
            want=f"at most {precision.budget:.3g}",
            help="are the model and the samples those that the engine was built with? What lies beyond the"
            " ranges that were calibrated is cut off",
        )
