"""Draws the GPUs of `ridge top`: one row each, then the processes on them."""

from __future__ import annotations

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from ridgeline.analyze.top import GpuSample, TopReport
from ridgeline.cli.grid import INDENT, Grid, table
from ridgeline.cli.render import DASH, bar, percent, size

BAR = 8
HOT_SHARE = 0.95  # of the power limit
NUMBERS = ("util", "SM", "tensor", "DRAM", "occupancy", "W", "°C", "SM MHz", "mem MHz", "PCIe out", "PCIe in")


def draw_top(report: TopReport, console: Console) -> None:
    """One table, as the live view shows it."""
    console.print(top_view(report, console.width))


def top_view(report: TopReport, width: int) -> Group:
    """Everything that fits one screen."""
    parts: list[Text | Padding] = [Text(f"driver {report.driver}", "dim")]
    parts += [Text.assemble((f"GPU {gpu.index}  {gpu.name}", "bold"), _busy(gpu)) for gpu in report.gpus]
    parts += [_padded(_gpus(report), width), _padded(_memory(report), width)]
    if any(gpu.processes for gpu in report.gpus):
        parts.append(_padded(_processes(report), width))
    for gpu in report.gpus:
        if gpu.why_no_activity:
            parts.append(Text(f"  GPU {gpu.index}: utilisation only: {gpu.why_no_activity}", "dim"))
        if gpu.clock_reasons:
            parts.append(Text(f"  GPU {gpu.index}: clocks held by: {', '.join(gpu.clock_reasons)}", "dim"))
    return Group(*parts)


def _padded(grid: Grid, width: int) -> Padding:
    return Padding(grid.fitted(width - INDENT), (1, 0, 0, INDENT), expand=False)


def _busy(gpu: GpuSample) -> Text:
    share = None if gpu.utilization is None else gpu.utilization / 100
    return Text(f"  {bar(share, BAR)}", "green")


def _gpus(report: TopReport) -> Grid:
    grid = table("GPU", *NUMBERS, numeric=NUMBERS)
    for gpu in report.gpus:
        seen = gpu.activity
        shares = [seen.sm, seen.tensor, seen.memory, seen.occupancy] if seen else [None] * 4
        grid.add_row(
            str(gpu.index),
            DASH if gpu.utilization is None else f"{gpu.utilization} %",
            *map(percent, shares),
            _power(gpu),
            _number(gpu.temperature),
            _number(gpu.sm_clock),
            _number(gpu.memory_clock),
            _rate(gpu.pcie_tx_bytes),
            _rate(gpu.pcie_rx_bytes),
        )
    return grid


def _memory(report: TopReport) -> Grid:
    grid = table("GPU", "memory", "used", "of", "free", numeric=("used", "of", "free"))
    for gpu in report.gpus:
        share = gpu.used_bytes / gpu.memory_bytes if gpu.used_bytes and gpu.memory_bytes else None
        sizes = map(size, (gpu.used_bytes, gpu.memory_bytes, gpu.free_bytes))
        grid.add_row(str(gpu.index), Text(bar(share), "green"), *sizes)
    return grid


def _processes(report: TopReport) -> Grid:
    grid = table("GPU", "pid", "process", "memory", numeric=("pid", "memory"))
    for gpu in report.gpus:
        for process in sorted(gpu.processes, key=lambda each: -(each.memory_bytes or 0)):
            grid.add_row(str(gpu.index), str(process.pid), process.name or DASH, size(process.memory_bytes))
    return grid


def _power(gpu: GpuSample) -> Text:
    if gpu.power is None:
        return Text(DASH)
    limit = gpu.power_limit
    text = f"{gpu.power:.0f}" + (f"/{limit:.0f}" if limit else "")
    return Text(text, "yellow" if limit and gpu.power > HOT_SHARE * limit else "")


def _number(value: int | None) -> str:
    return DASH if value is None else str(value)


def _rate(per_second: float | None) -> str:
    return DASH if per_second is None else f"{size(per_second)}/s"
