"""Control flow on the floor: subgraphs are compiled once, and run as often as the data says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from ridgeline.spec import Body, Op, TensorSpec

Run: TypeAlias = Callable[[list[Any]], Sequence[Any]]
CompileBody: TypeAlias = Callable[
    [Body, Mapping[str, TensorSpec], Mapping[str, int]],
    tuple[Callable[[Sequence[Any]], list[Any]], list[str]],
]


def _if(
    op: Op,
    reads: Sequence[str],
    specs: Mapping[str, TensorSpec],
    opset_imports: Mapping[str, int],
    compile_body: CompileBody,
) -> tuple[Run, list[str]]:
    """One branch or the other; what a branch captures comes after the condition."""
    branches, notes = {}, []
    for taken, key in ((True, "then_branch"), (False, "else_branch")):
        closed = _closed(op.attrs[key])
        run, more = compile_body(closed, specs, opset_imports)
        branches[taken] = (run, [reads.index(n) for n in closed.inputs])
        notes += more

    def call(values: list[Any]) -> Sequence[Any]:
        run, places = branches[bool(values[0].reshape(-1)[0])]
        return run([values[p] for p in places])

    return call, notes


def _loop(
    op: Op,
    reads: Sequence[str],
    specs: Mapping[str, TensorSpec],
    opset_imports: Mapping[str, int],
    compile_body: CompileBody,
) -> tuple[Run, list[str]]:
    """ONNX Loop: trip count and condition, carried values, and scan outputs stacked at the end."""
    body: Body = op.attrs["body"]
    closed = _closed(body)
    run, notes = compile_body(closed, specs, opset_imports)
    n_carried = len(op.inputs) - 2
    captured = [reads.index(n) for n in closed.inputs[len(body.inputs) :]]

    def call(values: list[Any]) -> Sequence[Any]:
        limit = None if values[0] is None else int(values[0])
        going = torch.tensor(True) if values[1] is None else values[1]
        carried = values[2 : 2 + n_carried]
        outside = [values[p] for p in captured]
        scans: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - n_carried)]
        trip = 0
        while bool(going) and (limit is None or trip < limit):
            going, *made = run([torch.tensor(trip), going, *carried, *outside])
            carried = made[:n_carried]
            for scan, value in zip(scans, made[n_carried:], strict=True):
                scan.append(value)
            trip += 1
        stacked = [torch.stack(scan) if scan else torch.empty(0) for scan in scans]
        return [*carried, *stacked][: len(op.outputs)]

    return call, notes


def _closed(body: Body) -> Body:
    """The body with its free names as further inputs."""
    free = body.free_names()
    return replace(body, inputs=(*body.inputs, *free)) if free else body


CONTROL_OPS: dict[str, Callable[..., tuple[Run, list[str]]]] = {"If": _if, "Loop": _loop}
