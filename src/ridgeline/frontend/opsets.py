"""Converts any opset to one canonical opset. The graph is converted without its weights."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx import shape_inference, version_converter

from ridgeline.errors import UnsupportedError, last_lines
from ridgeline.frontend.legacy import KEPT, after_conversion, before_conversion, release
from ridgeline.frontend.types import say_shapes, to_ir, to_proto

CANONICAL_OPSET = 23
# the first IR version that lets weights stand apart from inputs in every opset, and names local functions
CONVERTIBLE_IR = 10
LIFTED_BYTES = 1024
# ops that ONNX's converter rewrites from opset 13 on, by the opset that changes them; new versions of the
# others only take more types
REWRITTEN_FROM = 13
REWRITTEN = {
    14: ("BatchNormalization", "GRU", "LSTM", "RNN"),
    16: ("RoiAlign",),
    18: (
        "LpPool", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
        "ReduceMin", "ReduceProd", "ReduceSumSquare", "Split",
    ),
    20: ("DFT", "GridSample"),
    21: ("GroupNormalization",),
}  # fmt: skip
UNCONVERTIBLE = (ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS, ir.AttributeType.UNDEFINED)
# what ONNX raises if it cannot convert a model
REFUSALS = (
    RuntimeError,
    onnx.checker.ValidationError,
    shape_inference.InferenceError,
    version_converter.ConvertError,
)


def to_canonical(model: ir.Model, name: str) -> ir.Model:
    """Bring the graph up to the canonical opset; a newer one stays as it is."""
    version = _default_version(model)
    if version >= CANONICAL_OPSET:
        return model
    ports = [(v.name, v.shape, v.type) for v in (*model.graph.inputs, *model.graph.outputs)]
    before_conversion(model, version)
    weights = _lift_weights(model.graph)
    model.ir_version = max(model.ir_version, CONVERTIBLE_IR)
    try:
        if KEPT in model.opset_imports:
            model = to_ir(version_converter.convert_version(to_proto(model), version + 1))
            release(model)
        converted = _converted(model)
        say_shapes(converted.graph)
        onnx.checker.check_model(converted)
    except REFUSALS as error:
        raise UnsupportedError(
            f"{name!r} cannot be brought from opset {version} to {CANONICAL_OPSET}",
            got=last_lines(error),
            help="export the model again at opset 18 or later",
        ) from error
    fresh = to_ir(converted)
    for value in [v for v in fresh.graph.inputs if v.name in weights]:
        fresh.graph.inputs.remove(value)
        value.const_value = weights[value.name]
        fresh.graph.register_initializer(value)
    after_conversion(fresh, version)
    # the converter drops dim names of some models; the original names still hold
    for value, (port, shape, kind) in zip((*fresh.graph.inputs, *fresh.graph.outputs), ports, strict=True):
        value.name, value.shape, value.type = port, shape, kind
    return fresh


def _converted(model: ir.Model) -> onnx.ModelProto:
    """The model at the canonical opset, with inferred shapes. The converter takes 6 ms to list its rules."""
    proto = to_proto(model)
    if _needs_rewriting(model):
        return version_converter.convert_version(proto, CANONICAL_OPSET)
    inferred = shape_inference.infer_shapes(proto)  # the converter's first step
    for entry in inferred.opset_import:
        if not entry.domain:
            entry.version = CANONICAL_OPSET
    return inferred


def _needs_rewriting(model: ir.Model) -> bool:
    """Whether an op means something else in the canonical opset, or is one that the converter refuses."""
    version = model.opset_imports[""]
    if version < REWRITTEN_FROM or model.functions:
        return True
    rewritten = {op for since, ops in REWRITTEN.items() if version < since for op in ops}
    for node in model.graph.all_nodes():
        if node.domain in ("", "ai.onnx") and (node.op_type in rewritten or not onnx.defs.has(node.op_type)):
            return True
        if any(attr.type in UNCONVERTIBLE for attr in node.attributes.values()):
            return True
    return False


def _default_version(model: ir.Model) -> int:
    """The opset of standard ops. A model with ops of other domains only need not name one."""
    imports = model.opset_imports
    if "ai.onnx" in imports:
        imports[""] = imports.pop("ai.onnx")
    return int(imports.setdefault("", CANONICAL_OPSET))


def _lift_weights(graph: ir.Graph) -> dict[str, ir.TensorProtocol]:
    """Turn large initializers into inputs: protobuf holds 2 GiB at most, and copying weights takes time."""
    lifted = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and tensor.nbytes < LIFTED_BYTES and isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.tensor(tensor.numpy().copy(), name=name)  # the converter may read it
        elif tensor is not None and tensor.nbytes >= LIFTED_BYTES:
            lifted[name] = tensor
            del graph.initializers[name]
            value.const_value = None
            graph.inputs.append(value)
    return lifted
