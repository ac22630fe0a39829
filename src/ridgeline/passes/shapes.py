"""Shape annotation of the whole graph, symbols and all, by ONNX's own inference."""

from __future__ import annotations

import logging

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from ridgeline.passes.fold_shape import range_end

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
            if node.op_type != "Range" or node.domain:
                continue
            end = range_end(node)
            if not isinstance(end, str) or not end.isidentifier():
                continue
            named = ir.Shape([end])
            if node.outputs[0].shape != named:
                node.outputs[0].shape, is_any = named, True
    return is_any
