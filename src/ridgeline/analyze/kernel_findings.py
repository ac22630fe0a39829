"""What the machine code of a kernel does that costs time, each with the instructions that show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ridgeline.analyze.kernel_finding import KernelFinding, KernelFindings
from ridgeline.base.architectures import architecture_of
from ridgeline.kernels.triton.sass import Instruction
from ridgeline.kernels.triton.sass_lanes import Access, accesses, sectors
from ridgeline.kernels.triton.sass_mix import count, in_loops, inner_loops

SHOWN = 4
NARROW_BITS, WIDE_BITS = 16, 128
WARP = 32
# transactions of a warp against the least that would do
WASTEFUL = 2.0
WORTH_NAMING = 4  # sectors more than needed
MOVE_SHARE, ENOUGH_CODE = 0.3, 64
ENOUGH_PRODUCTS = 32  # mma instructions of a kernel: fewer are of tiles too small for a warpgroup
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Attention", "MatMulInteger", "ConvInteger"})
ACCESSING = frozenset({"LDG", "STG", "LDGSTS", "LDS", "STS", "LDSM", "STSM"})
# tensor-core instructions of whole warpgroups, which these processors are built for
WARPGROUP = {"wgmma": "HGMMA", "tcgen05": "UTCHMMA"}


def examine_code(
    code: Sequence[Instruction], *, arch: str, types: Sequence[str], ops: Sequence[str]
) -> KernelFindings:
    """`types` are those of the kernel's arguments, `ops` the ONNX ops that it computes."""
    known = accesses(code, arch=arch, types=types)
    hot = in_loops(code, inner_loops(code))
    found = [
        *_local(code), *_narrow(code, hot), *_scalar(hot), *_scattered(known), *_conflicts(known),
        *_narrow_shared(hot), *_moves(code, hot), *_tensor_cores(code, arch, ops),
    ]  # fmt: skip
    memory = [each for each in code if each.opcode in ACCESSING and each.predicate != "!PT"]
    seen = {access.instruction.address for access in known}
    return KernelFindings(tuple(found), len(memory), len(seen))


def line_of(each: Instruction) -> str:
    """``gemm.py:55  /*0a00*/ LDG.E.128 R4, desc[UR6][R4.64]``"""
    return f"{each.source or 'no line'}  /*{each.address:04x}*/ {each.text}"


def _make(
    name: str, severity: Literal["slow", "note"], what: str, shown: Sequence[Instruction]
) -> KernelFinding:
    return KernelFinding(name, severity, what, tuple(map(line_of, shown[:SHOWN])), len(shown))


def _local(code: Sequence[Instruction]) -> Iterator[KernelFinding]:
    shown = [each for each in code if each.opcode in ("LDL", "STL")]
    if shown:
        what = (
            "registers are spilled to local memory, or an array there is indexed at run time: use fewer warps"
        )
        yield _make("local memory", "slow", f"{what}, smaller tiles, or a higher limit of registers", shown)


def _narrow(code: Sequence[Instruction], hot: Sequence[Instruction]) -> Iterator[KernelFinding]:
    """Judged where the bulk of the work is: in loops, if there are accesses there."""
    for opcode, word in (("LDG", "loads"), ("STG", "stores")):
        inside = [each for each in hot if each.opcode == opcode]
        looked_at = inside or [each for each in code if each.opcode == opcode]
        narrow = [each for each in looked_at if each.bits <= NARROW_BITS]
        if 2 * len(narrow) > len(looked_at):
            size = max(each.bits for each in narrow) // 8
            what = f"{len(narrow)} of {len(looked_at)} {word} move {size} bytes a thread: a warp asks for"
            what += f" {WARP * size} bytes, where one instruction moves {WARP * WIDE_BITS // 8}"
            yield _make(f"narrow {word}", "slow", what, narrow)


def _scalar(hot: Sequence[Instruction]) -> Iterator[KernelFinding]:
    loads = [each for each in hot if each.opcode in ("LDG", "LDGSTS")]
    if loads and all(NARROW_BITS < each.bits < 64 for each in loads):
        what = "every load in the inner loop moves 4 bytes a thread, a quarter of what one instruction can"
        yield _make("scalar loads in a loop", "note", what, loads)


def _scattered(known: Sequence[Access]) -> Iterator[KernelFinding]:
    """Loads and stores of one pattern are taken together: what one leaves of a sector, the next may use."""
    alike: dict[tuple[str, int, tuple[int, ...]], list[Access]] = {}
    for each in known:
        if each.space == "global" and each.excess >= WASTEFUL:
            pattern = tuple(address - each.addresses[0] for address in each.addresses)
            alike.setdefault((each.instruction.opcode, each.lane_bytes, pattern), []).append(each)
    found = []
    for (_, size, _), group in alike.items():
        touched, least = sectors([each.addresses for each in group], size)
        if touched >= WASTEFUL * least and touched - least >= WORTH_NAMING:
            found.append((touched / least, touched, least, group))
    if found:
        found.sort(key=lambda row: -row[0])
        _, touched, least, _ = found[0]
        what = (
            f"the lanes of a warp touch {touched} sectors of 32 bytes where {least} would hold what they move"
        )
        yield _make("not coalesced", "slow", what, [each.instruction for row in found for each in row[3]])


def _conflicts(known: Sequence[Access]) -> Iterator[KernelFinding]:
    shown = [each for each in known if each.space == "shared" and each.excess >= WASTEFUL]
    if shown:
        shown.sort(key=lambda each: -each.excess)
        what = f"lanes want different words of one bank: {shown[0].transactions} passes over shared memory"
        what += f" instead of {shown[0].least}"
        yield _make("bank conflicts", "slow", what, [each.instruction for each in shown])


def _narrow_shared(hot: Sequence[Instruction]) -> Iterator[KernelFinding]:
    shown = [each for each in hot if each.opcode in ("LDS", "STS")]
    narrow = [each for each in shown if each.bits <= NARROW_BITS]
    if 2 * len(narrow) > len(shown):
        what = (
            "most accesses of shared memory in the inner loop move 2 bytes or fewer; a bank is 4 bytes wide"
        )
        yield _make("narrow shared accesses", "note", what, narrow)


def _moves(code: Sequence[Instruction], hot: Sequence[Instruction]) -> Iterator[KernelFinding]:
    looked_at = hot or code
    mix = count(looked_at)
    if mix.total >= ENOUGH_CODE and mix.move_share > MOVE_SHARE:
        where = "the inner loop" if hot else "the kernel"
        what = f"{mix.move_share * 100:.0f} % of {where} moves values between registers and lanes"
        moving = [each for each in looked_at if count([each]).move]
        yield _make("many moves", "note", what, moving)


def _tensor_cores(code: Sequence[Instruction], arch: str, ops: Sequence[str]) -> Iterator[KernelFinding]:
    plain = [each for each in code if each.opcode in ("HMMA", "IMMA", "QMMA")]
    fast = WARPGROUP.get(architecture_of(arch).multiplier)
    if len(plain) >= ENOUGH_PRODUCTS and fast is not None:
        what = f"mma, and not the {fast} of whole warpgroups: tiles of 64 rows and more run faster with it"
        yield _make("mma on a warpgroup machine", "note", what, plain)
    if not count(code).tensor_core and PRODUCTS & set(ops):
        what = f"computes {', '.join(sorted(PRODUCTS & set(ops)))} without tensor cores"
        yield _make("no tensor cores", "note", what, [each for each in code if each.opcode == "FFMA"])
