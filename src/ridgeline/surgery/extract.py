"""Cuts a part out of a model: from some values to others, as a model of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from ridgeline.errors import ModelError, OptionError
from ridgeline.frontend.functions import count_nodes, subgraphs
from ridgeline.frontend.types import port_text, type_text
from ridgeline.surgery.graph import ModelGraph, label, read_graph, reads, write_model


@dataclass(frozen=True)
class PortRow:
    """An input or output of the part, and where its type comes from."""

    name: str
    type: str
    is_new: bool


@dataclass(frozen=True)
class Extracted:
    """What was cut out."""

    inputs: tuple[PortRow, ...]
    outputs: tuple[PortRow, ...]
    nodes: int
    of_nodes: int
    weights: int
    functions: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """The nodes between two sets of values, by their places in the file, and what they need from outside."""

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def extract_file(model: Path, output: Path, *, starts: Sequence[str], ends: Sequence[str]) -> Extracted:
    """Cut from `starts` to `ends` (values or nodes; none means the model's own) and write the part."""
    graph = read_graph(model)
    part = find_part(graph, starts, ends)
    proto = part_model(graph, part)
    write_model(proto, graph.folder, output)
    return describe(graph, part, proto, starts)


def find_part(graph: ModelGraph, starts: Sequence[str], ends: Sequence[str]) -> Part:
    """Look the names up and walk back from the ends. Unknown names are reported with near ones."""
    _refuse_unknown(graph, starts, ends)
    first = [value for name in starts for value in _start_values(graph, name)]
    last = [value for name in ends for value in _end_values(graph, name)]
    last = last or [p.name for p in graph.proto.graph.output]
    part = walk_back(graph, frozenset(first), last)
    if not part.nodes:
        raise OptionError(
            "nothing lies between these values", got=f"--from {' '.join(starts)} --to {' '.join(ends)}"
        )
    missed = [name for name in dict.fromkeys(first) if name not in part.inputs]
    if missed:
        raise OptionError(
            f"{', '.join(last)} {'does' if len(last) == 1 else 'do'} not depend on {', '.join(missed)}",
            want="values on the way to what --to names",
            help="leave it out, or name a later value with --to",
        )
    return part


def _refuse_unknown(graph: ModelGraph, starts: Sequence[str], ends: Sequence[str]) -> None:
    """One error for all names that are neither a value nor a node, or that no node makes."""
    rows = []
    for option, names in (("--from", starts), ("--to", ends)):
        for name in names:
            if not graph.is_value(name) and name not in graph.node_names:
                rows.append(f"{option} {graph.unknown(name)}")
            elif option == "--to" and name not in graph.producer and name not in graph.node_names:
                rows.append(f"--to {name!r} is given to the model, not made by it")
    if rows:
        raise OptionError(
            "the model has no such values or nodes", rows=rows, want="values or nodes of the main graph"
        )


def walk_back(
    graph: ModelGraph, starts: frozenset[str], ends: Collection[str], *, may_lack: bool = False
) -> Part:
    """All nodes that `ends` need, up to `starts` and the model's inputs. Raises if nobody makes a value that
    they need, unless they `may_lack` some."""
    kept: set[int] = set()
    inputs: dict[str, None] = {}
    pending = list(ends)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        at = graph.producer.get(name)
        if name in starts or (at is None and name in graph.inputs):
            inputs[name] = None
        elif at is not None and at not in kept:
            kept.add(at)
            pending += reads(graph.nodes[at])
        elif at is None and name not in graph.initializers and not may_lack:
            raise ModelError(
                f"nobody makes {name!r}, which this part needs", help="ridge lint lists such values"
            )
    order = [n for n in graph.inputs if n in inputs] + [n for n in graph.producer if n in inputs]
    order += [n for n in graph.initializers if n in inputs and n not in order]
    return Part(tuple(sorted(kept)), tuple(order), tuple(dict.fromkeys(ends)))


def _start_values(graph: ModelGraph, name: str) -> list[str]:
    """The values to start from: a value itself, or what a node reads that depends on the inputs."""
    if graph.is_value(name):
        return [name]
    read = dict.fromkeys(reads(graph.nodes[graph.node_names[name]]))
    return [
        n for n in read if n in graph.inputs or (n in graph.producer and graph.depends[graph.producer[n]])
    ]


def _end_values(graph: ModelGraph, name: str) -> list[str]:
    if name in graph.producer:
        return [name]
    return [value for value in graph.nodes[graph.node_names[name]].output if value]


def part_model(graph: ModelGraph, part: Part) -> onnx.ModelProto:
    """The part as a model: same opsets, same names; only the functions and weights it uses."""
    old = graph.proto
    new = onnx.ModelProto(ir_version=old.ir_version, producer_name="ridgeline")
    new.opset_import.extend(old.opset_import)
    new.metadata_props.extend(old.metadata_props)
    new.graph.name = old.graph.name or "part"
    nodes = [graph.nodes[i] for i in part.nodes]
    new.graph.node.extend(nodes)
    needed = {name for node in nodes for name in reads(node)} - set(part.inputs)
    new.graph.initializer.extend(t for t in old.graph.initializer if t.name in needed)
    new.graph.sparse_initializer.extend(t for t in old.graph.sparse_initializer if t.values.name in needed)
    new.functions.extend(_used_functions(old, nodes))
    new.graph.input.extend(onnx.ValueInfoProto(name=n, type=known_type(graph, n)) for n in part.inputs)
    new.graph.output.extend(onnx.ValueInfoProto(name=n, type=known_type(graph, n)) for n in part.outputs)
    ports = {*part.inputs, *part.outputs}
    made = {name for node in nodes for name in node.output} - ports
    new.graph.value_info.extend(p for p in old.graph.value_info if p.name in made)
    return new


def known_type(graph: ModelGraph, name: str) -> onnx.TypeProto:
    """The type that a port must have: declared by the file or inferred."""
    kind = graph.types.get(name)
    is_tensor = kind is not None and kind.WhichOneof("value") == "tensor_type"
    if kind is None or (
        is_tensor and not (kind.tensor_type.elem_type and kind.tensor_type.HasField("shape"))
    ):
        at = graph.producer.get(name)
        maker = f", made by {label(graph.nodes[at])}," if at is not None else ""
        beside = [] if at is None else [n for n in reads(graph.nodes[at]) if _is_known(graph, n)]
        raise ModelError(
            f"the type of {name!r}{maker} is neither declared nor inferred",
            got="nothing" if kind is None else type_text(kind),
            want="an element type and a rank",
            help=f"cut at a value that has them, such as {', '.join(beside[:3])}"
            if beside
            else "ridge lint says why",
        )
    return kind


def _is_known(graph: ModelGraph, name: str) -> bool:
    kind = graph.types.get(name)
    return kind is not None and kind.tensor_type.HasField("shape") and name not in graph.initializers


def _used_functions(proto: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> list[onnx.FunctionProto]:
    """Functions that the nodes call, directly or through others."""
    by_key = {(f.domain, f.name, f.overload): f for f in proto.functions}
    used: set[tuple[str, str, str]] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        key = (node.domain, node.op_type, node.overload)
        if key in by_key and key not in used:
            used.add(key)
            pending += by_key[key].node
        pending += [inner for graph in subgraphs(node) for inner in graph.node]
    return [function for key, function in by_key.items() if key in used]


def describe(graph: ModelGraph, part: Part, proto: onnx.ModelProto, starts: Sequence[str]) -> Extracted:
    old_outputs = {p.name for p in graph.proto.graph.output}
    asked = {value for name in starts for value in _start_values(graph, name)}
    also = [name for name in part.inputs if starts and name not in asked]
    notes = [f"also an input, since the part needs it: {', '.join(also)}"] if also else []
    return Extracted(
        inputs=tuple(_row(p, p.name not in graph.inputs) for p in proto.graph.input),
        outputs=tuple(_row(p, p.name not in old_outputs) for p in proto.graph.output),
        nodes=count_nodes(graph.nodes[i] for i in part.nodes),
        of_nodes=count_nodes(graph.nodes),
        weights=len(proto.graph.initializer) + len(proto.graph.sparse_initializer),
        functions=len(proto.functions),
        notes=tuple(notes),
    )


def _row(port: onnx.ValueInfoProto, is_new: bool) -> PortRow:
    return PortRow(port.name, port_text(port.type), is_new)
