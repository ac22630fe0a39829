"""A process of its own that plans an engine again: started, waited for, and ended with whoever started it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Timer

from ridgeline.base.spec import TensorSpec
from ridgeline.base.typed_json import parse_json, read_as
from ridgeline.errors import BuildError, PlanError, first_line
from ridgeline.options import Limits
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Check, PlannedAgain
from ridgeline.runtime.planner import Replanned

MODULE = "ridgeline.replan"
LONGEST_S = 600.0


@dataclass(frozen=True)
class Wanted:
    """One line of JSON that the process reads. It ends when nobody holds the other end any more."""

    file: str
    shapes: dict[str, TensorSpec]
    limits: dict[str, int]


@dataclass(frozen=True)
class Answer:
    """What it writes: a plan as the text of its JSON, or why there is none."""

    again: PlannedAgain | None = None
    plan: str | None = None
    checks: tuple[Check, ...] = ()
    failed: str = ""


def plan_elsewhere(file: Path, shapes: Mapping[str, TensorSpec], limits: Limits) -> Replanned:
    """What the process answers; `BuildError` where it cannot be started, fails or takes too long."""
    if not sys.executable:
        raise BuildError("there is no interpreter to plan with", got="sys.executable is empty")
    # -P: modules of the folder that this process was started in are none of ours
    command = [sys.executable, "-P", "-m", MODULE]
    wanted = Wanted(str(file), dict(shapes), asdict(limits))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        late = Timer(LONGEST_S, process.kill)
        late.daemon = True
        late.start()
        try:
            process.stdin.write(json.dumps(asdict(wanted)) + "\n")
            process.stdin.flush()
            told = process.stdout.read()  # the other end stays open until then
        except OSError as error:
            told = json.dumps({"failed": str(error)})
        finally:
            late.cancel()
            process.kill()
    return _read(told)


def _read(told: str) -> Replanned:
    try:
        answer = read_as(Answer, parse_json(told))
        plan = None if answer.plan is None else Plan.from_json(answer.plan)
    except ValueError as error:
        raise PlanError("the process that plans again ended early", got=first_line(error)) from error
    if answer.again is None:
        raise BuildError("planning again failed", got=answer.failed)
    return Replanned(answer.again, plan, answer.checks)
