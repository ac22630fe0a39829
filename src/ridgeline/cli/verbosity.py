"""How much every command says on standard error: `-q` errors only, `-v` what the library logs as well."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer
from rich.logging import RichHandler

from ridgeline.cli.render import talk
from ridgeline.cli.shared_options import Command, with_options
from ridgeline.options import logger

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="errors only: no progress, no notes")]
Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="each candidate and check as well, and the traceback of a bug"),
]


def with_verbosity(command: Command) -> Command:
    """The same command with `-q` and `-v`, which mean the same everywhere."""

    def take(given: dict[str, bool]) -> dict[str, Any]:
        set_verbosity(**given)
        return {}

    return with_options(command, {"quiet": Quiet, "verbose": Verbose}, take)


def is_verbose() -> bool:
    return bool(logging.getLogger("ridgeline").handlers)


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    talk.quiet = quiet
    handler = RichHandler(console=talk, show_path=False, markup=False)
    # stages of a build are shown as progress already
    handler.addFilter(lambda record: record.name != logger.name or record.levelno != logging.INFO)
    library = logging.getLogger("ridgeline")
    library.handlers = [handler] if verbose and not quiet else []
    library.setLevel(logging.DEBUG if library.handlers else logging.NOTSET)
