"""ONNX Runtime's own ops (com.microsoft) written out in standard ones, so that every later stage reads them.

Their meanings are in `contrib_ops` and `contrib_quant`. An op without one runs in ONNX Runtime.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from ridgeline.frontend import contrib_ops, contrib_quant
from ridgeline.frontend.contrib_call import Call, Definition, NotCoveredError

DOMAIN = "com.microsoft"
DEFINITIONS: dict[str, Definition] = {**contrib_ops.DEFINITIONS, **contrib_quant.DEFINITIONS}
# the same op in the standard
STANDARD = frozenset(
    {"Gelu", "QuantizeLinear", "DequantizeLinear", "Pad", "GatherND", "Trilu", "LayerNormalization"}
)


def write_out_contrib(model: ir.Model) -> None:
    """Replace every op that has a definition, in rounds: replacing one may give another its rank."""
    has_changed = any(node.domain == DOMAIN for graph in model.graphs() for node in graph)
    while has_changed:
        common_passes.ShapeInferencePass()(model)
        has_changed = False
        for graph in list(model.graphs()):
            for node in [node for node in graph if node.domain == DOMAIN]:
                has_changed |= _write_out(node)
    if not any(node.domain == DOMAIN for graph in model.graphs() for node in graph):
        model.opset_imports.pop(DOMAIN, None)


def _write_out(node: ir.Node) -> bool:
    if node.op_type in STANDARD:
        node.domain = ""
        return True
    definition = DEFINITIONS.get(node.op_type)
    return definition is not None and write_node_out(node, definition)


def write_node_out(node: ir.Node, definition: Definition) -> bool:
    """Replace a node by the ops of its definition; False if the definition does not cover this call."""
    call = Call.of(node, definition)
    try:
        body = definition.body(call)
    except NotCoveredError:
        return False
    text = f'<domain: "defined", opset_import: ["" : 23]> f ({", ".join(call.given)}) => () {{ {body} }}'
    _splice(node, call, ir.from_proto(onnx.parser.parse_function(text)))
    return True


def _splice(node: ir.Node, call: Call, function: ir.Function) -> None:
    """The function's nodes in place of its call; each carries the name of the node it stands for."""
    stem = node.name or node.outputs[0].name
    values: dict[str, ir.Value | None] = {**call.given}
    made = []
    for inner in function:
        inputs = [None if v is None else values[str(v.name)] for v in inner.inputs]
        fresh = ir.Node(
            inner.domain, inner.op_type, inputs, inner.attributes.values(), num_outputs=len(inner.outputs)
        )
        fresh.name = stem
        for old, new in zip(inner.outputs, fresh.outputs, strict=True):
            new.name = f"{stem}/{old.name}" if old.name else ""
            values[str(old.name)] = new
        made.append(fresh)
    graph = node.graph
    graph.insert_before(node, made)
    for name, old in call.wanted.items():
        new = values[name]
        assert new is not None, f"the definition of {node.op_type} makes no {name}"
        new.shape, new.type = old.shape, old.type
        kept, old.name = old.name, None
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        new.name = kept
    graph.remove(node, safe=True)
