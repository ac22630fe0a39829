"""`ridge doctor`: what is here, what would distort a benchmark, and the command that fixes it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ridgeline.cli.arguments import AsJson
from ridgeline.cli.exits import FAILED_GATE, USER_ERROR
from ridgeline.cli.render import emit, plural, say_error


def doctor(
    strict: Annotated[
        bool, typer.Option("--strict", help="exit with 3 if something here distorts a benchmark")
    ] = False,
    json: AsJson = False,
) -> None:
    """Examine this machine: versions, GPUs, processor, memory, disk, and what would distort a benchmark.

    Starts nothing on the GPU and changes nothing. Exit status 1 if something prevents running.

    Examples:

      ridge doctor

      ridge doctor --strict && ridge bench model.onnx
    """
    from ridgeline import __version__
    from ridgeline.analyze.doctor import CACHE, examine
    from ridgeline.analyze.doctor_cpu import NAMES
    from ridgeline.analyze.doctor_host import read_host
    from ridgeline.analyze.doctor_versions import read_versions
    from ridgeline.base.nvml import open_nvml
    from ridgeline.cli.draw_doctor import draw_doctor
    from ridgeline.kernels.cpp.compiler import find_compiler

    report = examine(
        read_host(CACHE.expanduser()),
        read_versions(__version__, find_compiler()),
        {name: os.environ[name] for name in NAMES if name in os.environ},
        open_gpus=open_nvml,
    )
    emit(report, draw_doctor, as_json=json, schema="doctor")
    if problems := report.count("problem"):
        say_error(f"{plural(problems, 'problem')} to solve before anything runs as it should")
        raise typer.Exit(USER_ERROR)
    if strict and (distortions := report.count("distorts")):
        say_error(f"{plural(distortions, 'thing')} here would distort a benchmark")
        raise typer.Exit(FAILED_GATE)
