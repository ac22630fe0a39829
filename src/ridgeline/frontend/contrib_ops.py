"""Fused products, activations, norms and attention of com.microsoft, each as standard ops in ONNX text."""

from __future__ import annotations

from functools import partial

from ridgeline.frontend.contrib_call import Call, Definition, ints, listed, number

LAYER_NORM_EPSILON = 1e-12
MASKED = -10000.0


def activated(call: Call, source: str, target: str) -> str:
    """An activation that was fused into another op, by its name and parameters."""
    name = call.get("activation", "")
    params = list(call.get("activation_params", ()))
    params = params or [call.get(f"activation_{key}") for key in ("alpha", "beta", "gamma")]
    params = params[: {"LeakyRelu": 1, "HardSigmoid": 2, "Clip": 2}.get(name, 0)]
    simple = {"": "Identity", "Relu": "Relu", "Tanh": "Tanh", "Sigmoid": "Sigmoid", "HardSwish": "HardSwish"}
    if name in simple:
        return f"{target} = {simple[name]}({source})"
    call.require(bool(params) and None not in params)
    if name == "LeakyRelu":
        return f"{target} = LeakyRelu<alpha = {params[0]:.9e}>({source})"
    if name == "HardSigmoid":
        return f"{target} = HardSigmoid<alpha = {params[0]:.9e}, beta = {params[1]:.9e}>({source})"
    kind = call.dtype("x")
    bounds = f"{number('low', params[0], kind)} {number('high', params[1], kind)}"
    return f"{bounds} {target} = Clip({source}, low, high)"


def _turned(call: Call, name: str, *, side: str) -> str:
    """A factor with its last two axes, or its batch axis, moved to where the product reads them."""
    swaps, moves = call.get(f"trans{side}", 0), call.get(f"transBatch{side}", 0)
    if not swaps and not moves:
        return f"{name}_turned = Identity({name})"
    rank = call.rank(name)
    order = list(range(rank))
    if moves:
        order = [*order[1:-1], 0, *order[-1:]]
    if swaps and rank > 1:
        order[-2:] = [order[-1], order[-2]]
    return f"{name}_turned = Transpose<perm = {order}>({name})"


def fused_matmul(call: Call) -> str:
    a, b = _turned(call, "a", side="A"), _turned(call, "b", side="B")
    alpha = call.get("alpha", 1.0)
    if alpha == 1.0:
        return f"{a} {b} y = MatMul(a_turned, b_turned)"
    scale = number("alpha", alpha, call.dtype("a"))
    return f"{a} {b} product = MatMul(a_turned, b_turned) {scale} y = Mul(product, alpha)"


def fused_gemm(call: Call) -> str:
    attrs = ", ".join(f"{key} = {call.get(key, 1.0):.9e}" for key in ("alpha", "beta"))
    attrs += ", " + ", ".join(f"{key} = {call.get(key, 0)}" for key in ("transA", "transB"))
    return f"sum = Gemm<{attrs}>({call.reads('x', 'w', maybe=('bias',))}) {activated(call, 'sum', 'y')}"


def fused_conv(call: Call) -> str:
    attrs = [f"{key} = {list(call.get(key))}" for key in
             ("dilations", "kernel_shape", "pads", "strides") if call.get(key) is not None]  # fmt: skip
    attrs += [f'auto_pad = "{call.get("auto_pad", "NOTSET")}"', f"group = {call.get('group', 1)}"]
    text = f"conv = Conv<{', '.join(attrs)}>({call.reads('x', 'w', maybe=('bias',))})"
    return f"{text} sum = {call.plus('conv', 'addend')} {activated(call, 'sum', 'y')}"


def bias_gelu(call: Call) -> str:
    return "sum = Add(x, bias) y = Gelu(sum)"


def fast_gelu(call: Call) -> str:
    return f'sum = {call.plus("x", "bias")} y = Gelu<approximate = "tanh">(sum)'


def quick_gelu(call: Call) -> str:
    alpha = number("alpha", call.get("alpha", 1.702), call.dtype("x"))
    return f"{alpha} scaled = Mul(x, alpha) gate = Sigmoid(scaled) y = Mul(x, gate)"


def skip_norm(op: str, call: Call) -> str:
    """A norm of the sum of two values, and of a bias if there is one."""
    call.require(not call.wants("mean", "inverse"))
    total = (
        "skipped = Add(x, skip) total = Add(skipped, bias)" if call.has("bias") else "total = Add(x, skip)"
    )
    epsilon = call.get("epsilon", LAYER_NORM_EPSILON)
    return f"{total} y = {op}<epsilon = {epsilon:.9e}>({call.reads('total', 'gamma', maybe=('beta',))})"


def rms_norm(call: Call) -> str:
    axis, epsilon = call.get("axis", -1), call.get("epsilon", 1e-5)
    made = f"y = RMSNormalization<axis = {axis}, epsilon = {epsilon:.9e}>(x, gamma)"
    if not call.wants("inverse"):
        return made
    rank = 0 if axis < 0 else call.rank("x")
    return (
        f"{made} {ints('axes', *range(axis, rank))} {number('epsilon', epsilon, 1)}"
        f" wide = Cast<to = 1>(x) square = Mul(wide, wide) mean = ReduceMean(square, axes)"
        " guarded = Add(mean, epsilon) deviation = Sqrt(guarded) inverse = Reciprocal(deviation)"
    )


def embed_layer_norm(call: Call) -> str:
    call.require(call.has("mask") or not call.wants("mask_index"))
    lines = ["words = Gather(word_table, ids)"]
    if call.has("position_ids"):
        lines.append("places = Gather(place_table, position_ids)")
    else:
        lines.append("length = Shape<start = 1, end = 2>(ids)")
        lines += [ints("zero", 0), "places = Slice(place_table, zero, length, zero)"]
    lines.append("placed = Add(words, places)")
    if call.has("segment_ids"):
        lines.append("segments = Gather(segment_table, segment_ids) total = Add(placed, segments)")
    else:
        lines.append("total = Identity(placed)")
    epsilon = call.get("epsilon", LAYER_NORM_EPSILON)
    lines.append(f"y = LayerNormalization<epsilon = {epsilon:.9e}>(total, gamma, beta)")
    if call.wants("mask_index"):
        lines += [ints("along", 1), "mask_index = ReduceSum<keepdims = 0>(mask, along)"]
    return " ".join(lines)


def _rotary_heads(call: Call) -> int:
    """Heads that lie side by side in the columns of three axes. By default a table is half a head wide."""
    heads = int(call.get("num_heads", 0))
    if heads or call.rank("x") == 4:
        return heads
    columns, half = (call.shape(name)[-1:] for name in ("x", "cos"))
    known = [dim for dim in (*columns, *half) if isinstance(dim, int) and dim]
    call.require(call.rank("x") == 3 and len(known) == 2 and not call.get("rotary_embedding_dim", 0))
    return known[0] // (2 * known[1])


def rotary_embedding(call: Call) -> str:
    heads = _rotary_heads(call)
    call.require(not call.get("is_packed_batching", 0) and call.get("scale", 1.0) == 1.0)
    lines = ["places = Identity(position_ids)"]
    if call.rank("position_ids") == 1:  # the position of the first token, for all rows
        axis = call.rank("x") - 2
        call.require(axis in (1, 2))
        lines = [
            f"length = Shape<start = {axis}, end = {axis + 1}>(x) rows = Shape<start = 0, end = 1>(x)",
            ints("zero", 0), ints("one", 1),
            "first = Squeeze(zero) step = Squeeze(one) last = Squeeze(length)",
            "steps = Range(first, last, step) offset = Cast<to = 7>(position_ids)",
            "row = Add(steps, offset) all = Concat<axis = 0>(rows, length) places = Expand(row, all)",
        ]  # fmt: skip
    attrs = f"interleaved = {call.get('interleaved', 0)}, num_heads = {heads}"
    attrs += f", rotary_embedding_dim = {call.get('rotary_embedding_dim', 0)}"
    return " ".join([*lines, f"y = RotaryEmbedding<{attrs}>(x, cos, sin, places)"])


def _mask(call: Call, name: str, kind: int) -> str:
    """The mask as numbers to add, from [batch, keys], [batch, queries, keys], or [batch] lengths."""
    rank = call.rank(name)
    call.require(rank in (1, 2, 3))
    is_seen = f"whole_mask = Cast<to = 7>({name}) nothing = Constant<value_int = 0>()"
    is_seen += " is_seen = Greater(whole_mask, nothing)"
    if rank == 1:
        call.require(not call.has("past") and call.shape(name) == call.shape("x")[:1])
        is_seen = " ".join([
            "whole = Shape<start = 1, end = 2>(x) last = Squeeze(whole)", ints("ends", 0, 1, 1),
            "begin, step, axis = Split<num_outputs = 3>(ends) first = Squeeze(begin) one = Squeeze(step)",
            f"place = Range(first, last, one) lengths = Cast<to = 7>({name})",
            "length = Unsqueeze(lengths, axis) is_seen = Less(place, length)",
        ])  # fmt: skip
    return " ".join([
        number("seen", 0.0, kind), number("hidden", call.get("mask_filter_value", MASKED), kind),
        is_seen, "flat_mask = Where(is_seen, seen, hidden)",
        ints("mask_axes", *((1,) if rank == 3 else (1, 2))), "mask = Unsqueeze(flat_mask, mask_axes)",
    ])  # fmt: skip


def _attend(call: Call, mask_name: str, *, past: bool, present: bool, kind: int) -> str:
    """Attention over `q`, `k`, `v`; the mask is given in one of two ways."""
    heads = call.get("num_heads")
    lines, mask = [], ""
    if call.has(mask_name):
        lines, mask = [_mask(call, mask_name, kind)], "mask"
    if call.has("attention_bias"):
        lines.append(f"biased = {'Add(mask, attention_bias)' if mask else 'Identity(attention_bias)'}")
        mask = "biased"
    attrs = f"is_causal = {call.get('unidirectional', 0)}, q_num_heads = {heads}, kv_num_heads = {heads}"
    if call.get("scale"):
        attrs += f", scale = {call.get('scale'):.9e}"
    reads = listed("q", "k", "v", mask, *(("past_key", "past_value") if past else ()))
    outputs = "y_made, key_made, value_made" if present else "y_made"
    return " ".join([*lines, f"{outputs} = Attention<{attrs}>({reads})"])


def multi_head_attention(call: Call) -> str:
    """Separate queries, keys and values. Packed ones and a cross-attention's cache are not covered."""
    call.require(all(call.rank(name) == 3 for name in ("query", "key", "value")))
    call.require(not call.has("past_sequence_length") and not call.wants("scores"))
    length, n_keys = call.shape("query")[1], call.shape("key")[1]
    # a causal mask has another meaning where the lengths differ
    call.require(not call.get("unidirectional", 0) or (length is not None and length == n_keys))
    widths = [dim for name in ("query", "key", "value") if isinstance(dim := call.shape(name)[2], int)]
    call.require(not call.has("bias") or len(widths) == 3)
    lines = []
    for part, name in (("query", "q"), ("key", "k"), ("value", "v")):
        lines.append(f"{name} = {f'Add({part}, {part}_bias)' if call.has('bias') else f'Identity({part})'}")
    if call.has("bias"):
        lines.insert(0, "query_bias, key_bias, value_bias = Split<axis = 0>(bias, widths)")
        lines.insert(0, ints("widths", *widths))
    present = call.wants("present_key", "present_value")
    past, kind = call.has("past_key"), call.dtype("query")
    lines.append(_attend(call, "key_padding_mask", past=past, present=present, kind=kind))
    lines.append("y = Identity(y_made)")
    if present:
        lines.append("present_key = Identity(key_made) present_value = Identity(value_made)")
    return " ".join(lines)


def attention(call: Call) -> str:
    """One product for queries, keys and values of all heads, then attention."""
    call.require(not call.get("do_rotary", 0) and not call.has("past_sequence_length"))
    sizes = call.get("qkv_hidden_sizes")
    lines = [f"product = MatMul(x, weights) qkv = {call.plus('product', 'bias')}"]
    if sizes:
        lines += [ints("sizes", *sizes), "q, k, v = Split<axis = 2>(qkv, sizes)"]
    else:
        lines.append("q, k, v = Split<axis = 2, num_outputs = 3>(qkv)")
    if call.has("past"):  # keys and values in one tensor, first axis
        lines += [
            "pasts_key, pasts_value = Split<axis = 0, num_outputs = 2>(past)", ints("front", 0),
            "past_key = Squeeze(pasts_key, front) past_value = Squeeze(pasts_value, front)",
        ]  # fmt: skip
    past, present = call.has("past"), call.wants("present")
    lines.append(_attend(call, "mask_index", past=past, present=present, kind=call.dtype("x")))
    lines.append("y = Identity(y_made)")
    if present:
        lines += [
            ints("at", 0), "keys = Unsqueeze(key_made, at) values = Unsqueeze(value_made, at)",
            "present = Concat<axis = 0>(keys, values)",
        ]  # fmt: skip
    return " ".join(lines)


_NORMED = ("y", "mean", "inverse", "total")
DEFINITIONS = {
    "FusedMatMul": Definition(("a", "b"), ("y",), fused_matmul),
    "TransposeMatMul": Definition(("a", "b"), ("y",), fused_matmul),
    "FusedGemm": Definition(("x", "w", "bias"), ("y",), fused_gemm),
    "FusedConv": Definition(("x", "w", "bias", "addend"), ("y",), fused_conv),
    "BiasGelu": Definition(("x", "bias"), ("y",), bias_gelu),
    "FastGelu": Definition(("x", "bias"), ("y",), fast_gelu),
    "QuickGelu": Definition(("x",), ("y",), quick_gelu),
    "SimplifiedLayerNormalization": Definition(("x", "gamma"), ("y", "inverse"), rms_norm),
    "SkipLayerNormalization": Definition(
        ("x", "skip", "gamma", "beta", "bias"), _NORMED, partial(skip_norm, "LayerNormalization"),
    ),
    "SkipSimplifiedLayerNormalization": Definition(
        ("x", "skip", "gamma", "bias"), _NORMED, partial(skip_norm, "RMSNormalization"),
    ),
    "EmbedLayerNormalization": Definition(
        ("ids", "segment_ids", "word_table", "place_table", "segment_table", "gamma", "beta", "mask",
         "position_ids"),
        ("y", "mask_index", "total"), embed_layer_norm,
    ),
    "RotaryEmbedding": Definition(("x", "position_ids", "cos", "sin"), ("y",), rotary_embedding),
    "MultiHeadAttention": Definition(
        ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value",
         "past_sequence_length"),
        ("y", "present_key", "present_value", "scores"), multi_head_attention,
    ),
    "Attention": Definition(
        ("x", "weights", "bias", "mask_index", "past", "attention_bias", "past_sequence_length"),
        ("y", "present"), attention,
    ),
}  # fmt: skip
