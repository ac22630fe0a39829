"""Scalar programs written in C++: types, literals, steps."""

from __future__ import annotations

import math

import numpy as np

from ridgeline.base.spec import Site
from ridgeline.kernels.scalar.program import Number, Program, Step, Term, Traits
from ridgeline.kernels.scalar.reductions import ARITHMETIC, lower_body

CPP = Traits("C++", baked_items=256)
C_TYPES = {
    "float32": "float", "float64": "double", "float16": "_Float16", "bfloat16": "unsigned short",
    "int64": "i64", "int32": "int", "int16": "short", "int8": "signed char", "uint64": "unsigned long long",
    "uint32": "unsigned", "uint16": "unsigned short", "uint8": "unsigned char", "bool": "unsigned char",
}  # fmt: skip

NARROW_INTEGERS = ("int8", "uint8", "int16", "uint16")


def lower(site: Site) -> Program:
    """The whole body of a site, as C++ can run it."""
    return lower_body(site, ARITHMETIC, CPP)


def c_type(step: Step) -> str:
    return "bool" if step.dtype == "bool" else C_TYPES[step.dtype]


def literal(number: Number) -> str:
    """Exact C++ text of a scalar; negative ones in parentheses."""
    value, dtype = number.value, number.dtype
    if dtype == "bool":
        return "true" if value else "false"
    if dtype not in ("float32", "float64"):
        # the most negative int64 has no literal of its own
        text = f"{int(value)}LL" if int(value) != -(2**63) else "(-9223372036854775807LL - 1)"
        return f"(({C_TYPES[dtype]}){text})"
    tail = "f" if dtype == "float32" else ""
    if math.isnan(value):
        return f'__builtin_nan{tail}("")'
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}__builtin_inf{tail}())"
    exact = float(np.float32(value)) if tail else float(value)
    return f"({exact.hex()}{tail})"


def term(value: Term) -> str:
    return literal(value) if isinstance(value, Number) else value


def step_text(step: Step) -> str:
    """The right-hand side of a step."""
    text = step.template.format(*map(term, step.args))
    if step.cast == "float16":
        return f"(float)(_Float16){text}"
    if step.cast == "bfloat16":
        return f"rl_from_bf16(rl_to_bf16({text}))"
    if step.cast in ("uint32", "uint64"):
        return f"rl_to_{step.cast}({text})"
    if step.cast in NARROW_INTEGERS:
        # a float beyond the narrow type keeps its low bits, which C++ leaves open: with AVX512-FP16 compilers
        # convert halves to 16 bits at once. 32 bits are wide enough for every half
        return f"({C_TYPES[step.cast]})(int){text}"
    return f"({C_TYPES[step.cast]}){text}" if step.cast else text


def tables_text(program: Program) -> list[str]:
    """Definitions of baked arrays."""
    return [
        f"static const {C_TYPES[table[0].dtype]} t{place}[] = {{{', '.join(map(literal, table))}}};"
        for place, table in enumerate(program.tables)
    ]


def pointers_text(program: Program) -> list[str]:
    """Statements that name the pointers: inputs, then outputs, then constants."""
    dtypes = {memory.pointer: memory.dtype for memory in program.memories}
    names = [
        *((f"p{i}", "const ") for i in range(len(program.inputs))),
        *((memory.pointer, "") for memory in program.stores),
        *((f"x{i}", "const ") for i in range(len(program.extras))),
    ]
    return [
        f"{const}{C_TYPES[dtypes[name]]}* {name} = ({const}{C_TYPES[dtypes[name]]}*)p[{slot}];"
        for slot, (name, const) in enumerate(names)
        if name in dtypes
    ]
