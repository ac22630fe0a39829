"""How much every command says on standard error: `-q` errors only, `-v` what the library logs as well."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.logging import RichHandler

from ridgeline.cli.render import talk
from ridgeline.options import logger

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="errors only: no progress, no notes")]
Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="each candidate and check as well, and the traceback of a bug"),
]


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """The same command with `-q` and `-v`, which mean the same everywhere."""

    @functools.wraps(command)
    def wrapped(*args: Any, quiet: bool, verbose: bool, **kwargs: Any) -> None:
        set_verbosity(quiet=quiet, verbose=verbose)
        command(*args, **kwargs)

    signature = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
        inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose),
    ]
    parameters = [*signature.parameters.values(), *more]
    vars(wrapped)["__signature__"] = signature.replace(parameters=parameters)
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


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
