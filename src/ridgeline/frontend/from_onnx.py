"""Loads ONNX from bytes, files, protos or onnx_ir models and converts it to one canonical opset.

Everything that can be wrong in a file is checked before any other stage reads it.
"""

from __future__ import annotations

import math
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from google.protobuf.message import DecodeError, EncodeError

from ridgeline.base.files import path_given
from ridgeline.errors import ModelError, PlanError, UnsupportedError, last_lines
from ridgeline.frontend.contrib import write_out_contrib
from ridgeline.frontend.eye_like import without_typed_eyes
from ridgeline.frontend.functions import (
    all_holders,
    all_nodes,
    define_functions,
    inline_functions,
    name_runtime_ops,
    node_label,
    plain_domain,
    require_inlinable,
)
from ridgeline.frontend.loop_results import with_named_results
from ridgeline.frontend.node_checks import check_depth, check_nodes
from ridgeline.frontend.node_order import in_order
from ridgeline.frontend.opsets import to_canonical
from ridgeline.frontend.other_runtimes import known_to_runtimes
from ridgeline.frontend.quant_checks import check_scales
from ridgeline.frontend.strings import keep_strings_in_graph
from ridgeline.frontend.tensor_data import data_problem, external_problem
from ridgeline.frontend.types import say_shapes, tensor_type, to_ir, to_proto
from ridgeline.frontend.wire import read_light
from ridgeline.options import DEFAULT_LIMITS, Limits

# elements of a weight that checks and shape inference may read
SMALL_NUMEL = 128
MAX_VERSION = 2**31 - 1  # versions are 32-bit integers in ONNX

Source: TypeAlias = "str | Path | bytes | onnx.ModelProto | ir.Model"

# with more initializers among the inputs they are weights: old exporters list every weight as an input
MOST_DEFAULTS = 8
# from this version on an initializer that is an input too can be replaced by the caller
DEFAULTS_IR = 4


@dataclass(frozen=True)
class Loaded:
    """A model as it was given, and the same in the canonical opset."""

    name: str
    original: onnx.ModelProto  # without external data and without the large weights of a file
    path: Path | None  # None if the model was not read from a file
    model: ir.Model
    # values of inputs that a caller may leave out
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)


def load(source: Source, limits: Limits = DEFAULT_LIMITS) -> Loaded:
    """Read, check and convert a model. Raises one error that lists every node that cannot run."""
    name, proto, path = _read(source)
    check_depth(proto)
    proto = with_named_results(without_typed_eyes(proto))
    require_inlinable(proto, limits)
    check_opsets(proto, name)
    check_tensors(proto, None if path is None else path.parent)
    _refuse_unknown_ops(proto)
    defined = in_order(define_functions(name_runtime_ops(proto)))
    _check(defined, name)
    check_nodes(defined)
    try:
        model = _to_ir(defined, path)
        defaults = _take_defaults(model)
        common_passes.RemoveInitializersFromInputsPass()(model)
        common_passes.LiftSubgraphInitializersToMainGraphPass()(model)
        model = to_canonical(model, name)
        write_out_contrib(model)
        keep_strings_in_graph(model)
        _check_weights(model)
        check_scales(model)
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        raise ModelError(f"{name!r} holds tensors that do not read", got=last_lines(error)) from error
    return Loaded(name=name, original=proto, path=path, model=model, defaults=defaults)


def refuse_model(source: Any) -> None:
    """Raise if this is a model or no path, where an engine file is wanted. Engine files are zips."""
    if not isinstance(source, (str, Path)):
        raise PlanError(
            "this is not the path of an engine file",
            got=type(source).__name__,
            want="a path, such as 'model.ridge'",
            help="ridgeline.build(model) makes an engine of a model, and engine.save(path) its file",
        )
    path = path_given(source, what="this", error=PlanError)
    if not path.is_file() or zipfile.is_zipfile(path):
        return
    try:
        _read(path)
    except ModelError:
        return
    raise PlanError(
        f"{str(path)!r} is an ONNX model, not an engine",
        want="an engine file (.ridge)",
        help=f"ridgeline.build({str(path)!r}), or ridge build {path}, makes an engine of it",
    )


def folder_of(loaded: Loaded) -> str:
    """The folder of external data."""
    return str(loaded.path.parent) if loaded.path is not None else ""


def _read(source: Source) -> tuple[str, onnx.ModelProto, Path | None]:
    if isinstance(source, onnx.ModelProto):
        return source.graph.name or "model", source, None
    if isinstance(source, ir.Model):
        return source.graph.name or "model", to_proto(source), None
    if isinstance(source, bytes):
        return "model", _parse(source, "this run of bytes"), None
    if not isinstance(source, (str, Path)):
        raise ModelError(
            "this is not a model",
            got=type(source).__name__,
            want="a path, bytes, onnx.ModelProto or onnx_ir.Model",
            help="a torch.nn.Module goes into ridgeline.build, compile or quantize, with example inputs",
        )
    path = Path(source)
    require_regular_file(path)
    try:
        content = read_light(path) or path.read_bytes()
    except OSError as error:
        raise ModelError(f"{str(path)!r} cannot be read", got=str(error)) from error
    if zipfile.is_zipfile(path):
        raise ModelError(
            f"{str(path)!r} is a zip archive, not an ONNX model",
            want="an ONNX file",
            help=f"an engine is built already: ridgeline.load({str(path)!r}), or ridge show {path};"
            " of a PyTorch file, hand in the module",
        )
    return path.stem, _parse(content, repr(str(path))), path


def require_regular_file(path: Path) -> None:
    """Raise for pipes and devices: they may never end, and can be read only once."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ModelError(
            f"there is no file {str(path)!r}", help="check the path: ridge build MODEL.onnx"
        ) from None
    except (OSError, ValueError) as error:  # not permitted, a name too long, a NUL in it
        raise ModelError(f"{str(path)[:200]!r} cannot be read", got=str(error)[:200]) from error
    if stat.S_ISDIR(mode):
        raise ModelError(f"{str(path)!r} is a folder", want="an ONNX file")
    if not stat.S_ISREG(mode):
        raise ModelError(f"{str(path)!r} is a pipe or a device", want="a regular file")


def _parse(content: bytes, where: str) -> onnx.ModelProto:
    try:
        proto = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise ModelError(
            f"{where} is not an ONNX model: the protobuf does not parse",
            got=f"{len(content)} bytes, starting {content[:8]!r}",
            want="a whole ONNX file",
            help="was the download cut short, or is this a Git LFS pointer?",
        ) from error
    if not proto.opset_import or not proto.HasField("graph"):
        raise ModelError(
            f"{where} is not an ONNX model: it names no opset or holds no graph",
            got=f"{len(content)} bytes, starting {content[:8]!r}",
            want="a whole ONNX file",
        )
    return proto


def check_opsets(proto: onnx.ModelProto, name: str) -> None:
    """Raise if an opset version is not a number that ONNX can look up."""
    wrong = [entry for entry in proto.opset_import if not 1 <= entry.version <= MAX_VERSION]
    if wrong:
        raise ModelError(
            f"{name!r} names opsets that cannot be",
            rows=[f"{entry.domain or 'ai.onnx'}: version {entry.version}" for entry in wrong],
            want=f"versions from 1 to {MAX_VERSION:,}",
        )


def all_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Initializers and tensor attributes, in subgraphs and functions too."""
    for holder in all_holders([proto.graph, *proto.functions]):
        if isinstance(holder, onnx.GraphProto):
            yield from holder.initializer
        for attr in (attr for node in holder.node for attr in node.attribute):
            yield from attr.tensors
            if attr.HasField("t"):
                yield attr.t


def check_tensors(proto: onnx.ModelProto, folder: Path | None) -> None:
    """Types, dims and data fit together; external data stays inside the model's folder, in regular files."""
    broken, outside = [], []
    for tensor in all_tensors(proto):
        problem = data_problem(tensor)
        if problem:
            broken.append(f"{tensor.name}: {problem}")
        elif tensor.data_location == onnx.TensorProto.EXTERNAL:
            problem = external_problem(tensor, folder)
            if problem:
                outside.append(f"{tensor.name}: {problem}")
    if broken:
        raise ModelError(
            f"the data of {len(broken)} tensors is not what the file says it is",
            rows=broken,
            help="was the file cut, or written by hand? export the model again",
        )
    if outside:
        raise ModelError(
            f"the external data of {len(outside)} tensors cannot be used",
            rows=outside,
            want="regular files beside the model, or in a folder below it",
        )


def _check(proto: onnx.ModelProto, name: str) -> None:
    try:
        light = without_large_tensors(proto)
        light.graph.sparse_initializer.extend(proto.graph.sparse_initializer)
        say_shapes(light.graph)
        onnx.checker.check_model(light)
    except (onnx.checker.ValidationError, RuntimeError, ValueError, EncodeError, DecodeError) as error:
        raise ModelError(
            f"{name!r} is not a legal ONNX model",
            got=last_lines(error),
            help="ridge lint MODEL lists all that is wrong with it, node by node",
        ) from error


def without_large_tensors(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with large and external weights as inputs, so that ONNX's own tools take a model of any size.

    Without declared types of inner values.
    """
    light = onnx.ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    old, graph = proto.graph, light.graph
    graph.name = old.name
    graph.node.extend(old.node)
    graph.input.extend(old.input)
    graph.output.extend(old.output)
    given = {port.name for port in old.input}
    for tensor in old.initializer:
        if math.prod(tensor.dims) <= SMALL_NUMEL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in given:
            graph.input.add(name=tensor.name, type=tensor_type(tensor.data_type, tensor.dims))
    return light


def _refuse_unknown_ops(proto: onnx.ModelProto) -> None:
    """Raise one error that lists every node that cannot run."""
    if proto.graph.sparse_initializer:
        names = [tensor.values.name for tensor in proto.graph.sparse_initializer]
        raise UnsupportedError("sparse initializers are not read", rows=names, help="store them dense")
    versions = {entry.domain or "": entry.version for entry in proto.opset_import}
    local = {(f.domain, f.name) for f in proto.functions}
    unknown: dict[tuple[str, str], list[str]] = {}
    for node in all_nodes(proto):
        # protobuf returns text that is not UTF-8 as bytes
        if not isinstance(node.op_type, str) or not isinstance(node.domain, str):
            raise ModelError("the name of an op is not text", got=repr((node.domain, node.op_type)))
        domain = plain_domain(node.domain)
        if (node.domain, node.op_type) in local:
            continue
        if onnx.defs.has(node.op_type, max_inclusive_version=versions.get(domain, 1), domain=domain):
            continue
        if not known_to_runtimes(domain, node.op_type):
            unknown.setdefault((domain, node.op_type), []).append(node_label(node))
    if unknown:
        count = sum(len(nodes) for nodes in unknown.values())
        raise UnsupportedError(
            f"{count} {'node' if count == 1 else 'nodes'} cannot run in this build",
            rows=[_unknown_row(*key, nodes) for key, nodes in unknown.items()],
            help="install a plugin that has them (`ridge plugins` lists those here, with their problems), "
            "replace these nodes, or give their meaning as model-local functions in the file",
        )


def _unknown_row(domain: str, op: str, nodes: list[str]) -> str:
    """An op may be here, but only in later versions of its domain than the model imports."""
    row = f"{domain + '::' if domain else ''}{op} x{len(nodes)}  first at {nodes[0]}"
    first = onnx.defs.has(op, domain=domain) and onnx.defs.get_schema(op, domain=domain).since_version
    return f"{row}; it is here from version {first} of {domain!r} on" if first else row


def _to_ir(proto: onnx.ModelProto, path: Path | None) -> ir.Model:
    model = to_ir(inline_functions(proto))
    for node in model.graph.all_nodes():
        references = [attr.name for attr in node.attributes.values() if attr.is_ref()]
        if references:
            raise ModelError(
                f"{references[0]!r} of {node.op_type} refers to an attribute of a function, and is in none"
            )
    if path is not None:
        ir.external_data.set_base_dir(model.graph, path.parent)
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.TensorProtoTensor):
                value.const_value = _own_tensor(value.const_value)
    if path is not None:
        _read_own_weights(model.graph, path)
    for graph in model.graphs():
        for value in (*graph.inputs, *(v for node in graph for v in node.outputs)):
            if value.shape is not None and any(isinstance(dim, int) and dim < 0 for dim in value.shape):
                # some exporters write -1 for an open dim; as a size it would be folded into shape arithmetic
                dims = [None if isinstance(dim, int) and dim < 0 else dim for dim in value.shape]
                value.shape = ir.Shape(dims)
    return model


def _take_defaults(model: ir.Model) -> dict[str, np.ndarray]:
    """Turn initializers that are inputs too into inputs. Their values are the defaults of a call."""
    graph = model.graph
    names = [
        str(v.name)
        for v in graph.inputs
        if v.name in graph.initializers and v.dtype is not None and v.dtype != ir.DataType.STRING
    ]
    if model.ir_version < DEFAULTS_IR or len(names) > MOST_DEFAULTS:
        return {}
    made = {}
    for name in names:
        value = graph.initializers.pop(name)
        assert value.const_value is not None, "an initializer holds a tensor"
        made[name] = value.const_value.numpy()
        value.shape = value.const_value.shape if value.shape is None else value.shape
        value.const_value = None
    return made


def _own_tensor(tensor: ir.TensorProtoTensor) -> ir.TensorProtocol:
    """A copy of a tensor, so that a pass that renames it does not change the original model."""
    if tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
        proto = onnx.TensorProto()
        proto.CopyFrom(tensor.raw)
        return ir.TensorProtoTensor(proto)
    # protobuf copies the bytes at each access
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)


def _read_own_weights(graph: ir.Graph, path: Path) -> None:
    """Read weights that were left in the model's file into memory that is aligned for vectors."""
    with path.open("rb", buffering=0) as file:
        for value in graph.initializers.values():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor) or tensor.location != path.name:
                continue
            array = np.empty(tensor.shape.numpy(), tensor.dtype.numpy())
            file.seek(tensor.offset or 0)
            got = file.readinto(array.reshape(-1).view(np.uint8).data) or 0
            if got != array.nbytes:
                raise ValueError(f"{tensor.name} ends after {got} of {array.nbytes} bytes")
            value.const_value = ir.Tensor(array, dtype=tensor.dtype, name=tensor.name)


def _check_weights(model: ir.Model) -> None:
    """Raise if a weight holds NaN, which would make every later value NaN."""
    bad = []
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or not tensor.dtype.is_floating_point() or tensor.dtype.bitwidth < 16:
            continue
        own = tensor.numpy()
        array = own if own.dtype.kind == "f" else own.astype(np.float32)
        # the sum is NaN if any element is; only then the elements are searched
        with np.errstate(all="ignore"):
            suspect = bool(np.isnan(array.sum()))
        if suspect and np.isnan(array).any():
            bad.append(f"{name}: {int(np.isnan(array).sum())} of {array.size} elements are NaN")
    if bad:
        raise ModelError(
            f"{len(bad)} {'weight holds' if len(bad) == 1 else 'weights hold'} NaN",
            rows=bad,
            help="the training run or the export went wrong before this file was written",
        )
