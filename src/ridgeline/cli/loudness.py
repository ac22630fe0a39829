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

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="errors only: no progress, no notes")]
Verbose = Annotated[
    int,
    typer.Option("-v", "--verbose", count=True, help="what the library logs as well; -vv for more of it"),
]


def with_loudness(command: Callable[..., None]) -> Callable[..., None]:
    """The same command with `-q` and `-v`, which mean the same everywhere."""

    @functools.wraps(command)
    def wrapped(*args: Any, quiet: bool, verbose: int, **kwargs: Any) -> None:
        set_loudness(quiet=quiet, verbose=verbose)
        command(*args, **kwargs)

    signature = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
        inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose),
    ]
    parameters = [*signature.parameters.values(), *more]
    vars(wrapped)["__signature__"] = signature.replace(parameters=parameters)
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


def set_loudness(*, quiet: bool, verbose: int) -> None:
    talk.quiet = quiet
    if verbose and not quiet:
        library = logging.getLogger("ridgeline")
        library.handlers = [RichHandler(console=talk, show_path=False, markup=False)]
        library.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
