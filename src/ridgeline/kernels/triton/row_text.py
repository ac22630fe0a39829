"""What row kernels are written from: a program as rows and columns, a cut of it, and pieces of text."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.base.choices import RefusedError
from ridgeline.kernels.scalar.nest import indexed_axes, memory_order
from ridgeline.kernels.scalar.program import Memory, Number, Program, Step, Term
from ridgeline.kernels.triton.folds import Lanes, Pass, identity, joined, passes
from ridgeline.kernels.triton.pointwise import counted_unit
from ridgeline.kernels.triton.stage import SCRATCH, WORDS, Stage, make_stage
from ridgeline.kernels.triton.text import (
    Flat,
    Scope,
    indented,
    is_wide,
    load_text,
    pointers_of,
    steady_loads,
    store_text,
    term,
    touched_axes,
)

FOLD_DTYPES = ("float32", "float64", "int32", "int64")
DEEP = 8  # neighbours that a thread loads in one access of 16 bytes


@dataclass(frozen=True)
class RowCut:
    """How rows are cut: tiles of `rows` by `cols`, and `splits` programs per row.

    `is_whole` keeps a row in registers. `held` counts the tiles of a row that a program keeps from the first
    reduction to the last store, 0 for none.
    """

    rows: int
    cols: int
    warps: int
    is_whole: bool = True
    splits: int = 1
    stages: int = 1  # pieces of a row that are being loaded at a time, in a loop
    held: int = 0


class Rows:
    """A program as rows and columns; raises `RefusedError` if it does not have that form."""

    def __init__(self, program: Program) -> None:
        self.program = program
        folds = [step for step in program.steps if step.fold]
        if not folds:
            raise RefusedError("nothing is reduced")
        self.over = folds[0].over
        if any(step.over != self.over for step in folds):
            raise RefusedError("two reductions run over different axes")
        wrong = next((step.dtype for step in folds if step.dtype not in FOLD_DTYPES), None)
        if wrong is not None:
            raise RefusedError(f"a reduction of {wrong}, want {', '.join(FOLD_DTYPES)}")
        if not self.over <= set(program.sizes):
            raise RefusedError("no operand spans the reduced axes")
        kept = set(program.sizes) - self.over
        for memory in program.stores:
            if set(memory.strides) not in (kept, kept | self.over):
                raise RefusedError("an output has other axes than the rows")
        self.lead = max(program.memories, key=self._weight)
        order = memory_order(program.sizes, self.lead)
        self.along_r = Flat("r", tuple(axis for axis in order if axis not in self.over))
        self.along_c = Flat("c", tuple(axis for axis in order if axis in self.over))
        self.count = math.prod(program.sizes[axis] for axis in self.along_r.axes)
        self.columns = math.prod(program.sizes[axis] for axis in self.along_c.axes)
        self.is_tail = bool(order) and order[-1] not in self.over  # rows are the innermost axis, not columns
        self.wide_stores = [memory for memory in program.stores if self.spans(memory)]
        self.narrow_stores = [memory for memory in program.stores if not self.spans(memory)]

    def _weight(self, memory: Memory) -> tuple[bool, int]:
        items = math.prod(self.program.sizes[axis] for axis in memory.strides)
        return self.over <= set(memory.strides), items

    def spans(self, memory: Memory) -> bool:
        return bool(self.over & set(memory.strides))

    def passes(self) -> list[Pass]:
        return passes(self.program)

    @property
    def is_shareable(self) -> bool:
        """Whether several programs can share a row: each reduces its part of it in one pass, in float32."""
        first, *more = self.passes()
        return not more and all(fold.dtype == "float32" for fold in first.folds)

    def shared_pass(self) -> Pass:
        """The pass of a row that several programs share, or `RefusedError`."""
        if not self.is_shareable:
            raise RefusedError("a shared row takes one pass over float32 values")
        return self.passes()[0]


class RowWriter:
    """Writes pieces of the text of kernels for one cut."""

    def __init__(self, rows: Rows, constants: Collection[int], cut: RowCut, pdl: bool) -> None:
        self.rows, self.cut, self.pdl = rows, cut, pdl
        self.program = rows.program
        self.steady = steady_loads(self.program, constants)
        self.steps: dict[Term, Step] = {step.name: step for step in self.program.steps}
        self.loads = {memory.value: memory for memory in self.program.loads}
        self.index = rows.along_r.names() | rows.along_c.names()
        self.tile = f"({cut.rows}, {cut.cols})"
        is_wide_access = not rows.is_tail and rows.columns % DEEP == 0 and cut.cols % DEEP == 0
        self.lanes = Lanes(cut.rows, cut.cols, DEEP if is_wide_access else 1)
        # whether every tile is full
        self.is_even = rows.columns > 0 and rows.columns % cut.cols == 0
        if cut.held:
            self.is_even = rows.columns == cut.cols * cut.held * cut.splits
        inner = math.prod(self.program.sizes[axis] for axis in rows.along_r.axes[1:])
        self.unit = counted_unit(rows.count, inner)
        self.blocks = -(-rows.count // cut.rows)
        # columns of one program of a split row, in whole tiles
        self.span = -(-rows.columns // (cut.splits * cut.cols)) * cut.cols

    def stage(
        self, name: str, lines: Sequence[str], *, programs: int, constants: Mapping[str, bool] | None = None,
        registers: int = 0,
    ) -> Stage:  # fmt: skip
        kinds = pointers_of(self.program).kinds | {SCRATCH: "*fp32", WORDS: "*i32"}
        return make_stage(
            name, lines, kinds, programs=programs, number=self.rows.count // self.unit,
            warps=self.cut.warps, pdl=self.pdl, constants=constants, registers=registers,
        )  # fmt: skip

    def row_head(self, block: str) -> list[str]:
        cast = ".to(tl.int64)" if is_wide(self.program) else ""
        block = f"({block})" if cast and "/" in block else block
        return [
            f"r = ({block}{cast} * {self.cut.rows} + tl.arange(0, {self.cut.rows}))[:, None]",
            f"rmask = r < size{cast} * {self.unit}",
            *self.rows.along_r.unpacked(self.program.sizes, indexed_axes(self.program)),
        ]

    def part_head(self, shares: int) -> list[str]:
        return [
            f"share = tl.program_id(0) % {shares}",
            f"first = share * {self.span}",
            f"past = tl.minimum(first + {self.span}, {self.rows.columns})",
        ]

    def column_head(self, start: str) -> list[str]:
        """The columns of one tile, from `start` on."""
        lines = [f"c = {f'{start} + ' if start else ''}tl.arange(0, {self.cut.cols})[None, :]"]
        if not self.is_even:
            lines.append(f"cmask = c < {self.rows.columns}")
        unpacked = self.rows.along_c.unpacked(self.program.sizes, indexed_axes(self.program))
        return [*lines, *self.mask_lines(), *unpacked]

    def mask_lines(self) -> list[str]:
        """Which elements of a tile exist."""
        return ["mask = rmask" if self.is_even else "mask = rmask & cmask"]

    def fold_loop(self, one: Pass, scope: Scope, first: str, past: str) -> list[str]:
        """A loop from column `first` to `past` that folds every value of a pass into its states."""
        self.need_rows(scope, one.values)
        inner = scope.inner()
        inner.need(*one.values)
        body = [*self.column_head("start"), *inner.take(), *self.update(one)]
        return [*scope.take(), *one.begin(self.lanes.shape), self.loop(first, past), *indented(body)]

    def update(self, one: Pass) -> list[str]:
        return one.update("" if self.is_even else "cmask", self.lanes)

    def loop(self, first: str, past: str) -> str:
        ahead = f", num_stages={self.cut.stages}" if self.cut.stages > 1 else ""
        return f"for start in tl.range({first}, {past}, {self.cut.cols}{ahead}):"

    def store_loop(self, scope: Scope, first: str, past: str, row_mask: str = "rmask") -> list[str]:
        """Stores the outputs of the row, then in a loop those of its columns."""
        lines, wide = self.row_stores(scope, row_mask), self.rows.wide_stores
        if not wide:
            return lines
        inner = scope.inner()
        inner.need(*(m.value for m in wide))
        body = [*self.column_head("start"), *inner.take(), *map(self.store, wide)]
        return [*lines, self.loop(first, past), *indented(body)]

    def row_stores(self, scope: Scope, row_mask: str) -> list[str]:
        """Stores the outputs of the row."""
        self.need_rows(scope, (m.value for m in self.program.stores))
        return [*scope.take(), *(self.store(m, row_mask) for m in self.rows.narrow_stores)]

    def need_rows(self, scope: Scope, values: Iterable[Term]) -> None:
        """Computes before the loop whatever these values need that is constant along the row."""
        waiting, seen = list(values), set[Term]()
        while waiting:
            value = waiting.pop()
            if isinstance(value, Number) or value in seen or value in scope.known:
                continue
            seen.add(value)
            if not self.is_full(value):
                scope.need(value)
            elif value in self.steps:
                waiting += self.steps[value].args
            else:
                waiting += [gathered for gathered, _ in self.loads[value].gathers]

    def is_full(self, value: Term) -> bool:
        """Whether a value varies along the row."""
        if value in self.loads:
            return bool(touched_axes(self.program, self.loads[value]) & self.rows.over)
        step = self.steps.get(value)
        return step is not None and not step.fold and bool(step.axes & self.rows.over)

    def scope(self) -> Scope:
        return Scope(self.program, self.index, self.load, self.fold)

    def terms(self, memory: Memory) -> list[str]:
        sizes = self.program.sizes
        return [*self.rows.along_r.offset(memory, sizes), *self.rows.along_c.offset(memory, sizes)]

    def load(self, memory: Memory) -> str:
        return load_text(memory, self.terms(memory), self.load_mask(memory), self.index)

    def load_mask(self, memory: Memory) -> str:
        touched = touched_axes(self.program, memory)
        on_rows, on_columns = touched & set(self.rows.along_r.axes), touched & self.rows.over
        masks = ["rmask"] if on_rows else []
        if on_columns and not self.is_even:
            masks.append("cmask")
        return " & ".join(masks)

    def store(self, memory: Memory, row_mask: str = "rmask") -> str:
        terms = self.terms(memory)
        if not set(memory.strides) - self.rows.over:
            terms.append("r * 0")  # makes the address of a single row a block
        return store_text(memory, terms, "mask" if self.rows.spans(memory) else row_mask)

    def fold(self, step: Step) -> str:
        """Reduces values that are all in registers."""
        value = f"tl.broadcast_to({term(step.args[0])}, {self.tile})"
        if not self.is_even:
            value = f"tl.where(cmask, {value}, {identity(step.fold, step.dtype)})"
        return f"{step.name} = {joined(step.fold, value)}"
