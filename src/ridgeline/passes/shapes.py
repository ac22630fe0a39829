"""Shape annotation of the whole graph, symbols and all, by ONNX's own inference."""

from __future__ import annotations

import logging

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

logger = logging.getLogger(__name__)


def infer_shapes(model: ir.Model) -> None:
    """Annotate every value ONNX can infer; what stays unknown is settled when concrete shapes come."""
    try:
        common_passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    except Exception as error:  # inference is advice: without it fewer rules apply, none goes wrong
        logger.debug("shape inference gave up: %s", error)
