"""An ONNX file by names: which node makes a value, which nodes read it (in subgraphs too), its type.

Works on the proto, not on `onnx_ir`: what is not touched must come out as it went in, broken parts included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import shape_inference
from onnx.external_data_helper import load_external_data_for_tensor

from ridgeline.base.files import place_of, whole_file
from ridgeline.base.grouping import grouped
from ridgeline.errors import ModelError, OptionError, did_you_mean
from ridgeline.frontend.eye_like import without_typed_eyes
from ridgeline.frontend.from_onnx import (
    all_tensors,
    check_tensors,
    require_regular_file,
    without_large_tensors,
)
from ridgeline.frontend.functions import all_holders, subgraphs
from ridgeline.frontend.types import tensor_type

# the limit of one protobuf, with some room
EMBEDDED_BYTES = 3 << 29


@dataclass(frozen=True)
class ModelGraph:
    """The main graph of a model, asked by names."""

    proto: onnx.ModelProto
    folder: Path | None  # where external data lies

    @cached_property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        return list(self.proto.graph.node)

    @cached_property
    def producer(self) -> dict[str, int]:
        """The node that makes a value, by its place in the file."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.output if name}

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        return grouped((name, i) for i, node in enumerate(self.nodes) for name in dict.fromkeys(reads(node)))

    @cached_property
    def depends(self) -> list[bool]:
        """Nodes whose results change with the inputs; the rest is constants, which stay where they are."""
        found = [False] * len(self.nodes)
        pending = list(self.inputs)
        while pending:
            for at in self.readers.get(pending.pop(), ()):
                if not found[at]:
                    found[at] = True
                    pending += [name for name in self.nodes[at].output if name]
        return found

    @cached_property
    def initializers(self) -> dict[str, Any]:
        """Dense and sparse ones."""
        graph = self.proto.graph
        return {t.name: t for t in graph.initializer} | {t.values.name: t for t in graph.sparse_initializer}

    @cached_property
    def inputs(self) -> dict[str, onnx.ValueInfoProto]:
        """Inputs that a caller gives, without the initializers that may be listed among them."""
        return {p.name: p for p in self.proto.graph.input if p.name not in self.initializers}

    @cached_property
    def types(self) -> dict[str, onnx.TypeProto]:
        """Declared and inferred types of the main graph's values."""
        light = without_large_tensors(self.proto)
        light.graph.name = light.graph.name or "graph"
        light.graph.value_info.extend(self.proto.graph.value_info)
        light = without_typed_eyes(light)
        try:
            inferred = shape_inference.infer_shapes(light, data_prop=True)
        except Exception:  # a broken model infers nothing; what it declares still stands
            inferred = light
        graph = inferred.graph
        found = {p.name: p.type for p in (*graph.value_info, *graph.output, *graph.input)}
        for tensor in self.proto.graph.initializer:
            found[tensor.name] = tensor_type(tensor.data_type, tensor.dims)
        return {name: kind for name, kind in found.items() if kind.WhichOneof("value")}

    @cached_property
    def node_names(self) -> dict[str, int]:
        return {node.name: i for i, node in enumerate(self.nodes) if node.name}

    def is_value(self, name: str) -> bool:
        return name in self.producer or name in self.inputs or name in self.initializers

    def unknown(self, name: str) -> str:
        """What to say of a name that is neither a value nor a node, with the near ones."""
        known = [*self.producer, *self.inputs, *self.initializers, *self.node_names]
        inner = _inside(self.nodes, name)
        if inner:
            return f"{name!r} lies inside a subgraph of {label(inner)}; {inner.output[0]!r} takes it whole"
        near = get_close_matches(name, known, n=5, cutoff=0.5) or [n for n in known if name in n][:5]
        return f"{name!r}; " + (f"near: {', '.join(near)}" if near else did_you_mean(name, known))


def read_graph(source: Path | onnx.ModelProto) -> ModelGraph:
    """The model of a file, its external data left outside."""
    if isinstance(source, onnx.ModelProto):
        return ModelGraph(source, None)
    require_regular_file(source)
    try:
        proto = onnx.load(str(source), load_external_data=False)
    except (DecodeError, ValueError, OSError) as error:
        raise ModelError(
            f"{str(source)!r} is not an ONNX model: it does not parse",
            got=str(error),
            help="was the download cut short, or is this a Git LFS pointer?",
        ) from error
    if not proto.HasField("graph"):
        raise ModelError(f"{str(source)!r} is not an ONNX model: it holds no graph")
    return ModelGraph(proto, source.absolute().parent)


def write_model(proto: onnx.ModelProto, folder: Path | None, path: Path) -> None:
    """A file that stands alone: external data is taken in, or written beside it where it is too large."""
    check_tensors(proto, folder)
    outside = [t for t in all_tensors(proto) if t.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in outside:
        load_external_data_for_tensor(tensor, str(folder))
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
    nbytes = sum(len(t.raw_data) for t in outside)
    try:
        if nbytes > EMBEDDED_BYTES:
            # onnx would append to an existing file
            place_of(data := path.with_name(f"{path.name}.data")).unlink(missing_ok=True)
            onnx.convert_model_to_external_data(proto, location=data.name)
            onnx.external_data_helper.write_external_data_tensors(proto, str(path.parent))
        with whole_file(path) as file:
            file.write(proto.SerializeToString())
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written", got=str(error)) from error


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names a node needs from its graph: its inputs, and what its subgraphs capture."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        yield from captured(graph)


def captured(graph: onnx.GraphProto) -> Iterator[str]:
    """What a subgraph reads from outside itself."""
    made = {p.name for p in graph.input} | {t.name for t in graph.initializer}
    made |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in made)
    yield from (p.name for p in graph.output if p.name not in made)


def label(node: onnx.NodeProto) -> str:
    """A node in words: its name, else what it makes."""
    return f"{node.op_type} {node.name or (node.output[0] if node.output else '?')!r}"


def _inside(nodes: Sequence[onnx.NodeProto], name: str) -> onnx.NodeProto | None:
    """The node of the main graph that holds a value of this name in a subgraph."""
    for outer in nodes:
        inner = (node for graph in all_holders(list(subgraphs(outer))) for node in graph.node)
        if any(name in node.output or name == node.name for node in inner):
            return outer
    return None
