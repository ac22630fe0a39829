"""Shapes of products: matrices, convolutions, recurrent layers, attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.ir.op_given import Given, MisfitError, Rule, Shape, broadcast, require_into, require_shape

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def _matmul(given: Given) -> Sequence[Shape]:
    a, b = given.shape(0), given.shape(1)
    if not a or not b:
        raise MisfitError("an operand has no axes")
    left, right = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if left[-1] != right[-2]:
        raise MisfitError(f"{list(a)} has {left[-1]} columns, {list(b)} {right[-2]} rows")
    made = (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])
    made = made[:-2] + made[-1:] if len(a) == 1 else made
    return [made[:-1] if len(b) == 1 else made]


def _gemm(given: Given) -> Sequence[Shape]:
    a, b = given.shape(0), given.shape(1)
    if len(a) != 2 or len(b) != 2:
        raise MisfitError(f"operands have {len(a)} and {len(b)} axes, want 2")
    m, k = a[::-1] if given.integer("transA", 0) else a
    rows, n = b[::-1] if given.integer("transB", 0) else b
    if k != rows:
        raise MisfitError(f"{list(a)} has {k} columns, {list(b)} {rows} rows")
    require_into(given, 2, (m, n))
    return [(m, n)]


@dataclass(frozen=True)
class _Windows:
    """What a convolution says about its windows, one number per spatial axis."""

    stride: Shape
    spans: Shape  # of a window, dilation included
    pads: Shape  # before the first, then behind the last
    mode: str

    @staticmethod
    def of(given: Given) -> _Windows:
        x, w = given.shape(0), given.shape(1)
        if len(x) < 3 or len(w) != len(x):
            raise MisfitError(f"x has {len(x)} axes and the weight {len(w)}")
        kernel = w[2:]
        ones = (1,) * len(kernel)
        stride, dilation = given.integers("strides", ones), given.integers("dilations", ones)
        if given.integers("kernel_shape", kernel) != kernel:
            raise MisfitError(
                f"kernel_shape {list(given.integers('kernel_shape', kernel))}, want {list(kernel)}"
            )
        if any(n < 1 for n in (*stride, *dilation, *kernel)):
            raise MisfitError(f"kernel {list(kernel)}, strides {list(stride)}, dilations {list(dilation)}")
        spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
        pads = given.integers("pads", (0,) * 2 * len(kernel))
        return _Windows(stride, spans, pads, given.text("auto_pad", "NOTSET"))


def _conv(given: Given) -> Sequence[Shape]:
    windows, x, w, groups = _Windows.of(given), given.shape(0), given.shape(1), given.integer("group", 1)
    if groups < 1 or x[1] != w[1] * groups or w[0] % groups:
        raise MisfitError(f"x has {x[1]} channels, the weight {list(w)} in {groups} groups")
    require_shape(given, 2, (w[0],))
    made = []
    for axis, (size, span, step) in enumerate(zip(x[2:], windows.spans, windows.stride, strict=True)):
        if windows.mode in ("SAME_UPPER", "SAME_LOWER"):
            made.append(-(-size // step))
            continue
        pads = windows.pads[axis] + windows.pads[axis + len(x) - 2] if windows.mode == "NOTSET" else 0
        made.append((size + pads - span) // step + 1)
    if any(size < 0 for size in made):
        raise MisfitError(f"windows of {list(windows.spans)} on {list(x[2:])}")
    return [(x[0], w[0], *made)]


def _conv_transpose(given: Given) -> Sequence[Shape]:
    windows, x, w, groups = _Windows.of(given), given.shape(0), given.shape(1), given.integer("group", 1)
    if groups < 1 or x[1] != w[0] or w[0] % groups:
        raise MisfitError(f"x has {x[1]} channels, the weight {list(w)} in {groups} groups")
    require_shape(given, 2, (w[1] * groups,))
    rank = len(x) - 2
    extra = given.integers("output_padding", (0,) * rank)
    asked = given.integers("output_shape", (0,) * rank)
    made = []
    for axis, (size, span, step) in enumerate(zip(x[2:], windows.spans, windows.stride, strict=True)):
        if any(asked):
            made.append(asked[axis])
        elif windows.mode in ("SAME_UPPER", "SAME_LOWER"):
            # nothing is padded where the kernel is smaller than the stride
            made.append(min(size * step, (size - 1) * step + extra[axis] + span))
        else:
            pads = windows.pads[axis] + windows.pads[axis + rank] if windows.mode == "NOTSET" else 0
            made.append((size - 1) * step + extra[axis] + span - pads)
    if any(size < 0 for size in made):
        raise MisfitError(f"windows of {list(windows.spans)} on {list(x[2:])}")
    return [(x[0], w[1] * groups, *made)]


def _recurrent(given: Given) -> Sequence[Shape]:
    """S steps, B batch, I input size, H hidden size, D directions."""
    x, r, gates = given.shape(0), given.shape(2), GATES[given.op.op_type]
    directions = DIRECTIONS.get(given.text("direction", "forward"), 0)
    if len(x) != 3 or len(r) != 3 or not directions:
        raise MisfitError(
            f"x has {len(x)} axes, R {len(r)}, direction {given.text('direction', 'forward')!r}"
        )
    is_batch_first = bool(given.integer("layout", 0))
    (steps, batch), size = (x[1::-1] if is_batch_first else x[:2]), x[2]
    hidden = given.integer("hidden_size", r[2])
    require_shape(given, 1, (directions, gates * hidden, size))
    require_shape(given, 2, (directions, gates * hidden, hidden))
    require_shape(given, 3, (directions, 2 * gates * hidden))
    require_shape(given, 4, (batch,))
    state = (batch, directions, hidden) if is_batch_first else (directions, batch, hidden)
    require_shape(given, 5, state)
    if given.op.op_type == "LSTM":
        require_shape(given, 6, state)
        require_shape(given, 7, (directions, 3 * hidden))
    whole = (batch, steps, directions, hidden) if is_batch_first else (steps, directions, batch, hidden)
    return [whole, state, state]


def _heads(given: Given, place: int, name: str) -> tuple[int, int, int, int]:
    """[B, H, S, D] of an operand that has its heads as an axis or side by side."""
    shape = given.shape(place)
    if len(shape) == 4:
        b, h, s, d = shape
        return b, h, s, d
    heads = given.integer(name, 0)
    if len(shape) != 3 or heads < 1 or shape[2] % heads:
        raise MisfitError(f"input {place} of {list(shape)} in {heads} heads")
    return shape[0], heads, shape[1], shape[2] // heads


def _attention(given: Given) -> Sequence[Shape | None]:
    batch, heads, queries, width = _heads(given, 0, "q_num_heads")
    key_batch, key_heads, keys, key_width = _heads(given, 1, "kv_num_heads")
    value_batch, value_heads, value_keys, value_width = _heads(given, 2, "kv_num_heads")
    if not batch == key_batch == value_batch or keys != value_keys or width != key_width:
        shapes = [list(given.shape(place)) for place in range(3)]
        raise MisfitError(f"queries, keys and values have shapes {shapes}")
    if not key_heads or key_heads != value_heads or heads % key_heads:
        raise MisfitError(f"{heads} heads of queries, {key_heads} of keys, {value_heads} of values")
    past = given.shape(4)[2] if given.has(4) and len(given.shape(4)) == 4 else 0
    require_shape(given, 4, (batch, key_heads, past, width))
    require_shape(given, 5, (batch, key_heads, past, value_width))
    scores: Shape = (batch, heads, queries, past + keys)
    if given.has(3):
        mask = given.shape(3)
        # a mask over fewer keys is padded in newer opsets
        if mask and mask[-1] < scores[3]:
            mask = (*mask[:-1], scores[3])
        spread = broadcast(scores, mask) if 0 < len(mask) <= 4 else ()
        # one query, or one row of the batch, is spread over a mask of many, as the sum of both is
        is_alone = not (past or any(given.op.outputs[1:]))
        if not spread or spread[1::2] != scores[1::2] or (spread != scores and not is_alone):
            raise MisfitError(f"mask of {list(given.shape(3))} over scores of {list(scores)}")
        batch, heads, queries, _ = scores = spread
    is_flat = len(given.shape(0)) == 3
    made = (batch, queries, heads * value_width) if is_flat else (batch, heads, queries, value_width)
    present = [(batch, key_heads, past + keys, d) for d in (width, value_width)]
    return [made, *present, scores]


PRODUCT_RULES: dict[str, Rule] = {
    "MatMul": _matmul, "Gemm": _gemm, "Conv": _conv, "ConvTranspose": _conv_transpose,
    **dict.fromkeys(GATES, _recurrent), "Attention": _attention,
}  # fmt: skip
