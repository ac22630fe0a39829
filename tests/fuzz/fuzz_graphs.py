"""Random small graphs by seed: one to eight nodes of nearly every ai.onnx op, shapes static or symbolic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from fuzz_draft import ELEMENT_TYPES, Draft, NotDrawnError, port
from fuzz_recipes_maths import MATHS
from fuzz_recipes_moves import MOVES
from fuzz_recipes_simple import SIMPLE

RECIPES = {**SIMPLE, **MOVES, **MATHS}
OPSETS = (13, 15, 17, 18, 18, 20, 21, 22, 23, 23, 24, 25, 26, 28)
TRIES = 40


@dataclass(frozen=True)
class Case:
    """A legal model, inputs for it, and at other sizes of its symbolic dims if it takes any."""

    seed: int
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    steps: Draft  # the values the reference found on the way

    @property
    def ops(self) -> list[str]:
        return [node.op_type for node in self.model.graph.node]


def make_case(seed: int) -> Case:
    """The graph of this seed: always the same one. A draft that turns out illegal is drawn again."""
    for attempt in range(TRIES):
        try:
            return _attempt(seed, attempt)
        except NotDrawnError:
            continue
    raise AssertionError(f"seed {seed} makes no graph in {TRIES} attempts")


def _attempt(seed: int, attempt: int) -> Case:
    draft = Draft(seed * TRIES + attempt, 0)
    draft.opset = draft.pick(OPSETS)
    wanted = draft.int(1, 8)
    for _ in range(wanted * 6):
        if len(draft.nodes) == wanted:
            break
        op = draft.pick(list(RECIPES))
        if not onnx.defs.has(op, max_inclusive_version=draft.opset):
            continue
        before = (dict(draft.values), list(draft.inputs), list(draft.constants))
        try:
            draft.append(RECIPES[op](draft))
        except NotDrawnError:
            draft.values, draft.inputs, draft.constants = before
    if not draft.nodes:
        raise NotDrawnError
    return _finish(seed, draft)


def _finish(seed: int, draft: Draft) -> Case:
    """Outputs are what nobody reads, and now and then what somebody does."""
    read = {name for node in draft.nodes for name in _reads(node)}
    made = [name for node in draft.nodes for name in node.output]
    outputs = [n for n in made if n not in read or draft.chance(0.1)][:6]
    inputs = [n for n in draft.inputs if n in read]
    model = draft.model(draft.nodes, [], [])
    dims = _dims(draft, inputs)
    model.graph.input.extend(
        port(n, ELEMENT_TYPES[draft.type_of(n)], dims.get(n, draft.of(n).shape)) for n in inputs
    )
    for name in draft.constants:
        if name in read:
            array = draft.of(name)
            model.graph.initializer.append(
                onnx.TensorProto(
                    name=name,
                    data_type=ELEMENT_TYPES[str(array.dtype)],
                    dims=array.shape,
                    raw_data=array.tobytes(),
                )
            )
    for name in outputs:
        # sizes may hang on values: only the rank is promised
        ranks = [f"{name}_{axis}" for axis in range(draft.of(name).ndim)]
        model.graph.output.append(port(name, ELEMENT_TYPES[draft.type_of(name)], ranks))
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        raise NotDrawnError(str(error)) from error
    return Case(seed, model, {n: draft.of(n) for n in inputs}, draft)


def _reads(node: onnx.NodeProto) -> list[str]:
    inner = [name for attr in node.attribute for sub in attr.g.node for name in _reads(sub)]
    return [*node.input, *inner]


def _dims(draft: Draft, inputs: list[str]) -> dict[str, list[int | str]]:
    """Symbolic dims for half of the graphs: each its own name, or one name per size."""
    if draft.chance(0.5):
        return {}
    shared = draft.chance(0.3)
    named: dict[str, list[int | str]] = {}
    for name in inputs:
        shape = draft.of(name).shape
        named[name] = [
            (f"D{size}" if shared else f"{name}_{axis}") if draft.chance(0.5) else size
            for axis, size in enumerate(shape)
        ]
    return named
