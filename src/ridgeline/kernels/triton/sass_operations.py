"""What the integer instructions of a kernel compute, for all lanes of a warp: one row an opcode.

A result is None where it depends on what is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ridgeline.kernels.triton.sass import Instruction
from ridgeline.kernels.triton.sass_warp import MASK, WARP, Lanes, Warp, Word, same, signed

Compute = Callable[[Warp, Instruction, Sequence[str]], Word | None]


def _on(count: int, operation: Callable[..., Lanes]) -> Compute:
    """An operation of this many operands, unknown if one of them is."""

    def compute(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
        words = [warp.read(name) for name in sources[:count]]
        known = [word for word in words if word is not None]
        if len(known) < count:
            return None
        made = operation(*(word.lanes for word in known))
        return Word(np.asarray(made, np.int64) & MASK, any(word.from_size for word in known))

    return compute


def _multiply_add(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    words = [warp.read(name) for name in sources[:3]]
    a, b, c = words if len(words) == 3 else (None, None, None)
    if c is not None and any(word is not None and not word.lanes.any() for word in (a, b)):
        return Word(c.lanes, c.from_size)  # nought times anything, such as the first block's number
    if a is None or b is None or c is None:
        return None
    for one, other in ((a, b), (b, a)):
        if one.from_size and np.ptp(other.lanes):  # how far lanes lie apart depends on the argument
            return None
    product = a.lanes.astype(object) * b.lanes.astype(object)
    made = (product + c.lanes) >> 32 if "HI" in each.modifiers else product + c.lanes
    return Word((made & MASK).astype(np.int64), a.from_size or b.from_size or c.from_size)


def _shift(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """Low word, distance, high word: a funnel that is used as a plain shift."""
    if len(sources) < 3:
        return None
    low, distance, high = (warp.read(name) for name in sources[:3])
    if low is None or distance is None or high is None:
        return None
    by = distance.lanes & 31
    taints = low.from_size or distance.from_size or high.from_size
    if "L" in each.modifiers:
        if "HI" in each.modifiers:
            return same(0)
        return Word(low.lanes << by & MASK, taints)
    if "HI" in each.modifiers:
        kept = signed(high.lanes) if "S32" in each.modifiers else high.lanes
        return Word(kept >> by & MASK, taints)
    return Word(((high.lanes << 32 | low.lanes) >> by) & MASK, taints)


def _scaled_sum(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """``LEA``: (a << n) + b; with HI, the high word of a << n."""
    *names, shift = sources
    words = [warp.read(name) for name in names]
    by = warp.read(shift)
    if by is None or len(words) < 2 or words[0] is None or words[1] is None:
        return None
    a, b, n = words[0], words[1], int(by.lanes[0]) & 31
    taints = a.from_size or b.from_size
    if "HI" not in each.modifiers:
        return Word((a.lanes << n) + b.lanes & MASK, taints)
    if "SX32" in each.modifiers:
        high = signed(a.lanes) >> (32 - n)
    else:
        upper = words[2] if len(words) > 2 else same(0)
        if upper is None:
            return None
        high = (upper.lanes << n) | (a.lanes >> (32 - n))
    return Word(high + b.lanes & MASK, taints)


def _logic(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """Any function of three bits, by its table."""
    if len(sources) < 4:
        return None
    words = [warp.read(name) for name in sources[:3]]
    table = warp.read(sources[3])
    if table is None or any(word is None for word in words):
        return None
    a, b, c = (word.lanes for word in words if word is not None)
    made = np.zeros(WARP, np.int64)
    for row in range(8):
        if int(table.lanes[0]) >> row & 1:
            parts = [x if row >> place & 1 else ~x for x, place in ((a, 2), (b, 1), (c, 0))]
            made |= parts[0] & parts[1] & parts[2]
    return Word(made & MASK, any(word.from_size for word in words if word is not None))


def _permute(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """Four bytes chosen from two words."""
    if len(sources) < 3:
        return None
    low, choice, high = (warp.read(name) for name in sources[:3])
    if low is None or choice is None or high is None:
        return None
    both, made = high.lanes << 32 | low.lanes, np.zeros(WARP, np.int64)
    for place in range(4):
        pick = choice.lanes >> (4 * place) & 7
        made |= (both >> (8 * pick) & 0xFF) << (8 * place)
    return Word(made, low.from_size or high.from_size)


def _extend(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    value, width = warp.read(sources[0]), warp.read(sources[1])
    if value is None or width is None:
        return None
    bits = min(int(width.lanes[0]), WARP)
    kept = value.lanes & ((1 << bits) - 1)
    if "U32" not in each.modifiers and bits:
        kept = (kept ^ (1 << (bits - 1))) - (1 << (bits - 1))
    return Word(kept & MASK, value.from_size)


def _choose(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    a, b = (warp.read(name) for name in sources[:2])
    where = warp.predicate(each.operands[-1])
    if a is None or b is None or where is None:
        return None
    return Word(np.where(where, a.lanes, b.lanes), a.from_size or b.from_size)


def _least(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """The smaller of two where its predicate holds, else the larger; with ADD in its name, of a sum first."""
    words = [warp.read(name) for name in sources]
    if any(word is None for word in words) or len(words) < 2:
        return None
    known = [word for word in words if word is not None]
    if len(known) == 3:
        known = [Word(known[0].lanes + known[1].lanes & MASK, known[0].from_size), known[2]]
    where = warp.predicate(each.operands[-1])
    if where is None:
        return None
    x, y = (w.lanes if "U32" in each.modifiers else signed(w.lanes) for w in known)
    made = np.where(where, np.minimum(x, y), np.maximum(x, y)) & MASK
    return Word(made, any(word.from_size for word in known))


def _load_constant(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    return warp.read(sources[0])


def _special(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """The first warp of the first block."""
    if sources[0] in ("SR_TID.X", "SR_LANEID"):
        return Word(np.arange(WARP))
    is_place = sources[0].startswith(("SR_TID", "SR_CTAID", "SR_CgaCtaId"))
    return same(0) if is_place or sources[0] == "SRZ" else None


def _half_pair(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """A constant written as two halves, the way the compiler makes small integers on an idle unit."""
    if len(sources) < 4 or sources[0] not in ("-RZ", "RZ") or sources[1] != "RZ":
        return None
    try:
        halves = np.array([float(sources[3]), float(sources[2])], np.float16)
    except ValueError:
        return None
    return same(int(halves.view(np.uint32)[0]))


def _to_float(lanes: Lanes) -> Lanes:
    return lanes.astype(np.float32).view(np.uint32).astype(np.int64)


def _from_float(lanes: Lanes) -> Lanes:
    values = lanes.astype(np.uint32).view(np.float32).astype(np.float64)
    whole: Lanes = np.clip(np.nan_to_num(np.trunc(values)), -(2**31), 2**32 - 1).astype(np.int64)
    return whole


def _reciprocal(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """Of a quotient of sizes; other special functions are of data."""
    word = warp.read(sources[0])
    if word is None or "RCP" not in each.modifiers:
        return None
    values = word.lanes.astype(np.uint32).view(np.float32)
    with np.errstate(divide="ignore"):
        made = (np.float32(1) / values).astype(np.float32)
    return Word(made.view(np.uint32).astype(np.int64), word.from_size)


OPERATIONS: dict[str, Compute] = {
    "MOV": _on(1, lambda a: a), "R2UR": _on(1, lambda a: np.full(WARP, a[0])),
    "IADD3": _on(3, lambda a, b, c: a + b + c), "VIADD": _on(2, lambda a, b: a + b),
    "IADD": _on(2, lambda a, b: a + b), "IABS": _on(1, lambda a: abs(signed(a))),
    "POPC": _on(1, lambda a: np.array([int(x).bit_count() for x in a])),
    "IMAD": _multiply_add, "SHF": _shift, "LEA": _scaled_sum, "LOP3": _logic, "PRMT": _permute,
    "SGXT": _extend, "SEL": _choose, "VIMNMX": _least, "IMNMX": _least, "VIADDMNMX": _least,
    "LDC": _load_constant, "LDCU": _load_constant, "S2R": _special, "S2UR": _special, "HFMA2": _half_pair,
    "I2F": _on(1, _to_float), "F2I": _on(1, _from_float), "MUFU": _reciprocal,
}  # fmt: skip
