"""The machine code of a kernel, instruction by instruction, with the source line that each came from.

The disassembler comes with Triton. Without it, only the facts that are stored with a kernel are known.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ridgeline.base.architectures import architecture_of
from ridgeline.kernels.triton.source import GENERATED

DISASSEMBLE_S = 60.0
# faster instructions first
TENSOR_CORES = ("UTCHMMA", "UTCQMMA", "HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA", "DMMA")
# an instruction line: the address in a comment, an optional predicate, then opcode, modifiers and operands
INSTRUCTION = re.compile(
    r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)\s*([^;]*);"
)
LABEL = re.compile(r"^(\.L_\w+):")
LINE = re.compile(r'//## File "(.*)", line (\d+)')
TARGET = re.compile(r"\(\s*(\.L_\w+)\s*\)|\b0x([0-9a-f]+)\b")
WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
PLAIN_WIDTH = 32
LOADS = frozenset({"LDG", "LDGSTS"})
BULK_LOADS = frozenset({"UTMALDG", "UBLKCP"})
NOTHING = "NOP"


@dataclass(frozen=True)
class Instruction:
    """One line of machine code. `source` is the file's name and the line, "" where the compiler kept none."""

    address: int
    predicate: str  # such as !P0; "" where it always runs
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    source: str = ""
    path: str = ""  # of the source file, as it was where the kernel was compiled
    target: int | None = None  # of a branch

    @property
    def name(self) -> str:
        """``LDG.E.128``"""
        return ".".join((self.opcode, *self.modifiers))

    @property
    def bits(self) -> int:
        """That a thread moves, for an instruction that accesses memory."""
        if self.opcode in ("LDSM", "STSM"):  # a word of each matrix
            return PLAIN_WIDTH * next((int(each) for each in self.modifiers if each in ("2", "4")), 1)
        return max((WIDTHS[each] for each in self.modifiers if each in WIDTHS), default=PLAIN_WIDTH)

    @property
    def text(self) -> str:
        predicate = f"@{self.predicate} " if self.predicate else ""
        return f"{predicate}{self.name} {', '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class Evidence:
    """Facts read from the disassembly of one kernel."""

    instructions: int
    tensor_core: str  # such as HGMMA; "" for none
    load: str  # the widest load from global memory, as an instruction
    store: str
    load_bits: int
    store_bits: int
    local: int  # loads and stores of local memory: spilled registers, or arrays indexed at run time


def tool(name: str) -> Path:
    """Where a binary tool that comes with Triton lies, found without importing Triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("Triton is not installed")
    return Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name


def run_tool(name: str, cubin: bytes, *options: str) -> subprocess.CompletedProcess[str]:
    """What a tool prints about one kernel; `OSError` where there is no such tool."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool(name)), *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, timeout=DISASSEMBLE_S, check=False)


def resource_usage(cubin: bytes, function: str = "") -> tuple[int, int]:
    """Registers per thread, and bytes of local memory (stack) per thread, of a kernel."""
    found = _resources(cubin, function)
    return found.get("REG", 0), max(found.get("STACK", 0), found.get("LOCAL", 0))


def static_shared(cubin: bytes, arch: str, function: str = "") -> int:
    """Bytes of shared memory that the code itself declares; the rest is asked for at a launch."""
    stated = _resources(cubin, function).get("SHARED", 0)
    if int(arch.removeprefix("sm_")) < 90:
        return stated
    # from sm_90 on the figure holds what the system reserves, for kernels that declare any
    return max(0, stated - architecture_of(arch).reserved_bytes)


def _resources(cubin: bytes, function: str) -> dict[str, int]:
    """Code may hold several functions; without a name, the last of them."""
    shown = run_tool("cuobjdump", cubin, "--dump-resource-usage").stdout
    of_function = (
        shown.partition(f" Function {function}:")[2].partition(" Function ")[0] if function else shown
    )
    return {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", of_function)}


def disassemble(cubin: bytes) -> str | None:
    """SASS as text with source lines; None if there is no disassembler, or if it refuses the kernel."""
    try:
        shown = run_tool("nvdisasm", cubin, "--print-code", "--print-line-info")
    except (OSError, subprocess.SubprocessError):
        return None
    return None if shown.returncode else shown.stdout


def read_instructions(sass: str, function: str = "") -> tuple[Instruction, ...]:
    """In the order of their addresses; padding is left out. Without a function's name, of all of them."""
    if function:
        # sections of code are named after their function, and end at the next heading
        sass = sass.partition(f"\n.text.{function}:\n")[2].partition("\n//----")[0]
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []  # labels of the next instruction
    source, path = "", ""
    for line in sass.splitlines():
        if label := LABEL.match(line.strip()):
            waiting.append(label[1])
        elif place := LINE.search(line):
            path, source = place[1], f"{file_name(place[1])}:{place[2]}"
        elif parts := INSTRUCTION.search(line):
            address = int(parts[1], 16)
            labels |= dict.fromkeys(waiting, address)
            waiting.clear()
            operands = tuple(each.strip() for each in parts[5].split(",") if each.strip())
            modifiers = tuple(parts[4].split(".")[1:])
            found.append(Instruction(address, parts[2] or "", parts[3], modifiers, operands, source, path))
    return tuple(_with_target(each, labels) for each in found if each.opcode != NOTHING)


def file_name(path: str) -> str:
    """The last part; names of generated modules are long and say nothing."""
    name = PurePosixPath(path).name
    return "generated.py" if name.startswith(GENERATED) else name


def read_evidence(code: Sequence[Instruction]) -> Evidence:
    opcodes = [each.opcode for each in code]
    loads = [(each.bits, each.name) for each in code if each.opcode in LOADS]
    bulk = [op for op in opcodes if op in BULK_LOADS]
    stores = [(each.bits, each.name) for each in code if each.opcode == "STG"]
    widest_load = max(loads, default=(0, bulk[0] if bulk else ""))
    widest_store = max(stores, default=(0, ""))
    return Evidence(
        instructions=len(code),
        tensor_core=next((name for name in TENSOR_CORES if name in opcodes), ""),
        load=widest_load[1],
        store=widest_store[1],
        load_bits=widest_load[0],
        store_bits=widest_store[0],
        local=sum(op in ("LDL", "STL") for op in opcodes),
    )


def _with_target(each: Instruction, labels: dict[str, int]) -> Instruction:
    if each.opcode != "BRA":
        return each
    found = TARGET.search(each.operands[-1] if each.operands else "")
    if found is None:
        return each
    target = labels.get(found[1]) if found[1] else int(found[2], 16)
    return Instruction(**{**vars(each), "target": target})
