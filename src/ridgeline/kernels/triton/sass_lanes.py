"""Where the 32 lanes of a warp read and write, found by computing the addresses of the first warp.

The integer instructions of a kernel are carried out for the first warp of the first block, in the order of
their addresses, each once. Pointers get round addresses, sizes that are arguments a large number. What
depends on data, or on the product of a lane and an argument, is not known, nor are the addresses made of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.kernels.triton.sass import Instruction
from ridgeline.kernels.triton.sass_operations import OPERATIONS
from ridgeline.kernels.triton.sass_warp import MASK, WARP, Lanes, Warp, Word, same, signed

LARGE = 1 << 20  # of every size that is an argument
POINTER_LOW = 1 << 28  # the low word of every pointer: only it matters for where lanes lie to one another
# where the arguments of a kernel begin in the constant bank
FIRST_ARGUMENT = {
    "sm_7": 0x160,
    "sm_8": 0x160,
    "sm_90": 0x210,
    "sm_10": 0x380,
    "sm_11": 0x380,
    "sm_12": 0x380,
}
BYTES = {"i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "fp64": 8, "i64": 8, "u64": 8}
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
            placed[at] = same(POINTER_LOW)
        elif is_size:
            placed[at] = Word(same(LARGE).lanes, from_size=True)
        if size == 8:
            placed[at + 4] = same(0)
        at += size
    return placed


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
    total = same(0)
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
        warp.write(target, same(0))
        return
    sources = tuple(name for name in each.operands[1:] if not re.fullmatch(r"!?U?P(\d|T)", name))
    try:
        made = compute(warp, each, sources)
    except (IndexError, ValueError):  # operands in a form that is not known here
        made = None
    warp.write(target, made, active)
    if {"WIDE", "64"} & set(each.modifiers):
        kind, number = re.fullmatch(r"(U?R)(\d+)", target).groups()  # type: ignore[union-attr]
        warp.write(f"{kind}{int(number) + 1}", same(0))


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
            warp.write(f"R{int(target[1:]) + offset}", same(0))


def _compare(warp: Warp, each: Instruction) -> None:
    """``ISETP.LT.U32.AND P1, PT, R5, R6, PT``; with EX, the high words of a comparison of 64 bits."""
    name, _, left, right, *given = each.operands
    a, b = warp.read(left), warp.read(right)
    sign = next((COMPARE[m] for m in each.modifiers if m in COMPARE), None)
    both = warp.predicate(given[0]) if given else None
    if a is None or b is None or sign is None or both is None or "AND" not in each.modifiers:
        warp.predicates.pop(name, None)
        return
    x, y = (a.lanes, b.lanes) if "U32" in each.modifiers else (signed(a.lanes), signed(b.lanes))
    result = sign(x, y)
    if "EX" in each.modifiers:
        lower = warp.predicate(given[1]) if len(given) > 1 else None
        if lower is None:
            warp.predicates.pop(name, None)
            return
        result = np.where(x == y, lower, result)
    warp.predicates[name] = result & both
