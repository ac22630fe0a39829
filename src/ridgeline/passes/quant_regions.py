"""How regions take DequantizeLinear before what they compute and QuantizeLinear behind it.

A DequantizeLinear belongs to what reads its numbers, so that levels cross memory and not numbers: where
several ops read them, each gets one of its own. A region never ends in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from ridgeline.ir.infer import Inferred
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.quant import dequantizes, quantizes
from ridgeline.passes.drafts import Draft, Partition
from ridgeline.passes.outline import leaving
from ridgeline.passes.rule import Names
from ridgeline.passes.take_moves import views_behind

# levels of one tensor at several scales are seldom more than a pair
MAX_LEVELS = 2
ATTENDED = ("int8", "float8_e4m3fn", "float8_e5m2")  # levels that a kernel of attention makes
HALVES = ("float16", "bfloat16")
FEW_KEYS = 1024  # up to here our own kernel of attention is the faster one
COMPUTES = Kind.PRODUCT | Kind.ROW | Kind.POINTWISE


def repeat_dequantizers(model: ir.Model, inferred: Inferred) -> Inferred:
    """Give each op that computes with dequantised numbers a DequantizeLinear of its own."""
    names, specs = Names(model), dict(inferred.specs)
    for node in [node for node in model.graph if dequantizes(node)]:
        out = node.outputs[0]
        readers = list(dict.fromkeys(user for user, _ in out.uses()))
        own = [user for user in readers if user.graph is model.graph and is_a(user, COMPUTES)]
        is_shared = out.is_graph_output() or len(own) < len(readers)
        for reader in own if is_shared else own[1:]:
            copy = ir.Node("", node.op_type, node.inputs, attributes=list(node.attributes.values()))
            copy.metadata_props.update(node.metadata_props)
            made = copy.outputs[0]
            made.name, made.type, made.shape = names.fresh(f"{out.name}/own"), out.type, out.shape
            copy.name = made.name
            if str(out.name) in specs:
                specs[made.name] = specs[str(out.name)]
            model.graph.insert_after(node, copy)
            for place, value in enumerate(reader.inputs):
                if value is out:
                    reader.replace_input_with(place, made)
    return replace(inferred, specs=specs)


def take_dequantizers(part: Partition, draft: Draft, readers: Iterable[ir.Node]) -> None:
    """Make the DequantizeLinear of operands that these nodes of the region alone read part of it."""
    for node in list(readers):
        for value in node.inputs:
            maker = value.producer() if value is not None else None
            if maker is None or not dequantizes(maker) or not part.is_free(maker):
                continue
            if not value.is_graph_output() and set(part.consumers(value)) <= set(draft.nodes):
                part.take(draft, [maker])


def attends_levels(part: Partition, attention: ir.Node) -> bool:
    """Whether a kernel reads the operands of an Attention as levels: each with one scale and no zero point.

    Otherwise their DequantizeLinear are better kernels of their own: no attention reads them inside.
    """
    makers = [value.producer() for value in attention.inputs[:3] if value is not None]
    found = [node for node in makers if node is not None and dequantizes(node)]
    if len(found) < 3 or not part.target.traits.reads_by_index:
        return False
    specs = [[part.spec(value) for value in node.inputs[:2] if value is not None] for node in found]
    if any(spec is None for pair in specs for spec in pair) or any(len(node.inputs) > 2 for node in found):
        return False
    types = {pair[0].dtype for pair in specs if pair[0] is not None}
    return len(types) == 1 and all(pair[1] is not None and pair[1].numel == 1 for pair in specs)


def take_attended_levels(part: Partition, draft: Draft) -> None:
    """Let an attention make its result as levels: of the kind that it reads, or of numbers it has few of.

    Longer sequences are a library's, which makes numbers.
    """
    read = [node for node in draft.nodes if dequantizes(node)]
    tips = leaving(draft.nodes)
    if len(tips) != 1 or tips[0].is_graph_output():
        return
    users = part.consumers(tips[0])
    if len(users) != 1 or not quantizes(users[0]) or len(users[0].inputs) > 2 or not part.is_free(users[0]):
        return
    levels, scale = part.spec(users[0].outputs[0]), part.spec(users[0].inputs[1])
    if levels is None or scale is None or levels.dtype not in ATTENDED or scale.numel != 1:
        return
    if read:
        like = part.spec(read[0].inputs[0])
        if like is None or levels.dtype != like.dtype:
            return
    elif not _has_few_keys(part, draft.anchor):
        return
    part.take(draft, users)
    part.take(draft, views_behind(users[0].outputs[0], part.is_free))


def _has_few_keys(part: Partition, attention: ir.Node) -> bool:
    keys = None if attention.inputs[1] is None else part.spec(attention.inputs[1])
    return keys is not None and keys.dtype in HALVES and keys.shape[-2] <= FEW_KEYS


def take_levels(part: Partition, draft: Draft, tip: ir.Value) -> None:
    """Let the region also write the levels of its result that others read, beside the numbers themselves."""
    like = part.spec(tip)
    found = [node for node in part.consumers(tip) if quantizes(node)]
    found = [node for node in found if part.blocked(draft.nodes, node, like) is None]
    if 0 < len(found) <= MAX_LEVELS:
        part.take(draft, found)


def ends_dequantized(value: ir.Value, nodes: Sequence[ir.Node]) -> bool:
    """Whether a value is made by a DequantizeLinear of levels that these nodes make."""
    maker = value.producer()
    return maker is not None and dequantizes(maker) and maker.inputs[0].producer() in nodes


def drop_trailing(part: Partition, draft: Draft) -> None:
    """Give back each DequantizeLinear in which the region ends: what reads the numbers takes it."""
    while trailing := [v.producer() for v in leaving(draft.nodes) if ends_dequantized(v, draft.nodes)]:
        for node in trailing:
            if node in draft.nodes and not any(user in draft.nodes for user, _ in node.outputs[0].uses()):
                draft.nodes.remove(node)
                del part.owner[node]
            else:
                return
