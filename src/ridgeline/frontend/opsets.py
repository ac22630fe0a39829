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
        converted = version_converter.convert_version(to_proto(model), CANONICAL_OPSET)
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
