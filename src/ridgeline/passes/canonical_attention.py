"""Rules that recognise attention in its decomposed forms and write the standard `Attention` op.

First the 4-D op from MatMul / Softmax / MatMul; then its 3-D form where heads are only split and joined.
B batch, H heads, S queries, T keys, D head size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.fold_broadcast import is_causal_mask
from ridgeline.passes.fold_shape import Size, is_named, part_of
from ridgeline.passes.match import attribute, attributes, constant
from ridgeline.passes.rule import Change, Fusion, Match

_SCALES = ("q_mul", "k_mul", "s_mul")
_DIVISORS = ("q_div", "k_div", "s_div")
_KEEPS_FINITE = frozenset(
    {"Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Transpose", "Identity", "Concat"}
)


class SoftmaxAttention(Fusion):
    """softmax(q·kᵀ·scale + bias + mask)·v"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW, Change.INTERMEDIATE, Change.BARRED_KEYS)

    def pattern(
        self, op: Any, q: Any, kt: Any, v: Any, mask: Any, bias: Any, allowed: Any, barred: Any, off: Any,
        q_mul: Any, q_div: Any, k_mul: Any, k_div: Any, s_mul: Any, s_div: Any, zero: Any,
    ) -> Any:  # fmt: skip
        left = op.either(op.Mul(q, q_mul), op.Div(q, q_div), q)
        right = op.either(op.Mul(kt, k_mul), op.Div(kt, k_div), kt)
        product = op.MatMul(left, right)
        scores = op.either(op.Mul(product, s_mul), op.Div(product, s_div), product)
        masked = op.either(
            # T5 adds its positions first, and those of one layer serve all of them
            op.Add(op.Add(scores, bias), mask), op.Add(scores, mask),
            op.Where(allowed, scores, off), op.Where(barred, off, scores), scores,
        )  # fmt: skip
        weights = op.Softmax(masked)
        guarded = op.either(op.Where(op.IsNaN(weights), zero, weights), weights)
        return op.MatMul(guarded, v)

    def check(self, m: Match) -> None:
        for name in ("q", "kt", "v"):
            value = getattr(m, name)
            shape = value.shape
            m.require(
                shape is not None and shape.rank() == 4, f"{name} is not known to have four axes", value
            )
        for name in (*_SCALES, *_DIVISORS, "off", "zero"):
            if getattr(m, name) is not None:
                m.scalar(name)
                m.require(m.array(name).ndim <= 4, f"{name} raises the rank", getattr(m, name))
        m.require(m.attr("Softmax", "axis") in (-1, 3), "softmax is not over the keys")
        # the op takes the root of its scale
        scale = _scale(m)
        m.require(0.0 < scale < math.inf, f"scores are scaled by {scale}")
        _require_heads(m)
        for mask in _masks(m):
            _require_mask(m, mask)
        _require_keys(m)
        if m.off is not None:
            # a finite filler still counts in rows where every key is masked
            m.require(
                m.scalar("off") == -math.inf, f"masked scores become {m.scalar('off')}, want -inf", m.off
            )
        if _has_guard(m):
            m.require(m.scalar("zero") == 0.0, "rows without a key become something other than 0", m.zero)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        keys = _keys(op, m.kt)
        out = op.Attention(m.q, keys, m.v, _mask(op, m), scale=_scale(m))
        return _guarded(op, out, m.v, rows=2) if _has_guard(m) else out


def _scale(m: Match) -> float:
    product = math.prod(m.scalar(name) for name in _SCALES if getattr(m, name) is not None)
    divisor = math.prod(m.scalar(name) for name in _DIVISORS if getattr(m, name) is not None)
    return float(product / divisor) if divisor else math.inf


def _has_guard(m: Match) -> bool:
    """Whether weights that are NaN become zeros."""
    return any(node.op_type == "IsNaN" for node in m.nodes)


def _guarded(op: Any, out: ir.Value, v: ir.Value, *, rows: int) -> ir.Value:
    """Attention whose NaN weights count as zeros.

    The result is NaN in all columns where the weights of a row are NaN, and there it becomes zero times the
    values. Elsewhere it is NaN only in columns of v that are not finite: zero times those is NaN as well.
    """
    axes = op.numbers(rows)
    nothing = op.ReduceSum(op.Mul(v, op.const(np.zeros((), v.dtype.numpy()))), axes, keepdims=1)
    return op.Where(op.IsNaN(out), nothing, out)


def _mask(op: Any, m: Match) -> ir.Value | None:
    """The mask as Attention takes it: a query that sees no key gets zeros there, and NaN from a softmax."""
    mask = op.Not(m.barred) if m.barred is not None else m.allowed or m.mask
    if mask is None:
        return None
    last = op.numbers(-1)
    is_sighted = _has_guard(m) or (m.mask is not None and m.bias is None and sees_keys(m.mask))
    if m.bias is not None:
        mask = op.Add(m.bias, m.mask)
    if not is_sighted and m.off is not None:
        low, none, zero = (op.const(np.array(n, m.q.dtype.numpy())) for n in (-math.inf, math.nan, 0.0))
        mask = op.Where(mask, zero, op.Where(op.ReduceMax(mask, last, keepdims=1), low, none))
    elif not is_sighted:
        # -inf times zero is NaN: rows of -inf become rows of NaN, the others stay
        top = op.ReduceMax(mask, last, keepdims=1)
        mask = op.Add(mask, op.Mul(top, op.const(np.zeros((), m.q.dtype.numpy()))))
    if all(_covers_keys(m, value) for value in _masks(m)):
        return mask
    # a mask that is shorter than the keys is padded by Attention, and spread by Add and Where
    return op.Expand(mask, op.Shape(m.kt, start=3))


def _covers_keys(m: Match, mask: ir.Value) -> bool:
    """Whether a mask has an entry for each key in every run; one of a single entry is spread over them."""
    size, keys = m.dims(mask)[-1], m.dims(m.kt)[3]
    return size == keys or (isinstance(size, int) and size > 1)


def _require_heads(m: Match) -> None:
    """MatMul broadcasts batch and heads; Attention does not."""
    q, kt, v = (m.dims(value) for value in (m.q, m.kt, m.v))
    heads = {dims[1] for dims in (q, kt, v)}
    m.require(
        len(heads) == 1 and all(isinstance(h, int) for h in heads), f"heads are {heads}, want one number", m.q
    )
    m.require(len({dims[0] for dims in (q, kt, v)}) == 1, "batch sizes are not known to agree", m.kt)


def _masks(m: Match) -> list[ir.Value]:
    return [value for value in (m.mask, m.bias, m.allowed, m.barred) if value is not None]


def _require_mask(m: Match, mask: ir.Value) -> None:
    """Attention takes masks that are spread over the scores, never scores that are spread over a mask."""
    dims, q, kt = m.dims(mask), m.dims(m.q), m.dims(m.kt)
    m.require(len(dims) <= 4, f"mask has {len(dims)} axes, want at most four", mask)
    m.require(len(dims) >= 2, f"mask of shape {mask.shape} has no axis of queries", mask)
    # keys that are spread over a mask would not fit the values
    for size, room in zip(dims[-2::-1], (q[2], q[1], q[0]), strict=False):
        is_free = not isinstance(size, int) and room != 1
        # two sizes that the model declares are two; one that inference has lost is mostly the same
        are_two = not isinstance(room, int) and _is_declared(mask, size) and _is_declared(m.q, room)
        fits = size in (1, room) or (is_free and not are_two)
        m.require(fits, f"mask of {dims} may be larger than scores of {(*q[:3], kt[3])}", mask)


def _require_keys(m: Match) -> None:
    """The scores of a single key are spread over a mask, and may then fit several values."""
    keys, values = m.dims(m.kt)[3], m.dims(m.v)[2]
    is_spread = any(m.dims(mask)[-1] not in (1, keys) for mask in _masks(m))
    may_be_one = keys == 1 or _is_declared(m.kt, keys)
    are_two = keys != values and (isinstance(values, int) or _is_declared(m.v, values))
    m.require(not (is_spread and may_be_one and are_two), f"{keys} keys and {values} values", m.v)


def _is_declared(value: ir.Value, size: Size) -> bool:
    return is_named(size) or value.is_graph_input()


def sees_keys(mask: ir.Value) -> bool:
    """Whether no row of an additive mask can be -inf throughout."""
    array = constant(mask)
    if array is not None and array.shape[-1]:
        return bool(np.all(np.isfinite(array.astype(np.float64).max(-1))))
    return is_finite(mask)


def is_finite(value: ir.Value, depth: int = 0) -> bool:
    """Whether a mask cannot hold an infinity."""
    array = constant(value)
    if array is not None:
        return bool(np.all(np.isfinite(array.astype(np.float64))))
    node = value.producer()
    if node is None or depth > 16:
        return False
    if node.op_type == "Where":
        return all(is_finite(branch, depth + 1) for branch in node.inputs[1:])
    if node.op_type == "Cast":
        return bool(node.inputs[0].dtype == ir.DataType.BOOL)
    if node.op_type == "Concat":
        return all(is_finite(part, depth + 1) for part in node.inputs)
    return node.op_type in _KEEPS_FINITE and is_finite(node.inputs[0], depth + 1)


def _keys(op: Any, kt: ir.Value) -> ir.Value:
    """K as [B, H, T, D], undoing the transpose that made Kᵀ where there is one."""
    node = kt.producer()
    swap = [0, 1, 3, 2]
    if node is None or node.op_type != "Transpose" or attribute(node, "perm") is None:
        return op.Transpose(kt, perm=swap)
    perm = [attribute(node, "perm")[axis] for axis in swap]
    return node.inputs[0] if perm == [0, 1, 2, 3] else op.Transpose(node.inputs[0], perm=perm)


class PackedHeads(Fusion):
    """x as [B, S, N, H, D] → [N, B, H, S, D], one of N = a slice of x's columns, split into heads"""

    may_change = ()

    def pattern(
        self, op: Any, x: Any, shape: Any, start: Any, end: Any, axes: Any, steps: Any, gone: Any, index: Any
    ) -> Any:
        packed = op.shared(op.Transpose(op.shared(op.Reshape(x, shape)), perm=[2, 0, 3, 1, 4]))
        return op.either(
            op.Squeeze(op.Slice(packed, start, end, axes, steps), gone), op.Gather(packed, index, axis=0)
        )

    def check(self, m: Match) -> None:
        source, split = m.dims(m.x), m.target(m.node("Reshape"))
        m.require(len(source) == 3, "packed projection has not three axes", m.x)
        numbers = [size for size in split[2:] if isinstance(size, int)]
        is_known = len(split) == 5 and split[:2] == source[:2] and len(numbers) == 3
        m.require(is_known, "parts, heads or head size unknown", m.shape)
        m.require(math.prod(numbers) == source[2], "columns are not parts × heads × head size", m.shape)
        self._part(m)

    def _part(self, m: Match) -> int:
        """Which part is taken; refuses all but one along the axis of parts."""
        taken = m.root if m.index is not None else m.node("Slice")
        found = part_of(taken.outputs[0], [m.target(m.node("Reshape"))[axis] for axis in (2, 0, 3, 1, 4)])
        if found is None or found[0] != 0 or (m.gone is not None and m.const("gone") != [0]):
            m.refuse("not a slice of parts", taken.inputs[1])
        is_one = len(found[1]) == 1 and (m.index is None or m.array("index").ndim == 0)
        m.require(is_one, "takes several parts", taken.inputs[1])
        return found[1].start

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        heads, size = (int(n) for n in m.target(m.node("Reshape"))[3:])
        bounds = (self._part(m) * heads * size, (self._part(m) + 1) * heads * size, 2)
        columns = op.Slice(m.x, *map(op.numbers, bounds))
        return op.Transpose(op.Reshape(columns, op.numbers(0, 0, heads, size)), perm=[0, 2, 1, 3])


class AttentionOverColumns(Fusion):
    """join heads(Attention(split heads q, k, v)) = Attention(q, k, v) with the head count as attribute"""

    may_change = (Change.ROUNDING,)

    def pattern(
        self, op: Any, q: Any, k: Any, v: Any, mask: Any, q_shape: Any, k_shape: Any, v_shape: Any,
        rows: Any, shape: Any,
    ) -> Any:  # fmt: skip
        heads = [
            op.Transpose(op.Reshape(x, s), perm=[0, 2, 1, 3])
            for x, s in ((q, q_shape), (k, k_shape), (v, v_shape))
        ]
        whole = op.Attention(*heads, mask)
        nothing = op.ReduceSum(op.Mul(heads[2], 0.0), rows, keepdims=1)
        guarded = op.Where(op.IsNaN(whole), nothing, whole)
        return op.Reshape(op.Transpose(op.either(guarded, whole), perm=[0, 2, 1, 3]), shape)

    def check(self, m: Match) -> None:
        node = m.node("Attention")
        q, k, v = (_split(m, value) for value in node.inputs[:3])
        m.require(k[2] == v[2] and k[1] == v[1], "keys and values differ in heads or length", m.v)
        joined = (q[0], q[1], int(q[2]) * int(v[3]))
        m.require(m.target(m.root) == joined, "does not join the heads again", m.shape)
        if _has_guard(m):
            m.require(m.const("rows") == [2], "the guard sums another axis than the keys", m.rows)
            m.require(q[2] == v[2], "query heads share the guarded values", m.v)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        node = m.node("Attention")
        q, k = (_split(m, value) for value in node.inputs[:2])
        attrs = attributes(node) | {"q_num_heads": int(q[2]), "kv_num_heads": int(k[2])}
        # the op's own default is by head size in both forms, but a plan should not have to know it
        attrs.setdefault("scale", 1.0 / math.sqrt(int(q[3])))
        out = op.Attention(m.q, m.k, m.v, m.mask, **attrs)
        return _guarded(op, out, m.v, rows=1) if _has_guard(m) else out


def _split(m: Match, heads: ir.Value) -> tuple[Size, ...]:
    """[B, S, H, D] of a value that was split into heads; refuses when columns do not become heads."""
    reshape = heads.producer().inputs[0].producer()
    source, split = m.dims(reshape.inputs[0]), m.target(reshape)
    m.require(
        len(source) == 3 and len(split) == 4, "does not split columns of a 3-D value", reshape.inputs[0]
    )
    is_known = all(isinstance(size, int) for size in split[2:])
    m.require(is_known, f"heads and head size are {split[2:]}, want numbers", reshape.inputs[1])
    is_split = split[:2] == source[:2] and source[2] == int(split[2]) * int(split[3])
    m.require(is_split, f"{source} to {split} does not split columns into heads", reshape.inputs[0])
    return split


class ScaledQueries(Fusion):
    """Attention(q·c, k, v) = Attention(q, k, v) with c in its scale, also where heads are split behind it"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW, Change.INTERMEDIATE)

    def pattern(self, op: Any, q: Any, q_mul: Any, q_div: Any, shape: Any, k: Any, v: Any, mask: Any) -> Any:
        scaled = op.either(op.Mul(q, op.known(q_mul)), op.Div(q, op.known(q_div)))
        heads = op.Transpose(op.Reshape(scaled, shape), perm=[0, 2, 1, 3])
        return op.Attention(op.either(heads, scaled), k, v, mask)

    def check(self, m: Match) -> None:
        factor = m.array("q_mul" if m.q_mul is not None else "q_div")
        is_one = factor.size == 1 and factor.ndim <= len(m.dims(m.q))
        m.require(is_one, f"queries are scaled by {factor.size} numbers, want one", m.q)
        m.require(not any(m.root.inputs[4:]), "keys from elsewhere come first", m.k)
        size = self._head_size(m)
        m.require(isinstance(size, int) and size > 0, f"heads have {size} columns, want a number", m.q)
        m.require(0.0 < self._scaled(m) < math.inf, f"scores are scaled by {self._scaled(m)}")

    def _head_size(self, m: Match) -> Size:
        dims, heads = m.dims(m.root.inputs[0]), m.attr("Attention", "q_num_heads")
        is_split = len(dims) == 3 and isinstance(dims[2], int) and heads
        return int(dims[2]) // heads if is_split else dims[-1]

    def _scaled(self, m: Match) -> float:
        own = m.attr("Attention", "scale")
        scale = 1.0 / math.sqrt(int(self._head_size(m))) if own is None else float(own)
        return scale * (m.scalar("q_mul") if m.q_mul is not None else 1.0 / (m.scalar("q_div") or math.nan))

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        q = m.q if m.shape is None else op.Transpose(op.Reshape(m.q, m.shape), perm=[0, 2, 1, 3])
        return op.Attention(q, m.k, m.v, m.mask, **attributes(m.root) | {"scale": self._scaled(m)})


class CausalMask(Fusion):
    """Attention with a constant lower triangle for a mask = Attention with is_causal"""

    may_change = (Change.ROUNDING, Change.BARRED_KEYS)

    def pattern(self, op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return op.Attention(q, k, v, op.known(mask))

    def check(self, m: Match) -> None:
        m.require(is_causal_mask(m.root), "mask is not a lower triangle", m.mask)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Attention(m.q, m.k, m.v, **attributes(m.node("Attention")) | {"is_causal": 1})


class BooleanMask(Fusion):
    """Attention(.., where(allowed, 0, -inf)) = Attention(.., allowed)"""

    may_change = (Change.ROUNDING, Change.BARRED_KEYS)

    def pattern(self, op: Any, q: Any, k: Any, v: Any, allowed: Any, off: Any) -> Any:
        return op.Attention(q, k, v, op.shared(op.Where(allowed, 0.0, op.known(off))))

    def check(self, m: Match) -> None:
        # a finite filler still counts in rows where every key is masked
        m.require(m.scalar("off") == -math.inf, f"masked scores get {m.scalar('off')}, want -inf", m.off)
        whole, mask = m.dims(m.node("Where").outputs[0]), m.dims(m.allowed)
        m.require(whole == mask, "the choice is spread by the values it chooses", m.allowed)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Attention(m.q, m.k, m.v, m.allowed, **attributes(m.node("Attention")))


class SpreadPadding(Fusion):
    """(mask as bool) spread over the queries = not (mask = zeros): tested and spread in one step"""

    may_change = ()

    def pattern(self, op: Any, x: Any, axes: Any, true: Any, shape: Any) -> Any:
        tested = op.Cast(x, to=9)
        wide = op.either(op.Unsqueeze(tested, axes), tested)
        return op.either(op.And(wide, op.known(true)), op.Expand(wide, shape))

    def check(self, m: Match) -> None:
        kinds = (ir.DataType.INT64, ir.DataType.INT32)
        m.require(m.x.dtype in kinds, f"mask is {m.x.dtype}, not of integers", m.x)
        if m.true is not None:
            m.require(bool(m.array("true").all()), "the other operand bars something", m.true)
            return
        narrow, wide = m.dims(m.root.inputs[0]), m.dims(m.root.outputs[0])
        m.require(len(narrow) == len(wide), "spread over axes of its own", m.x)
        grown = [size for size, old in zip(wide, narrow, strict=True) if size != old]
        m.require(all(isinstance(size, int) for size in grown), f"spread over {grown}, want numbers", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        x = m.x if m.axes is None else op.Unsqueeze(m.x, m.axes)
        if m.true is not None:
            shape = m.array("true").shape
        else:
            dims = zip(m.dims(m.root.outputs[0]), m.dims(m.root.inputs[0]), strict=True)
            shape = tuple(1 if size == old else int(size) for size, old in dims)
        return op.Not(op.Equal(x, op.const(np.zeros(shape, m.x.dtype.numpy()))))


RULES: tuple[Fusion, ...] = (SoftmaxAttention(), PackedHeads(), AttentionOverColumns())
SCALE_RULES: tuple[Fusion, ...] = (ScaledQueries(),)
# what masks say becomes an attribute or a boolean where it can
MASK_RULES: tuple[Fusion, ...] = (CausalMask(), BooleanMask(), SpreadPadding())
