"""Reductions over one set of axes, fused with the ops before and after them: softmax, norms, means.

A program works on a tile of rows by columns. The kept axes form the rows and the reduced axes the columns,
each in memory order, so any axes may be reduced. There are four cuts. `whole` keeps a row in registers.
`loop` walks over pieces of a row, once per pass. `split` gives a row to several programs, which store their
partial results in scratch memory, and a second kernel joins them. `held` keeps the tiles of a long row until
its reductions are known (`held_rows.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from ridgeline.base.choices import RefusedError
from ridgeline.kernels.scalar.program import Program
from ridgeline.kernels.triton.folds import Pass
from ridgeline.kernels.triton.held_rows import held_stages
from ridgeline.kernels.triton.row_text import RowCut, Rows, RowWriter
from ridgeline.kernels.triton.stage import SCRATCH, WAIT, Stages
from ridgeline.kernels.triton.text import pointers_of, power_of_two

EARLY_ITEMS = 16  # per thread: smaller tiles of constants are loaded before the wait


def row_stages(program: Program, constants: Collection[int], cut: RowCut, *, pdl: bool) -> Stages:
    """The kernels for one cut. `constants` are inputs that never change; they are loaded before the wait."""
    pointers = pointers_of(program)
    if program.is_empty:
        return Stages((), pointers)
    rows = Rows(program)
    if cut.is_whole and cut.cols < rows.columns:
        raise RefusedError(f"rows of {rows.columns} columns in tiles of {cut.cols}")
    if cut.held:
        return held_stages(rows, constants, cut, pdl=pdl)
    writer = _Writer(rows, constants, cut, pdl)
    if cut.splits == 1:
        lines = writer.whole() if cut.is_whole else writer.looped()
        return Stages((writer.stage("rows", lines, programs=writer.blocks),), pointers)
    one = rows.shared_pass()
    first = writer.stage("row_parts", writer.parts(one), programs=writer.blocks * cut.splits)
    shares = cut.splits if rows.wide_stores else 1
    second = writer.stage("row_join", writer.join(one, shares), programs=writer.blocks * shares)
    return Stages(
        (first, second),
        pointers,
        scratch_items=len(one.states) * rows.count * cut.splits,
        are_programs_apart=not rows.narrow_stores,
    )


class _Writer(RowWriter):
    """Writes kernels for the cuts `whole`, `loop` and `split`."""

    def whole(self) -> list[str]:
        """Loads a row once and keeps it in registers between its reductions."""
        scope = self.scope()
        lines = [*self.row_head("tl.program_id(0)"), *self.column_head("")]
        if self.cut.rows * self.cut.cols <= EARLY_ITEMS * 32 * self.cut.warps or self.cut.rows > 1:
            scope.need(*(v for v in self.loads if v in self.steady and not self.loads[v].gathers))
        lines += [*scope.take(), *WAIT]
        scope.need(*(m.value for m in self.program.loads if not m.gathers and m.value not in self.steady))
        for memory in self.program.stores:
            scope.need(memory.value)
        return lines + scope.take() + [self.store(m) for m in self.program.stores]

    def looped(self) -> list[str]:
        """Runs one loop per pass, then one that stores the outputs."""
        scope = self.scope()
        lines = [*self.row_head("tl.program_id(0)"), *WAIT]
        for one in self.rows.passes():
            lines += [*self.fold_loop(one, scope, "0", str(self.rows.columns)), *one.join()]
            scope.known.update(fold.name for fold in one.folds)
        return lines + self.store_loop(scope, "0", str(self.rows.columns))

    def parts(self, one: Pass) -> list[str]:
        """Reduces one part of a row and stores the states in scratch memory."""
        splits = self.cut.splits
        lines = [*self.row_head(f"tl.program_id(0) // {splits}"), *self.part_head(splits), *WAIT]
        lines += [*self.fold_loop(one, self.scope(), "first", "past"), *one.join()]
        stores = enumerate(one.states)
        return lines + [f"tl.store({self.part(i)} + share, {name}, mask=rmask)" for i, name in stores]

    def join(self, one: Pass, shares: int) -> list[str]:
        """Joins the parts of a row as if they were lanes, then stores this program's share of the outputs."""
        splits = self.cut.splits
        lines = [*self.row_head(f"tl.program_id(0) // {shares}"), *self.part_head(shares), *WAIT]
        lanes = power_of_two(splits)
        lines.append(f"lane = tl.arange(0, {lanes})[None, :]")
        for place, (name, start) in enumerate(one.states.items()):
            mask = f"mask=rmask & (lane < {splits}), other={start}"
            lines.append(f"{name} = tl.load({self.part(place)} + lane, {mask})")
        # lanes and tiles are laid out in different ways: unless a single row's number is a scalar, the
        # compiler may bring the whole tile into the layout of the lanes (40 times slower, seen on an H200)
        lines += one.join(is_single=self.cut.rows == 1)
        scope = self.scope()
        scope.known.update(fold.name for fold in one.folds)
        return lines + self.store_loop(scope, "first", "past", row_mask="rmask & (share == 0)")

    def part(self, state: int) -> str:
        """Where the parts of a state of this row begin in scratch memory."""
        return f"{SCRATCH} + ({state} * size * {self.unit} + r) * {self.cut.splits}"
