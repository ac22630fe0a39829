"""Generated Triton as tactics on a GPU: elementwise regions, and reductions over rows with all around them.

The text comes from `kernels/triton`; here it is offered in a few cuts, compiled and bound to tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device, device_of
from ridgeline.base.spec import Config, Site
from ridgeline.kernels.elements import to_torch
from ridgeline.kernels.scalar.extents import by_argument, extents_of
from ridgeline.kernels.scalar.program import Memory, Program
from ridgeline.kernels.scalar.reductions import REDUCTIONS
from ridgeline.kernels.triton.compiler import CompileError, compile_kernels
from ridgeline.kernels.triton.driver import Launcher
from ridgeline.kernels.triton.held_rows import MAX_SPLITS, kept_bytes, kept_loads
from ridgeline.kernels.triton.pointwise import Cut, crossing, pointwise_stages, why_not_pointwise
from ridgeline.kernels.triton.row_text import RowCut, Rows
from ridgeline.kernels.triton.rows import row_stages
from ridgeline.kernels.triton.stage import LARGEST_NUMBER, MAX_PROGRAMS, SCRATCH, WORDS, Stages
from ridgeline.kernels.triton.text import lower, power_of_two
from ridgeline.tactics.base import Footprint, Freeze, Launch, Offer, Refused
from ridgeline.tactics.cuda.own_kernels import KernelTactic, require_fit
from ridgeline.tactics.predict import pointwise_us, rows_us
from ridgeline.tactics.staging import staged_launch

WHOLE_COLUMNS = 65536  # of a row in the registers of one program
LONG_COLUMNS = 16384  # rows from here on are offered in pieces that programs keep while they wait
THREAD_BYTES, SMALL_BYTES = 128, 32  # a thread keeps of a row; where rows are few there are threads enough


class GeneratedTriton(KernelTactic):
    """What the tactics share: the region lowered once, its launches for a config, binding to tensors."""

    def configs(self, site: Site, program: Program) -> Sequence[Config]:
        raise NotImplementedError

    def stages(self, site: Site, program: Program, config: Config) -> Stages:
        """The launches of one config, or `RefusedError`."""
        raise NotImplementedError

    def predict_us(self, site: Site, config: Config, device: Device) -> float:
        raise NotImplementedError

    def offer(self, site: Site) -> Offer | Refused:
        self.require_kernels(site)
        program = lower(site)
        configs = self.configs(site, program)
        stages = partial(self.stages, site, program)
        launches = stages(configs[0]).launches
        most = max((stage.programs for stage in launches), default=0)
        if most > MAX_PROGRAMS:
            return Refused(f"{most} programs, a grid has {MAX_PROGRAMS}")
        if any(number > LARGEST_NUMBER for stage in launches for number in stage.numbers):
            return Refused("a size is no multiple of others, and 32 bits do not hold it")
        may_overlap = may_lie_on_inputs(site, program)
        return Offer(
            configs,
            bind=lambda config, weights: self._bind(site, stages(config), may_overlap),
            kernels=lambda config: [stage.kernel for stage in stages(config).launches],
            footprint=lambda config: _footprint(stages(config), may_overlap),
            extents=lambda config: by_argument(extents_of(program), program.inputs, len(site.body.inputs)),
            predict_us=partial(self.predict_us, site),
            compiles=True,
        )

    def _bind(self, site: Site, stages: Stages, may_overlap: bool) -> Launch:
        kernels = [stage.kernel for stage in stages.launches]
        launchers = [
            Launcher(require_fit(made))
            for made in compile_kernels(kernels, site.target.arch, store=self.store)
        ]
        _require_room(stages.together)
        footprint = _footprint(stages, may_overlap)
        return staged_launch(
            bind_stages(stages, launchers),
            site,
            stages.pointers.inputs,
            reads=frozenset(stages.pointers.inputs),
            in_place=footprint.in_place,
            packed_bytes=footprint.packed_bytes,
            scratch_bytes=footprint.scratch_bytes,
            waits_inside=stages.together > 1,
        )


def _footprint(stages: Stages, may_overlap: bool) -> Footprint:
    return Footprint(
        writes_out=True,
        in_place=may_overlap and stages.are_programs_apart,
        packed_bytes=sum(array.nbytes for array in stages.pointers.extras),
        scratch_bytes=stages.scratch_bytes,
    )


class TritonPointwise(GeneratedTriton):
    """y = f(x…): one generated kernel for any region of elementwise ops and moves."""

    name = "triton.pointwise"

    def configs(self, site: Site, program: Program) -> Sequence[Config]:
        return [asdict(cut) for cut in pointwise_cuts(program, sms=_sms(site))]

    def stages(self, site: Site, program: Program, config: Config) -> Stages:
        reason = why_not_pointwise(program)
        if reason is not None:
            reduced = next((op.key for op in site.body.ops if op.key in REDUCTIONS), None)
            raise RefusedError(f"op {reduced} is not pointwise" if reduced else reason)
        cut = Cut(int(config["width"]), int(config["warps"]), int(config["height"]))
        return pointwise_stages(program, _constants(site), cut, pdl=site.target.has_dependent_launch)

    def predict_us(self, site: Site, config: Config, device: Device) -> float:
        return pointwise_us(site, device)


class TritonRows(GeneratedTriton):
    """Pointwise, reduce over the row, pointwise: softmax, norms and means with what surrounds them."""

    name = "triton.rows"

    def configs(self, site: Site, program: Program) -> Sequence[Config]:
        return [
            {"rows": c.rows, "cols": c.cols, "warps": c.warps, "whole": c.is_whole, "splits": c.splits,
             "stages": c.stages, "held": c.held}
            for c in row_cuts(program, _constants(site), sms=_sms(site))
        ]  # fmt: skip

    def stages(self, site: Site, program: Program, config: Config) -> Stages:
        cut = RowCut(
            int(config["rows"]), int(config["cols"]), int(config["warps"]),
            is_whole=bool(config["whole"]), splits=int(config["splits"]),
            stages=int(config["stages"]), held=int(config.get("held", 0)),
        )  # fmt: skip
        return row_stages(program, _constants(site), cut, pdl=site.target.has_dependent_launch)

    def predict_us(self, site: Site, config: Config, device: Device) -> float:
        return rows_us(site, config, device)


def _constants(site: Site) -> frozenset[int]:
    return frozenset(i for i, name in enumerate(site.body.inputs) if name in site.weights)


def _sms(site: Site) -> int:
    return device_of(site.target.arch).sms


# which cuts are worth timing, best guess first


def pointwise_cuts(program: Program, *, sms: int) -> list[Cut]:
    total = math.prod(program.sizes.values())
    if why_not_pointwise(program) is None and not program.is_empty and crossing(program) is not None:
        return [Cut(64, 4, 64), Cut(32, 4, 32), Cut(1024, 4)]
    if total < 64 * sms:
        return [Cut(128, 4), Cut(256, 1)]
    if total < 1024 * sms:
        return [Cut(512, 4), Cut(512, 2), Cut(256, 4)]
    if total < 8192 * sms:
        return [Cut(1024, 4), Cut(512, 2), Cut(2048, 8)]
    return [Cut(1024, 4), Cut(2048, 4), Cut(4096, 8)]


def row_cuts(program: Program, constants: Collection[int] = (), *, sms: int) -> list[RowCut]:
    if program.is_empty:
        return [RowCut(1, 1, 1)]
    rows = Rows(program)
    cuts = _tail_cuts(rows) if rows.is_tail else _line_cuts(rows, sms)
    split = _split_cut(rows, sms)
    if split is not None:
        # few programs would leave most of the machine idle
        cuts = [split, *cuts] if -(-rows.count // split.rows) < sms // 4 else [*cuts[:3], split]
    return [*cuts[:4], *_held_cuts(rows, constants, sms)]


def _line_cuts(rows: Rows, sms: int) -> list[RowCut]:
    """Columns lie side by side: 16 to 32 of them a thread, fewer where rows are few."""
    cols = power_of_two(rows.columns)
    are_few = rows.count < 4 * sms
    if cols > 16384:
        return _long_line_cuts(rows.columns, cols)
    if cols == 16384:
        return [RowCut(1, cols, 8), RowCut(1, cols, 16), RowCut(1, 8192, 16, False)]
    if cols >= 2048:
        wide, narrow = RowCut(1, cols, cols // 512), RowCut(1, cols, cols // 1024)
        return [RowCut(1, cols, min(32, cols // 256)), wide] if are_few else [narrow, wide]
    # several rows a program, but enough programs
    most = max(1, rows.count // (2 * sms))
    room = 1 << (most.bit_length() - 1)
    tiles = [(1024, 4), (1024, 1)] if are_few else [(2048, 4), (4096, 8), (4096, 4)]
    heights = [(min(room, max(1, items // cols)), warps) for items, warps in tiles]
    return [RowCut(h, cols, min(w, max(1, h * cols // 64))) for h, w in dict.fromkeys(heights)]


def _long_line_cuts(columns: int, cols: int) -> list[RowCut]:
    """A row fills most of a processor's registers: a second look at it, from the cache, is often quicker."""
    whole = [RowCut(1, cols, 32)] if cols <= WHOLE_COLUMNS else []
    if columns % 8:
        # rows start anywhere, accesses are narrow: long tiles need too many of them
        return [*whole, RowCut(1, 4096, 8, False), RowCut(1, 2048, 8, False)]
    loops = [RowCut(1, 16384, 32, False), RowCut(1, 8192, 16, False)]
    return [*loops, *(whole if cols <= 32768 else [RowCut(1, 32768, 32, False)])]


def _tail_cuts(rows: Rows) -> list[RowCut]:
    """Rows lie side by side: a tile is wide in rows, and a thread adds down its columns."""
    cols = power_of_two(rows.columns)
    if cols <= 64:
        return [RowCut(wide, cols, max(1, wide * cols // 2048)) for wide in (64, 32, 16)]
    return [RowCut(32, 128, 8, cols == 128), RowCut(32, 64, 2, False), RowCut(64, 64, 4, False)]


def _split_cut(rows: Rows, sms: int) -> RowCut | None:
    """Several programs to a row, so that there are enough of them; None where rows are many or short."""
    if not rows.is_shareable:
        return None
    height, cols, warps, least = (32, 64, 4, 192) if rows.is_tail else (1, 4096, 8, 4096)
    blocks = -(-rows.count // height)
    if blocks >= 2 * sms or rows.columns < 4 * least:
        return None
    splits = min(rows.columns // least, max(2, 4 * sms // blocks), 128)
    return RowCut(height, cols, warps, False, splits)


def _held_cuts(rows: Rows, constants: Collection[int], sms: int) -> list[RowCut]:
    """Long rows read once: as few programs to a row as keep memory busy, more of them where rows are few."""
    column_bytes = kept_bytes(kept_loads(rows, constants))
    if rows.is_tail or rows.columns < LONG_COLUMNS or not column_bytes:
        return []
    if rows.columns % 8:  # rows start anywhere, accesses are narrow: one value to a register
        pieces = [(4096, SMALL_BYTES), (8192, SMALL_BYTES)]
    elif rows.count < sms:
        pieces = [(max(2048, power_of_two(rows.columns * rows.count // (2 * sms))), SMALL_BYTES)]
    elif rows.columns <= 2 * LONG_COLUMNS:
        whole = power_of_two(rows.columns)
        pieces = [(whole, THREAD_BYTES), (whole, 2 * THREAD_BYTES), (whole // 2, THREAD_BYTES)]
    else:
        pieces = [(piece, THREAD_BYTES) for piece in (8192, 16384, 32768)]
        pieces += [(8192, THREAD_BYTES // 2), (8192, 2 * THREAD_BYTES), (32768, 2 * THREAD_BYTES)]
    cuts = [_held_cut(rows.columns, piece, column_bytes, of_thread) for piece, of_thread in pieces]
    is_one_pass = rows.is_shareable
    return [
        cut
        for cut in dict.fromkeys(cuts)
        if cut.splits == 1 or (is_one_pass and cut.splits <= MAX_SPLITS and is_room(cut.splits, sms))
    ]


def _held_cut(columns: int, piece: int, column_bytes: int, of_thread: int) -> RowCut:
    """Pieces of so many columns among threads that keep so many bytes each."""
    piece = max(piece, power_of_two(-(-columns // MAX_SPLITS)))
    warps = min(32, max(1, piece * power_of_two(column_bytes) // of_thread // 32))
    tile = min(piece, max(piece // 8, 8 * 32 * warps))
    return RowCut(1, tile, warps, False, -(-columns // piece), held=piece // tile)


# from stages to a launch


def may_lie_on_inputs(site: Site, program: Program) -> bool:
    """Whether every input that has an output's spec is read exactly where that output is written."""
    slots = {f"p{place}": site.inputs[i] for place, i in enumerate(program.inputs)}
    return all(
        _is_same_place(load, store)
        for store, spec in zip(program.stores, site.outputs, strict=True)
        for load in program.loads
        if slots.get(load.pointer) == spec
    )


def _is_same_place(load: Memory, store: Memory) -> bool:
    return dict(load.strides) == dict(store.strides) and not (load.offset or load.guards or load.gathers)


def is_room(together: int, processors: int) -> bool:
    """Whether programs that wait for one another are all under way, also beside other work."""
    return together == 1 or 2 * together <= processors


def _require_room(together: int) -> None:
    """Raise where programs that wait for one another might not all be under way, also beside other work."""
    if together > 1:
        processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        if not is_room(together, processors):
            raise CompileError(
                f"{together} programs wait for one another, {processors} processors are too few"
            )


def bind_stages(stages: Stages, launchers: Sequence[Launcher]) -> Freeze:
    """Loaded kernels, one after the other; every frozen call has scratch memory of its own."""
    extras = [to_torch(array).to("cuda") for array in stages.pointers.extras]

    def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
        given = [*(inputs[i] for i in stages.pointers.inputs), *extras, *outputs]
        tensors = dict(zip(stages.pointers.names, given, strict=True))
        if stages.scratch_items:
            tensors[SCRATCH] = torch.empty(stages.scratch_items, dtype=torch.float32, device="cuda")
        if stages.word_items:
            tensors[WORDS] = torch.zeros(stages.word_items, dtype=torch.int32, device="cuda")
        runs = [
            launcher.freeze((stage.programs,), [*(tensors[name] for name in stage.pointers), *stage.numbers])
            for launcher, stage in zip(launchers, stages.launches, strict=True)
        ]
        return runs[0] if len(runs) == 1 else partial(_run_all, runs)

    return freeze


def _run_all(runs: Sequence[Callable[[], None]]) -> None:
    for run in runs:
        run()
