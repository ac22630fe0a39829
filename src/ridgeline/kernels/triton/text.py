"""Scalar programs as Triton text: types, literals, steps, loads, stores, and addresses of elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.base.spec import Site
from ridgeline.kernels.scalar.axes import Coordinate
from ridgeline.kernels.scalar.moves import MOVES
from ridgeline.kernels.scalar.program import (
    FLOAT8_LARGEST,
    Memory,
    Number,
    Program,
    Step,
    Term,
    Traits,
    compute_dtype,
)
from ridgeline.kernels.scalar.reductions import ARITHMETIC, lower_body

TRITON = Traits("Triton", folds_keep_nan=True, has_float8=True)
# dtype -> the type in a kernel's signature, the type in its text
TYPES = {
    "float32": ("fp32", "tl.float32"), "float64": ("fp64", "tl.float64"), "float16": ("fp16", "tl.float16"),
    "bfloat16": ("bf16", "tl.bfloat16"), "int64": ("i64", "tl.int64"), "int32": ("i32", "tl.int32"),
    "int16": ("i16", "tl.int16"), "int8": ("i8", "tl.int8"), "uint64": ("u64", "tl.uint64"),
    "uint32": ("u32", "tl.uint32"), "uint16": ("u16", "tl.uint16"), "uint8": ("u8", "tl.uint8"),
    "bool": ("i1", "tl.int1"), "float8_e4m3fn": ("fp8e4nv", "tl.float8e4nv"),
    "float8_e5m2": ("fp8e5", "tl.float8e5"),
}  # fmt: skip
HEAD = """\
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.triton.codes import *
from ridgeline.kernels.triton.math import *


@triton.jit
"""
WIDE_ITEMS = 2**31  # larger offsets need 64 bits
MOST_ITEMS = WIDE_ITEMS - (1 << 16)  # that 32 bits count: the last program goes a little past the last one


def power_of_two(count: int) -> int:
    """The least one that is not smaller: sides of tiles are powers of two."""
    return 1 << (max(1, count) - 1).bit_length()


def lower(site: Site) -> Program:
    """The whole body of a site as a program for Triton."""
    return lower_body(site, ARITHMETIC | MOVES, TRITON)


def pointer_type(dtype: str) -> str:
    return f"*{TYPES[dtype][0]}"


def literal(number: Number) -> str:
    """A scalar tensor of exactly that type; a Python number would take the other operand's type."""
    if number.dtype == "bool":
        text = str(bool(number.value))
    elif number.dtype not in ("float32", "float64"):
        text = str(int(number.value))
    elif math.isfinite(number.value):
        text = repr(float(np.float32(number.value)) if number.dtype == "float32" else float(number.value))
    else:
        text = f'float("{float(number.value)}")'
    return f"tl.full((), {text}, {TYPES[number.dtype][1]})"


def term(value: Term) -> str:
    return literal(value) if isinstance(value, Number) else value


def converted(value: str, dtype: str, to: str) -> str:
    return value if dtype == to else f"{value}.to({TYPES[to][1]})"


def assign(step: Step, index: Mapping[int, str]) -> str:
    """One step as a statement; `index` names the variable of each axis."""
    if step.coordinate:
        return f"{step.name} = {place(step.coordinate, index)}"
    if step.cast:
        text = f"{term(step.args[0])}.to({TYPES[step.cast][1]})"
        return f"{step.name} = {converted(text, step.cast, step.dtype)}"
    text = step.template.format(*map(term, step.args))
    return f"{step.name} = {text}"


def place(coordinate: Coordinate, index: Mapping[int, str]) -> str:
    """A sum such as `a0 * 768 + a1`."""
    return " + ".join(
        index[axis] if factor == 1 else f"{index[axis]} * {factor}" for axis, factor in coordinate
    )


@dataclass(frozen=True)
class Flat:
    """Several axes, outermost first, as one index: `var` counts their elements in that order."""

    var: str
    axes: tuple[int, ...]

    def names(self) -> dict[int, str]:
        return {axis: f"a{axis}" for axis in self.axes}

    def unpacked(self, sizes: Mapping[int, int], wanted: set[int]) -> list[str]:
        """Statements that compute the indices of single axes; the outermost size does not matter."""
        lines, inner = [], 1
        for place_, axis in reversed(list(enumerate(self.axes))):
            if axis in wanted:
                lines.append(f"a{axis} = {_part(self.var, inner, sizes[axis] if place_ else 0)}")
            inner *= sizes[axis]
        return lines[::-1]

    def offset(self, memory: Memory, sizes: Mapping[int, int]) -> list[str]:
        """Terms of an element's offset; axes that are contiguous in this operand are taken as one."""
        terms: list[str] = []
        inner = 1
        axes = list(self.axes)
        while axes:
            last = axes.pop()
            stride, span, before = memory.strides.get(last, 0), sizes[last], inner
            while axes and memory.strides.get(axes[-1], 0) == stride * span:
                span *= sizes[axes.pop()]
            inner = before * span
            if stride:
                part = _part(self.var, before, span if axes else 0)
                terms.append(part if stride == 1 else f"{part} * {stride}")
        return terms[::-1]


def _part(var: str, inner: int, size: int) -> str:
    """The index among `size` parts of `inner` elements; the outermost axis has size 0 and no remainder."""
    text = var if inner == 1 else f"({var} // {inner})"
    return f"({text} % {size})" if size else text


def offset_text(memory: Memory, terms: Sequence[str]) -> str:
    """A pointer expression: the sum of these terms."""
    gathered = [f"{term(value)} * {stride}" for value, stride in memory.gathers]
    shift = [str(memory.offset)] if memory.offset else []
    return " + ".join([memory.pointer, *shift, *terms, *gathered])


def is_wide(program: Program) -> bool:
    """Whether offsets into some operand need 64 bits."""
    return any(
        abs(memory.offset) + sum(abs(stride) * (program.sizes[a] - 1) for a, stride in memory.strides.items())
        >= WIDE_ITEMS
        for memory in program.memories
    )


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


class Scope:
    """Statements of one block of a kernel; each value is loaded or computed when it is first needed."""

    def __init__(
        self,
        program: Program,
        index: Mapping[int, str],
        load: Callable[[Memory], str],
        fold: Callable[[Step], str] = lambda step: f"{step.name} is folded elsewhere",
    ) -> None:
        self.program, self.index, self.load, self.fold = program, index, load, fold
        self.loads = {memory.value: memory for memory in program.loads}
        self.steps = {step.name: step for step in program.steps}
        self.known: set[Term] = set()
        self.lines: list[str] = []

    def inner(self, load: Callable[[Memory], str] | None = None) -> Scope:
        """A nested scope with its own way to load; it does not compute again what is known here."""
        scope = Scope(self.program, self.index, load or self.load, self.fold)
        scope.known = set(self.known)
        return scope

    def need(self, *values: Term) -> None:
        """Adds the loads and steps that compute these values."""
        for value in values:
            if isinstance(value, Number) or value in self.known:
                continue
            self.known.add(value)
            memory = self.loads.get(value)
            if memory is not None:
                self.need(*(gathered for gathered, _ in memory.gathers))
                self.lines.append(self.load(memory))
                continue
            step = self.steps.get(str(value))
            if step is not None:
                self.need(*step.args)
                self.lines.append(self.fold(step) if step.fold else assign(step, self.index))

    def take(self) -> list[str]:
        """Removes and returns the lines so far."""
        lines, self.lines = self.lines, []
        return lines


def load_text(memory: Memory, terms: Sequence[str], mask: str, index: Mapping[int, str]) -> str:
    """Loads a value and converts it to the dtype it is computed in."""
    text = stored_text(memory, terms, mask, index)
    return f"{memory.value} = {converted(text, memory.dtype, compute_dtype(memory.dtype))}"


def stored_text(memory: Memory, terms: Sequence[str], mask: str, index: Mapping[int, str]) -> str:
    """Loads a value in the dtype it has in memory."""
    tests = [mask] if mask else []
    for guard in memory.guards:
        where = place(guard.coordinate, index)
        tests += [f"({where} >= {guard.low})", f"({where} < {guard.high})"]
    zero = "0.0" if memory.dtype in FLOAT8_LARGEST else "0"  # whole numbers do not convert to float8
    masked = f", mask={' & '.join(tests)}, other={zero}" if tests else ""
    return f"tl.load({offset_text(memory, terms)}{masked})"


def store_text(memory: Memory, terms: Sequence[str], mask: str) -> str:
    masked = f", mask={mask}" if mask else ""
    value = f"({term(memory.value)}).to({TYPES[memory.dtype][1]})"
    return f"tl.store({offset_text(memory, terms)}, {value}{masked})"


def touched_axes(program: Program, memory: Memory) -> set[int]:
    """Axes along which the address of a load, or its guard, varies: also by indices that it reads."""
    loads, steps = {m.value: m for m in program.loads}, {step.name: step for step in program.steps}

    def axes_of(value: Term) -> set[int]:
        if value in loads:
            return of_load(loads[value])
        if value not in steps:
            return set()
        step = steps[str(value)]
        # not its own axes: a number that is spread over some is still one number
        axes = {axis for axis, _ in step.coordinate}
        return axes.union(*map(axes_of, step.args)) - step.over

    def of_load(load: Memory) -> set[int]:
        guards = {axis for guard in load.guards for axis, _ in guard.coordinate}
        return {*load.strides, *guards}.union(*(axes_of(value) for value, _ in load.gathers))

    return of_load(memory)


def steady_loads(program: Program, constants: Collection[int]) -> set[Term]:
    """Values that are loaded from constants of the body, or from inputs that never change."""
    steady = {f"p{place}" for place, i in enumerate(program.inputs) if i in constants}
    return {m.value for m in program.loads if m.pointer in steady or m.pointer[0] == "x"}


@dataclass(frozen=True)
class Pointers:
    """Parameters of a generated function, in order: inputs and constants that it reads, then all outputs."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    inputs: tuple[int, ...]  # positions among the body's inputs
    extras: tuple[np.ndarray, ...]

    @property
    def kinds(self) -> dict[str, str]:
        """Types by name."""
        return dict(zip(self.names, self.types, strict=True))


def pointers_of(program: Program) -> Pointers:
    dtypes = {memory.pointer: memory.dtype for memory in program.memories}
    inputs = {f"p{i}": place for i, place in enumerate(program.inputs) if f"p{i}" in dtypes}
    extras = {f"x{i}": array for i, array in enumerate(program.extras) if f"x{i}" in dtypes}
    names = (*inputs, *extras, *(memory.pointer for memory in program.stores))
    types = tuple(pointer_type(dtypes[name]) for name in names)
    return Pointers(names, types, tuple(inputs.values()), tuple(extras.values()))
