"""Draws predictions and the ceilings of a machine."""

from __future__ import annotations

import math

from rich.console import Console

from ridgeline.analyze.predict import Prediction, slowest
from ridgeline.analyze.show import short_ops
from ridgeline.base.ceilings import Ceilings
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import bar, duration, number, percent, plural, size

TERA = 1e6


def draw_prediction(report: Prediction, console: Console, *, top: int) -> None:
    title = report.title or report.target
    console.print(f"{report.model}  on {title}, {report.precision}", style="bold")
    knobs = ", ".join(f"{name} ×{factor:g}" for name, factor in report.what_if.items())
    put_lines(
        [
            ("time", f"{duration(report.total_us)} a run, in {plural(len(report.steps), 'step')}"),
            ("roofline", duration(report.bound_us)),
            ("throughput", f"{number(1e6 / report.total_us)} runs/s" if report.total_us else ""),
            ("shapes", ", ".join(f"{name} {spec}" for name, spec in report.shapes.items())),
            ("weights", size(report.weight_bytes) + ("; they do not fit" if report.fits is False else "")),
            ("energy", f"{number(report.energy_mj)} mJ a run at its power limit" if report.energy_mj else ""),
            ("what if", knobs),
            ("figures", report.source),
            (
                "not in it",
                f"{plural(len(report.unknown), 'step')} of open sizes" if report.unknown else "",
            ),
        ],
        console,
    )
    console.print()
    numeric = ("#", "time", "share", "of roofline")
    grid = table("#", "ops", "time", "share", "", "limited by", "of roofline", numeric=numeric)
    for step in slowest(report, top):
        share = step.us / report.total_us if report.total_us else 0.0
        grid.add_row(
            str(step.index), short_ops(step.ops), duration(step.us), percent(share), bar(share), step.limiter,
            percent(min(step.roofline, 1.0)),
        )  # fmt: skip
    put(grid, console, title="Slowest steps")


def draw_ceilings(report: Ceilings, console: Console) -> None:
    console.print(f"{report.title or report.name}  {report.source}", style="bold")
    put_lines(
        [
            ("memory", f"{report.memory_bytes_per_us / TERA:.3g} TB/s, largest copy"),
            ("launch", duration(report.launch_us)),
            ("networks", f"{len(report.points)} regions measured" if report.points else "none measured"),
        ],
        console,
    )
    console.print()
    grid = table("type", "TFLOP/s", "stated", numeric=("TFLOP/s", "stated"))
    for name in sorted({*report.flops, *report.peak_flops}):
        reached, stated = report.flops.get(name, math.nan), report.peak_flops.get(name, math.nan)
        grid.add_row(name, *("–" if math.isnan(rate) else f"{rate / TERA:.4g}" for rate in (reached, stated)))
    put(grid, console, title="Products")
    grid = table("bytes read and written", "TB/s", numeric=("bytes read and written", "TB/s"))
    for nbytes, rate in report.copy:
        grid.add_row(size(nbytes), f"{rate / TERA:.3g}")
    put(grid, console, title="Copies")
