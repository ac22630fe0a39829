"""What a bench run leaves in files: every query, the outputs, the layers. The suffix decides the form."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ridgeline.analyze.bench import BenchReport
from ridgeline.analyze.bench_figures import percentile_name
from ridgeline.analyze.bench_run import Query
from ridgeline.analyze.bench_sweep import SweepReport
from ridgeline.analyze.report_text import plain_cell
from ridgeline.base.result_json import document, to_json
from ridgeline.errors import OptionError
from ridgeline.kernels.elements import is_plain
from ridgeline.plan.trace import Trace
from ridgeline.runtime.non_tensor import element_name, flattened

TABLES, ARRAYS = (".csv", ".json"), (".npz", ".json")
TIMES = ("context", "start_us", "end_us", "latency_us", "enqueue_us", "h2d_us", "compute_us", "d2h_us")
FIGURES = ("min_us", "mean_us", "median_us", "max_us", "p90_us", "p95_us", "p99_us")
LAYERS = (
    "index", "name", "op_types", "sources", "op_class", "tactic", "precision", "calls", "mean_us",
    "median_us", "p10_us", "p90_us", "share", "start_us", "gap_us", "bytes", "flops",
)  # fmt: skip
SWEEP = (
    "size", "queries", "throughput_qps", "items_per_s", "us_per_item", "mean_us", "median_us", "variation",
)  # fmt: skip


def require_suffix(path: Path, option: str, allowed: Sequence[str]) -> None:
    if path.suffix.lower() not in allowed:
        raise OptionError(
            f"{option} cannot tell the form of {str(path)!r}",
            want=f"a name that ends in {' or '.join(allowed)}",
        )


def times_text(queries: Sequence[Query], path: Path) -> str:
    """One row for each query, in the order of their start."""
    rows = [[_to_ns(getattr(query, name)) for name in TIMES] for query in queries]
    return _table_text("bench_times", TIMES, rows, path)


def layers_text(trace: Trace, path: Path) -> str:
    """One row for each step that takes time."""
    rows = []
    for step in trace.steps:
        mean_us = sum(step.samples_us) / len(step.samples_us)
        share = step.median_us / trace.steps_us if trace.steps_us else None
        rows.append([
            step.index, step.name, " ".join(step.op_types), " ".join(step.sources), step.op_class,
            step.tactic, step.precision, step.calls, mean_us, step.median_us, step.p10_us, step.p90_us, share,
            step.start_us, step.gap_us, step.bytes, step.flops,
        ])  # fmt: skip
    about = {"how": trace.how, "rounds": trace.rounds, "total_us": trace.total_us, "steps_us": trace.steps_us}
    return _table_text("bench_layers", LAYERS, rows, path, **about)


def write_outputs(outputs: Mapping[str, Any], path: Path, file: BinaryIO) -> None:
    """Arrays by name; types that numpy's files cannot name are widened to float32 or int8, without loss."""
    arrays = {name: np.asarray(array) for name, array in flattened(outputs).items()}
    if path.suffix.lower() == ".json":
        told = {name: _as_json(array) for name, array in arrays.items()}
        file.write(to_json(document("bench_outputs", {"outputs": told})).encode("utf-8") + b"\n")
        return
    with zipfile.ZipFile(file, "w") as members:
        for name, array in arrays.items():
            with members.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _savable(array), allow_pickle=False)


def report_csv(report: BenchReport) -> str:
    """One row for each runner, with the parts of a query beside the engine's."""
    asked = list(report.rows[0].percentiles_us)
    more = [name for name in asked if f"p{name}_us" not in FIGURES]
    columns = [
        "model", "target", "name", "concurrency", "queries", "throughput_qps", *FIGURES,
        *(f"p{name}_us" for name in more), "variation",
        *(f"{part.part}_{figure}" for part in report.parts for figure in ("mean_us", "median_us")),
    ]  # fmt: skip
    rows = []
    for i, row in enumerate(report.rows):
        parts = [x if i == 0 else None for part in report.parts for x in (part.mean_us, part.median_us)]
        rows.append([
            report.model, report.target, row.name, report.concurrency if i == 0 else 1, row.queries,
            row.throughput_qps, *(getattr(row, name) for name in FIGURES),
            *(row.percentiles_us[name] for name in more), row.variation, *parts,
        ])  # fmt: skip
    return _csv_text(columns, rows)


def sweep_csv(report: SweepReport) -> str:
    """One row for each size."""
    names = [percentile_name(p) for p in report.percentiles]
    columns = ["model", "target", "dim", *SWEEP, *(f"p{name}_us" for name in names)]
    rows = [
        [
            report.model, report.target, report.dim, *(getattr(row, name) for name in SWEEP),
            *(row.percentiles_us[name] for name in names),
        ]
        for row in report.rows
    ]  # fmt: skip
    return _csv_text(columns, rows)


def _to_ns(us: float | None) -> float | None:
    """The clock's own precision."""
    return us if us is None else round(us, 3)


def _as_json(array: np.ndarray) -> dict[str, Any]:
    return {"type": element_name(array), "shape": list(array.shape), "values": _savable(array).tolist()}


def _savable(array: np.ndarray) -> np.ndarray:
    if array.dtype == object:
        return array.astype(str)
    if is_plain(array.dtype) or array.dtype.kind in "US":
        return array
    return array.astype(np.int8 if "int" in str(array.dtype) else np.float32)


def _table_text(
    schema: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], path: Path, **about: Any
) -> str:
    if path.suffix.lower() == ".json":
        named = [dict(zip(columns, row, strict=True)) for row in rows]
        return to_json(document(schema, {**about, "rows": named})) + "\n"
    return _csv_text(columns, rows)


def _csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([plain_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return file.getvalue()
