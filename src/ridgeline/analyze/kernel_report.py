"""Rows about the GPU kernels of an engine: what each takes of a processor, and what its code shows.

Needs no GPU. Facts come from the compiler; evidence from the disassembly, where Triton is installed.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.analyze.kernel_finding import Examine, KernelFinding, KernelFindings
from ridgeline.analyze.kernel_occupancy import occupancy
from ridgeline.base.grouping import grouped
from ridgeline.errors import OptionError, PlanError, did_you_mean
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.kernels.triton.sass import Evidence, Instruction, disassemble, read_evidence, read_instructions
from ridgeline.kernels.triton.sass_mix import GLOBAL, SHARED, Mix, count, in_loops, inner_loops
from ridgeline.plan.plan import Plan

NOTHING_FOUND = KernelFindings((), 0, 0)
DIGEST_LETTERS = 6  # of a digest are enough to name a kernel


@dataclass(frozen=True)
class KernelRow:
    """One kernel; `steps` counts from 1. What the code shows is null without a disassembler."""

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
    limits: dict[str, int]  # resource: blocks that it allows
    cubin_bytes: int
    triton: str  # "" for a kernel in CUDA C++
    evidence: Evidence | None
    mix: Mix | None  # of all instructions
    loop_mix: Mix | None  # of those in the innermost loops
    widths: dict[str, int] | None  # "LDG 128": how many instructions access memory so
    findings: tuple[KernelFinding, ...]
    accesses: int  # instructions that access global or shared memory
    accesses_known: int  # of those, how many have addresses that could be computed


@dataclass(frozen=True)
class KernelReport:
    """All rows, in the order of the steps."""

    model: str
    target: str
    kernels: tuple[KernelRow, ...]
    library_steps: int  # steps without a kernel of ours
    note: str


@dataclass(frozen=True)
class StepKernel:
    """A kernel and the steps that launch it, counted from 1."""

    digest: str
    steps: tuple[int, ...]
    made: Compiled


def report_kernels(
    plan: Plan, compiled: Mapping[str, Compiled], *, pattern: str = "", examine: Examine | None = None
) -> KernelReport:
    """What `ridge kernels` shows. `compiled` holds the kernels of the plan's steps, by digest.

    Those of plugins in CUDA C++ are there by the number of their step. With `examine` every kernel is
    disassembled, and its code is looked at.
    """
    found = find_kernels(plan, compiled, pattern)
    rows = tuple(_row(kernel, plan, examine) for kernel in found)
    lacks_tool = examine is not None and any(row.evidence is None for row in rows)
    with_kernel = {n for kernel in find_kernels(plan, compiled) for n in kernel.steps}
    return KernelReport(
        model=plan.model,
        target=str(plan.target),
        kernels=rows,
        library_steps=len(plan.steps) - len(with_kernel),
        note="no disassembler: it comes with Triton (pip install 'ridgeline[gpu]')" if lacks_tool else "",
    )


def find_kernels(plan: Plan, compiled: Mapping[str, Compiled], pattern: str = "") -> list[StepKernel]:
    """Those of the plan that a name, a pattern such as ``gemm*``, a digest or the number of a step names."""
    if not plan.target.traits.is_gpu:
        raise OptionError(
            f"{plan.model or 'this engine'} is for {plan.target} and has no GPU kernels",
            help="ridge build MODEL.onnx --target cuda:sm_90 makes one that has, on any machine",
        )
    pairs = [
        (digest, n) for n, step in enumerate(plan.steps, start=1) for digest in _digests(step, n, compiled)
    ]
    steps = grouped(pairs)
    missing = [digest for digest in steps if digest not in compiled]
    if missing:
        raise PlanError(
            f"{len(missing)} of {len(steps)} kernels are neither in the file nor made by this version",
            rows=missing,
            help="build the engine again: ridge build MODEL.onnx",
        )
    every = [StepKernel(digest, tuple(numbers), compiled[digest]) for digest, numbers in steps.items()]
    found = [kernel for kernel in every if _is_named(kernel, pattern)]
    if pattern and not found:
        names = sorted({kernel.made.name for kernel in every})
        raise OptionError(
            f"no kernel of this engine is named {pattern!r}",
            want="a name, a pattern, the beginning of a digest, or the number of a step",
            help=did_you_mean(pattern, names),
        )
    return found


def _digests(step: Any, number: int, compiled: Mapping[str, Compiled]) -> Sequence[str]:
    own = step_key(number)
    return (*step.kernels, own) if own in compiled else step.kernels


def step_key(number: int) -> str:
    """Stands for the digest of a kernel that its step alone knows."""
    return f"step-{number}"


def _is_named(kernel: StepKernel, pattern: str) -> bool:
    if not pattern:
        return True
    if pattern.isdigit() and int(pattern) in kernel.steps:
        return True
    is_digest = len(pattern) >= DIGEST_LETTERS and kernel.digest.startswith(pattern)
    return is_digest or fnmatch.fnmatchcase(kernel.made.name, pattern)


@dataclass(frozen=True)
class _Shown:
    """What the disassembly shows."""

    evidence: Evidence | None = None
    mix: Mix | None = None
    loop_mix: Mix | None = None
    widths: dict[str, int] | None = None
    findings: KernelFindings = NOTHING_FOUND


def _row(kernel: StepKernel, plan: Plan, examine: Examine | None) -> KernelRow:
    made, step = kernel.made, plan.steps[kernel.steps[0] - 1]
    held = occupancy(made)
    shown = _Shown() if examine is None else _look(made, tuple(step.op_types), examine)
    return KernelRow(
        name=made.name,
        digest=kernel.digest,
        tactic=step.tactic,
        steps=kernel.steps,
        ops=" ".join(step.op_types),
        arch=made.arch,
        registers=made.registers,
        spilled_bytes=made.spills,
        shared_bytes=made.shared,
        warps=made.num_warps,
        blocks_per_sm=held.blocks,
        occupancy=held.share,
        limited_by=held.limited_by,
        limits=held.limits,
        cubin_bytes=len(made.cubin),
        triton=made.triton,
        evidence=shown.evidence,
        mix=shown.mix,
        loop_mix=shown.loop_mix,
        widths=shown.widths,
        findings=shown.findings.found,
        accesses=shown.findings.accesses,
        accesses_known=shown.findings.accesses_known,
    )


def _look(made: Compiled, ops: tuple[str, ...], examine: Examine) -> _Shown:
    sass = disassemble(made.cubin)
    if sass is None:
        return _Shown()
    code = read_instructions(sass, made.name)
    inside = in_loops(code, inner_loops(code))
    return _Shown(
        evidence=read_evidence(code),
        mix=count(code),
        loop_mix=count(inside) if inside else None,
        widths=_widths(code),
        findings=examine(code, arch=made.arch, types=made.types, ops=ops),
    )


def _widths(code: Sequence[Instruction]) -> dict[str, int]:
    plain = [each for each in code if each.opcode in GLOBAL | SHARED and each.predicate != "!PT"]
    return dict(sorted(Counter(f"{each.opcode} {each.bits}" for each in plain).items()))
