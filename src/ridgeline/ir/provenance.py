"""Where a node came from: the names of the model's own nodes, carried from rewrite to rewrite."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

import onnx
import onnx_ir as ir

SOURCES = "ridgeline.sources"
RULE = "ridgeline.rule"
KEEP = "ridgeline.keep"  # the type that a node must compute in, whatever it is fused with
# of PyTorch's exporter, which numbers nodes: modules that a node is in, then its own name, as a Python list
SCOPES = "pkg.torch.onnx.name_scopes"
SCOPE = re.compile(r"'((?:[^'\\]|\\.)*)'")
MATH = "ridgeline.math"  # how a product may round its operands, where types do not say it: `Op.math`


def node_name(node: ir.Node) -> str:
    return str(node.name or (node.outputs[0].name if node.outputs else None) or node.op_type)


def layers_of(model: onnx.ModelProto, names: Iterable[str]) -> dict[str, str]:
    """The layers of these nodes, as far as the model's exporter wrote them beside the nodes."""
    wanted, found = set(names), dict[str, str]()
    for node in model.graph.node:
        name = node.name or (node.output[0] if node.output else "")
        if name in wanted and name not in found:
            layer = layer_in({prop.key: prop.value for prop in node.metadata_props})
            if layer:
                found[name] = layer
    return found


def layer_in(metadata: Mapping[str, str]) -> str:
    """``model/layer.0/dense`` for ``['', 'model', 'model.layer.0', 'model.layer.0.dense', 'linear_4']``.

    As other exporters name nodes: each module by its name inside the one around it.
    """
    modules = SCOPE.findall(metadata.get(SCOPES, ""))[:-1]
    inner = [module.removeprefix(f"{outer}.") for outer, module in pairwise(["", *modules])]
    return "/".join(part for part in inner if part)
