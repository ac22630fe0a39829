"""`ridge kernels` lists the GPU kernels of an engine; `ridge settle` times its predicted choices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.arguments import AsJson, EngineFile, Trust
from ridgeline.cli.files import require_writable
from ridgeline.cli.render import emit, plural, talk

if TYPE_CHECKING:
    from ridgeline.analyze.kernel_code import CodeReport
    from ridgeline.runtime.description import Description


def kernels(
    engine: EngineFile,
    pattern: Annotated[
        str, typer.Argument(metavar="[NAME]", help="only these: a name, gemm*, a digest, or a step's number")
    ] = "",
    sass: Annotated[
        str, typer.Option(metavar="NAME", help="print the machine code of these, with source lines")
    ] = "",
    ptx: Annotated[
        str, typer.Option(metavar="NAME", help="print the PTX of these, compiled again, with source lines")
    ] = "",
    no_sass: Annotated[
        bool, typer.Option("--no-sass", help="do not disassemble, which takes about 0.3 s a kernel")
    ] = False,
    json: AsJson = False,
) -> None:
    """List the engine's own GPU kernels: registers, spills, occupancy, instructions, and what costs time.

    Needs no GPU, also for an engine that was built for another machine.

    Examples:

      ridge kernels model.ridge

      ridge kernels model.ridge --sass gemm
    """
    from ridgeline.analyze.kernel_report import report_kernels
    from ridgeline.cli.draw_kernels import draw_code, draw_kernels
    from ridgeline.cli.plans import describe_with_kernels

    described = describe_with_kernels(engine)
    if sass or ptx:
        if sass and ptx:
            raise typer.BadParameter("--sass and --ptx are two forms of the same: give one")
        code = _ptx(engine, described, ptx) if ptx else _sass(described, sass)
        emit(code, draw_code, as_json=json, schema="kernel_code", file=str(engine))
        return
    report = report_kernels(described.plan, described.kernels, pattern=pattern, examine=_examine(not no_sass))
    emit(report, draw_kernels, as_json=json, schema="kernels", file=str(engine))


def _sass(described: Description, pattern: str) -> CodeReport:
    from ridgeline.analyze.kernel_code import CodeReport, sass_of
    from ridgeline.analyze.kernel_report import find_kernels

    found = find_kernels(described.plan, described.kernels, pattern)
    return CodeReport(tuple(sass_of(kernel.made, kernel.digest) for kernel in found))


def _ptx(path: Path, described: Description, pattern: str) -> CodeReport:
    from ridgeline.analyze.kernel_code import CodeReport, ptx_of
    from ridgeline.analyze.kernel_report import find_kernels
    from ridgeline.cli.engine_kernels import describe_kernel
    from ridgeline.cli.engines import load_file
    from ridgeline.errors import OptionError
    from ridgeline.kernels.triton.ptx import make_ptx

    found = find_kernels(described.plan, described.kernels, pattern)
    foreign = [kernel.made.name for kernel in found if not kernel.made.triton]
    if foreign:
        raise OptionError(
            "kernels in CUDA C++ are compiled to machine code at once", rows=foreign, help="--sass shows them"
        )
    loaded = load_file(path)
    made = []
    for kernel in found:
        described_as = describe_kernel(loaded, kernel.steps[0], kernel.digest)
        text = make_ptx(described_as, kernel.made.arch)
        made.append(ptx_of(text, kernel.made.name, kernel.digest, kernel.made.arch))
    return CodeReport(tuple(made))


def _examine(wanted: bool) -> Any:
    """What looks at the code of kernels. It computes with numpy, which the rest of the command is spared."""
    if not wanted:
        return None
    from ridgeline.analyze.kernel_findings import examine_code

    return examine_code


def settle(
    engine: EngineFile,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="settled engine (default: ENGINE)")
    ] = None,
    trust: Trust = False,
    json: AsJson = False,
) -> None:
    """Time the candidates of an engine that was built without this GPU, check it, and save it again.

    The first run of such an engine does the same; this keeps the result.

    Example:

      ridge settle model.ridge --trust
    """
    from ridgeline.analyze.show import summarise
    from ridgeline.cli.draw_plan import draw_built
    from ridgeline.cli.engines import load_file

    path = output or engine
    require_writable(path, option="-o")
    loaded = load_file(engine, trust=trust)
    if not loaded.plan.is_predicted:
        talk.print(f"{engine} holds no predicted choice: there is nothing to settle", style="dim")
        untimed = sum(step.median_us is None for step in loaded.plan.steps)
        if untimed:
            hint = "build it at a level above 0 to time them"
            talk.print(f"{plural(untimed, 'step')} never timed: {hint}", style="dim")
    loaded.context()  # making a context times the predicted choices
    loaded.save(path)
    emit(
        summarise(loaded.plan, loaded.report), draw_built, as_json=json, schema="engine", file=str(path),
        file_bytes=path.stat().st_size,
    )  # fmt: skip
