"""A quantised model as a file: checked by ONNX's own checker, in the lowest opset, written whole."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from ridgeline.base.files import require_place, whole_file
from ridgeline.errors import InternalError, OptionError, last_lines
from ridgeline.frontend.types import to_proto
from ridgeline.precision.lowest_opset import PLAIN_QUANTIZE, lowest_opset
from ridgeline.precision.schemes import Scheme

# the version of the file format that came with an opset; runtimes refuse later ones than they know
IR_VERSIONS = ((25, 13), (24, 12), (23, 11), (21, 10), (19, 9), (13, 8), (1, 8))
# protobuf holds no more than 2 GiB; what is larger has its weights beside it
EMBEDDED_BYTES = 1_900_000_000


def finished(model: ir.Model, scheme: Scheme, original_opset: int) -> ir.Model:
    """The model in its opset, checked: a graph that we wrote and ONNX refuses is a bug of ours."""
    wanted = max(scheme.opset, min(original_opset, PLAIN_QUANTIZE))
    version = model.opset_imports[""] = lowest_opset(model, wanted)
    model.producer_name = "ridgeline"
    model.ir_version = next(needed for first, needed in IR_VERSIONS if version >= first)
    if weight_bytes(model) <= EMBEDDED_BYTES:
        try:
            onnx.checker.check_model(to_proto(model), full_check=False)
        except onnx.checker.ValidationError as error:
            raise InternalError(f"the quantised graph is not legal ONNX: {last_lines(error)}") from error
    return model


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all weights as the file stores them."""
    total = 0
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            total += value.const_value.nbytes
    return total


def write_qdq(model: ir.Model, path: Path) -> None:
    """The file appears in one step. Weights of more than 2 GB are written beside it first."""
    require_place(path)
    try:
        if weight_bytes(model) > EMBEDDED_BYTES:
            data = path.with_name(f"{path.name}.data")
            require_place(data).unlink(missing_ok=True)
            ir.external_data.unload_from_model(model, path.parent, data.name)
        with whole_file(path) as file:
            file.write(to_proto(model).SerializeToString())
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written", got=str(error)) from error
