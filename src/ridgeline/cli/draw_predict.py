"""Draws predictions and the ceilings of a machine."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console

from ridgeline.analyze.predict import Prediction, slowest
from ridgeline.analyze.predict_llm import LlmPrediction
from ridgeline.analyze.show import short_ops
from ridgeline.base.ceilings import AS_STATED, REACHABLE_BYTES, REACHABLE_FLOPS, Ceilings
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import bar, duration, number, percent, plural, size

TERA = 1e6


def draw_prediction(report: Prediction, console: Console, *, top: int) -> None:
    title = report.title or report.target
    console.print(f"{report.model}  on {title}, {report.precision}", style="bold")
    put_lines(
        [
            ("time", f"{duration(report.total_us)} a run, in {plural(len(report.steps), 'step')}"),
            ("roofline", duration(report.bound_us)),
            ("throughput", f"{_count(1e6 / report.total_us)} runs/s" if report.total_us else ""),
            ("shapes", ", ".join(f"{name} {spec}" for name, spec in report.shapes.items())),
            ("memory", _memory(report)),
            ("energy", f"{number(report.energy_mj)} mJ a run at its power limit" if report.energy_mj else ""),
            ("what if", _knobs(report.what_if)),
            ("figures", _figures(report.source)),
            ("not calibrated", _uncalibrated(report)),
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


def draw_llm(report: LlmPrediction, console: Console) -> None:
    title = report.title or report.target
    sizes = f"batch {report.batch}, prompt {report.prompt}, cache {report.context}"
    console.print(f"{report.model}  on {title}, {sizes}", style="bold")
    fits = (
        "" if report.largest_batch is None else f"; {report.largest_batch:,} sequences fit beside the weights"
    )
    put_lines(
        [
            ("weights", f"{report.parameters / 1e9:.3g} G parameters, {size(report.weight_bytes)}"),
            ("cache", f"{size(report.cache_bytes)} of keys and values{fits}"),
            ("prefill", _rate(report.prefill_us, report.prefill_tokens_per_s)),
            ("decode", _rate(report.decode_us, report.decode_tokens_per_s)),
            ("ridge", f"{report.ridge:.0f} flops for each byte: below it an operator waits for memory"),
            ("what if", _knobs(report.what_if)),
            ("figures", _figures(report.source)),
        ],
        console,
    )  # fmt: skip
    console.print()
    numeric = ("GFLOP", "bytes", "flops/byte", "time", "share")
    grid = table(
        "phase", "operator", "GFLOP", "bytes", "flops/byte", "bound by", "time", "share", numeric=numeric
    )
    for op in report.operators:
        share = op.us / report.phase_us(op.phase)
        grid.add_row(
            op.phase, op.name, _count(op.flops / 1e9), size(op.bytes), f"{op.intensity:.1f}", op.bound,
            duration(op.us), percent(share),
        )  # fmt: skip
    put(grid, console, title="Operators")


def _memory(report: Prediction) -> str:
    parts = (
        ("weights", report.memory.weights), ("copies of weights", report.memory.packed),
        ("arena", report.memory.arena), ("inputs", report.memory.inputs),
        ("libraries", report.memory.libraries),
    )  # fmt: skip
    told = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in parts if nbytes)
    return f"{size(report.memory.total)}: {told}" + ("; it does not fit" if report.fits is False else "")


def _uncalibrated(report: Prediction) -> str:
    """What was predicted by the maker's figures alone on a machine that was measured, and why."""
    steps = [step for step in report.steps if step.family in report.uncalibrated]
    told = [f"{plural(len(steps), 'step')} of kinds that were not measured: {', '.join(report.uncalibrated)}"]
    if report.left_out:
        told.append(f"the calibration had no time for {', '.join(report.left_out)}")
    return "; ".join(told if steps else told[1:])


def _knobs(what_if: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ×{factor:g}" for name, factor in what_if.items())


def _figures(source: str) -> str:
    """A maker's figures are never reached in full, and what is taken of them is said."""
    if source != AS_STATED:
        return source
    reached = f"{REACHABLE_FLOPS:.0%} of its arithmetic and {REACHABLE_BYTES:.0%} of its bandwidth"
    return f"{source}; {reached} are taken"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else number(value)


def _rate(us: float, tokens_per_s: float) -> str:
    return f"at least {duration(us)}, at most {_count(tokens_per_s)} tokens/s"


def draw_ceilings(report: Ceilings, console: Console, *, seconds: float) -> None:
    console.print(f"{report.title or report.name}  {report.source}", style="bold")
    put_lines(
        [
            ("memory", f"{report.memory_bytes_per_us / TERA:.3g} TB/s, largest copy"),
            ("launch", duration(report.launch_us)),
            ("networks", f"{len(report.points)} regions measured" if report.points else "none measured"),
            ("took", f"{seconds:.0f} s"),
            *(("left out", f"{name}: {why}") for name, why in report.left_out.items()),
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
