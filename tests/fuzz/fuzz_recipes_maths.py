"""Recipes of ops that compute over more than one element: products, convolutions, pools, norms, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from fuzz_draft import ELEMENT_TYPES, FLOATS, Draft, Node, NotDrawnError, port

Recipe = Callable[[Draft], Node]
EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "ij,ij->i", "i,j->ij", "ii->i", "ij->ji", "bij->bj", "...ij,...jk->...ik",
    "bhid,bhjd->bhij", "ij,kj->ik", "ij,jk,kl->il", "ij->",
)  # fmt: skip


def matmul(d: Draft) -> Node:
    one = d.some(d.allowed("MatMul"), 1, 4)
    k = d.of(one).shape[-1]
    lead = [s if d.chance(0.7) else 1 for s in d.of(one).shape[:-2]]
    shape = [*lead[d.int(0, len(lead)) :], k, d.int(1, 6)] if d.chance(0.9) else [k]
    return Node("MatMul", [one, d.fresh(d.type_of(one), shape)])


def gemm(d: Draft) -> Node:
    one = d.some(d.allowed("Gemm"), 2, 2)
    attrs: dict[str, Any] = {name: 1 for name in ("transA", "transB") if d.chance(0.4)}
    m, k = d.of(one).shape[::-1] if "transA" in attrs else d.of(one).shape
    n = d.int(1, 7)
    inputs = [one, d.fresh(d.type_of(one), (n, k) if "transB" in attrs else (k, n))]
    if d.chance(0.7):
        inputs.append(d.fresh(d.type_of(one), d.pick(((n,), (m, n), (1, n), (m, 1), (), (1,)))))
    if d.type_of(one) in FLOATS:
        attrs |= {name: d.pick((0.5, 2.0)) for name in ("alpha", "beta") if d.chance(0.3)}
    return Node("Gemm", inputs, attrs)


def window(d: Draft, spatial: tuple[int, ...], *, dilate: bool = True) -> dict[str, Any]:
    """Kernel, strides, dilations and pads that leave at least one place."""
    kernel = [d.int(1, min(3, s)) for s in spatial]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if d.chance(0.5):
        attrs["strides"] = [d.int(1, 2) for _ in spatial]
    if dilate and d.chance(0.3):
        attrs["dilations"] = [
            d.int(1, 2) if (k - 1) * 2 < s else 1 for k, s in zip(kernel, spatial, strict=True)
        ]
    dice = d.rng.random()
    if dice < 0.4:
        attrs["pads"] = [d.int(0, k - 1) for k in (*kernel, *kernel)]
    elif dice < 0.6 and "dilations" not in attrs:
        attrs["auto_pad"] = d.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return attrs


def conv(d: Draft) -> Node:
    one = d.image(d.allowed("Conv"))
    channels, spatial = d.of(one).shape[1], d.of(one).shape[2:]
    group = d.pick([g for g in range(1, channels + 1) if channels % g == 0])
    outputs = group * d.int(1, 3)
    attrs = window(d, spatial) | ({"group": group} if group > 1 else {})
    inputs = [one, d.fresh(d.type_of(one), (outputs, channels // group, *attrs["kernel_shape"]))]
    if d.chance(0.6):
        inputs.append(d.fresh(d.type_of(one), (outputs,)))
    if d.chance(0.2):
        del attrs["kernel_shape"]
    return Node("Conv", inputs, attrs)


def conv_transpose(d: Draft) -> Node:
    one = d.image(d.allowed("ConvTranspose"), 3, 4)
    channels, spatial = d.of(one).shape[1], d.of(one).shape[2:]
    group = d.pick([g for g in range(1, channels + 1) if channels % g == 0])
    attrs = window(d, tuple(3 for _ in spatial)) | {"group": group}
    if "strides" in attrs and "auto_pad" not in attrs and d.chance(0.4):
        attrs["output_padding"] = [d.int(0, s - 1) for s in attrs["strides"]]
    inputs = [one, d.fresh(d.type_of(one), (channels, outputs := d.int(1, 3), *attrs["kernel_shape"]))]
    if d.chance(0.5):
        inputs.append(d.fresh(d.type_of(one), (outputs * group,)))
    return Node("ConvTranspose", inputs, attrs)


def pool(op: str) -> Recipe:
    def recipe(d: Draft) -> Node:
        schema = onnx.defs.get_schema(op, d.opset)
        one = d.ordered(d.allowed(op), 3, 5)
        attrs = window(d, d.of(one).shape[2:], dilate="dilations" in schema.attributes)
        if "ceil_mode" in schema.attributes and "auto_pad" not in attrs and d.chance(0.3):
            attrs["ceil_mode"] = 1
        if op == "AveragePool" and d.chance(0.4):
            attrs["count_include_pad"] = 1
        if op == "LpPool" and d.chance(0.5):
            attrs["p"] = d.int(1, 3)
        if op == "MaxPool" and "pads" in attrs:
            # the reference counts places wrongly where the two ends of an axis are padded differently
            attrs["pads"] = attrs["pads"][: len(attrs["pads"]) // 2] * 2
        return Node(op, [one], attrs)

    return recipe


def global_pool(op: str) -> Recipe:
    def recipe(d: Draft) -> Node:
        # the reference takes the maximum over the wrong axes of anything but an image
        return Node(op, [d.ordered(d.allowed(op), 4, 4 if op == "GlobalMaxPool" else 5)])

    return recipe


def batch_norm(d: Draft) -> Node:
    if d.opset < 14:
        raise NotDrawnError  # the reference computes the older ones as if they were training
    one = d.some(d.allowed("BatchNormalization"), 2, 5)
    kind, channels = d.type_of(one), (d.of(one).shape[1],)
    variance = d.add(np.abs(d.array(kind, channels)) + np.asarray(0.1, d.of(one).dtype))
    inputs = [one, *(d.fresh(kind, channels) for _ in range(3)), variance]
    return Node("BatchNormalization", inputs, {"epsilon": 1e-3} if d.chance(0.5) else {})


def layer_norm(op: str) -> Recipe:
    def recipe(d: Draft) -> Node:
        one = d.some(d.allowed(op), 1)
        axis = d.axis(d.of(one).ndim)
        shape = d.of(one).shape[axis:]
        inputs = [one, d.fresh(d.type_of(one), shape)]
        if op == "LayerNormalization" and d.chance(0.6):
            inputs.append(d.fresh(d.type_of(one), shape))
        return Node(op, inputs, {"axis": axis} | ({"epsilon": 1e-3} if d.chance(0.4) else {}))

    return recipe


def instance_norm(d: Draft) -> Node:
    one = d.image(d.allowed("InstanceNormalization"))
    channels = (d.of(one).shape[1],)
    scale, bias = d.fresh(d.type_of(one), channels), d.fresh(d.type_of(one), channels)
    return Node("InstanceNormalization", [one, scale, bias])


def group_norm(d: Draft) -> Node:
    if d.opset < 21:
        raise NotDrawnError  # its older form is deprecated: scales per group
    one = d.image(d.allowed("GroupNormalization"))
    channels = d.of(one).shape[1]
    groups = d.pick([g for g in range(1, channels + 1) if channels % g == 0])
    scale, bias = d.fresh(d.type_of(one), (channels,)), d.fresh(d.type_of(one), (channels,))
    return Node("GroupNormalization", [one, scale, bias], {"num_groups": groups})


def lp_norm(d: Draft) -> Node:
    one = d.some(d.allowed("LpNormalization"), 1)
    return Node("LpNormalization", [one], {"axis": d.axis(d.of(one).ndim), "p": d.int(1, 2)})


def mvn(d: Draft) -> Node:
    one = d.some(d.allowed("MeanVarianceNormalization"), 1)
    return Node(
        "MeanVarianceNormalization",
        [one],
        {"axes": sorted(a % d.of(one).ndim for a in d.axes(d.of(one).ndim))},
    )


def lrn(d: Draft) -> Node:
    return Node("LRN", [d.some(d.allowed("LRN"), 4, 4)], {"size": d.pick((1, 3, 5)), "alpha": 0.1})


def einsum(d: Draft) -> Node:
    equation = d.pick(EQUATIONS)
    sizes = {letter: d.int(1, 5) for letter in "abcdefghijklmnop"}
    kind = d.dtype(d.allowed("Einsum"))
    inputs = []
    for term in equation.split("->")[0].split(","):
        lead = (2,) if "..." in term else ()
        inputs.append(d.fresh(kind, (*lead, *(sizes[c] for c in term if c in sizes))))
    return Node("Einsum", inputs, {"equation": equation})


def resize(d: Draft) -> Node:
    one = d.some(FLOATS[:1], 3, 4)
    rank = d.of(one).ndim
    mode = d.pick(("nearest", "linear", "cubic") if rank == 4 else ("nearest", "linear"))
    attrs: dict[str, Any] = {"mode": mode}
    attrs["coordinate_transformation_mode"] = d.pick(
        ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    )
    if mode == "nearest":
        attrs["nearest_mode"] = d.pick(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic" and d.chance(0.5):
        attrs["exclude_outside"] = 1
    if d.chance(0.5):
        scales = [1.0, 1.0, *(d.pick((0.5, 1.0, 1.5, 2.0, 0.8)) for _ in range(rank - 2))]
        if any(int(s * k) < 1 for s, k in zip(scales, d.of(one).shape, strict=True)):
            raise NotDrawnError
        return Node("Resize", [one, "", d.const(scales, "float32")], attrs)
    sizes = [*d.of(one).shape[:2], *(d.int(1, 8) for _ in range(rank - 2))]
    return Node("Resize", [one, "", "", d.const(sizes)], attrs)


def grid_sample(d: Draft) -> Node:
    if d.opset < 20:
        raise NotDrawnError  # its modes had other names
    one = d.some(("float32",), 4, 4)
    grid = d.add(
        d.rng.uniform(-1.3, 1.3, (d.of(one).shape[0], d.int(1, 4), d.int(1, 4), 2)).astype(np.float32)
    )
    attrs = {"mode": d.pick(("linear", "nearest", "cubic")), "align_corners": d.int(0, 1)}
    return Node(
        "GridSample", [one, grid], attrs | {"padding_mode": d.pick(("zeros", "border", "reflection"))}
    )


def quantize(d: Draft) -> Node:
    one = d.some(("float32",), 1)
    if not np.isfinite(d.of(one)).all():
        raise NotDrawnError  # which level NaN gets is nobody's promise
    kind = d.pick(("uint8", "int8"))
    per_axis = d.chance(0.5)
    axis = d.axis(d.of(one).ndim)
    shape = (d.of(one).shape[axis],) if per_axis else ()
    scale = d.add(d.rng.uniform(0.02, 0.5, shape).astype(np.float32), constant=0.9)
    inputs = [one, scale]
    if d.chance(0.8):
        inputs.append(d.add(d.array(kind, shape), constant=0.9))
    return Node("QuantizeLinear", inputs, {"axis": axis} if per_axis else {})


def dynamic_quantize(d: Draft) -> Node:
    one = d.some(("float32",), 1)
    if not np.isfinite(d.of(one)).all():
        raise NotDrawnError  # a range that holds NaN has no scale
    return Node("DynamicQuantizeLinear", [one], outputs=3)


def dequantize(d: Draft) -> Node:
    one = d.some(("uint8", "int8"), 1)
    per_axis = d.chance(0.5)
    axis = d.axis(d.of(one).ndim)
    shape = (d.of(one).shape[axis],) if per_axis else ()
    inputs = [one, d.add(d.rng.uniform(0.02, 0.5, shape).astype(np.float32), constant=0.9)]
    if d.chance(0.6):
        inputs.append(d.add(d.array(d.type_of(one), shape), constant=0.9))
    return Node("DequantizeLinear", inputs, {"axis": axis} if per_axis else {})


def matmul_integer(d: Draft) -> Node:
    one = d.some(("uint8", "int8"), 2, 3)
    other = d.fresh(d.pick(("uint8", "int8")), (d.of(one).shape[-1], d.int(1, 5)))
    inputs = [one, other]
    if d.chance(0.6):
        inputs += [d.fresh(d.type_of(one), ()), d.fresh(d.type_of(other), ())]
    return Node("MatMulInteger", inputs)


def conv_integer(d: Draft) -> Node:
    one = d.some(("uint8",), 4, 4)
    attrs = window(d, d.of(one).shape[2:])
    weight = d.fresh("uint8", (d.int(1, 3), d.of(one).shape[1], *attrs["kernel_shape"]))
    return Node("ConvInteger", [one, weight, *([d.fresh("uint8", ())] if d.chance(0.6) else [])], attrs)


def attention(d: Draft) -> Node:
    if d.opset < 23:
        raise NotDrawnError
    kind = d.dtype(("float32", "float32", "float16"))
    batch, kv_heads, size = d.int(1, 2), d.int(1, 2), 2 * d.int(1, 3)
    heads, length, past = kv_heads * d.int(1, 2), d.int(1, 5), d.int(1, 5)
    inputs = [d.fresh(kind, (batch, heads, length, size))]
    inputs += [d.fresh(kind, (batch, kv_heads, past, size)) for _ in range(2)]
    attrs: dict[str, Any] = {}
    if d.chance(0.4):
        if d.chance(0.5):
            inputs.append(
                d.fresh(kind, d.pick(((length, past), (1, 1, length, past), (batch, heads, length, past))))
            )
        else:
            mask = d.array("bool", (length, past))
            mask[:, 0] = True
            inputs.append(d.add(mask))
    elif d.chance(0.4) and length <= past:
        attrs["is_causal"] = 1
    if d.chance(0.3):
        attrs["scale"] = 0.25
    if d.chance(0.2):
        attrs["softcap"] = 2.0
    return Node("Attention", inputs, attrs)


def rotary(d: Draft) -> Node:
    if d.opset < 23:
        raise NotDrawnError
    batch, heads, length, half = d.int(1, 2), d.int(1, 3), d.int(1, 4), d.int(1, 3)
    one = d.fresh(d.dtype(("float32", "float16")), (batch, heads, length, 2 * half))
    caches = [d.fresh(d.type_of(one), (6, half)) for _ in range(2)]
    places = d.add(d.rng.integers(0, 6, (batch, length)).astype(np.int64))
    return Node("RotaryEmbedding", [one, *caches, places], {"interleaved": d.int(0, 1)})


def recurrent(op: str, gates: int) -> Recipe:
    def recipe(d: Draft) -> Node:
        direction = d.pick(("forward", "reverse", "bidirectional"))
        ways = 2 if direction == "bidirectional" else 1
        length, batch, width, hidden = d.int(1, 4), d.int(1, 3), d.int(1, 4), d.int(1, 4)
        inputs = [
            d.fresh("float32", s)
            for s in ((length, batch, width), (ways, gates * hidden, width), (ways, gates * hidden, hidden))
        ]
        if d.chance(0.6):
            inputs.append(d.fresh("float32", (ways, 2 * gates * hidden)))
        attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
        if op == "GRU" and d.chance(0.5):
            attrs["linear_before_reset"] = 1
        return Node(op, inputs, attrs, outputs=d.int(1, 3 if op == "LSTM" else 2))

    return recipe


def dft(d: Draft) -> Node:
    if d.opset < 20:
        raise NotDrawnError  # its axis was an attribute then
    inverse = d.int(0, 1)
    one = d.fresh("float32", (d.int(1, 3), d.int(2, 6), d.int(1, 2) if not inverse else 2))
    onesided = d.int(0, 1) if d.of(one).shape[-1] == 1 and not inverse else 0
    return Node("DFT", [one, "", d.const(1)], {"inverse": inverse, "onesided": onesided})


def if_(d: Draft) -> Node:
    """Two branches over a captured value, each one node long."""
    one = d.some(FLOATS, 1)
    kind = ELEMENT_TYPES[d.type_of(one)]
    branches = []
    for op in (d.pick(("Relu", "Abs", "Neg")), d.pick(("Tanh", "Exp", "Identity"))):
        graph = onnx.GraphProto(name=op)
        graph.node.append(onnx.NodeProto(op_type=op, input=[one], output=[f"{op}_{len(d.nodes)}"]))
        graph.output.append(port(f"{op}_{len(d.nodes)}", kind, None))
        branches.append(graph)
    condition = d.fresh("bool", ())
    return Node("If", [condition], {"then_branch": branches[0], "else_branch": branches[1]})


def loop(d: Draft) -> Node:
    """A state that a captured value is added to, a few times; every state is kept too."""
    one = d.some(("float32", "float64", "int64"), 1, 1)
    kind, mark = ELEMENT_TYPES[d.type_of(one)], len(d.nodes)
    body = onnx.GraphProto(name="body")
    names = [f"{word}_{mark}" for word in ("i", "go", "state", "go_on", "next", "kept")]
    i, go, state, go_on, following, kept = names
    body.input.extend([port(i, 7, ()), port(go, 9, ()), port(state, kind, None)])
    body.node.append(onnx.NodeProto(op_type="Identity", input=[go], output=[go_on]))
    body.node.append(
        onnx.NodeProto(op_type=d.pick(("Add", "Mul", "Max")), input=[state, one], output=[following])
    )
    body.node.append(onnx.NodeProto(op_type="Identity", input=[following], output=[kept]))
    body.output.extend([port(go_on, 9, ()), port(following, kind, None), port(kept, kind, None)])
    start = d.fresh(d.type_of(one), d.of(one).shape)
    return Node("Loop", [d.const(d.int(1, 3)), d.const(True, "bool"), start], {"body": body}, outputs=2)


MATHS: dict[str, Recipe] = {
    "MatMul": matmul, "Gemm": gemm, "Conv": conv, "ConvTranspose": conv_transpose,
    "BatchNormalization": batch_norm, "InstanceNormalization": instance_norm,
    "GroupNormalization": group_norm, "LpNormalization": lp_norm, "MeanVarianceNormalization": mvn,
    "LRN": lrn, "Einsum": einsum, "Resize": resize, "GridSample": grid_sample, "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize, "MatMulInteger": matmul_integer, "ConvInteger": conv_integer,
    "Attention": attention, "RotaryEmbedding": rotary, "DFT": dft, "If": if_, "Loop": loop,
    "LSTM": recurrent("LSTM", 4), "GRU": recurrent("GRU", 3), "RNN": recurrent("RNN", 1),
    **{op: pool(op) for op in ("MaxPool", "AveragePool", "LpPool")},
    **{op: global_pool(op) for op in ("GlobalAveragePool", "GlobalMaxPool")},
    **{op: layer_norm(op) for op in ("LayerNormalization", "RMSNormalization")},
    "Det": lambda d: Node("Det", [d.fresh("float32", (d.int(1, 3), (n := d.int(1, 4)), n))]),
    "DynamicQuantizeLinear": dynamic_quantize,
    "Dropout": lambda d: Node("Dropout", [d.some(FLOATS)], outputs=d.int(1, 2)),
}  # fmt: skip
