"""Reductions over one set of axes with what surrounds them: softmax, norms, means.

A program holds a tile of rows by columns; kept axes make up the rows, reduced axes the columns, each in
memory order, so the reduced axes may lie anywhere. Four cuts: `whole` rows in registers; a `loop` over
pieces of a row, once per reduction that needs another's result; rows `split` among programs that leave
their part in scratch memory, for a second kernel to join; rows `held` as they lie in memory, by one program
or by several that wait for one another (`held_rows.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ridgeline.base.choices import RefusedError
from ridgeline.kernels.scalar.program import Program
from ridgeline.kernels.triton.folds import Group
from ridgeline.kernels.triton.held_rows import held_stages
from ridgeline.kernels.triton.row_text import RowCut, Rows, RowWriter
from ridgeline.kernels.triton.stage import SCRATCH, WAIT, Stages
from ridgeline.kernels.triton.text import pointers_of

EARLY_ITEMS = 16  # per thread: constants up to this much are read before the wait


def row_stages(program: Program, constants: Collection[int], cut: RowCut, *, pdl: bool) -> Stages:
    """The kernels for one cut. `constants` are inputs that never change: read before the wait."""
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
    groups = rows.passes()
    if len(groups) > 1 or any(f.dtype != "float32" for group in groups[0] for f in group.folds):
        raise RefusedError("a split row takes one pass over float32 values")
    states = sum(len(group.states) for group in groups[0])
    first = writer.stage("row_parts", writer.parts(groups[0]), programs=writer.blocks * cut.splits)
    shares = cut.splits if rows.has_wide_outputs else 1
    second = writer.stage("row_join", writer.join(groups[0]), programs=writer.blocks * shares)
    return Stages(
        (first, second),
        pointers,
        scratch_items=states * rows.count * cut.splits,
        are_programs_apart=not rows.has_narrow_outputs,
    )


class _Writer(RowWriter):
    """The first three of the cuts."""

    def whole(self) -> list[str]:
        """Everything once: the row stays in registers between its reductions."""
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
        """One loop per pass, then one that writes."""
        scope = self.scope()
        lines = [*self.row_head("tl.program_id(0)"), *WAIT]
        for groups in self.rows.passes():
            lines += self.carried(groups, scope, "0", str(self.rows.columns))
            lines += [line for group in groups for line in group.join()]
            scope.known.update(fold.name for group in groups for fold in group.folds)
        return lines + self.written(scope, "0", str(self.rows.columns))

    def parts(self, groups: Sequence[Group]) -> list[str]:
        """The reductions of one part of a row, into scratch."""
        splits = self.cut.splits
        lines = [*self.row_head(f"tl.program_id(0) // {splits}"), *self.part_head(), *WAIT]
        lines += self.carried(groups, self.scope(), "first", "past")
        lines += [line for group in groups for line in group.join()]
        names = [name for group in groups for name in group.states]
        return lines + [
            f"tl.store({SCRATCH} + ({place} * size * {self.unit} + r) * {splits} + share, {name}, mask=rmask)"
            for place, name in enumerate(names)
        ]

    def join(self, groups: Sequence[Group]) -> list[str]:
        """All parts of a row as if they were lanes of one; then this program's share of the outputs."""
        splits = self.cut.splits
        shares = splits if self.rows.has_wide_outputs else 1
        lines = [*self.row_head(f"tl.program_id(0) // {shares}"), *self.part_head(shares), *WAIT]
        lanes = 1 << (splits - 1).bit_length()
        lines.append(f"lane = tl.arange(0, {lanes})[None, :]")
        states = [(name, start) for group in groups for name, start in group.states.items()]
        for place, (name, start) in enumerate(states):
            where = f"{SCRATCH} + ({place} * size * {self.unit} + r) * {splits} + lane"
            lines.append(f"{name} = tl.load({where}, mask=rmask & (lane < {splits}), other={start})")
        lines += self.joined(groups)
        scope = self.scope()
        scope.known.update(fold.name for group in groups for fold in group.folds)
        return lines + self.written(scope, "first", "past", row_mask="rmask & (share == 0)")
