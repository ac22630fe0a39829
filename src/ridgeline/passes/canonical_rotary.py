"""Rules that recognise rotary positions however an exporter spelled them, and write `RotaryEmbedding`.

B batch, H heads, S places, D head size; a table holds one column per pair of columns that is turned.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ridgeline.passes.fold_shape import sizes
from ridgeline.passes.match import attribute, constant
from ridgeline.passes.rotary_tables import Piece, is_doubled, once, piece
from ridgeline.passes.rule import Change, Fusion, Match

HEADS_FIRST, PLACES_FIRST = 1, 2  # which axis of [B, H, S, D] or [B, S, H, D] the table leaves out


class TurnedHalves(Fusion):
    """x·cos + [-x₂, x₁]·sin, over halves or over neighbours"""

    may_change = (Change.ROUNDING, Change.SIGNED_ZERO, Change.HALF_OVERFLOW)

    def pattern(
        self, op: Any, x: Any, cos: Any, sin: Any, back: Any, front: Any, a: Any, b: Any, shape: Any
    ) -> Any:
        apart = op.Concat(op.Unsqueeze(op.Neg(back), a), op.Unsqueeze(front, b))
        turned = op.either(op.Concat(op.Neg(back), front), op.Reshape(apart, shape))
        return op.Add(op.Mul(x, cos), op.Mul(turned, sin))

    def check(self, m: Match) -> None:
        joined = m.node("Concat").outputs[0]
        axis = attribute(m.node("Concat"), "axis") % len(m.dims(joined))
        m.require(axis == len(m.dims(joined)) - 1, "pairs are not joined as columns", joined)
        _require_pairs(m, m.front, m.back, interleaved=m.shape is not None)
        if m.shape is not None:
            _require_neighbours(m, joined)
        for table in (m.cos, m.sin):
            m.require(is_doubled(table, m.shape is not None), "table is not known to repeat its half", table)
        _require_same_left_out(m, _columns(m))

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        is_interleaved = m.shape is not None
        axis = _left_out(m, m.cos, _columns(m))
        tables = [_as_cache(op, once(op, t, is_interleaved), len(m.dims(t)), axis) for t in (m.cos, m.sin)]
        return _rotary(op, m, tables, axis, interleaved=int(is_interleaved))


class TurnedPairs(Fusion):
    """[x₁·cos - x₂·sin, x₂·cos + x₁·sin]"""

    may_change = (Change.ROUNDING, Change.SIGNED_ZERO, Change.HALF_OVERFLOW)

    def pattern(self, op: Any, front: Any, back: Any, cos: Any, sin: Any) -> Any:
        left = op.Sub(op.Mul(front, cos), op.Mul(back, sin))
        return op.Concat(left, op.Add(op.Mul(back, cos), op.Mul(front, sin)))

    def check(self, m: Match) -> None:
        rank = len(m.dims(m.root.outputs[0]))
        m.require(attribute(m.root, "axis") % rank == rank - 1, "pairs are not joined as columns", m.front)
        found = piece(m.front)
        m.require(found is not None and len(m.dims(found[0])) == 4, "halves are cut from nothing", m.front)
        _require_pairs(m, m.front, m.back, interleaved=False)
        _require_same_left_out(m, _columns(m) // 2)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        axis = _left_out(m, m.cos, _columns(m) // 2)
        tables = [_as_cache(op, table, len(m.dims(table)), axis) for table in (m.cos, m.sin)]
        return _rotary(op, m, tables, axis, interleaved=0)


class PartlyTurned(Fusion):
    """[rotary(x[.., :n]), x[.., n:]] = rotary(x) of its first n columns"""

    may_change = ()

    def pattern(self, op: Any, front: Any, cos: Any, sin: Any, rest: Any) -> Any:
        return op.Concat(op.RotaryEmbedding(front, cos, sin), rest)

    def check(self, m: Match) -> None:
        m.require(len(m.dims(m.front)) == 4, "heads are not an axis", m.front)
        m.require(attribute(m.root, "axis") in (-1, 3), "not joined as columns", m.rest)
        parts = [piece(m.front), piece(m.rest)]
        m.require(None not in parts, "not two parts of one value", m.rest)
        (one, first), (other, rest) = (part for part in parts if part is not None)
        columns, turned = m.dims(one)[-1], len(first)
        is_whole = (first, rest) == (range(turned), range(turned, turned + len(rest)))
        are_all = one is other and is_whole and turned + len(rest) == columns
        m.require(are_all, "not two parts of one value", m.rest)
        m.require(isinstance(m.dims(one)[1], int), "number of heads is unknown", one)
        m.require(not m.attr("RotaryEmbedding", "rotary_embedding_dim"), "turned in part already", m.front)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        x, turned = _front(m)
        return op.RotaryEmbedding(
            x, m.cos, m.sin, interleaved=m.attr("RotaryEmbedding", "interleaved"),
            rotary_embedding_dim=len(turned), num_heads=int(m.dims(x)[1]),
        )  # fmt: skip


class SpelledRotary(Fusion):
    """rotary(x) = x·cos + [-x₂, x₁]·sin: moves and products, which generated kernels take into their own"""

    may_change = (Change.ROUNDING, Change.SIGNED_ZERO, Change.HALF_OVERFLOW)

    def pattern(self, op: Any, x: Any, cos: Any, sin: Any, places: Any) -> Any:
        return op.RotaryEmbedding(x, cos, sin, places)

    def check(self, m: Match) -> None:
        dims = m.dims(m.x)
        m.require(len(dims) == 4 and isinstance(dims[-1], int), "heads are not an axis", m.x)
        m.require(not attribute(m.root, "interleaved"), "neighbours are turned", m.x)
        m.require(attribute(m.root, "rotary_embedding_dim") in (0, dims[-1]), "turned in part", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        size = int(m.dims(m.x)[-1])
        cos, sin = (t if m.places is None else op.Gather(t, m.places, axis=0) for t in (m.cos, m.sin))
        heads = op.numbers(1)
        cos, sin = (op.Unsqueeze(op.Concat(table, table, axis=-1), heads) for table in (cos, sin))
        bounds = [op.numbers(n) for n in (0, size // 2, size, 3)]
        front, back = (op.Slice(m.x, bounds[i], bounds[i + 1], bounds[3]) for i in (0, 1))
        turned = op.Concat(op.Neg(back), front, axis=-1)
        return op.Add(op.Mul(m.x, cos), op.Mul(turned, sin))


def _front(m: Match) -> Piece:
    found = piece(m.front)
    assert found is not None, "the check saw it"
    return found


def _source(m: Match) -> ir.Value:
    """The value whose columns are turned."""
    return _front(m)[0]


def _columns(m: Match) -> int:
    return int(m.dims(_source(m))[-1])


def _require_pairs(m: Match, front: ir.Value, back: ir.Value, *, interleaved: bool) -> None:
    """The two parts are the halves, or every second column, of one value of four axes."""
    one, other = piece(front), piece(back)
    if one is None or other is None or one[0] is not other[0]:
        m.refuse("not parts of one value", back)
    x, dims = one[0], m.dims(one[0])
    m.require(m.x is None or m.x is x, "turned is another value than what is added", x)
    m.require(len(dims) == 4 and isinstance(dims[-1], int), "not heads of a known size", x)
    size = int(dims[-1])
    half = size // 2
    pairs = (range(0, size, 2), range(1, size, 2)) if interleaved else (range(half), range(half, size))
    m.require((one[1], other[1]) == pairs, f"columns {one[1]} and {other[1]} are not pairs", x)
    m.require(size % 2 == 0 and m.root.outputs[0].dtype == x.dtype, "not pairs of one type", x)


def _require_neighbours(m: Match, joined: ir.Value) -> None:
    """Parts get an axis behind their columns, are joined along it, and come back in the value's shape."""
    x, made = m.dims(_source(m)), m.dims(m.root.outputs[0])
    m.require(len(m.dims(joined)) == len(x) + 1, "pairs are not an axis of their own", joined)
    for axes in (m.a, m.b):
        known = constant(axes)
        is_last = known is not None and [int(axis) % (len(x) + 1) for axis in known.reshape(-1)] == [len(x)]
        m.require(is_last, "pairs do not lie side by side", axes)
    m.require(len(made) == len(x), f"turned comes back as {made}, not {x}", joined)
    same = all(
        not isinstance(n, int) or not isinstance(k, int) or n == k for n, k in zip(x, made, strict=True)
    )
    m.require(same, f"turned comes back as {made}, not {x}", joined)


def _require_same_left_out(m: Match, columns: int) -> None:
    """Cosines and sines are of the same places: with as many heads as places either axis could be meant."""
    axes = {_left_out(m, table, columns) for table in (m.cos, m.sin)}
    m.require(len(axes) == 1, "one table is per place, the other per head", m.sin)


def _left_out(m: Match, table: ir.Value, columns: int) -> int:
    """Which axis of the value a table of [.., S, .., columns] leaves out; refuses if it is not heads."""
    x, dims = m.dims(_source(m)), m.dims(table)
    m.require(table.dtype == _source(m).dtype, "table has another type", table)
    m.require(2 <= len(dims) <= 4 and dims[-1] == columns, f"table of {dims}, want rows of {columns}", table)
    padded = (*[1] * (4 - len(dims)), *dims)
    m.require(padded[0] in (1, x[0]), "table is not per batch entry", table)
    if padded[1] == 1 and padded[2] == x[2]:
        return HEADS_FIRST
    m.require(padded[2] == 1 and padded[1] == x[1] and len(dims) > 2, "table is not per place", table)
    return PLACES_FIRST


def _as_cache(op: Any, table: ir.Value, rank: int, axis: int) -> ir.Value:
    """The table as [B or 1, S, D / 2]."""
    if rank == 2:
        return op.Unsqueeze(table, op.numbers(0))
    gone = axis - 4 + rank
    if rank == 4:
        return op.Squeeze(table, op.numbers(axis))
    if gone == 0:
        return table  # [1, S, D / 2]: the axis of heads stands for the batch
    swapped = op.Squeeze(table, op.numbers(gone))
    return op.Unsqueeze(swapped, op.numbers(0))


def _rotary(op: Any, m: Match, tables: list[ir.Value], axis: int, *, interleaved: int) -> ir.Value:
    x = _source(m)
    heads = (sizes(x) or ())[axis]
    attrs = {"interleaved": interleaved, "num_heads": heads if isinstance(heads, int) else None}
    if axis == HEADS_FIRST:
        return op.RotaryEmbedding(x, *tables, **attrs)
    swap = [0, 2, 1, 3]
    return op.Transpose(op.RotaryEmbedding(op.Transpose(x, perm=swap), *tables, **attrs), perm=swap)


RULES: tuple[Fusion, ...] = (TurnedHalves(), TurnedPairs(), PartlyTurned())
CUDA_RULES: tuple[Fusion, ...] = (SpelledRotary(),)
