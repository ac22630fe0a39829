"""Rows about the GPU kernels of an engine: what each takes of a processor, and what its code shows.

Needs no GPU. Facts come from the compiler; evidence from the disassembly, where Triton is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.base.devices import REGISTERS, device_of
from ridgeline.base.grouping import grouped
from ridgeline.errors import OptionError, PlanError
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.kernels.triton.sass import Evidence, disassemble, read_evidence
from ridgeline.plan.plan import Plan, Step

REGISTER_UNIT = 8  # registers are allocated in multiples of this
RESERVED_SHARED = 1024  # bytes of shared memory that the system takes from each block
MAX_BLOCKS = 32
# warps that one processor holds; others hold 64
MAX_WARPS = {"sm_86": 48, "sm_89": 48, "sm_120": 48}


@dataclass(frozen=True)
class KernelRow:
    """One kernel; `steps` counts from 1. Evidence is None without a disassembler."""

    name: str
    digest: str
    tactic: str
    steps: tuple[int, ...]
    ops: str
    arch: str
    registers: int
    spilled_bytes: int  # of local memory, per thread
    shared_bytes: int
    warps: int
    blocks_per_sm: int
    occupancy: float  # share of the warps that a processor can hold
    limited_by: str
    cubin_bytes: int
    triton: str
    evidence: Evidence | None


@dataclass(frozen=True)
class KernelReport:
    """All rows, in the order of the steps."""

    model: str
    target: str
    kernels: tuple[KernelRow, ...]
    library_steps: int  # steps without a kernel of ours
    note: str


def report_kernels(
    plan: Plan, compiled: Mapping[str, Compiled], *, with_evidence: bool = True
) -> KernelReport:
    """What `ridge kernels` shows. `compiled` holds the kernels of the plan's steps, by digest.

    Evidence takes a run of the disassembler for each kernel.
    """
    if not plan.target.traits.is_gpu:
        raise OptionError(
            f"{plan.model or 'this engine'} is for {plan.target} and has no GPU kernels",
            help="ridge build MODEL.onnx --target cuda:sm_90 makes one that has, on any machine",
        )
    steps = grouped((digest, n) for n, step in enumerate(plan.steps, start=1) for digest in step.kernels)
    missing = [digest for digest in steps if digest not in compiled]
    if missing:
        raise PlanError(
            f"{len(missing)} of {len(steps)} kernels are neither in the file nor made by this version",
            rows=missing,
            help="build the engine again: ridge build MODEL.onnx",
        )
    rows = tuple(
        _row(digest, numbers, plan.steps[numbers[0] - 1], compiled[digest], with_evidence=with_evidence)
        for digest, numbers in steps.items()
    )
    lacks_tool = with_evidence and any(row.evidence is None for row in rows)
    return KernelReport(
        model=plan.model,
        target=str(plan.target),
        kernels=rows,
        library_steps=sum(not step.kernels for step in plan.steps),
        note="no disassembler: it comes with Triton (pip install 'ridgeline[gpu]')" if lacks_tool else "",
    )


def _row(digest: str, numbers: list[int], step: Step, made: Compiled, *, with_evidence: bool) -> KernelRow:
    sass = disassemble(made.cubin) if with_evidence else None
    blocks, limit = blocks_per_sm(made)
    most_warps = MAX_WARPS.get(made.arch, 64)
    return KernelRow(
        name=made.name,
        digest=digest,
        tactic=step.tactic,
        steps=tuple(numbers),
        ops=" ".join(step.op_types),
        arch=made.arch,
        registers=made.registers,
        spilled_bytes=made.spills,
        shared_bytes=made.shared,
        warps=made.num_warps,
        blocks_per_sm=blocks,
        occupancy=min(1.0, blocks * made.num_warps / most_warps),
        limited_by=limit,
        cubin_bytes=len(made.cubin),
        triton=made.triton,
        evidence=read_evidence(sass) if sass is not None else None,
    )


def blocks_per_sm(made: Compiled) -> tuple[int, str]:
    """How many blocks one processor holds at a time, and the resource that limits them."""
    # the file may state anything about its kernels
    registers = -(-max(made.registers, 1) // REGISTER_UNIT) * REGISTER_UNIT
    warps, own_shared = max(made.num_warps, 1), max(made.shared, 0)
    # a block may use all shared memory of a processor except the reserved bytes
    shared = device_of(made.arch).shared_bytes + RESERVED_SHARED
    limits = {
        "registers": REGISTERS // (registers * 32 * warps),
        "shared memory": shared // (own_shared + RESERVED_SHARED),
        "warps": MAX_WARPS.get(made.arch, 64) // warps,
        "blocks": MAX_BLOCKS,
    }
    least = min(limits, key=lambda name: limits[name])
    return limits[least], least
