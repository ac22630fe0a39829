"""A process that compiles kernels: it reads an architecture and a description from stdin, and answers machine
code or a message."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ridgeline.base.architectures import TENSOR_MEMORY_COLUMNS
from ridgeline.base.spec import Target
from ridgeline.kernels.triton.compiler import Compiled, receive, send
from ridgeline.kernels.triton.sass import resource_usage
from ridgeline.kernels.triton.source import Kernel, constants_of, function_of, triton_version

ALIGNED = [["tt.divisibility", 16]]


def lower_here(kernel: Kernel, arch: str) -> Any:
    """Triton's own result, compiled in this process: every form of the kernel down to machine code."""
    source = ASTSource(
        fn=function_of(kernel),
        signature=dict(kernel.signature),
        constexprs=constants_of(kernel),
        attrs=_alignment(kernel),
    )
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    if Target("cuda", arch).has_dependent_launch:
        options["launch_pdl"] = kernel.pdl
    if kernel.registers:
        options["maxnreg"] = kernel.registers
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    return triton.compile(source, target=target, options=options)


def compile_here(kernel: Kernel, arch: str) -> Compiled:
    """Compile in this process."""
    start = time.perf_counter()
    made = lower_here(kernel, arch)
    if getattr(made.metadata, "global_scratch_size", 0):
        raise ValueError(f"{kernel.function} wants scratch memory of Triton's own")
    columns = getattr(made.metadata, "tmem_size", 0) or 0
    if columns > TENSOR_MEMORY_COLUMNS:
        raise ValueError(f"wants {columns} columns of tensor memory, {arch} has {TENSOR_MEMORY_COLUMNS}")
    registers, spills = resource_usage(made.asm["cubin"])
    entry = made.asm["ptx"].split(".entry", 1)[1].split("{", 1)[0]
    return Compiled(
        name=made.metadata.name,
        arch=arch,
        cubin=made.asm["cubin"],
        shared=made.metadata.shared,
        num_warps=made.metadata.num_warps,
        pdl=kernel.pdl and Target("cuda", arch).has_dependent_launch,
        parameters=len(re.findall(r"\.param\b", entry)),
        types=kernel.argument_types,
        registers=registers,
        spills=spills,
        seconds=round(time.perf_counter() - start, 2),
        triton=triton_version() or "",
    )


def _alignment(kernel: Kernel) -> dict[tuple[int, ...], Any]:
    paths: dict[tuple[int, ...], Any] = {}
    for i, (name, kind) in enumerate(kernel.signature):
        if name in kernel.unaligned:
            continue
        if isinstance(kind, tuple):
            paths |= {(i, j): ALIGNED for j, inner in enumerate(kind) if inner.startswith("*")}
        elif kind.startswith("*"):
            paths[(i,)] = ALIGNED
    return paths


def main() -> None:
    # what the compiler prints must not mix with the answers
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            arch, _, text = receive(sys.stdin.buffer).decode().partition("\n")
        except EOFError:
            return
        try:
            answer = compile_here(Kernel.from_json(text), arch).to_bytes()
        except Exception as error:  # the build continues without this kernel
            answer = f"{type(error).__name__}: {error}".encode()
        send(answers, answer)
