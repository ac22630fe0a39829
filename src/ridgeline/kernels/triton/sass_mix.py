"""What the instructions of a kernel do, counted by kind; and where its loops are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.kernels.triton.sass import TENSOR_CORES, Instruction

GLOBAL = frozenset(
    {"LDG", "STG", "LDGSTS", "ATOM", "ATOMG", "RED", "REDG", "UTMALDG", "UTMASTG", "UBLKCP", "LD", "ST"}
)
SHARED = frozenset({"LDS", "STS", "LDSM", "STSM", "ATOMS"})
LOCAL = frozenset({"LDL", "STL"})
MOVES = frozenset(
    {
        "MOV",
        "PRMT",
        "SEL",
        "SHFL",
        "MOVM",
        "R2UR",
        "CS2R",
        "S2R",
        "S2UR",
        "P2R",
        "R2P",
        "UMOV",
        "USEL",
        "UPRMT",
    }
)
FLOATS = ("FADD", "FMUL", "FFMA", "FMNMX", "FSET", "FSETP", "FSEL", "FCHK", "FSWZADD", "MUFU")
HALVES = ("HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSET2", "HSETP2")
DOUBLES = ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX")
CONVERSIONS = ("F2F", "F2FP", "F2I", "F2IP", "I2F", "I2FP", "I2I", "I2IP", "FRND")
CONTROL = (
    "BRA", "EXIT", "BSSY", "BSYNC", "BREAK", "WARPSYNC", "CALL", "RET", "BAR", "DEPBAR", "LDGDEPBAR",
    "MEMBAR", "NANOSLEEP", "YIELD", "BRX", "JMP", "KILL", "ACQBULK", "PREEXIT", "WARPGROUP", "SYNCS",
    "ERRBAR", "CCTL", "ELECT", "ENDCOLLECTIVE", "BPT", "UCGABAR_ARV", "UCGABAR_WAIT", "ARRIVES", "FENCE",
    "WARPGROUPSET",
)  # fmt: skip
CONSTANTS = frozenset({"LDC", "ULDC"})


@dataclass(frozen=True)
class Mix:
    """How many instructions there are of each kind, once each however often they run."""

    total: int
    tensor_core: int
    fp32: int  # special functions as well
    fp16: int
    fp64: int
    conversion: int
    integer: int  # addresses, mostly, and comparisons
    move: int  # between registers and lanes
    global_memory: int
    shared_memory: int
    local_memory: int
    constant: int
    control: int

    @property
    def move_share(self) -> float:
        return self.move / self.total if self.total else 0.0


@dataclass(frozen=True)
class Loop:
    """Addresses of the first and the last instruction."""

    first: int
    last: int

    def holds(self, each: Instruction) -> bool:
        return self.first <= each.address <= self.last


def count(code: Sequence[Instruction]) -> Mix:
    kinds = Counter(kind_of(each) for each in code)
    names = [name for name in Mix.__dataclass_fields__ if name != "total"]
    return Mix(total=len(code), **{name: kinds[name] for name in names})


def kind_of(each: Instruction) -> str:
    """The field of `Mix` that counts it."""
    opcode = each.opcode
    if opcode in TENSOR_CORES:
        return "tensor_core"
    for kind, opcodes in (
        ("global_memory", GLOBAL), ("shared_memory", SHARED), ("local_memory", LOCAL), ("constant", CONSTANTS)
    ):  # fmt: skip
        if opcode in opcodes:
            return kind
    if opcode in MOVES or _only_moves(each):
        return "move"
    for kind, family in (("fp32", FLOATS), ("fp16", HALVES), ("fp64", DOUBLES), ("conversion", CONVERSIONS)):
        if opcode in family:
            return kind
    return "control" if opcode in CONTROL else "integer"


def _only_moves(each: Instruction) -> bool:
    """Arithmetic that copies a register or a constant: the compiler spreads copies over all units."""
    if each.opcode in ("IMAD", "UIMAD"):
        return "MOV" in each.modifiers and not each.operands[-1].startswith("-")
    return each.opcode == "HFMA2" and each.operands[1:3] in (("-RZ", "RZ"), ("RZ", "RZ"))


def inner_loops(code: Sequence[Instruction]) -> tuple[Loop, ...]:
    """Loops that hold no other: from the target of a branch backwards to the branch."""
    loops = {
        Loop(each.target, each.address)
        for each in code
        # the branch to itself behind the end of a kernel is no loop
        if each.target is not None and each.target < each.address
    }
    return tuple(
        sorted(
            (a for a in loops if not any(b != a and a.first <= b.first and b.last <= a.last for b in loops)),
            key=lambda loop: loop.first,
        )
    )


def in_loops(code: Sequence[Instruction], loops: Sequence[Loop]) -> tuple[Instruction, ...]:
    return tuple(each for each in code if any(loop.holds(each) for loop in loops))
