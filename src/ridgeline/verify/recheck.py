"""Repeats the checks of a build, that of a model in its own types, on the machine that runs the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter

from torch import nn

from ridgeline.base.arrays import data_files
from ridgeline.base.files import path_given
from ridgeline.base.progress import Progress
from ridgeline.base.spec import TF32, Port
from ridgeline.errors import ModelError, PlanError, VerifyError
from ridgeline.frontend.from_onnx import Loaded, Source, load
from ridgeline.frontend.functions import count_nodes
from ridgeline.frontend.ports import ports
from ridgeline.options import Options
from ridgeline.plan.report import Report
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.versions import versions
from ridgeline.verify.limited_run import LimitedRun
from ridgeline.verify.reference import Reference
from ridgeline.verify.trials import verify_profiles

FLOATS = frozenset({"float32", "float16", "bfloat16"})


def verify_in_own_types(
    engine: Engine,
    model: Source,
    *,
    data: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Verify an engine against the model it was made from, as a full build does.

    `data` is a folder of .npz files, or one, to verify with besides random inputs. Raises `VerifyError` with
    the first divergence when the engine does not compute what the model computes.
    """
    if not isinstance(engine, Engine):
        raise PlanError(
            "this is not an engine",
            got=type(engine).__name__,
            want="what ridgeline.build or ridgeline.load returns",
            help="ridgeline.load(path) reads an engine file",
        )
    options = Options(data=None if data is None else path_given(data, what="data"), progress=progress)
    if options.data is not None:
        data_files(options.data)
    if isinstance(model, nn.Module):
        raise ModelError(
            "an engine is verified against an ONNX model here, not against a module",
            got=type(model).__name__,
            want="a path, bytes, onnx.ModelProto or onnx_ir.Model",
            help="torch.onnx.export(module, args, 'model.onnx', dynamo=True) writes one; builds from a module"
            " are verified against the module itself",
        )
    loaded = load(model, engine.program.limits)
    require_fitting_ports(engine, loaded)
    limited = LimitedRun.of(loaded.model, engine.program.limits)
    rounds = engine.plan.precision == TF32
    reference = Reference(loaded, threads=options.cores, limited=limited, rounds=rounds)
    start = perf_counter()
    try:
        report = verify_profiles(engine, reference, options)
    except VerifyError as error:
        raise _of_another(error, engine) from error
    return replace(
        report,
        nodes=count_nodes(loaded.original.graph.node),
        stage_seconds={"verify": round(perf_counter() - start, 3)},
        warnings=tuple(dict.fromkeys((*report.warnings, *engine.notes))),
        versions=versions(),
        islands=engine.report.islands,
    )


def _of_another(error: VerifyError, engine: Engine) -> VerifyError:
    """The error with advice for a user who did not build the engine."""
    here = versions()
    others = [
        f"made with {name} {version}, here is {here.get(name)}"
        for name, version in engine.report.versions.items()
        if version != here.get(name)
    ]
    return VerifyError(
        error.what,
        checks=error.checks,
        rows=(*error.rows, *others),
        got=error.got,
        help="is this the model that the engine was made from? Another export, version or machine can explain"
        " it: build from this model here, and if that engine fails too, report it",
    )


def require_fitting_ports(engine: Engine, loaded: Loaded, *, are_floats_alike: bool = False) -> None:
    """Names, types and ranks; dims may be named otherwise in another export of the same model.

    `are_floats_alike`: ports of a lowered engine may be half where the model's are float32.
    """
    for what, own, theirs in (
        ("input", engine.inputs, ports(loaded.model.graph.inputs, what="input")),
        ("output", engine.outputs, ports(loaded.model.graph.outputs, what="output")),
    ):
        got, want = ({port.name: port for port in side} for side in (theirs, own))
        if got.keys() == want.keys() and all(
            _are_alike(got[name], want[name], are_floats_alike=are_floats_alike) for name in want
        ):
            continue
        raise ModelError(
            f"the engine of {engine.plan.model!r} was not made from {loaded.name!r}: the {what}s differ",
            got=", ".join(f"{name}: {port}" for name, port in got.items()),
            want=", ".join(f"{name}: {port}" for name, port in want.items()),
        )


def _are_alike(one: Port, other: Port, *, are_floats_alike: bool) -> bool:
    ranks = {len(port.dims) for port in (one, other) if port.dims is not None}
    are_floats = are_floats_alike and {one.dtype, other.dtype} <= FLOATS
    return (one.dtype == other.dtype or are_floats) and len(ranks) < 2
