"""The `ridge` command: the list of its commands, and how errors are shown (statuses: `exits.py`)."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline import __version__
from ridgeline.cli.commands_bench import bench
from ridgeline.cli.commands_build import build, run
from ridgeline.cli.commands_compare import compare
from ridgeline.cli.commands_debug import debug
from ridgeline.cli.commands_demo import demo
from ridgeline.cli.commands_diff import diff
from ridgeline.cli.commands_doctor import doctor
from ridgeline.cli.commands_inspect import explain, show
from ridgeline.cli.commands_kernels import kernels, settle
from ridgeline.cli.commands_plugins import plugins
from ridgeline.cli.commands_predict import calibrate, predict
from ridgeline.cli.commands_profile import profile
from ridgeline.cli.commands_quantize import quantize
from ridgeline.cli.commands_report import report
from ridgeline.cli.commands_serve import serve
from ridgeline.cli.commands_serve_clients import infer, loadtest
from ridgeline.cli.commands_shapes import shapes
from ridgeline.cli.commands_surgery import extract, lint, reduce
from ridgeline.cli.commands_top import top
from ridgeline.cli.commands_verify import verify
from ridgeline.cli.exits import BUG, DONE, FAILED_GATE, MEANINGS, STOPPED, USAGE, USER_ERROR
from ridgeline.cli.render import complain, emit_error, say_error
from ridgeline.cli.verbosity import is_verbose, with_verbosity
from ridgeline.errors import RidgelineError, VerifyError, failure

app = typer.Typer(
    name="ridge",
    no_args_is_help=True,
    epilog="Exit status: "
    + "; ".join(f"{status} {meaning.split(':')[0]}" for status, meaning in MEANINGS.items()),
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    build, run, verify, compare, quantize, bench, profile, show, explain, shapes, kernels, settle, plugins,
    extract, lint, reduce, demo, doctor, top, report, predict, calibrate, diff, serve, infer, loadtest,
):  # fmt: skip
    app.command()(with_verbosity(command))
app.add_typer(debug)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ridgeline {__version__}")
        raise typer.Exit


@app.callback()
def ridge(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version")
    ] = False,
) -> None:
    """Ridgeline: an inference engine that shows its work.

    An ONNX model goes in, a verified engine comes out, and every choice on the way can be asked about.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit. A user's mistake never shows a traceback; a bug of ours does with -v."""
    for stream in (sys.stdout, sys.stderr):
        # a terminal that cannot show µ or → gets a question mark, not a traceback
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    status, error = _run(given)
    try:
        if error and "--json" in given:
            emit_error(error, status)
        sys.stdout.flush()
    except OSError as problem:  # a full disk, or a reader that went away: what was printed is not whole
        _drop_stdout()
        if status == DONE:
            status = USER_ERROR
            say_error(f"the result cannot be printed: {_os_error_text(problem)}")
    sys.exit(status)


def _drop_stdout() -> None:
    """Python writes what is left once more when it ends, and would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _run(given: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """The exit status, and the fields of the error for `--json`."""
    try:
        status = app(list(given), standalone_mode=False) or DONE
        return (STOPPED, _stopped()) if status == STOPPED else (status, {})
    except Exception as error:
        return (STOPPED, _stopped()) if _was_stopped(error) else _failed(error)


def _failed(error: Exception) -> tuple[int, dict[str, Any]]:
    if isinstance(error, RidgelineError):
        told = _told(error, type(error).__name__)
        if isinstance(error, VerifyError):
            return FAILED_GATE, {**told, "checks": error.checks}
        return USER_ERROR, told
    if isinstance(error, OSError):
        # a full disk, a removed folder or a forbidden file is not a bug of ours
        return USER_ERROR, _said(error, _os_error_text(error))
    if isinstance(error, MemoryError):
        return USER_ERROR, _said(error, f"not enough memory for this: {error}")
    if hasattr(error, "format_message") and hasattr(error, "show"):  # errors of the command-line parser
        error.show()
        return USAGE, {"error": "UsageError", "what": error.format_message()}
    if is_verbose():
        complain.print(traceback.format_exc().rstrip())
    return BUG, _told(_bug(error), type(error).__name__)


def _was_stopped(error: BaseException | None) -> bool:
    """Ctrl-C, also where it met a library that makes an error of its own of it: imports of extensions do."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (KeyboardInterrupt, typer.Abort)):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _stopped() -> dict[str, Any]:
    """Report Ctrl-C, which some versions of the parser raise and others return as a status."""
    say_error("stopped")
    return {"error": "Abort", "what": "stopped"}


def _told(error: RidgelineError, kind: str) -> dict[str, Any]:
    say_error(error.text())
    return {"error": kind, **{name: getattr(error, name) for name in ("what", "got", "want", "rows", "help")}}


def _bug(error: Exception) -> RidgelineError:
    """The report of an unexpected exception: what happened, where, and how to report it."""
    frames = traceback.extract_tb(error.__traceback__)
    home = str(Path(__file__).parents[1])
    at = next((frame for frame in reversed(frames) if frame.filename.startswith(home)), frames[-1])
    return RidgelineError(
        "this is a bug in ridgeline, not a mistake of yours",
        got=f"{failure(error)}, in {at.name} at {Path(at.filename).name}:{at.lineno}",
        help="please report it with the traceback (-v shows it), `ridge --version` and, if you can, the model"
        ": docs/security.md says how",
    )


def _said(error: BaseException, text: str) -> dict[str, Any]:
    say_error(text)
    return {"error": type(error).__name__, "what": text, "got": str(error)}


def _os_error_text(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


if __name__ == "__main__":
    main()
