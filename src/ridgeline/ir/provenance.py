"""Where a node came from: the names of the model's own nodes, carried from rewrite to rewrite."""

from __future__ import annotations

import onnx_ir as ir

SOURCES = "ridgeline.sources"
RULE = "ridgeline.rule"
KEEP = "ridgeline.keep"  # the type that a node must compute in, whatever it is fused with

MATH = "ridgeline.math"  # how a product may round its operands, where types do not say it: `Op.math`


def node_name(node: ir.Node) -> str:
    return str(node.name or (node.outputs[0].name if node.outputs else None) or node.op_type)
