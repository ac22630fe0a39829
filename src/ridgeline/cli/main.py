"""The `ridge` command: the list of its commands, and what becomes of an error.

Exit status: 0 done, 1 the user can mend it, 2 usage, 3 a correctness gate failed, 70 our bug.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer

from ridgeline.cli.commands_bench import FAILED_GATE, bench
from ridgeline.cli.commands_build import build, run
from ridgeline.cli.commands_demo import demo
from ridgeline.cli.commands_inspect import explain, show
from ridgeline.cli.commands_kernels import kernels, settle
from ridgeline.cli.commands_shapes import shapes
from ridgeline.cli.commands_surgery import extract, lint, reduce
from ridgeline.cli.commands_verify import verify
from ridgeline.cli.render import talk
from ridgeline.errors import RidgelineError, VerifyError

USER_ERROR, BUG = 1, 70

app = typer.Typer(
    name="ridge",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    build, run, verify, bench, show, explain, shapes, kernels, settle, extract, lint, reduce, demo,
):  # fmt: skip
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ridgeline {version('ridgeline')}")
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
    """Run one command and exit. A user's mistake never shows a traceback; a bug of ours always does."""
    for stream in (sys.stdout, sys.stderr):
        # a terminal that cannot show µ or → gets a question mark, not a traceback
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(None if arguments is None else list(arguments))
    except RidgelineError as error:
        _say(error.text())
        sys.exit(FAILED_GATE if isinstance(error, VerifyError) else USER_ERROR)
    except OSError as error:
        # a full disk, a folder that went away, a file we may not read: the machine's, not ours
        _say(_os_error_text(error))
        sys.exit(USER_ERROR)
    except MemoryError as error:
        _say(f"not enough memory for this: {error}")
        sys.exit(USER_ERROR)
    except Exception:
        talk.print(traceback.format_exc().rstrip())
        _say("this is a bug in ridgeline; please report it with the lines above")
        sys.exit(BUG)


def _say(text: str) -> None:
    talk.print("error: ", style="bold red", end="")
    talk.print(text, soft_wrap=True)


def _os_error_text(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


if __name__ == "__main__":
    main()
