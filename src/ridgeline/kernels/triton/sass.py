"""What the machine code of a kernel shows: tensor-core instructions, width of memory accesses, local memory.

The disassembler comes with Triton. Without it, only the facts that are stored with a kernel are known.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

DISASSEMBLE_S = 60.0
# faster instructions first
TENSOR_CORES = ("UTCHMMA", "UTCQMMA", "HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA", "DMMA")
# an instruction line: the address in a comment, an optional predicate, then opcode and modifiers
INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)", re.M
)
WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
PLAIN_WIDTH = 32
LOADS = frozenset({"LDG", "LDGSTS"})
BULK_LOADS = frozenset({"UTMALDG", "UBLKCP"})


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


def cuobjdump(cubin: bytes, option: str) -> subprocess.CompletedProcess[str]:
    """What the tool prints about one kernel; `OSError` where there is no such tool."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool("cuobjdump")), option, file.name]
        return subprocess.run(command, capture_output=True, text=True, timeout=DISASSEMBLE_S, check=False)


def disassemble(cubin: bytes) -> str | None:
    """SASS as text; None if there is no disassembler, or if it refuses the kernel."""
    try:
        shown = cuobjdump(cubin, "-sass")
    except (OSError, subprocess.SubprocessError):
        return None
    return None if shown.returncode else shown.stdout


def read_evidence(sass: str) -> Evidence:
    found = [(opcode, tuple(rest.split(".")[1:])) for opcode, rest in INSTRUCTION.findall(sass)]
    opcodes = [opcode for opcode, _ in found]
    loads = [(_width(mods), ".".join((op, *mods))) for op, mods in found if op in LOADS]
    bulk = [op for op in opcodes if op in BULK_LOADS]
    stores = [(_width(mods), ".".join((op, *mods))) for op, mods in found if op == "STG"]
    widest_load = max(loads, default=(0, bulk[0] if bulk else ""))
    widest_store = max(stores, default=(0, ""))
    return Evidence(
        instructions=len(found),
        tensor_core=next((name for name in TENSOR_CORES if name in opcodes), ""),
        load=widest_load[1],
        store=widest_store[1],
        load_bits=widest_load[0],
        store_bits=widest_store[0],
        local=sum(op in ("LDL", "STL") for op in opcodes),
    )


def _width(modifiers: tuple[str, ...]) -> int:
    return max((WIDTHS[m] for m in modifiers if m in WIDTHS), default=PLAIN_WIDTH)
