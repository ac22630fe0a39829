"""GroupNormalization for ONNX Runtime: its own expansion subtracts two means of squares, which cancels."""

from __future__ import annotations

import onnx
from onnx import parser

from ridgeline.frontend.functions import all_nodes, copy_of, plain_domain

OP, DOMAIN = "GroupNormalization", "ridgeline.exact"
# before this version scale and bias had one value for each group
SINCE = 21
TEXT = """<domain: "{domain}", opset_import: ["" : {version}]>
{op} <num_groups, epsilon: float = 1e-5, stash_type: int = 1> (x, scale, bias) => (y) {{
    n_groups = Constant<value_int: int = @num_groups>()
    axis = Constant<value_ints = [0]>()
    groups = Unsqueeze(n_groups, axis)
    rest = Constant<value_ints = [-1]>()
    grouping = Concat<axis = 0>(axis, groups, rest)
    grouped = Reshape(x, grouping)
    wide = Cast<to: int = @stash_type>(grouped)
    mean = ReduceMean(wide, rest)
    centred = Sub(wide, mean)
    square = Mul(centred, centred)
    variance = ReduceMean(square, rest)
    guard = Constant<value_float: float = @epsilon>()
    wide_guard = Cast<to: int = @stash_type>(guard)
    guarded = Add(variance, wide_guard)
    deviation = Sqrt(guarded)
    normal = Div(centred, deviation)
    narrow = CastLike(normal, x)
    shape = Shape(x)
    whole = Reshape(narrow, shape)
    rank = Shape(shape)
    two = Constant<value_ints = [2]>()
    n_spatial = Sub(rank, two)
    ones = ConstantOfShape<value = int64[1] {{1}}>(n_spatial)
    channels = Concat<axis = 0>(rest, ones)
    scale_fit = Reshape(scale, channels)
    bias_fit = Reshape(bias, channels)
    scaled = Mul(whole, scale_fit)
    y = Add(scaled, bias_fit)
}}"""


def with_exact_group_norms(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an expansion that squares the deviations; the same model if it has no such op."""
    version = next((entry.version for entry in proto.opset_import if not entry.domain), 0)
    if version < SINCE or not any(_is_group_norm(node) for node in all_nodes(proto)):
        return proto
    made = copy_of(proto)
    for node in filter(_is_group_norm, all_nodes(made)):
        node.domain = DOMAIN
    for holder in (made, *made.functions):
        holder.opset_import.add(domain=DOMAIN, version=1)
    made.functions.append(parser.parse_function(TEXT.format(domain=DOMAIN, op=OP, version=version)))
    return made


def _is_group_norm(node: onnx.NodeProto) -> bool:
    return node.op_type == OP and not plain_domain(node.domain)
