"""Marks the products that may round their float32 operands to TF32. No type says so: the mark is metadata.

The nodes of subgraphs are not marked: what they compute is neither emulated nor measured on its own.
"""

from __future__ import annotations

import onnx_ir as ir

from ridgeline.base.spec import TF32
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.provenance import KEEP, MATH


def mark_products(model: ir.Model, *, rounds: bool) -> None:
    """With `rounds`, mark all float32 products except those to keep; marks that a file came with go."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for node in graph.all_nodes():
            node.metadata_props.pop(MATH, None)
    for node in model.graph if rounds else ():
        if is_float32_product(node) and KEEP not in node.metadata_props:
            node.metadata_props[MATH] = TF32


def is_float32_product(node: ir.Node) -> bool:
    """What tensor cores compute in TF32: sums of products of float32. Attention over a cache is left out."""
    has_past = node.op_type == "Attention" and any(value is not None for value in node.inputs[4:])
    if node.domain or has_past or not is_a(node, Kind.PRODUCT):
        return False
    return all(value is not None and value.dtype == ir.DataType.FLOAT for value in node.inputs[:2])
