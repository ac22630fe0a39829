"""`ridgeline.quantize`: a float model in, standard Q/DQ ONNX out, with every decision and its reason.

Load, fold norms into weights, smooth if asked, place, store weights, calibrate, insert, check, judge.
The file that is written computes what the emulator judged; ONNX Runtime runs most formats (`RUNTIMES`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.export import ExportedProgram

from ridgeline.base.files import path_given
from ridgeline.base.progress import Progress
from ridgeline.base.scales import Encoded
from ridgeline.errors import OptionError, PrecisionError
from ridgeline.frontend.from_onnx import Source, load
from ridgeline.frontend.ports import ports
from ridgeline.ir.body import op_of
from ridgeline.options import DEFAULT_LIMITS, Limits, make_limits
from ridgeline.passes.outline import name_nodes
from ridgeline.passes.pipeline import PASSES
from ridgeline.precision.budget import Judgement
from ridgeline.precision.calibrate import (
    AUTO,
    Calibrated,
    Group,
    Layer,
    calibrate,
    check_method,
    compared_rows,
)
from ridgeline.precision.calibration_file import (
    VERSION,
    CalibrationFile,
    model_digest,
    read_calibration,
    rows_of,
    write_calibration,
)
from ridgeline.precision.compensate import compensated
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.given_model import GivenModel, given_model
from ridgeline.precision.insert import insert_quantization
from ridgeline.precision.patterns import patterns_given
from ridgeline.precision.place import Edge, OperandRow, Placement, WeightEdge, place
from ridgeline.precision.qdq_file import finished, weight_bytes, write_qdq
from ridgeline.precision.samples import Feeds, Samples, division_warnings
from ridgeline.precision.schemes import Scheme, scheme_named
from ridgeline.precision.smooth import Smoothed, output_clips, smooth_channels
from ridgeline.precision.weights import encode_weight

# what is done before placing: norms become weights, and patterns of exporters the ops they mean
PREPARED = ("shapes", "fold", "clean", "weights", "norms", "activations", "sweep")
DATA = "samples (--data FOLDER of .npz files, in Python data=)"
# rows that the quantised model is judged on
JUDGED_ROWS = 32
# formats that ONNX Runtime does not run as they are written
RUNTIMES = {
    "fp8": "ONNX Runtime 1.31 runs float8 convolutions only with its graph optimisations off: they make "
    "QLinearConv of float8, which it refuses",
    "nvfp4": "ONNX Runtime 1.31 cannot run this file: it has no DequantizeLinear of opset 23 for FP4",
    "mxfp8": "ONNX Runtime 1.31 cannot run this file: it has no DequantizeLinear of opset 24 for E8M0",
}


@dataclass(frozen=True)
class Quantized:
    """A quantised model, and how it came to be."""

    model: ir.Model
    scheme: Scheme
    decisions: tuple[OperandRow, ...]
    ranges: Mapping[str, Calibrated]
    groups: tuple[Group, ...]
    errors: Mapping[str, float]  # relative L2 of each output, the worst row
    judged_rows: int
    held_out: bool  # calibration did not see the rows that errors are of
    float_bytes: int  # of all weights
    quantized_bytes: int
    smoothed: tuple[Smoothed, ...] = ()
    notes: tuple[str, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write the ONNX file, whole or not at all."""
        write_qdq(self.model, path_given(path, what="the model's place"))


def quantize(
    source: Source | nn.Module | ExportedProgram,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
    format: str = "int8",
    data: Any = None,
    method: str = AUTO,
    exclude: str | Sequence[str] = (),
    smooth: bool = False,
    compensate: bool = False,
    calibration: str | Path | None = None,
    block: int = 0,
    reduced_range: bool = False,
    limits: Limits | Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """A model as standard Q/DQ ONNX. A PyTorch module needs example inputs, as `ridgeline.build` takes them.

    `data` is a folder of .npz files, one such file, or any data set that `build` takes; weights alone need
    none. `progress` is called as that of `build` is.

    Parameters: a keyword for every option of `ridge quantize`, so that a wrong one is an error.
    """
    _require_flags(smooth=smooth, compensate=compensate, reduced_range=reduced_range)
    exclude = patterns_given(exclude, what="exclude")
    path = None if calibration is None else path_given(calibration, what="calibration")
    scheme = scheme_named(format, block=block, reduced_range=reduced_range)
    check_method(method, [scheme.activation] if scheme.activation else [])
    allowed = DEFAULT_LIMITS if limits is None else make_limits(limits)
    asked = _Asked(scheme, data, method, exclude, smooth, compensate, path, progress)
    with given_model(source, example_inputs, dynamic_shapes, allowed) as given:
        return _quantized(given, asked)


@dataclass(frozen=True)
class _Asked:
    """What the user wants, checked."""

    scheme: Scheme
    data: Any
    method: str
    exclude: tuple[str, ...]
    smooth: bool
    compensate: bool
    calibration: Path | None
    progress: Progress | None


def _quantized(given: GivenModel, asked: _Asked) -> Quantized:
    allowed = given.limits
    model, opset = prepared(given.source, allowed)
    before = weight_bytes(model)
    stage = _Stages(asked.progress)
    samples = None
    if asked.data is not None:
        samples = stage.counted(samples_of(asked.data, model, given.has_independent_rows))
    fitting, judging = (None, None) if samples is None else samples.split()
    reference = None if samples is None else Emulator(model, allowed)
    placement = place(model, asked.scheme, exclude=asked.exclude)
    require_products(placement)
    smoothed: list[Smoothed] = []
    if asked.smooth:
        stage.begin("smooth")
        smoothed = smooth_channels(model, placement, Emulator(model, allowed), _needed(fitting, "smooth"))
        placement = place(model, asked.scheme, exclude=asked.exclude)
    wanted = _Wanted(model, placement, asked.method, allowed)
    stage.begin("weights")
    stored = _stored(wanted, fitting)
    if asked.compensate:
        stage.begin("compensate")
        stored = compensated(placement, stored, wanted.emulator(), _needed(fitting, "compensate"))
    stage.begin("ranges")
    ranges, notes = _ranges(wanted, stored, fitting, asked.calibration)
    insert_quantization(model, placement, stored, ranges)
    if given.sample is not None:
        ir.external_data.load_to_model(model)  # a module's large weights lie in a folder that goes
    model = finished(model, asked.scheme, opset)
    stage.begin("judge")
    rows = [] if judging is None else compared_rows(judging, JUDGED_ROWS)
    judged = Judgement() if reference is None else judged_rows(reference, Emulator(model, allowed), rows)
    if fitting is not None and judging is not None:
        notes = (*notes, *division_warnings(fitting, judging), *judged.left_out.lines)
    return Quantized(
        model,
        asked.scheme,
        tuple(placement.decisions),
        ranges,
        tuple(placement.groups),
        judged.worst,
        len(rows),
        fitting is not judging,
        before,
        weight_bytes(model),
        tuple(smoothed),
        (*notes, *([RUNTIMES[asked.scheme.name]] if asked.scheme.name in RUNTIMES else [])),
    )


class _Stages:
    """Tells which stage it is, and how many samples it has read."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._name, self._read = progress, "", 0

    def begin(self, name: str) -> None:
        self._name, self._read = name, 0
        self._tell("")

    def counted(self, samples: Samples) -> Samples:
        def read() -> Iterator[tuple[str, Feeds]]:
            for name, batch in samples.read():
                self._read += 1
                self._tell(name)
                yield name, batch

        return replace(samples, read=read)

    def _tell(self, detail: str) -> None:
        if self._progress is not None and self._name:
            self._progress(self._name, self._read, 0, detail)


def _require_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"{name} is not True or False", got=repr(value))


def samples_of(data: Any, model: ir.Model, joins: Callable[[], bool] = lambda: False) -> Samples:
    graph = model.graph
    return Samples.of(data, ports(graph.inputs, what="input"), ports(graph.outputs, what="output"), joins)


def prepared(source: Source, limits: Limits) -> tuple[ir.Model, int]:
    """The model in the canonical opset, its norms folded into weights; and the opset it came in."""
    loaded = load(source, limits)
    model = loaded.model
    opset = max((e.version for e in loaded.original.opset_import if e.domain in ("", "ai.onnx")), default=1)
    name_nodes(model.graph)
    for stage in PASSES:
        if stage.name in PREPARED:
            stage.run(model)
    return model, opset


def stored_weights(placement: Placement, clips: Mapping[WeightEdge, np.ndarray]) -> dict[Edge, Encoded]:
    """Every weight of the placement in its format, clipped as was found best for the output."""
    return {
        w.edge: encode_weight(
            w.array,
            placement.scheme.weight,
            w.granularity,
            clips=clips.get(w),
            where=repr(str(w.edge.value.name)),
        )
        for w in placement.weights
    }


def product_layers(placement: Placement, stored: Mapping[Edge, Encoded], device: str = "cpu") -> list[Layer]:
    """The products that judge the ranges of their operands."""
    made = []
    for node in placement.products:
        op = op_of(node)
        weights = {}
        edge = Edge(node, 1)
        if edge in stored:
            tensor = ir.convenience.get_const_tensor(edge.value)
            assert tensor is not None, "weights are constant"
            pair = (torch.from_numpy(tensor.numpy().copy()), torch.from_numpy(stored[edge].decoded()))
            weights[str(edge.value.name)] = (pair[0].to(device), pair[1].to(device))
        made.append(Layer(replace(op, inputs=op.inputs[:2]), weights))
    return made


def judged_rows(reference: Emulator, emulator: Emulator, rows: Sequence[Feeds]) -> Judgement:
    """The relative L2 error of each output, on the worst row."""
    made = Judgement()
    for row in rows:
        want, got = (
            {name: value.numpy() for name, value in each.run(row).items() if hasattr(value, "numpy")}
            for each in (reference, emulator)
        )
        made.add(got, want, row)
        made.left_out.add(want)
    return made


def _needed(samples: Samples | None, option: str) -> Samples:
    if samples is None:
        raise OptionError(f"{option} searches by the error on data", want=DATA)
    return samples


def require_products(placement: Placement) -> None:
    if not placement.products and not placement.activations:
        raise PrecisionError(
            f"nothing in this model can be quantised to {placement.scheme.name}",
            rows=[f"{d.op} {d.node}: {d.why}" for d in placement.decisions] or ["it has no matrix products"],
        )


@dataclass(frozen=True)
class _Wanted:
    """What is to be calibrated."""

    model: ir.Model
    placement: Placement
    method: str
    limits: Limits

    def emulator(self) -> Emulator:
        return Emulator(self.model, self.limits)

    def file(self, samples: Samples | None, ranges: Mapping[str, Calibrated]) -> CalibrationFile:
        return CalibrationFile(
            VERSION,
            model_digest(self.model),
            "" if samples is None else samples.digest(),
            0 if samples is None else sum(1 for _ in samples),
            self.method,
            rows_of(self.placement.groups, ranges),
        )


def _stored(wanted: _Wanted, samples: Samples | None) -> dict[Edge, Encoded]:
    """The weights; those of few bits are clipped by the output where there is data."""
    clips: Mapping[WeightEdge, np.ndarray] = {}
    if samples is not None and wanted.placement.scheme.weight.bits < 8:
        clips = output_clips(wanted.placement, wanted.emulator(), samples)
    return stored_weights(wanted.placement, clips)


def _ranges(
    wanted: _Wanted, stored: Mapping[Edge, Encoded], samples: Samples | None, path: Path | None
) -> tuple[dict[str, Calibrated], tuple[str, ...]]:
    """From the file if it is of this model and data, else from the data; with a note on which."""
    scheme = wanted.placement.scheme
    if scheme.is_weight_only:
        return {}, ()
    notes: tuple[str, ...] = ()
    if path is not None and path.exists():
        found = read_calibration(path)
        misfit = found.misfit(wanted.file(samples, {}), with_data=samples is not None)
        if not misfit:
            return found.ranges(), (f"ranges of {path.name}, made with {found.samples} samples",)
        if samples is None:
            raise OptionError(
                f"the calibration file {str(path)!r} does not fit: {misfit}",
                help=f"give {DATA} to calibrate again",
            )
        notes = (f"calibrated again, since {path.name} did not fit: {misfit}",)
    if samples is None:
        raise OptionError(
            f"{scheme.name} quantises activations, whose ranges come from data",
            want=f"{DATA}; or a calibration file made earlier",
            help="weights alone need none: format w8 or w4",
        )
    groups, layers = wanted.placement.groups, product_layers(wanted.placement, stored)
    made = calibrate(wanted.emulator(), samples, groups, layers=layers, method=wanted.method)
    if path is not None:
        write_calibration(wanted.file(samples, made), path)
    return made, notes
