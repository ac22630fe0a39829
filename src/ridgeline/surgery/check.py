"""Runs the user's command on a model and tells whether it still fails in the same way."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from ridgeline.errors import OptionError

MODEL, INPUTS = "{}", "{inputs}"


@dataclass(frozen=True)
class Outcome:
    """How one run of the command ended."""

    status: int | None  # None: it ran past the limit
    output: str
    seconds: float

    @property
    def text(self) -> str:
        return "ran past its time" if self.status is None else f"exit {self.status}"


@dataclass(frozen=True)
class Command:
    """``{}`` stands for the model's path (else it comes last), ``{inputs}`` for the folder of its samples."""

    words: tuple[str, ...]
    timeout_s: float | None = None
    match: str = ""  # what the output must hold to be the same failure
    any_failure: bool = False

    @property
    def wants_inputs(self) -> bool:
        return any(INPUTS in word for word in self.words)

    def run(self, model: Path, inputs: Path) -> Outcome:
        words = [word.replace(INPUTS, str(inputs)).replace(MODEL, str(model)) for word in self.words]
        if not any(MODEL in word for word in self.words):
            words.append(str(model))
        start = perf_counter()
        try:
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise OptionError(
                f"--check cannot be started: {words[0]!r}",
                got=error.strerror or str(error),
                help="for pipes and the like: --check \"bash -c '…'\"",
            ) from error
        with process:
            try:
                output, _ = process.communicate(timeout=self.timeout_s)
            except BaseException as error:
                # its children too: a child that goes on would keep the pipe open
                os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    return Outcome(None, "", perf_counter() - start)
                raise
        return Outcome(process.returncode, output, perf_counter() - start)

    def fails(self, outcome: Outcome) -> bool:
        """Whether this is a failure at all."""
        return outcome.status != 0 and bool(re.search(self.match, outcome.output) if self.match else True)

    def is_same(self, outcome: Outcome, first: Outcome) -> bool:
        """Whether it is the failure of the whole model: the same status, and the words looked for."""
        return self.fails(outcome) and (self.any_failure or outcome.status == first.status)


def read_command(text: str, *, timeout_s: float | None, match: str, any_failure: bool) -> Command:
    try:
        words = tuple(shlex.split(text))
        re.compile(match)
    except (ValueError, re.error) as error:
        raise OptionError("--check or --match does not read", got=str(error)) from error
    if not words:
        raise OptionError("--check is empty", want="a command, such as 'ridge build {} --level 1'")
    return Command(words, timeout_s, match, any_failure)
