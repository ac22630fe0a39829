"""Row kernels: pointwise prologue, reductions over one set of axes, pointwise epilogue, rows in parallel.

The body is divided into phases, and each phase is one pass over the row: a value that depends on the result
of a reduction belongs to the phase after it. Values that a later phase needs are kept on the stack.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from ridgeline.base.choices import RefusedError
from ridgeline.kernels.cpp.dialect import c_type, step_text
from ridgeline.kernels.cpp.loops import (
    PARALLEL_ITEMS,
    Loop,
    assign,
    load,
    merge,
    nothing,
    parallel,
    store,
    whole,
)
from ridgeline.kernels.scalar.nest import memory_order
from ridgeline.kernels.scalar.program import Memory, Program, Step, Term

STACK_BYTES = 256 * 1024
PIECE = 2048  # columns that vector lanes reduce before the result goes to a wider sum
TILE = 64  # kept columns at a time, if the reduced axis is not the innermost
_CHEAP = re.compile(r"\{\d\} [-+*] \{\d\}")
_CHAINS = {"sum": "+", "prod": "*"}


def reduce_source(program: Program, *, threads: int) -> str:
    """The kernel's text. Raises `RefusedError` if the schedule does not fit."""
    if program.is_empty:
        return nothing()
    return _Rows(program, threads).source()


class _Rows:
    def __init__(self, program: Program, threads: int) -> None:
        self.program, self.threads = program, threads
        self.steps: dict[Term, Step] = {step.name: step for step in program.steps}
        self.loads = {memory.value: memory for memory in program.loads}
        folds = [step for step in program.steps if step.fold]
        self.over = folds[0].over
        if any(step.over != self.over for step in folds):
            raise RefusedError("two reductions run over different axes")
        if any(c_type(step) not in ("float", "double", "int", "i64") for step in folds):
            raise RefusedError("a reduction of a type other than float32, float64, int32, int64")
        if any(step.fold in ("max", "min") and step.dtype == "int64" for step in folds):
            raise RefusedError("max or min of int64")
        self._nest()
        self.phase: dict[Term, int] = dict.fromkeys(self.loads, 0)
        for step in program.steps:
            self.phase[step.name] = max(map(self._ready, step.reads), default=0)
        self.buffers: dict[str, str] = {}  # value -> C type, for values that a later pass reads
        self.last = max(
            [self._ready(memory.value) for memory in program.stores] + [self.phase[f.name] for f in folds]
        )

    def _ready(self, value: Term) -> int:
        """The first phase that may read this value."""
        step = self.steps.get(value)
        return self.phase.get(value, 0) + (1 if step is not None and step.fold else 0)

    def _nest(self) -> None:
        program = self.program
        whole_loads = [m for m in program.memories if self.over <= set(m.strides)]
        if not whole_loads:
            raise RefusedError("no operand spans the reduced axes")
        lead = max(whole_loads, key=lambda m: len(m.strides))
        order = memory_order(program.sizes, lead)
        places = [i for i, axis in enumerate(order) if axis in self.over]
        if places != list(range(places[0], places[-1] + 1)):
            raise RefusedError("the reduced axes are not neighbours in memory")
        self.kept = merge(order[: places[0]], program, prefix="i")
        self.reduced = merge([order[i] for i in places], program, prefix="r")
        tail = merge(order[places[-1] + 1 :], program, prefix="j")
        # only the innermost loop must stay last; the other loops inside the reduced axes may move outside
        self.kept += tail[:-1]
        self.tail = tail[-1] if tail else None

    @property
    def loops(self) -> list[Loop]:
        return [*self.kept, *self.reduced, *([self.tail] if self.tail else [])]

    def _is_full(self, value: Term) -> bool:
        if value in self.loads:
            return any(self.loads[value].strides.get(axis, 0) for axis in self.over)
        step = self.steps.get(value)
        return step is not None and not step.fold and bool(step.axes & self.over)

    def _is_array(self, value: Term) -> bool:
        """Whether a value varies along the tail."""
        if self.tail is None:
            return False
        if value in self.loads:
            return bool(self.loads[value].strides.get(self.tail.axis, 0))
        return value in self.steps and bool(self.steps[value].axes & self.tail.axes)

    def source(self) -> str:
        body: list[str] = []
        for phase in range(self.last + 1):
            body += self._row(phase)
            body += self._pass(phase)
        rows = math.prod(loop.size for loop in self.kept)
        items = rows * math.prod(loop.size for loop in (*self.reduced, *([self.tail] if self.tail else [])))
        outer = list(self.kept)
        if self.tail is not None:
            outer.append(Loop("tile", -1, -(-self.tail.size // TILE), frozenset()))
        lines: list[str] = []
        if self.threads > 1 and items >= PARALLEL_ITEMS and outer:
            lines.append(parallel(len(outer), self.threads))
        lines += [loop.header() for loop in outer] + ["{"]
        if self.tail is not None:
            size = self.tail.size
            lines.append(f"const i64 first = tile * {TILE};")
            lines.append(f"const i64 stop = first + {TILE} < {size} ? first + {TILE} : {size};")
        used = 0
        span = math.prod(loop.size for loop in self.reduced)
        for value, kind in self.buffers.items():
            items = (span if self._is_full(value) else 1) * (TILE if self.tail is not None else 1)
            used += items * (8 if kind in ("double", "i64") else 4)
            lines.append(f"alignas(64) {kind} b_{value}[{items}];")
        if used > STACK_BYTES:
            raise RefusedError(f"a row needs {used} bytes of buffers, the stack gives {STACK_BYTES}")
        return whole(self.program, [*lines, *body, "}"])

    def _row(self, phase: int) -> list[str]:
        """Computes what is needed once per row before the pass of a phase, and stores outputs of the row."""
        steps = [
            s for s in self.program.steps
            if not s.fold and not self._is_full(s.name) and self.phase[s.name] == phase
        ]  # fmt: skip
        stores = [
            m for m in self.program.stores
            if not self._is_full(m.value) and not self._spans(m) and self._ready(m.value) == phase
        ]  # fmt: skip
        if not steps and not stores and phase:
            return []
        plain = [s for s in steps if not self._is_array(s.name)]
        lines = [
            load(memory, self.loops)
            for memory in self.program.loads
            if not phase and not self._is_full(memory.value) and not self._is_array(memory.value)
        ]
        lines += [assign(s) for s in plain]
        arrays = [s for s in steps if self._is_array(s.name)]
        if self.tail is None:
            return lines + [store(m, self.loops) for m in stores]
        if not arrays and not stores:
            return lines
        inside = self._computed(
            arrays, stores, set(), self._column(), lambda step: self._leaves_row(step.name, phase)
        )
        return [*lines, "#pragma omp simd", f"{self.tail.header('first', 'stop')} {{", *inside, "}"]

    def _computed(
        self,
        steps: Iterable[Step],
        stores: Iterable[Memory],
        known: set[Term],
        place: str,
        is_kept: Callable[[Step], bool],
    ) -> list[str]:
        """The body of a loop: steps, then stores. Values that are kept go to their buffers at `place`."""
        inside: list[str] = []
        for step in steps:
            inside += [*self._fetch(step.reads, known), assign(step)]
            known.add(step.name)
            if is_kept(step):
                self.buffers[step.name] = c_type(step)
                inside.append(f"b_{step.name}[{place}] = {step.name};")
        for memory in stores:
            inside += [*self._fetch((memory.value,), known), store(memory, self.loops)]
        return inside

    def _leaves_row(self, value: str, phase: int) -> bool:
        """Whether a pass, or the row of a later phase, reads this value of the row."""
        readers = [s for s in self.program.steps if value in s.reads]
        return any(s.fold or self._is_full(s.name) or self.phase[s.name] > phase for s in readers) or any(
            m.value == value and self._spans(m) for m in self.program.stores
        )

    def _spans(self, memory: Memory) -> bool:
        """Whether a store writes every element of the row, even if its value is constant along it."""
        return any(axis in memory.strides for axis in self.over)

    def _pass(self, phase: int) -> list[str]:
        """One pass over the reduced axes."""
        program = self.program
        steps = [s for s in program.steps if self._is_full(s.name) and self.phase[s.name] == phase]
        folds = [s for s in program.steps if s.fold and self.phase[s.name] == phase]
        stores = [m for m in program.stores if self._spans(m) and self._ready(m.value) == phase]
        if not folds and not stores and not any(self._read_later(s.name, phase) for s in steps):
            return []
        known: set[Term] = set()
        inside = self._computed(
            steps, stores, known, self._place(),
            lambda step: self._read_later(step.name, phase) and not self._again(step),
        )  # fmt: skip
        for step in folds:
            inside += self._fetch(step.reads, known)
            inside.append(self._fold(step, step_text(step)))
        return self._along(inside, folds) if self.tail is not None else self._across(inside, folds)

    def _along(self, inside: list[str], folds: list[Step]) -> list[str]:
        """The loop over the tail is innermost, with one accumulator per column."""
        assert self.tail is not None, "only a nest with a tail has columns"
        lines = [f"for (int j = 0; j < {TILE}; ++j) b_{f.name}[j] = {_start(f)};" for f in folds]
        # every column is one long chain of additions, whose error in float32 would grow with the row
        self.buffers |= {f.name: _wide(f) for f in folds}
        lines += [loop.header() for loop in self.reduced]
        return [*lines, "#pragma omp simd", f"{self.tail.header('first', 'stop')} {{", *inside, "}"]

    def _across(self, inside: list[str], folds: list[Step]) -> list[str]:
        """The reduced axis is innermost: lanes reduce a piece of the row, a wider scalar the pieces."""
        *outer, inner = self.reduced
        groups: dict[str, list[str]] = {}
        for f in folds:
            groups.setdefault(_CHAINS.get(f.fold, f.fold), []).append(f.name)
        clause = "".join(f" reduction({kind}: {', '.join(names)})" for kind, names in groups.items())
        simd, opened = f"#pragma omp simd{clause}", [f"{c_type(f)} {f.name} = {_start(f)};" for f in folds]
        heads = [loop.header() for loop in outer]
        if not folds or (not outer and inner.size <= PIECE):
            return [*opened, *heads, simd, f"{inner.header()} {{", *inside, "}"]
        return [
            *(f"{_wide(f)} w_{f.name} = {_start(f)};" for f in folds),
            *heads,
            f"for (i64 piece = 0; piece < {inner.size}; piece += {PIECE}) {{",
            f"const i64 end = piece + {PIECE} < {inner.size} ? piece + {PIECE} : {inner.size};",
            *opened, simd, f"{inner.header('piece', 'end')} {{", *inside, "}",
            *(_combine(f"w_{f.name}", f.fold, f.name) for f in folds),
            "}",
            *(f"const {c_type(f)} {f.name} = w_{f.name};" for f in folds),
        ]  # fmt: skip

    def _fold(self, step: Step, text: str) -> str:
        into = step.name if self.tail is None else f"b_{step.name}[{self._column()}]"
        return _combine(into, step.fold, text)

    def _read_later(self, value: str, phase: int) -> bool:
        return any(value in s.reads and self.phase[s.name] > phase for s in self.program.steps)

    def _again(self, step: Step) -> bool:
        """Whether a step is cheaper to repeat than to keep: one sum or product of a kept value."""
        if not _CHEAP.fullmatch(step.template) or len(step.reads) < len(set(step.args)):
            return False
        full = [r for r in step.reads if self._is_full(r)]
        return len(full) == 1 and (full[0] in self.loads or self.phase[full[0]] < self.phase[step.name])

    def _place(self) -> str:
        text = "0"
        for loop in self.reduced:
            text = loop.var if text == "0" else f"({text}) * {loop.size} + {loop.var}"
        return text if self.tail is None else f"({text}) * {TILE} + {self._column()}"

    def _column(self) -> str:
        assert self.tail is not None, "only a nest with a tail has columns"
        return f"{self.tail.var} - first"

    def _fetch(self, values: Iterable[Term], known: set[Term]) -> list[str]:
        """Brings values into scope inside a loop: loads, reads of buffers, or cheap steps repeated."""
        lines: list[str] = []
        for value in values:
            is_full = self._is_full(value)
            if value in known or not (is_full or self._is_array(value)):
                continue  # it is in scope
            known.add(value)
            if value in self.loads:
                lines.append(load(self.loads[value], self.loops))
                continue
            step = self.steps[value]
            if is_full and self._again(step):
                lines += [*self._fetch(step.reads, known), assign(step)]
            else:
                place = self._place() if is_full else self._column()
                lines.append(f"const {c_type(step)} {value} = b_{value}[{place}];")
        return lines


def _start(step: Step) -> str:
    """The value that a fold starts from."""
    if step.fold in _CHAINS:
        return "0" if step.fold == "sum" else "1"
    if step.dtype == "int32":
        return "(-2147483647 - 1)" if step.fold == "max" else "2147483647"
    return "-__builtin_inf()" if step.fold == "max" else "__builtin_inf()"


def _wide(step: Step) -> str:
    kind = c_type(step)
    return "double" if kind == "float" and step.fold in _CHAINS else kind


def _combine(into: str, fold: str, text: str) -> str:
    if fold in _CHAINS:
        return f"{into} {_CHAINS[fold]}= {text};"
    sign = ">" if fold == "max" else "<"
    return f"{into} = {into} {sign} {text} ? {into} : {text};"
