"""Draws what `ridge compare` found."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.compare import Comparison, LayerRow, NonFinite
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import DASH, error_size, plural, shape_text
from ridgeline.verify.metrics import Metrics

LISTED = 40
ERRORS = ("rel. L2", "max", "mean", "needs atol", "or rtol")
LIKENESS = ("cosine", "PSNR dB", "top-1", "top-5", "other values")


def draw_comparison(report: Comparison, console: Console) -> None:
    drawn = ", random inputs, which prove little: give --data DIR" if report.is_drawn else ""
    put_lines(
        [
            ("a", f"{report.a} ({report.a_who})"),
            ("b", f"{report.b} ({report.b_who}), the reference"),
            ("allowed", report.rule),
            ("samples", f"{len(report.samples)}{drawn}; each row shows the worst one"),
        ],
        console,
    )
    console.print()
    _outputs(report, console)
    if report.layers:
        _layers(report, console)
    if report.non_finite:
        _non_finite(report.non_finite, console)
    put_lines([("note", note) for note in report.notes], console)


def _outputs(report: Comparison, console: Console) -> None:
    errors = table("output", "shape", *ERRORS, "", numeric=ERRORS, keep=("",))
    likeness = table("output", *LIKENESS, numeric=LIKENESS)
    for row in report.outputs:
        word = "differs" if not row.passed else "same" if row.values else ""
        verdict = Text(word, style="green" if row.passed else "bold red")
        note = Text.assemble(verdict, f" {row.note}" if row.note else "", _specials(row.metrics))
        m = row.metrics
        if m is None:
            errors.add_row(row.output, shape_text(row.shape), *[DASH] * len(ERRORS), note)
            continue
        figures = (m.relative_l2, m.max_abs, m.mean_abs, m.required_atol, m.required_rtol)
        errors.add_row(row.output, shape_text(row.shape), *map(_error, figures), note)
        shares = (_plain(m.top_1, ".1%"), _plain(m.top_k, ".1%"), f"{m.other_share:.1%}")
        likeness.add_row(row.output, _plain(m.cosine, ".8f"), _plain(m.psnr_db, ".1f"), *shares)
    put(errors, console, title=plural(len(report.outputs), "output"))
    put(likeness, console)


def _specials(metrics: Metrics | None) -> str:
    if metrics is None or not metrics.special_differ:
        return ""
    return (
        f" NaN {metrics.nans} against {metrics.wanted_nans}, inf {metrics.infs} against {metrics.wanted_infs}"
    )


def _layers(report: Comparison, console: Console) -> None:
    compared = [row for row in report.layers if row.metrics is not None]
    first = report.first_divergence
    shown = compared
    if len(compared) > LISTED:
        worst = sorted(compared, key=_error_of, reverse=True)[:LISTED]
        shown = [row for row in compared if row in worst or row is first]
    grid = table("tensor", "node", "op", "rel. L2", "max", "cosine", "", numeric=("rel. L2", "max", "cosine"))
    for row in shown:
        m = row.metrics
        assert m is not None, "only compared rows are shown"
        mark = (
            Text("first divergence", "bold red")
            if row is first
            else Text("" if row.passed else "differs", "red")
        )
        cells = [_error(m.relative_l2), _error(m.max_abs), _plain(m.cosine, ".6f")]
        grid.add_row(row.value, row.node, row.op_type, *cells, mark)
    title = f"{plural(len(compared), 'tensor')} on both sides"
    put(
        grid,
        console,
        title=title + (f", the {len(shown)} furthest apart" if len(shown) < len(compared) else ""),
    )
    if first is None:
        console.print("  no tensor diverges by more than is allowed", style="green")
    else:
        console.print(
            f"  first divergence: {first.value} of {first.node} ({first.op_type})", style="bold red"
        )
    console.print()
    _absent(report.layers, console)


def _absent(rows: tuple[LayerRow, ...], console: Console) -> None:
    """How many tensors do not exist, by side and place."""
    places: dict[tuple[str, str], int] = {}
    for row in rows:
        for side, why in (("a", row.absent_a), ("b", row.absent_b)):
            if why:
                places[side, why] = places.get((side, why), 0) + 1
    if not places:
        return
    grid = table("side", "tensors", "where", numeric=("tensors",), keep=("where",))
    most = sorted(places.items(), key=lambda item: -item[1])
    for (side, why), count in most[:LISTED]:
        grid.add_row(side, str(count), why)
    more = len(most) - LISTED
    put(grid, console, title="Tensors that do not exist" + (f", {more} more places" if more > 0 else ""))


def _non_finite(rows: tuple[NonFinite, ...], console: Console) -> None:
    origins = [row for row in rows if row.is_origin]
    grid = table("side", "tensor", "node", "op", "NaN", "inf", "sample", numeric=("NaN", "inf"))
    for row in origins[:LISTED]:
        grid.add_row(row.side, row.value, row.node, row.op_type, str(row.nans), str(row.infs), row.sample)
    title = f"NaN or infinity in {plural(len(rows), 'tensor')}; these nodes made them of finite inputs"
    put(grid, console, title=title)


def _error_of(row: LayerRow) -> float:
    return row.metrics.relative_l2 if row.metrics is not None else 0.0


def _error(value: float) -> str:
    return "∞" if math.isinf(value) else error_size(value)


def _plain(value: float | None, form: str) -> str:
    if value is None:
        return DASH
    return ("∞" if value > 0 else "-∞") if math.isinf(value) else format(value, form)
