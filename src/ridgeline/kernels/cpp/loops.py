"""Loops of a generated kernel, and the text of loads, steps and stores in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.kernels.cpp.dialect import C_TYPES, c_type, pointers_text, step_text, tables_text, term
from ridgeline.kernels.cpp.prelude import PRELUDE
from ridgeline.kernels.scalar.nest import merged
from ridgeline.kernels.scalar.program import Memory, Program, Step

# below this many elements waking the other threads costs more than they save, the more so on a busy machine
PARALLEL_ITEMS = 64 * 1024


@dataclass(frozen=True)
class Loop:
    """One loop, over axes that lie behind one another in every operand. Strides are those of `axis`."""

    var: str
    axis: int
    size: int
    axes: frozenset[int]

    def header(self, start: str = "0", stop: str = "") -> str:
        return f"for (i64 {self.var} = {start}; {self.var} < {stop or self.size}; ++{self.var})"


def merge(order: Sequence[int], program: Program, *, prefix: str) -> list[Loop]:
    """Loops for the axes in this order, neighbours joined wherever all operands allow it."""
    return [
        Loop(f"{prefix}{i}", group[-1], math.prod(program.sizes[a] for a in group), frozenset(group))
        for i, group in enumerate(merged(order, program))
    ]


def index(memory: Memory, loops: Iterable[Loop]) -> str:
    """The element's place, such as `i0 * 768 + i1`."""
    terms = []
    for loop in loops:
        stride = memory.strides.get(loop.axis, 0)
        if stride and loop.size > 1:
            terms.append(loop.var if stride == 1 else f"{loop.var} * {stride}LL")
    return " + ".join(terms) or "0"


def load(memory: Memory, loops: Iterable[Loop]) -> str:
    place = f"{memory.pointer}[{index(memory, loops)}]"
    if memory.dtype == "bool":
        return f"const bool {memory.value} = {place} != 0;"
    if memory.dtype == "bfloat16":
        return f"const float {memory.value} = rl_from_bf16({place});"
    kind = "float" if memory.dtype == "float16" else C_TYPES[memory.dtype]
    return f"const {kind} {memory.value} = {place};"


def store(memory: Memory, loops: Iterable[Loop]) -> str:
    value = term(memory.value)
    if memory.dtype == "bfloat16":
        value = f"rl_to_bf16({value})"
    return f"{memory.pointer}[{index(memory, loops)}] = ({C_TYPES[memory.dtype]}){value};"


def assign(step: Step) -> str:
    return f"const {c_type(step)} {step.name} = {step_text(step)};"


def parallel(loops: int, threads: int) -> str:
    nest = f" collapse({loops})" if loops > 1 else ""
    return f"#pragma omp parallel for{nest} schedule(static) num_threads({threads})"


def nothing() -> str:
    """The source file of a kernel whose outputs have no elements."""
    return "\n".join([PRELUDE.strip(), 'extern "C" void run(void** p) {', "(void)p;", "}", ""])


def whole(program: Program, lines: Sequence[str], *, helpers: str = "") -> str:
    """The source file: one entry point that takes an array of pointers."""
    head = [
        PRELUDE.strip(),
        *filter(None, [helpers.strip()]),
        *tables_text(program),
        'extern "C" void run(void** p) {',
        *pointers_text(program),
    ]
    return "\n".join([*head, *lines, "}", ""])
