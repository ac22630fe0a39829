"""Where the 32 lanes of a warp read and write, found by computing the addresses of the first warp.

The integer instructions of a kernel are carried out for the first warp of the first block, in the order of
their addresses, each once. Pointers get round addresses, sizes that are arguments a large number. What
depends on data, or on the product of a lane and an argument, is not known, nor are the addresses made of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgeline.kernels.triton.sass import Instruction

WARP = 32
MASK = 0xFFFFFFFF
LARGE = 1 << 20  # of every size that is an argument
POINTER_LOW = 1 << 28  # the low word of every pointer: only it matters for where lanes lie to one another
# where the arguments of a kernel begin in the constant bank
FIRST_ARGUMENT = {"sm_7": 0x160, "sm_8": 0x160, "sm_90": 0x210, "sm_10": 0x380, "sm_12": 0x380}
BYTES = {"i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "fp64": 8, "i64": 8, "u64": 8}
CONSTANT = re.compile(r"^c\[0x0\]\[0x([0-9a-f]+)\]$")
ADDRESS = re.compile(r"\[([^\[\]]+)\]$")
SECTOR, BANK, BANKS = 32, 4, 32
COMPARE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "EQ": np.equal,
    "NE": np.not_equal,
}  # fmt: skip
HIGH_WORDS = frozenset({"X"})
GLOBAL_ACCESS = frozenset({"LDG", "STG", "LDGSTS"})
SHARED_ACCESS = frozenset({"LDS", "STS", "LDSM", "STSM"})
# registers that a matrix instruction writes, where it is not said by its width
WRITES = {"HMMA": 4, "IMMA": 4, "QMMA": 4, "LDSM": 4, "CS2R": 2}

Lanes = np.ndarray  # int64[32], each a 32-bit word


@dataclass(frozen=True)
class Word:
    """A register of all lanes. `from_size` says that it depends on a size that is an argument."""

    lanes: Lanes
    from_size: bool = False


@dataclass(frozen=True)
class Access:
    """One instruction that accesses memory, as the first warp carries it out."""

    instruction: Instruction
    space: str  # global or shared
    lane_bytes: int
    addresses: tuple[int, ...]  # of the lanes that take part
    transactions: int  # sectors of global memory, or passes over the banks of shared memory
    least: int  # that the same bytes need

    @property
    def excess(self) -> float:
        """1 is as few as possible."""
        return self.transactions / self.least


@dataclass
class Warp:
    """Registers, uniform registers and predicates by name; what is not there is not known."""

    words: dict[str, Word] = field(default_factory=dict)
    predicates: dict[str, np.ndarray] = field(default_factory=dict)
    arguments: dict[int, Word] = field(default_factory=dict)

    def read(self, operand: str) -> Word | None:
        """The value of an operand, or None."""
        name = operand.replace(".reuse", "")
        if name.startswith("-"):
            inner = self.read(name[1:])
            return None if inner is None else Word(-inner.lanes & MASK, inner.from_size)
        if name.startswith("~"):
            inner = self.read(name[1:])
            return None if inner is None else Word(~inner.lanes & MASK, inner.from_size)
        if name in ("RZ", "URZ", "SRZ"):
            return _same(0)
        if re.fullmatch(r"-?0x[0-9a-f]+", name):
            return _same(int(name, 16))
        if constant := CONSTANT.match(name):
            # other places hold what the driver puts there, such as the size of a block
            return self.arguments.get(int(constant[1], 16))
        return self.words.get(name)

    def predicate(self, name: str) -> np.ndarray | None:
        """Lanes for which it holds."""
        if name.startswith("!"):
            inner = self.predicate(name[1:])
            return None if inner is None else ~inner
        return np.ones(WARP, bool) if name in ("PT", "UPT") else self.predicates.get(name)

    def write(self, name: str, value: Word | None, active: np.ndarray | None = None) -> None:
        """Lanes that are not active keep what they had."""
        if not re.fullmatch(r"U?R\d+", name):
            return
        old = self.words.get(name)
        if value is None or (active is not None and not active.all() and old is None):
            self.words.pop(name, None)
        elif active is None or active.all() or old is None:
            self.words[name] = value
        else:
            lanes = np.where(active, value.lanes, old.lanes)
            self.words[name] = Word(lanes, value.from_size or old.from_size)

    def forget(self, name: str, count: int) -> None:
        """A run of registers that now holds data."""
        kind, number = re.fullmatch(r"(U?R)(\d+)", name).groups()  # type: ignore[union-attr]
        for offset in range(count):
            self.words.pop(f"{kind}{int(number) + offset}", None)


def accesses(code: Sequence[Instruction], *, arch: str, types: Sequence[str]) -> list[Access]:
    """Every access of global and shared memory whose addresses could be computed.

    `types` are those of the kernel's arguments, as `Compiled` has them.
    """
    warp = Warp(arguments=place_arguments(arch, types))
    found: list[Access] = []
    for each in code:
        active = warp.predicate(each.predicate) if each.predicate else np.ones(WARP, bool)
        if each.opcode in GLOBAL_ACCESS | SHARED_ACCESS:
            found += _accessed(warp, each, active)
        _step(warp, each, active)
    return found


def place_arguments(arch: str, types: Sequence[str]) -> dict[int, Word]:
    """Where a launch puts its arguments: aligned to their size, behind one another."""
    at = next((first for name, first in FIRST_ARGUMENT.items() if arch.startswith(name)), None)
    placed: dict[int, Word] = {}
    if at is None:
        return placed
    for kind in types:
        size = 8 if kind.startswith("*") else BYTES.get(kind, 4)
        at = -(-at // size) * size
        is_size = kind in ("i32", "u32", "i64", "u64")
        if kind.startswith("*"):
            placed[at] = _same(POINTER_LOW)
        elif is_size:
            placed[at] = Word(_same(LARGE).lanes, from_size=True)
        if size == 8:
            placed[at + 4] = _same(0)
        at += size
    return placed


def _same(value: int) -> Word:
    return Word(np.full(WARP, value & MASK, np.int64))


def _accessed(warp: Warp, each: Instruction, active: np.ndarray | None) -> list[Access]:
    if active is not None and not active.any():
        return []
    lanes = np.ones(WARP, bool) if active is None else active
    made = []
    for operand in each.operands:
        address = _address(warp, operand)
        if address is None:
            continue
        is_shared = each.opcode in SHARED_ACCESS or (
            each.opcode == "LDGSTS" and not operand.startswith("desc")
        )
        if is_shared:
            made.append(_shared(each, address.lanes, lanes))
        else:
            made.append(_global(each, address.lanes[lanes]))
    return made


def _address(warp: Warp, operand: str) -> Word | None:
    """``desc[UR8][R18.64+0x100]`` or ``[R39+UR6+0x4000]``"""
    inside = ADDRESS.search(operand)
    if inside is None or operand.startswith("c["):
        return None
    total = _same(0)
    for part in inside[1].replace("+-", "+ -").split("+"):
        word = warp.read(re.sub(r"\.(64|U32|X4|X8|X16)$", "", part.strip()))
        if word is None:
            return None
        total = Word(total.lanes + word.lanes & MASK, total.from_size or word.from_size)
    return total


def _global(each: Instruction, addresses: Lanes) -> Access:
    size = each.bits // 8
    return Access(each, "global", size, _tuple(addresses), *sectors([addresses], size))


def sectors(addresses: Sequence[Sequence[int] | Lanes], size: int) -> tuple[int, int]:
    """Sectors of 32 bytes that accesses of this size touch, and those that the same bytes would fill."""
    touched = np.unique((np.array(addresses).ravel()[:, None] + np.arange(size)).ravel())
    return len(np.unique(touched // SECTOR)), max(1, -(-len(touched) // SECTOR))


def _tuple(addresses: Lanes) -> tuple[int, ...]:
    return tuple(addresses.tolist())


def _shared(each: Instruction, addresses: Lanes, active: np.ndarray) -> Access:
    """Passes over the 32 banks: lanes that want different words of one bank wait for one another."""
    if each.opcode in ("LDSM", "STSM"):  # eight lanes give the rows of one matrix, 16 bytes each
        matrices = next((int(m) for m in each.modifiers if m in ("2", "4")), 1)
        groups, size = [range(8 * i, 8 * i + 8) for i in range(matrices)], 16
    else:
        size = each.bits // 8
        lanes = min(WARP, BANKS * BANK // max(size, BANK))
        groups = [range(first, first + lanes) for first in range(0, WARP, lanes)]
    passes = least = 0
    for group in groups:
        own = [addresses[lane] for lane in group if active[lane]]
        if own:
            words = np.unique((np.array(own)[:, None] + np.arange(0, max(size, 1), min(size, BANK))) // BANK)
            passes += int(np.bincount(words % BANKS).max())
            least += 1
    return Access(each, "shared", size, _tuple(addresses[active]), passes, max(least, 1))


def _step(warp: Warp, each: Instruction, active: np.ndarray | None) -> None:
    """Carry out one instruction; what is not an integer operation forgets what it writes."""
    if not each.operands:
        return
    target = each.operands[0]
    opcode = each.opcode.removeprefix("U") if each.opcode != "UMOV" else "MOV"
    if opcode in ("ISETP",):
        _compare(warp, each)
        return
    if re.fullmatch(r"U?P\d", target):
        for name in each.operands[:2]:
            warp.predicates.pop(name, None)
        if opcode == "LOP3":
            warp.write(each.operands[1], None)
        return
    if not re.fullmatch(r"U?R\d+", target):
        return
    compute = OPERATIONS.get(opcode)
    if compute is None:
        _forget_result(warp, each, target)
        return
    for name in each.operands[1:3]:  # a carry, which nothing here needs
        if re.fullmatch(r"U?P\d", name):
            warp.predicates.pop(name, None)
    if HIGH_WORDS & set(each.modifiers):
        warp.write(target, _same(0))
        return
    sources = tuple(name for name in each.operands[1:] if not re.fullmatch(r"!?U?P(\d|T)", name))
    try:
        made = compute(warp, each, sources)
    except (IndexError, ValueError):  # operands in a form that is not known here
        made = None
    warp.write(target, made, active)
    if {"WIDE", "64"} & set(each.modifiers):
        kind, number = re.fullmatch(r"(U?R)(\d+)", target).groups()  # type: ignore[union-attr]
        warp.write(f"{kind}{int(number) + 1}", _same(0))


def _forget_result(warp: Warp, each: Instruction, target: str) -> None:
    is_store = each.opcode.startswith(("ST", "RED", "BAR", "CCTL"))
    if is_store:
        return
    count = WRITES.get(each.opcode, max(1, each.bits // 32))
    if each.opcode in ("HGMMA", "QGMMA", "IGMMA"):
        shape = re.search(r"x(\d+)x", each.name)
        count = int(shape[1]) // 2 if shape else 128
    warp.forget(target, count)
    if each.opcode == "CS2R":  # a pair of zeros
        for offset in range(2):
            warp.write(f"R{int(target[1:]) + offset}", _same(0))


def _compare(warp: Warp, each: Instruction) -> None:
    """``ISETP.LT.U32.AND P1, PT, R5, R6, PT``; with EX, the high words of a comparison of 64 bits."""
    name, _, left, right, *given = each.operands
    a, b = warp.read(left), warp.read(right)
    sign = next((COMPARE[m] for m in each.modifiers if m in COMPARE), None)
    both = warp.predicate(given[0]) if given else None
    if a is None or b is None or sign is None or both is None or "AND" not in each.modifiers:
        warp.predicates.pop(name, None)
        return
    x, y = (a.lanes, b.lanes) if "U32" in each.modifiers else (_signed(a.lanes), _signed(b.lanes))
    result = sign(x, y)
    if "EX" in each.modifiers:
        lower = warp.predicate(given[1]) if len(given) > 1 else None
        if lower is None:
            warp.predicates.pop(name, None)
            return
        result = np.where(x == y, lower, result)
    warp.predicates[name] = result & both


def _signed(lanes: Lanes) -> Lanes:
    return (lanes ^ 0x80000000) - 0x80000000


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
            return _same(0)
        return Word(low.lanes << by & MASK, taints)
    if "HI" in each.modifiers:
        kept = _signed(high.lanes) if "S32" in each.modifiers else high.lanes
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
        high = _signed(a.lanes) >> (32 - n)
    else:
        upper = words[2] if len(words) > 2 else _same(0)
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
    x, y = (w.lanes if "U32" in each.modifiers else _signed(w.lanes) for w in known)
    made = np.where(where, np.minimum(x, y), np.maximum(x, y)) & MASK
    return Word(made, any(word.from_size for word in known))


def _load_constant(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    return warp.read(sources[0])


def _special(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """The first warp of the first block."""
    if sources[0] in ("SR_TID.X", "SR_LANEID"):
        return Word(np.arange(WARP))
    is_place = sources[0].startswith(("SR_TID", "SR_CTAID", "SR_CgaCtaId"))
    return _same(0) if is_place or sources[0] == "SRZ" else None


def _half_pair(warp: Warp, each: Instruction, sources: Sequence[str]) -> Word | None:
    """A constant written as two halves, the way the compiler makes small integers on an idle unit."""
    if len(sources) < 4 or sources[0] not in ("-RZ", "RZ") or sources[1] != "RZ":
        return None
    try:
        halves = np.array([float(sources[3]), float(sources[2])], np.float16)
    except ValueError:
        return None
    return _same(int(halves.view(np.uint32)[0]))


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
    "IADD": _on(2, lambda a, b: a + b), "IABS": _on(1, lambda a: abs(_signed(a))),
    "POPC": _on(1, lambda a: np.array([int(x).bit_count() for x in a])),
    "IMAD": _multiply_add, "SHF": _shift, "LEA": _scaled_sum, "LOP3": _logic, "PRMT": _permute,
    "SGXT": _extend, "SEL": _choose, "VIMNMX": _least, "IMNMX": _least, "VIADDMNMX": _least,
    "LDC": _load_constant, "LDCU": _load_constant, "S2R": _special, "S2UR": _special, "HFMA2": _half_pair,
    "I2F": _on(1, _to_float), "F2I": _on(1, _from_float), "MUFU": _reciprocal,
}  # fmt: skip
