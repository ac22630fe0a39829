"""ONNX's types under our names: element types by number, and text for types that are not tensors."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

TENSOR_TYPES = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "INT64": "int64",
    "INT32": "int32", "INT16": "int16", "INT8": "int8", "UINT64": "uint64", "UINT32": "uint32",
    "UINT16": "uint16", "UINT8": "uint8", "BOOL": "bool", "STRING": "string", "COMPLEX64": "complex64",
    "COMPLEX128": "complex128", "FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz", "FLOAT8E5M2FNUZ": "float8_e5m2fnuz", "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT4E2M1": "float4_e2m1fn", "INT4": "int4", "UINT4": "uint4", "INT2": "int2", "UINT2": "uint2",
}  # fmt: skip
ONNX_TYPES = {
    name: int(ir.DataType[key]) for key, name in TENSOR_TYPES.items() if key in ir.DataType.__members__
}
HALVES = {onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16"}
ELEMENT_NAMES = {number: name for name, number in ONNX_TYPES.items()}


def type_text(kind: onnx.TypeProto) -> str:
    """`float32`, `string`, `sequence(float32)`, `optional(sequence(int64))`, `map(string,float32)`."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return ELEMENT_NAMES.get(kind.tensor_type.elem_type, "undefined")
    if which in ("sequence_type", "optional_type"):
        return f"{which.removesuffix('_type')}({type_text(getattr(kind, which).elem_type)})"
    if which == "map_type":
        key = ELEMENT_NAMES.get(kind.map_type.key_type, "undefined")
        return f"map({key},{type_text(kind.map_type.value_type)})"
    return "undefined" if which is None else which.removesuffix("_type")


def port_text(kind: onnx.TypeProto) -> str:
    """``float32[N,3,224]``"""
    if kind.WhichOneof("value") != "tensor_type" or not kind.tensor_type.HasField("shape"):
        return type_text(kind)
    dims = [
        d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?")
        for d in kind.tensor_type.shape.dim
    ]
    return f"{type_text(kind)}[{','.join(dims)}]"


def tensor_type(element: int, dims: Sequence[int | str]) -> onnx.TypeProto:
    made = onnx.TypeProto()
    made.tensor_type.elem_type = element
    made.tensor_type.shape.SetInParent()
    for dim in dims:
        added = made.tensor_type.shape.dim.add()
        if isinstance(dim, str):
            added.dim_param = dim
        else:
            added.dim_value = dim
    return made


def outside(tensor: onnx.TensorProto, location: str, *, offset: int, length: int) -> onnx.TensorProto:
    """The tensor, with its bytes said to lie in a file beside the model."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def is_non_tensor(dtype: str) -> bool:
    """No memory can be planned for it: strings, and whatever is not a tensor."""
    return dtype not in ONNX_TYPES or dtype == "string"


def type_of(value: ir.Value) -> onnx.TypeProto:
    kind: onnx.TypeProto = ir.serde.serialize_value(value).type
    _unmark_maps(kind)
    return kind


# onnx_ir has no maps: a map travels through it as a tensor of its values with this mark and the key's type
MAP_MARK = "ridgeline.map."


def to_ir(proto: onnx.ModelProto) -> ir.Model:
    """The model as onnx_ir holds it, with maps marked."""
    if any(_innermost(port.type).HasField("map_type") for port in _ports(proto)):
        marked = onnx.ModelProto()
        marked.CopyFrom(proto)
        proto = marked
        for port in _ports(proto):
            _mark_maps(port.type)
    model = ir.from_proto(proto)
    # onnx_ir goes by the last declaration; of an input that is an output too, calls keep to the input's
    declared = {port.name: port.type for port in proto.graph.input}
    for value in model.graph.outputs:
        if value.is_graph_input() and value.name in declared:
            value.shape = ir.serde.deserialize_type_proto_for_shape(declared[value.name])
    return model


def say_shapes(graph: onnx.GraphProto) -> None:
    """Give ports without a shape an empty one. ONNX's checker requires the field, and runtimes do not."""
    for port in (*graph.input, *graph.output):
        if port.type.HasField("tensor_type"):
            port.type.tensor_type.shape.SetInParent()


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as ONNX holds it."""
    proto: onnx.ModelProto = ir.to_proto(model)
    for port in _ports(proto):
        _unmark_maps(port.type)
    return proto


def _ports(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]


def _innermost(kind: onnx.TypeProto) -> onnx.TypeProto:
    """The type of the items of sequences and optionals, however deep; else the type itself."""
    which = kind.WhichOneof("value")
    is_nested = which in ("sequence_type", "optional_type")
    return _innermost(getattr(kind, which).elem_type) if is_nested else kind


def _mark_maps(kind: onnx.TypeProto) -> None:
    kind = _innermost(kind)
    if kind.HasField("map_type"):
        key, values = kind.map_type.key_type, kind.map_type.value_type.tensor_type.elem_type
        kind.Clear()
        kind.denotation = f"{MAP_MARK}{key}"
        kind.tensor_type.elem_type = values


def _unmark_maps(kind: onnx.TypeProto) -> None:
    kind = _innermost(kind)
    if kind.denotation.startswith(MAP_MARK):
        key, values = int(kind.denotation.removeprefix(MAP_MARK)), kind.tensor_type.elem_type
        kind.Clear()
        kind.map_type.key_type = key
        kind.map_type.value_type.tensor_type.elem_type = values
