"""ONNX's types under our names: element types by number, and what is no plain tensor in words."""

from __future__ import annotations

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
ELEMENT_NAMES = {number: name for name, number in ONNX_TYPES.items()}


def type_text(kind: onnx.TypeProto) -> str:
    """`float32`, `string`, `sequence(float32)`, `optional(sequence(int64))`, `map(string,float32)`."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return ELEMENT_NAMES.get(kind.tensor_type.elem_type, "undefined")
    if which == "sequence_type":
        return f"sequence({type_text(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({type_text(kind.optional_type.elem_type)})"
    if which == "map_type":
        key = ELEMENT_NAMES.get(kind.map_type.key_type, "undefined")
        return f"map({key},{type_text(kind.map_type.value_type)})"
    return "undefined" if which is None else which.removesuffix("_type")


def is_loose(dtype: str) -> bool:
    """No memory can be planned for it: strings, and whatever is not a tensor."""
    return dtype not in ONNX_TYPES or dtype == "string"


def type_of(value: ir.Value) -> onnx.TypeProto:
    proto: onnx.TypeProto = ir.serde.serialize_value(value).type
    return proto
