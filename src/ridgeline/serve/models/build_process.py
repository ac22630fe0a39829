"""`python -m ridgeline.serve.models.build_process` builds one model of a repository in a process of its own.

It reads what to build as one line of JSON, and writes lines of JSON: progress, then `done` or `failed`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from ridgeline.base.spec import Port
from ridgeline.builder import build
from ridgeline.errors import RidgelineError, failure
from ridgeline.frontend.from_onnx import load
from ridgeline.frontend.ports import ports

REFRESH_S = 0.2


def batch_dim(inputs: Sequence[Port]) -> str | None:
    """The name that the first dim of every input has, if there is one."""
    firsts = {port.dims[0] if port.dims else None for port in inputs}
    name = firsts.pop() if len(firsts) == 1 else None
    return name if isinstance(name, str) else None


def batch_profiles(inputs: Sequence[Port], largest: int) -> list[dict[str, str]]:
    """Plans for single requests, and for full batches: what is best for one is seldom best for the other."""
    dim = batch_dim(inputs)
    if dim is None or largest < 1:
        return []
    if largest == 1:
        return [{dim: "1"}]
    return [{dim: "1"}, {dim: f"2..{largest}..{largest}"}]


def main(source: TextIO, told: TextIO) -> int:
    wanted: Mapping[str, Any] = json.loads(source.readline())

    def tell(**message: Any) -> None:
        told.write(json.dumps(message) + "\n")
        told.flush()

    drawn = 0.0

    def progress(stage: str, done: int, total: int, detail: str = "") -> None:
        nonlocal drawn
        if monotonic() - drawn > REFRESH_S:
            drawn = monotonic()
            tell(stage=stage, done=done, total=total, detail=detail)

    options = dict(wanted["options"])
    try:
        if "profiles" not in options and wanted["largest_batch"]:
            inputs = ports(load(wanted["model"]).model.graph.inputs, what="input")
            options |= {"profiles": batch_profiles(inputs, wanted["largest_batch"]) or None}
        engine = build(wanted["model"], progress=progress, **options)
        engine.save(Path(wanted["output"]))
    except RidgelineError as error:
        tell(failed=error.text())
        return 1
    except Exception as error:  # the server goes on, whatever a build met
        tell(failed=f"this is a bug in ridgeline: {failure(error)}")
        return 1
    tell(done=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))
