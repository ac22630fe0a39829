"""The evaluator of the onnx package, with the ops mended that it computes too roughly or not at all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ridgeline.frontend.functions import all_nodes


class Erf(OpRun):  # type: ignore[misc]
    """Computed in double, rounded once."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.vectorize(erf, otypes=[np.float64])(x).astype(x.dtype),)


class GatherElements(OpRun):  # type: ignore[misc]
    """Of any size: onnx's own fails where the axis has more than 64 elements."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        along = (axis or 0) % data.ndim
        # along the other axes the indices may end before the data does
        rows = tuple(slice(None if i == along else size) for i, size in enumerate(indices.shape))
        return (np.take_along_axis(data[rows], indices, along),)


# ops that plugins brought, by domain::OpType; `plugins.register` fills it
PLUGIN_OPS: dict[str, type[OpRun]] = {}


class Evaluator(ReferenceEvaluator):  # type: ignore[misc]
    """The onnx evaluator with our ops; onnx makes further evaluators of the same class."""

    def __init__(self, proto: Any, *, new_ops: Sequence[type[OpRun]] | None = None, **more: Any) -> None:
        # evaluators of subgraphs get the ops of the outermost one
        if new_ops is None:
            local = {f"{function.domain}::{function.name}" for function in getattr(proto, "functions", ())}
            new_ops = [Erf, GatherElements, *(op for key, op in PLUGIN_OPS.items() if key not in local)]
        super().__init__(proto, new_ops=list(new_ops), **more)


def is_needed_for(proto: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime lacks an op that a plugin brought, or computes something else than ONNX says.

    An Attention returns its scores before the softcap; in ONNX Runtime, those after it.
    """
    for node in all_nodes(proto):
        if f"{node.domain}::{node.op_type}" in PLUGIN_OPS:
            return True
        numbers = {attr.name: attr.f or attr.i for attr in node.attribute}
        if node.op_type != "Attention" or node.domain or not any(node.output[3:]):
            continue
        if numbers.get("softcap") and not numbers.get("qk_matmul_output_mode"):
            return True
    return False
