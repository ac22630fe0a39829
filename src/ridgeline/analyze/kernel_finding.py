"""What is found in the machine code of a kernel: the values alone, which are read without numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ridgeline.kernels.triton.sass import Instruction


@dataclass(frozen=True)
class KernelFinding:
    """`slow` costs time wherever it is; a `note` may be right for this kernel."""

    name: str
    severity: Literal["slow", "note"]
    what: str
    evidence: tuple[str, ...]  # instructions with their source lines
    count: int  # of all such instructions


@dataclass(frozen=True)
class KernelFindings:
    """All of one kernel, and of how many accesses the addresses could be computed."""

    found: tuple[KernelFinding, ...]
    accesses: int
    accesses_known: int


class Examine(Protocol):
    """`kernel_findings.examine_code`; who calls for it imports numpy."""

    def __call__(
        self, code: Sequence[Instruction], *, arch: str, types: Sequence[str], ops: Sequence[str]
    ) -> KernelFindings: ...
