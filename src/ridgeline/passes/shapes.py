"""Shape annotation of the whole graph, symbols and all, by ONNX's own inference."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from ridgeline.passes.fold_shape import elements
from ridgeline.passes.match import constant

logger = logging.getLogger(__name__)


def infer_shapes(model: ir.Model) -> None:
    """Annotate every value ONNX can infer; what stays unknown is settled when concrete shapes come."""
    try:
        common_passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    except Exception as error:  # inference is advice: without it fewer rules apply, none goes wrong
        logger.debug("shape inference gave up: %s", error)


def name_counts(model: ir.Model) -> bool:
    """Call the length of a Range from 0 to a named size by that name; whether one had no name before."""
    is_any = False
    for graph in model.graphs():
        for node in graph:
            if node.op_type != "Range" or node.domain not in ("", "ai.onnx"):
                continue
            start, step = constant(node.inputs[0]), constant(node.inputs[2])
            limit = elements(node.inputs[1])
            is_count = _is(start, 0) and _is(step, 1) and limit is not None and len(limit) == 1
            if not is_count or limit is None or not isinstance(limit[0], str) or not limit[0].isidentifier():
                continue
            named = ir.Shape([limit[0]])
            if node.outputs[0].shape != named:
                node.outputs[0].shape, is_any = named, True
    return is_any


def _is(array: np.ndarray | None, number: int) -> bool:
    return array is not None and array.size == 1 and bool(array.item() == number)
