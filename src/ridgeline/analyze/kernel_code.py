"""The code of kernels as `ridge kernels --sass` and `--ptx` show it: line by line, with its source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from ridgeline.errors import DeviceError
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.kernels.triton.sass import disassemble, file_name, read_instructions
from ridgeline.kernels.triton.source import GENERATED, generated_text

PTX_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"')
PTX_LINE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
PTX_SECTION = re.compile(r"^\s*\.section\s+\.debug")
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class CodeLine:
    """One instruction. `source` is where it came from, "" where the compiler kept nothing."""

    text: str
    source: str  # gemm.py:55
    source_text: str  # that line, if it is one of ours


@dataclass(frozen=True)
class KernelCode:
    """All of one kernel."""

    name: str
    digest: str
    arch: str
    form: str  # sass or ptx
    lines: tuple[CodeLine, ...]


@dataclass(frozen=True)
class CodeReport:
    """The kernels that were asked for."""

    kernels: tuple[KernelCode, ...]


def sass_of(made: Compiled, digest: str) -> KernelCode:
    sass = disassemble(made.cubin)
    if sass is None:
        raise DeviceError(
            f"{made.name} cannot be disassembled here",
            got="Triton, which brings the disassembler, is not installed, or it refuses the kernel",
            help="pip install 'ridgeline[gpu]'",
        )
    lines = tuple(
        CodeLine(f"/*{each.address:04x}*/ {each.text}", each.source, _source_text(each.path, each.source))
        for each in read_instructions(sass, made.name)
    )
    return KernelCode(made.name, digest, made.arch, "sass", lines)


def ptx_of(text: str, name: str, digest: str, arch: str) -> KernelCode:
    return KernelCode(name, digest, arch, "ptx", tuple(_ptx_lines(text)))


def _ptx_lines(text: str) -> Iterator[CodeLine]:
    """Directives that name lines become the lines' sources; tables for debuggers are left out."""
    files = dict(map(_pair, filter(None, map(PTX_FILE.match, text.splitlines()))))
    path, source = "", ""
    for line in text.splitlines():
        if PTX_SECTION.match(line):
            return
        if place := PTX_LINE.match(line):
            path = files.get(place[1], "")
            source = f"{file_name(path)}:{place[2]}"
        elif line.strip() and not PTX_FILE.match(line) and not line.strip().startswith("//"):
            yield CodeLine(line.rstrip(), source, _source_text(path, source))


def _pair(found: re.Match[str]) -> tuple[str, str]:
    return found[1], found[2]


def _source_text(path: str, source: str) -> str:
    """Only lines of this package and of what it generated: the path may be anybody's."""
    number = source.rpartition(":")[2]
    lines = _lines(path) if number.isdigit() else ()
    return lines[int(number) - 1].strip() if 0 < int(number or 0) <= len(lines) else ""


@cache
def _lines(path: str) -> tuple[str, ...]:
    if PurePosixPath(path).name.startswith(GENERATED):
        return tuple((generated_text(PurePosixPath(path).stem) or "").splitlines())
    _, marker, inside = path.rpartition("/ridgeline/")
    file = PACKAGE / inside
    if not marker or ".." in inside.split("/") or file.suffix != ".py" or not file.is_file():
        return ()
    return tuple(file.read_text(encoding="utf-8").splitlines())
