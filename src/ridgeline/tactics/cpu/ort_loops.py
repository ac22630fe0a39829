"""Loops that ONNX Runtime runs: it has no limit on their trips, so the graph it is given counts them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from ridgeline.base.spec import Body, Op, Site
from ridgeline.errors import InputError, LimitError, first_line
from ridgeline.ir.infer import settle_body
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has
from ridgeline.options import Limits
from ridgeline.tactics.control import first_trip

GUARD = "ridgeline.loop_trips"
_FAILED = re.compile(rf"Name:'{re.escape(GUARD)} (.*?)' Status Message")


def why_unbounded(op: Op, site: Site, opset_imports: Mapping[str, int], limits: Limits) -> str | None:
    """Why ONNX Runtime could run the op beyond the limits; None if it cannot."""
    if any(_repeats(attr) for attr in op.attrs.values()):
        return "the trips of a loop inside a subgraph are not counted there"
    return _why_it_grows(op, site, opset_imports, limits) if op.op_type == "Loop" else None


def _repeats(attr: object) -> bool:
    return isinstance(attr, Body) and any(
        has(op, Trait.REPEATS) or any(map(_repeats, op.attrs.values())) for op in attr.ops
    )


def _why_it_grows(op: Op, site: Site, opset_imports: Mapping[str, int], limits: Limits) -> str | None:
    body: Body = op.attrs["body"]
    given = first_trip(op, body, site.specs)
    if given is None:
        return "sizes in a loop depend on data, and there is no limit on them"
    try:
        made = settle_body(body, given, opset_imports, limits).specs
    except (InputError, LimitError) as error:
        return first_line(error)
    n_states = len(op.inputs) - 2
    for before, after in zip(body.inputs[2:], body.outputs[1 : 1 + n_states], strict=True):
        if after not in made or made[after].shape != given[before].shape:
            return f"{after!r} may grow with every trip, and there is no limit on it"
    stacked = [made.get(name) for name in body.outputs[1 + n_states :]]
    if any(spec is None for spec in stacked):
        return "what a loop stacks depends on data, and there is no limit on it"
    if sum(spec.nbytes for spec in stacked if spec is not None) * limits.loop_trips > limits.planned_bytes:
        return "what a loop stacks may outgrow the memory there is"
    return None


def limit_trips(graph: onnx.GraphProto, limit: int) -> None:
    """End every loop of the graph with an error once it has made so many trips.

    Trip number // limit is an index into a list of one element: the first trip too many is out of bounds.
    """
    for node in graph.node:
        bodies = [attr.g for attr in node.attribute if attr.HasField("g")]
        for body in bodies:
            limit_trips(body, limit)
        if node.op_type == "Loop" and not node.domain:
            _limit_loop(bodies[0], limit, node.name or node.output[0])


def _limit_loop(body: onnx.GraphProto, limit: int, name: str) -> None:
    trip, going = body.input[0].name, body.output[0].name
    made = {part: f"{GUARD}/{name}/{part}" for part in ("limit", "allowed", "index", "one", "may", "going")}
    body.initializer.append(numpy_helper.from_array(np.array(limit, np.int64), made["limit"]))
    body.initializer.append(numpy_helper.from_array(np.array([True]), made["allowed"]))
    body.node.add(op_type="Div", input=[trip, made["limit"]], output=[made["index"]])
    body.node.add(
        op_type="Gather", input=[made["allowed"], made["index"]], output=[made["one"]], name=f"{GUARD} {name}"
    )
    body.node.add(op_type="Squeeze", input=[made["one"]], output=[made["may"]])
    # read by the loop, so that no optimiser takes it for unused
    body.node.add(op_type="And", input=[going, made["may"]], output=[made["going"]])
    body.output[0].name = made["going"]


def raise_trip_error(error: Exception, limit: int) -> None:
    """Raise `LimitError` where ONNX Runtime found the index of the guard out of bounds."""
    found = _FAILED.search(str(error))
    if found is not None:
        raise LimitError(
            f"the Loop at {found[1]} goes round beyond its limit", limit="loop_trips", allowed=limit
        ) from error
