"""The fused graph of an engine as rows: regions with what they read and make, and their bodies as ops.

Read from `fused.onnx` as protobuf has it: no framework is loaded, and weights are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ridgeline.errors import PlanError, first_line
from ridgeline.frontend.types import ELEMENT_NAMES
from ridgeline.ir.body import DOMAIN
from ridgeline.ir.provenance import SOURCES
from ridgeline.runtime.description import GRAPH, check_hashes, open_members

LISTED = 8  # elements of a list attribute
LONGEST = 120  # characters of a text attribute


@dataclass(frozen=True)
class BodyOp:
    """One ONNX op inside a region; `attributes` as text, large ones shortened."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: str = ""


@dataclass(frozen=True)
class RegionBody:
    """What a region computes. Equal regions share one body."""

    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[BodyOp, ...]


@dataclass(frozen=True)
class GraphRegion:
    """One node of the fused graph; `weights` are those of its inputs that are constants, with their types."""

    name: str
    function: str  # the name of its body
    inputs: tuple[str, ...]  # without weights
    outputs: tuple[str, ...]
    weights: tuple[str, ...]
    sources: tuple[str, ...]  # nodes of the original model


@dataclass(frozen=True)
class FusedGraph:
    """Regions in the order of the graph, and every body once."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    regions: tuple[GraphRegion, ...]
    bodies: tuple[RegionBody, ...]
    weight_types: Mapping[str, str]  # by name: ``float32``


def read_fused_graph(path: Path) -> FusedGraph:
    """The graph in an engine file. Its hash is checked; its weights are not looked at."""
    members, manifest = open_members(path)
    check_hashes(members, manifest, path, only={GRAPH})
    try:
        proto = onnx.ModelProto.FromString(bytes(members[GRAPH]))
    except DecodeError as error:
        raise PlanError(
            f"the graph in {str(path)!r} does not read as ONNX",
            got=first_line(error),
            help="build it again: ridge build MODEL.onnx",
        ) from error
    return fused_graph(proto)


def fused_graph(model: onnx.ModelProto) -> FusedGraph:
    """Rows of a fused model: calls of region functions, and plain nodes left alone."""
    graph = model.graph
    weights = {each.name: _type_name(each.data_type) for each in graph.initializer}
    functions = {each.name: each for each in model.functions if each.domain == DOMAIN}
    bodies: dict[str, RegionBody] = {}
    regions = []
    for node in graph.node:
        called = functions.get(node.op_type) if node.domain == DOMAIN else None
        name = node.name or next(iter(node.output), "") or node.op_type
        # a plain node has a body of its own: its attributes are not those of others of its type
        key = called.name if called is not None else f"{node.op_type} {name}"
        if key not in bodies:
            bodies[key] = _function_body(called) if called is not None else _single(key, node)
        regions.append(
            GraphRegion(
                name=name,
                function=key,
                inputs=tuple(dict.fromkeys(n for n in _read(node) if n not in weights)),
                outputs=tuple(n for n in node.output if n),
                weights=tuple(dict.fromkeys(n for n in node.input if n in weights)),
                sources=_sources(node) or (name,),
            )
        )
    return FusedGraph(
        inputs=tuple(each.name for each in graph.input if each.name not in weights),
        outputs=tuple(each.name for each in graph.output),
        regions=tuple(regions),
        bodies=tuple(bodies.values()),
        weight_types=weights,
    )


def _sources(node: onnx.NodeProto) -> tuple[str, ...]:
    kept = next((prop.value for prop in node.metadata_props if prop.key == SOURCES), "")
    return tuple(name for name in kept.split(";") if name)


def _read(node: onnx.NodeProto) -> Iterable[str]:
    """Its inputs, and what its subgraphs take from outside."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from _captured(attribute.g)


def _captured(graph: onnx.GraphProto) -> Iterable[str]:
    made = {each.name for each in (*graph.input, *graph.initializer)}
    for node in graph.node:
        yield from (name for name in _read(node) if name not in made)
        made.update(node.output)
    yield from (each.name for each in graph.output if each.name not in made)


def _function_body(function: onnx.FunctionProto) -> RegionBody:
    return RegionBody(
        function=function.name,
        inputs=tuple(function.input),
        outputs=tuple(function.output),
        ops=tuple(map(_op, function.node)),
    )


def _single(key: str, node: onnx.NodeProto) -> RegionBody:
    return RegionBody(key, tuple(filter(None, node.input)), tuple(filter(None, node.output)), (_op(node),))


def _op(node: onnx.NodeProto) -> BodyOp:
    texts = [f"{each.name}={_attribute_text(each)}" for each in node.attribute]
    name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return BodyOp(name, tuple(node.input), tuple(node.output), " ".join(texts))


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    kinds = onnx.AttributeProto
    match attribute.type:
        case kinds.INT:
            return str(attribute.i)
        case kinds.FLOAT:
            return f"{attribute.f:.6g}"
        case kinds.STRING:
            return str(attribute.s[:LONGEST], "utf-8", "replace")
        case kinds.INTS:
            return _list_text(map(str, attribute.ints), len(attribute.ints))
        case kinds.FLOATS:
            return _list_text((f"{each:.6g}" for each in attribute.floats), len(attribute.floats))
        case kinds.TENSOR:
            dims = ",".join(map(str, attribute.t.dims))
            return f"{_type_name(attribute.t.data_type)}[{dims}]"
        case kinds.GRAPH:
            return f"graph of {len(attribute.g.node)} nodes"
    return "…"


def _list_text(texts: Iterable[str], count: int) -> str:
    shown = [text for text, _ in zip(texts, range(LISTED), strict=False)]
    return f"[{', '.join(shown)}{', …' if count > LISTED else ''}]"


def _type_name(code: int) -> str:
    """``float16``, as specs call types."""
    return str(ELEMENT_NAMES.get(code, "unknown"))
