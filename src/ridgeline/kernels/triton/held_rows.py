"""Long rows with one read and one write: a program keeps its tiles of a row until the reductions are known.

Tiles are kept in the dtype they have in memory. `splits` programs may share a row; they exchange partial
results and wait for one another. A program takes its piece of a row by a ticket and not by its program
number: programs with lower tickets are running already, so the oldest unfinished row can always finish.
A partial result is one 32-bit word, and zero means that it is not there yet, so no fence and no counter is
needed. There are two sets of words: a launch publishes in one set and clears the other, which the previous
launch used.
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

# one lane of a warp reads one part of a row; every warp reads for itself
MAX_SPLITS = 32
FIRST_WORD = 32  # the ticket counter has its own cache line
# a partial result is stored as its bits xor this NaN. No partial result is a NaN with this payload, so a
# stored word is never zero
ABSENT = 0x7FF5A5A5
PLAIN_NAN = 0x7FFFFFFF
MOST_REGISTERS = 248
FREE_BYTES = 64  # registers are not limited for a thread that keeps at most this much
PACKED_DTYPES = ("float16", "bfloat16")
# xor of two packed values with a zero that the compiler cannot see through
XOR = '"xor.b32 $0, $1, $2;", "=r,r,r,r"'
OPAQUE = f"tl.inline_asm_elementwise({XOR}, [{{0}}, size >> 31], {{0}}.dtype, is_pure=False, pack=2)"


def kept_loads(rows: Rows, constants: Collection[int]) -> list[Memory]:
    """Loads that reductions need and that are kept: of the row's columns, and not of constants."""
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
    """Kept bytes per column."""
    return sum(ITEM_BITS[memory.dtype] // 8 for memory in kept)


def held_stages(rows: Rows, constants: Collection[int], cut: RowCut, *, pdl: bool) -> Stages:
    """One launch, with `splits` programs per row."""
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
    """The register limit of a thread: twice what it keeps, so that enough programs run at once."""
    return min(-(-kept_bytes // 16) * 8, MOST_REGISTERS) if kept_bytes > FREE_BYTES else 0


class _HeldWriter(RowWriter):
    """Writes the kernel."""

    def __init__(self, rows: Rows, constants: Collection[int], cut: RowCut, pdl: bool) -> None:
        super().__init__(rows, constants, cut, pdl)
        self.kept = kept_loads(rows, constants)

    def lines(self) -> list[str]:
        scope = self.scope()
        is_shared = self.cut.splits > 1
        lines = [*WAIT, *(self.draw_ticket() if is_shared else ["first = 0"])]
        lines += self.row_head("row" if is_shared else "tl.program_id(0)")
        for tile in range(self.cut.held):
            lines += self.tile_head(tile)
            lines += [f"{self.name(memory, tile)} = {self.kept_text(memory)}" for memory in self.kept]
        for one in self.rows.passes():
            lines += [*self.fold_tiles(one, scope), *one.join(is_single=True)]
            if is_shared:
                lines += [*self.publish(one), *self.await_parts(one), *one.join(is_single=True)]
            scope.known.update(fold.name for fold in one.folds)
        return lines + self.store_tiles(scope)

    def row_head(self, block: str) -> list[str]:
        """Every program has exactly one row, so the row's number is a scalar and needs no mask."""
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

    def kept_text(self, memory: Memory) -> str:
        return stored_text(memory, self.terms(memory), self.load_mask(memory), self.index)

    def tile_scope(self, outer: Scope, tile: int) -> Scope:
        """A scope for one tile, in which kept values are not loaded again."""

        def load(memory: Memory) -> str:
            if memory.value not in {kept.value for kept in self.kept}:
                return self.load(memory)
            dtype = memory.dtype
            return f"{memory.value} = {converted(self.name(memory, tile), dtype, compute_dtype(dtype))}"

        return outer.inner(load)

    def fold_tiles(self, one: Pass, scope: Scope) -> list[str]:
        """Folds every tile into the states of a pass."""
        self.need_rows(scope, one.values)
        lines = [*scope.take(), *one.begin(self.lanes.shape)]
        for tile in range(self.cut.held):
            inner = self.tile_scope(scope, tile)
            inner.need(*one.values)
            lines += [*self.tile_head(tile), *inner.take(), *self.update(one)]
        return lines

    def store_tiles(self, scope: Scope) -> list[str]:
        """Stores the outputs of the row, then tile by tile those of its columns."""
        lines = self.row_stores(scope, "share == 0" if self.cut.splits > 1 else "")
        wide = self.rows.wide_stores
        for tile in range(self.cut.held if wide else 0):
            inner = self.tile_scope(scope, tile)
            inner.need(*(m.value for m in wide))
            lines += [*self.tile_head(tile), *self.hide_origin(tile), *inner.take(), *map(self.store, wide)]
            if tile % 2:
                # without it the compiler computes all tiles before it stores the first, in too many registers
                lines.append("tl.debug_barrier()")
        return lines

    def hide_origin(self, tile: int) -> list[str]:
        """Hides where kept values come from; otherwise the compiler also keeps what it computed from them."""
        lines = []
        for memory in self.kept:
            if memory.dtype in PACKED_DTYPES:
                name = self.name(memory, tile)
                lines += ["if PACKED:", f"    {name} = {OPAQUE.format(name)}"]
        return lines

    # how programs that share a row exchange partial results

    def draw_ticket(self) -> list[str]:
        """Takes a ticket. Its turn selects the set of words; the rest selects the row and the piece of it."""
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

    def word_at(self, turn: str, one: Pass, state: int) -> str:
        """Where the first part of a state of this row lies."""
        of_row = f"({turn} * (size * {self.unit}) + row) * {len(one.states) * self.cut.splits}"
        return f"{WORDS} + {FIRST_WORD + state * self.cut.splits} + {of_row}"

    def publish(self, one: Pass) -> list[str]:
        """Publishes this program's parts, and clears its words of the previous launch."""
        lines = []
        for place, name in enumerate(one.states):
            lines += [
                f"word = {name}.to(tl.int32, bitcast=True) ^ {ABSENT}",
                f"word = tl.where(word == 0, {PLAIN_NAN ^ ABSENT}, word)",
                f'tl.atomic_xchg({self.word_at("turn", one, place)} + share, word, sem="relaxed")',
            ]
        return lines + [
            f"tl.store({self.word_at('(1 - turn)', one, place)} + share, 0)"
            for place in range(len(one.states))
        ]

    def await_parts(self, one: Pass) -> list[str]:
        """Reads until the parts of all siblings are there; the compiler never drops a volatile load."""
        splits, count = self.cut.splits, len(one.states)
        how = f"mask=lane < {splits}, other=1, volatile=True"
        look = [f"told_{i} = tl.load({self.word_at('turn', one, i)} + lane, {how})" for i in range(count)]
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
