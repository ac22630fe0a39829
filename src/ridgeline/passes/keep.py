"""Nodes that were to keep a type: after all rewrites, each still computes in it, or the build ends here."""

from __future__ import annotations

import onnx_ir as ir

from ridgeline.errors import BuildError
from ridgeline.ir.provenance import KEEP, RULE, SOURCES, node_name

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_NAMES = {"float32": ir.DataType.FLOAT}


def require_kept(model: ir.Model) -> None:
    """Raise if a node that was to stay in float32 makes another float. Fusion computes in float32 inside."""
    wrong = []
    for node in model.graph:
        kept = _NAMES.get(node.metadata_props.get(KEEP, ""))
        made = [value.dtype for value in node.outputs if value.dtype in _FLOATS]
        if kept is not None and any(dtype != kept for dtype in made):
            rule = node.metadata_props.get(RULE, "no rule")
            wrong.append(f"{node.metadata_props.get(SOURCES, node_name(node))}: makes {made[0]}, by {rule}")
    if wrong:
        raise BuildError(
            "nodes that were to stay in float32 did not",
            rows=wrong,
            help="keep their neighbours as well, or leave them out of --keep (in Python keep=)",
        )
