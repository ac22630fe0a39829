"""`ridge top`: what the GPUs of this machine do, live, once, or as metrics for Prometheus."""

from __future__ import annotations

import platform
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.arguments import AsJson
from ridgeline.cli.render import emit, out, talk

if TYPE_CHECKING:
    from ridgeline.analyze.top import GpuSampler


def top(
    once: Annotated[bool, typer.Option("--once", help="print one table and end")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600.0, metavar="S", help="seconds between two samples")
    ] = 1.0,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="metrics with DCGM's names in Prometheus' text format")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="with --prometheus: serve them at /metrics"),
    ] = None,
    host: Annotated[str, typer.Option(help="with --port: the address to listen on")] = "127.0.0.1",
    json: AsJson = False,
) -> None:
    """Show what every GPU does: utilisation, activity of its parts, power, heat, memory, processes.

    With --json or --prometheus one sample is printed. Ctrl-C ends the live table and the server.

    Examples:

      ridge top

      ridge top --prometheus --port 9400
    """
    from ridgeline.analyze.top import GpuSampler
    from ridgeline.base.nvml import open_nvml
    from ridgeline.cli.draw_top import draw_top

    if port is not None and not prometheus:
        raise typer.BadParameter("--port serves metrics: give --prometheus as well")
    if json and prometheus:
        raise typer.BadParameter("--json and --prometheus are two forms of the same: give one")
    with closing(GpuSampler(open_nvml())) as sampler:
        if port is not None:
            _serve(sampler, host, port, interval)
        elif prometheus:
            time.sleep(interval)
            out.file.write(_metrics(sampler))
        elif json or once or not out.is_terminal:
            time.sleep(interval)  # activity is measured over this time
            emit(sampler.sample(), draw_top, as_json=json, schema="top")
        else:
            _live(sampler, interval)


def _metrics(sampler: GpuSampler) -> str:
    from ridgeline.analyze.top_metrics import gpu_families
    from ridgeline.base.exposition import exposition

    return exposition(gpu_families(sampler.sample(), hostname=platform.node()))


def _serve(sampler: GpuSampler, host: str, port: int, interval: float) -> None:
    from ridgeline.cli.metrics_server import PATH, MetricsServer

    with MetricsServer(lambda: _metrics(sampler), host=host, port=port, interval_s=interval) as server:
        talk.print(f"metrics at {host}:{server.port}{PATH} (Ctrl-C ends)", style="dim")
        try:
            server.wait()
        except KeyboardInterrupt:
            return


def _live(sampler: GpuSampler, interval: float) -> None:
    from rich.live import Live

    from ridgeline.cli.draw_top import top_view

    try:
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                live.update(top_view(sampler.sample(), out.width), refresh=True)
    except KeyboardInterrupt:
        return
