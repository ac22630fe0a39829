"""`python -m ridgeline.replan` plans an engine again, at the real shapes after guessed ones.

It reads one line of JSON (`select.replanning.Wanted`) and writes one (`Answer`). The engine that asks goes on
running meanwhile, so it yields to it; and it ends when that process does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TextIO

from ridgeline.base.spec import TensorSpec
from ridgeline.base.typed_json import parse_json, read_as
from ridgeline.builder import PLANNER, load_engine
from ridgeline.errors import RidgelineError, failure
from ridgeline.options import Options
from ridgeline.plan.report import Check, PlannedAgain
from ridgeline.plugins.entry_points import load_plugins
from ridgeline.runtime.engine import Engine
from ridgeline.select.plan_times import SETTLE_S
from ridgeline.select.race import EFFORTS, MARGIN, race
from ridgeline.select.replanning import Answer, Wanted
from ridgeline.select.retune import plan_at
from ridgeline.targets import machine_of
from ridgeline.verify.compare import feeds_text
from ridgeline.verify.fused_reference import fused_reference
from ridgeline.verify.trials import verify

NICER = 10  # whoever runs the engine goes first


def main(source: TextIO, told: TextIO) -> int:
    line = source.readline()
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    try:
        answer = _answer(read_as(Wanted, parse_json(line)))
    except RidgelineError as error:
        answer = Answer(failed=error.text())
    except Exception as error:  # whoever asked goes on with the plan there is
        answer = Answer(failed=f"this is a bug in ridgeline: {failure(error)}")
    told.write(json.dumps(asdict(answer)) + "\n")
    told.flush()
    return 1 if answer.failed else 0


def _end_with(source: TextIO) -> None:
    source.read()
    os._exit(1)


def _answer(wanted: Wanted) -> Answer:
    began = time.perf_counter()
    load_plugins()
    engine = load_engine(wanted.file, limits=wanted.limits)
    old = engine.variants[0]
    machine = machine_of(old.plan.target)
    new, _ = plan_at(old, wanted.shapes, machine.timer(is_timed=True), machine.time_limit_s)
    replanned = Engine([new], PLANNER, report=engine.report)
    guessed_us, real_us = _times(engine.only(old), replanned, wanted.shapes)
    is_taken = real_us * (1 + MARGIN) <= guessed_us
    checks = _verified(replanned) if is_taken else ()
    again = PlannedAgain(
        feeds_text(engine.example_inputs(0, wanted.shapes)), guessed_us, real_us, is_taken,
        round(time.perf_counter() - began, 3),
    )  # fmt: skip
    return Answer(again, new.plan.to_json() if is_taken else None, checks)


def _times(old: Engine, new: Engine, shapes: Mapping[str, TensorSpec]) -> tuple[float, float]:
    """What a call takes by each plan."""
    feeds = old.example_inputs(0, shapes)
    contexts = [engine.context(wait=True) for engine in (old, new)]
    level = (old.plan.guess or Options()).level
    times, _ = race(
        [lambda run=context.run: run(feeds) for context in contexts],  # type: ignore[misc]
        each_s=EFFORTS[level].plan_s,
        pause_s=SETTLE_S,
    )
    return times[0], times[1]


def _verified(engine: Engine) -> tuple[Check, ...]:
    """Against the fused graph, which the build has compared with the model, run by another runtime."""
    report = verify(engine, fused_reference(engine), Options(verify="fast", progress=False))
    return tuple(Check(**{**vars(check), "name": f"planned again: {check.name}"}) for check in report.checks)


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(NICER)
    sys.exit(main(sys.stdin, sys.stdout))
