"""The rows of `bench/accuracy.py`: how each precision is made of a float model, and who runs it.

A row that this version or this machine does not have says why, and stays empty.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

import ridgeline
from bench.accuracy_tasks import Feeds, Run, Task
from ridgeline.analyze.sensitivity import candidates, rounding_of
from ridgeline.errors import RidgelineError, first_line
from ridgeline.frontend.from_onnx import load
from ridgeline.frontend.other_runtimes import open_session, session_options
from ridgeline.options import PRECISIONS
from ridgeline.passes.pipeline import canonicalise
from ridgeline.precision.emulate import Emulator

# a quantised file may stray further from the original than a half engine
BUDGETS = {"fp16": 1e-2, "bf16": 3e-2}


class Unavailable(Exception):
    """This row cannot be had here; the text says why."""


@dataclass(frozen=True)
class Made:
    """A way to run the model in some precision."""

    run: Run
    size_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Workspace:
    """What rows share: where files go, and how engines are built."""

    folder: Path
    target: str
    threads: int
    level: int

    def build(self, source: Path, task: Task, **more: Any) -> Made:
        """An engine of a file, verified against that file."""
        engine = ridgeline.build(
            source, profiles=dict(task.profiles), target=self.target, threads=self.threads, level=self.level,
            verify="fast", progress=False, timing_cache=self.folder / "timings.toml", **more,
        )  # fmt: skip
        path = engine.save(self.folder / f"{source.stem}.ridge")
        kept = engine.report.precision.kept if getattr(engine.report, "precision", None) else ()
        note = f"{len(kept)} nodes kept in float32" if kept else ""
        if any("no TF32" in warning for warning in engine.report.warnings):
            note = "no TF32 on this machine: float32"
        return Made(engine.context(wait=True).run, path.stat().st_size, note)

    def session(self, path: Path, note: str = "") -> Made:
        """ONNX Runtime with its own optimisations, on the CPU."""
        session = open_session(str(path), session_options(threads=self.threads))
        names = [port.name for port in session.get_outputs()]
        return Made(
            lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)), path.stat().st_size, note
        )

    def data(self, task: Task) -> Path:
        """The calibration samples as a folder of .npz files."""
        folder = self.folder / "calibration" / task.name
        if not folder.exists():
            folder.mkdir(parents=True)
            for i, feeds in enumerate(task.calibration):
                np.savez(folder / f"{i:04d}.npz", **feeds)  # type: ignore[arg-type]
        return folder


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # it has no types
    def __init__(self, samples: Sequence[Feeds]) -> None:
        self._left: Iterator[Feeds] = iter(samples)

    def get_next(self) -> Feeds | None:
        return next(self._left, None)


def ort_static(workspace: Workspace, task: Task, *, per_channel: bool = True) -> Made:
    """ONNX Runtime's own static quantisation, S8S8 with scales per channel, on the same calibration data."""
    path = _ort_static_file(workspace, task, per_channel=per_channel)
    return workspace.session(path)


def _ort_static_file(workspace: Workspace, task: Task, *, per_channel: bool = True) -> Path:
    ready, path = _preprocessed(workspace, task), workspace.folder / f"{task.name}.ort_static.onnx"
    if not path.exists():
        quantize_static(
            ready, path, _Reader(task.calibration), quant_format=QuantFormat.QDQ, per_channel=per_channel,
            activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    return path


def _preprocessed(workspace: Workspace, task: Task) -> Path:
    """With shapes and, where per-channel scales need it, in opset 13."""
    path = workspace.folder / f"{task.name}.ready.onnx"
    if path.exists():
        return path
    source = task.model
    proto = onnx.load(source)
    if max(entry.version for entry in proto.opset_import if not entry.domain) < 13:
        source = workspace.folder / f"{task.name}.opset13.onnx"
        onnx.save(onnx.version_converter.convert_version(proto, 13), source)
    try:
        quant_pre_process(str(source), str(path), skip_symbolic_shape=True)
    except Exception:  # its shape inference fails on some models, and quantisation works without
        path.write_bytes(source.read_bytes())
    return path


def _ort_dynamic_file(workspace: Workspace, task: Task) -> Path:
    path = workspace.folder / f"{task.name}.ort_dynamic.onnx"
    if not path.exists():
        # it transposes weights, and then meets the shapes that the file states for them
        proto = onnx.load(_preprocessed(workspace, task))
        del proto.graph.value_info[:]
        bare = workspace.folder / f"{task.name}.bare.onnx"
        onnx.save(proto, bare)
        quantize_dynamic(bare, path, weight_type=QuantType.QInt8, per_channel=True)
    return path


def engine(precision: str) -> Callable[[Workspace, Task], Made]:
    """Ours in one of the build's precisions, judged on the calibration data."""

    def make(workspace: Workspace, task: Task) -> Made:
        if precision == "fp32":
            return workspace.build(task.model, task)
        if precision not in PRECISIONS:
            raise Unavailable(f"this version builds {', '.join(PRECISIONS)}")
        budget = {"budget": BUDGETS[precision]} if precision in BUDGETS else {}
        return workspace.build(task.model, task, precision=precision, data=workspace.data(task), **budget)

    return make


def quantised(row: str, *, in_runtime: bool = False, **options: Any) -> Callable[[Workspace, Task], Made]:
    """`ridgeline.quantize`, and the file it writes run by our engine or by ONNX Runtime."""

    def make(workspace: Workspace, task: Task) -> Made:
        path = quantised_file(workspace, task, row, options)
        return workspace.session(path) if in_runtime else workspace.build(path, task)

    return make


def quantised_file(workspace: Workspace, task: Task, row: str, options: Mapping[str, Any]) -> Path:
    quantize = getattr(ridgeline, "quantize", None)
    if quantize is None:
        raise Unavailable("this version has no ridgeline.quantize")
    unknown = [name for name in options if name not in inspect.signature(quantize).parameters]
    if unknown:
        raise Unavailable(f"ridgeline.quantize has no {unknown[0]!r}")
    path = workspace.folder / f"{task.name}.{row}.onnx"
    if not path.exists():
        quantize(task.model, data=workspace.data(task), **options).save(path)
    return path


def emulated(precision: str) -> Callable[[Workspace, Task], Made]:
    """What the precision does to the answers, op by op in PyTorch, for a target that is not here."""

    def make(workspace: Workspace, task: Task) -> Made:
        model = load(task.model).model
        canonicalise(model)
        emulator = Emulator(model)
        nodes = candidates(model, precision)
        rounding = rounding_of(precision, nodes, model, emulator.given)

        def run(feeds: Feeds) -> dict[str, np.ndarray]:
            made = emulator.run(feeds, rounding=rounding)
            return {name: made[name].numpy() for name in emulator.outputs}

        return Made(run, task.model.stat().st_size, "emulated: its time says nothing")

    return make


def taken_as_they_are(file: Callable[[Workspace, Task], Path]) -> Callable[[Workspace, Task], Made]:
    """Models that another tool quantised, run by our engine."""
    return lambda workspace, task: workspace.build(file(workspace, task), task)


ROWS: dict[str, Callable[[Workspace, Task], Made]] = {
    "onnxruntime fp32": lambda workspace, task: workspace.session(task.model),
    "onnxruntime int8 static": ort_static,
    "onnxruntime int8 dynamic": lambda workspace, task: workspace.session(_ort_dynamic_file(workspace, task)),
    "fp32": engine("fp32"),
    "tf32": engine("tf32"),
    "tf32 emulated": emulated("tf32"),
    "fp16": engine("fp16"),
    "bf16": engine("bf16"),
    "auto": engine("auto"),
    "int8 build": engine("int8"),
    "int8": quantised("int8", format="int8"),
    "int8 file in onnxruntime": quantised("int8", in_runtime=True, format="int8"),
    "fp8": quantised("fp8", format="fp8"),
    "w8 (DQ only)": quantised("w8", format="w8"),
    "w4": quantised("w4", format="w4"),
    "w4 AWQ": quantised("w4_awq", format="w4", smooth=True),
    "w4 compensated": quantised("w4_compensated", format="w4", compensate=True),
    "nvfp4 compensated": quantised("nvfp4_compensated", format="nvfp4", compensate=True),
    "fp8 compensated": quantised("fp8_compensated", format="fp8", compensate=True),
    "int8 SmoothQuant compensated": quantised(
        "int8_smooth_compensated", format="int8", smooth=True, compensate=True
    ),
    "int8 SmoothQuant": quantised("int8_smooth", format="int8", smooth=True),
    "int8 SmoothQuant file in onnxruntime": quantised(
        "int8_smooth", in_runtime=True, format="int8", smooth=True
    ),
    "nvfp4": quantised("nvfp4", format="nvfp4"),
    "mxfp8": quantised("mxfp8", format="mxfp8"),
    "onnxruntime's static model": taken_as_they_are(_ort_static_file),
    "onnxruntime's dynamic model": taken_as_they_are(_ort_dynamic_file),
}


def made(row: str, workspace: Workspace, task: Task) -> Made:
    """The row's runner; `Unavailable` with the reason where it cannot be had."""
    try:
        return ROWS[row](workspace, task)
    except (Unavailable, KeyboardInterrupt):
        raise
    except RidgelineError as error:
        detail = error.got or next(iter(error.rows), "")
        raise Unavailable(f"{type(error).__name__}: {error.what}: {detail}") from error
    except Exception as error:  # ONNX Runtime's tools raise whatever they meet
        raise Unavailable(f"{type(error).__name__}: {first_line(error)}") from error
