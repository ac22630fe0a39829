"""Long rows in one read and one write: a program keeps its tiles of a row, as they lie in memory, until all
that is reduced is known; `splits` programs that share a row tell one another their parts while they wait.

Which program takes which piece is not the order they were started in: each draws a ticket, so whoever holds
a lower one is running already, and the oldest unfinished row can always be finished. A part is one word that
says by itself whether it is there: zero means not yet, so neither fences nor counters are needed. There are
two sets of words: a launch tells with one and clears the other, which the launch before told with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import ITEM_BITS
from ridgeline.kernels.scalar.nest import indexed_axes
from ridgeline.kernels.scalar.program import Memory, Step, Term, compute_dtype
from ridgeline.kernels.triton.folds import Pass, behind
from ridgeline.kernels.triton.row_text import RowCut, Rows, RowWriter
from ridgeline.kernels.triton.stage import MAX_PROGRAMS, WAIT, WORDS, Stages
from ridgeline.kernels.triton.text import (
    Scope,
    converted,
    indented,
    is_wide,
    pointers_of,
    steady_loads,
    store_text,
    stored_text,
)

# a row's parts are the lanes of a warp: every warp looks for itself, and its lanes agree on what they saw
MAX_SPLITS = 32
FIRST_WORD = 32  # tickets have a cache line of their own
# marks an unwritten slot: a partial result is stored as its bits xor this NaN payload, which none has, so
# that a stored word is never zero
ABSENT = 0x7FF5A5A5
PLAIN_NAN = 0x7FFFFFFF
MOST_REGISTERS = 248
FREE_BYTES = 64  # a thread that keeps no more than this may take as many registers as it likes
PACKED_DTYPES = ("float16", "bfloat16")
# two at a time against a zero that only the caller knows to be one
XOR = '"xor.b32 $0, $1, $2;", "=r,r,r,r"'
OPAQUE = f"tl.inline_asm_elementwise({XOR}, [{{0}}, size >> 31], {{0}}.dtype, is_pure=False, pack=2)"


def kept_loads(rows: Rows, constants: Collection[int]) -> list[Memory]:
    """What the reductions need of the row's columns and other kernels made."""
    program = rows.program
    steps: dict[Term, Step] = {step.name: step for step in program.steps}
    needed = behind((value for one in rows.passes() for value in one.values), steps)
    needed -= steady_loads(program, constants)
    return [
        memory
        for memory in program.loads
        if memory.value in needed and rows.over & set(memory.strides) and not memory.gathers
    ]


def kept_bytes(kept: Sequence[Memory]) -> int:
    """For each column."""
    return sum(ITEM_BITS[memory.dtype] // 8 for memory in kept)


def held_stages(rows: Rows, constants: Collection[int], cut: RowCut, *, pdl: bool) -> Stages:
    """One launch, of `splits` programs to a row."""
    if cut.rows != 1 or rows.is_tail:
        raise RefusedError("a program keeps tiles of one row whose columns lie side by side")
    if cut.held * cut.cols * cut.splits < rows.columns:
        raise RefusedError(
            f"rows of {rows.columns} columns in {cut.splits} pieces of {cut.held} tiles of {cut.cols}"
        )
    writer = _HeldWriter(rows, constants, cut, pdl)
    programs, words = rows.count * cut.splits, 0
    if cut.splits > 1:
        states = len(rows.shared_pass().states)
        if cut.splits > MAX_SPLITS or 2 * programs > MAX_PROGRAMS:
            raise RefusedError(f"{programs} programs, {cut.splits} to a row, want at most {MAX_SPLITS}")
        words = FIRST_WORD + 2 * programs * states
    stage = writer.stage(
        "held_rows",
        writer.lines(),
        programs=programs,
        constants={"PACKED": True},
        registers=_most_registers(kept_bytes(writer.kept) * cut.held * cut.cols // (32 * cut.warps)),
    )
    return Stages(
        (stage,),
        pointers_of(rows.program),
        word_items=words,
        together=cut.splits,
        are_programs_apart=cut.splits == 1 or not rows.narrow_stores,
    )


def _most_registers(kept_bytes: int) -> int:
    """Of a thread that keeps so much: as many again, else fewer programs are under way than memory needs."""
    return min(-(-kept_bytes // 16) * 8, MOST_REGISTERS) if kept_bytes > FREE_BYTES else 0


class _HeldWriter(RowWriter):
    """The text of the one kernel."""

    def __init__(self, rows: Rows, constants: Collection[int], cut: RowCut, pdl: bool) -> None:
        super().__init__(rows, constants, cut, pdl)
        self.kept = kept_loads(rows, constants)

    def lines(self) -> list[str]:
        scope = self.scope()
        is_shared = self.cut.splits > 1
        lines = [*WAIT, *(self.drawn() if is_shared else ["first = 0"])]
        lines += self.row_head("row" if is_shared else "tl.program_id(0)")
        for tile in range(self.cut.held):
            lines += self.tile_head(tile)
            lines += [f"{self.name(memory, tile)} = {self.stored(memory)}" for memory in self.kept]
        for one in self.rows.passes():
            lines += [*self.folded(one, scope), *one.join(is_single=True)]
            if is_shared:
                lines += [*self.told(one), *self.heard(one), *one.join(is_single=True)]
            scope.known.update(fold.name for fold in one.folds)
        return lines + self.finished(scope)

    def row_head(self, block: str) -> list[str]:
        """There is a program for every row and no more: its number is a scalar and needs no mask."""
        cast = ".to(tl.int64)" if is_wide(self.program) else ""
        unpacked = self.rows.along_r.unpacked(self.program.sizes, indexed_axes(self.program))
        return [f"r = {block}{cast}", *unpacked]

    def mask_lines(self) -> list[str]:
        return []

    def load_mask(self, memory: Memory) -> str:
        return "" if self.is_even or not self.is_full(memory.value) else "cmask"

    def store(self, memory: Memory, row_mask: str = "") -> str:
        mask = "cmask" if self.rows.spans(memory) and not self.is_even else ""
        return store_text(memory, self.terms(memory), mask or row_mask)

    def tile_head(self, tile: int) -> list[str]:
        return self.column_head(f"first + {tile * self.cut.cols}")

    def name(self, memory: Memory, tile: int) -> str:
        return f"kept_{memory.value}_{tile}"

    def stored(self, memory: Memory) -> str:
        return stored_text(memory, self.terms(memory), self.load_mask(memory), self.index)

    def tile_scope(self, outer: Scope, tile: int) -> Scope:
        """A block for one tile, where what is kept need not be loaded."""

        def load(memory: Memory) -> str:
            if memory.value not in {kept.value for kept in self.kept}:
                return self.load(memory)
            dtype = memory.dtype
            return f"{memory.value} = {converted(self.name(memory, tile), dtype, compute_dtype(dtype))}"

        return outer.inner(load)

    def folded(self, one: Pass, scope: Scope) -> list[str]:
        """Folds every tile into the states of a pass."""
        self.need_rows(scope, one.values)
        lines = [*scope.take(), *one.begin(self.lanes.shape)]
        for tile in range(self.cut.held):
            inner = self.tile_scope(scope, tile)
            inner.need(*one.values)
            lines += [*self.tile_head(tile), *inner.take(), *self.update(one)]
        return lines

    def finished(self, scope: Scope) -> list[str]:
        """Stores the outputs of the row, then tile by tile those of its columns."""
        lines = self.row_stores(scope, "share == 0" if self.cut.splits > 1 else "")
        wide = self.rows.wide_stores
        for tile in range(self.cut.held if wide else 0):
            inner = self.tile_scope(scope, tile)
            inner.need(*(m.value for m in wide))
            lines += [*self.tile_head(tile), *self.opened(tile), *inner.take(), *map(self.store, wide)]
            if tile % 2:
                # without it the compiler computes all tiles before it stores the first, in too many registers
                lines.append("tl.debug_barrier()")
        return lines

    def opened(self, tile: int) -> list[str]:
        """Kept values as if they were new, else the compiler would keep what it made of them as well."""
        lines = []
        for memory in self.kept:
            if memory.dtype in PACKED_DTYPES:
                name = self.name(memory, tile)
                lines += ["if PACKED:", f"    {name} = {OPAQUE.format(name)}"]
        return lines

    # what the programs of a row tell one another

    def drawn(self) -> list[str]:
        """A ticket: its turn says which set of words this launch uses, the rest which piece of which row."""
        splits = self.cut.splits
        return [
            f"programs = size * {self.unit * splits}",
            f'ticket = tl.atomic_add({WORDS}, 1, sem="relaxed")',
            "if ticket == 2 * programs - 1:",
            f"    tl.store({WORDS}, 0)",
            "turn = (ticket >= programs).to(tl.int32)",
            "place = ticket - turn * programs",
            f"row = place // {splits}",
            f"share = place % {splits}",
            f"first = share * {self.cut.held * self.cut.cols}",
        ]

    def words(self, turn: str, one: Pass, state: int) -> str:
        """Where the first part of a state of this row lies."""
        of_row = f"({turn} * (size * {self.unit}) + row) * {len(one.states) * self.cut.splits}"
        return f"{WORDS} + {FIRST_WORD + state * self.cut.splits} + {of_row}"

    def told(self, one: Pass) -> list[str]:
        """Publishes this program's parts, and clears its words of the previous launch."""
        lines = []
        for place, name in enumerate(one.states):
            lines += [
                f"word = {name}.to(tl.int32, bitcast=True) ^ {ABSENT}",
                f"word = tl.where(word == 0, {PLAIN_NAN ^ ABSENT}, word)",
                f'tl.atomic_xchg({self.words("turn", one, place)} + share, word, sem="relaxed")',
            ]
        return lines + [
            f"tl.store({self.words('(1 - turn)', one, place)} + share, 0)" for place in range(len(one.states))
        ]

    def heard(self, one: Pass) -> list[str]:
        """Reads until the parts of all siblings are there; the compiler never drops a volatile load."""
        splits, count = self.cut.splits, len(one.states)
        how = f"mask=lane < {splits}, other=1, volatile=True"
        look = [f"told_{i} = tl.load({self.words('turn', one, i)} + lane, {how})" for i in range(count)]
        missing = " | ".join(f"(told_{i} == 0)" for i in range(count))
        return [
            f"lane = tl.arange(0, {MAX_SPLITS})[None, :]",
            *look,
            f"while tl.max(({missing}).to(tl.int32), axis=None) != 0:",
            *indented(look),
            *(f"told_{i} = (told_{i} ^ {ABSENT}).to(tl.float32, bitcast=True)" for i in range(count)),
            *(
                f"{name} = tl.where(lane < {splits}, told_{i}, {start})"
                for i, (name, start) in enumerate(one.states.items())
            ),
        ]
