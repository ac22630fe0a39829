"""Rows that programs keep while they wait for one another: arithmetic, real waiting, state, machine code."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import torch
from cpp_cases import random
from triton_cases import check, interpret_together, machine_code, make_site, run_stages, without_pdl

from offers import offered, stages_of
from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Body, Config, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.kernels.triton.held_rows import ABSENT, FIRST_WORD
from ridgeline.kernels.triton.stage import WORDS, waits_inside
from ridgeline.tactics.cuda.triton_codegen import TritonRows

TACTIC = TritonRows()
OPS = {
    "Softmax": Op("Softmax", ("x",), ("y",), {"axis": -1}),
    "LayerNormalization": Op("LayerNormalization", ("x", "g", "b"), ("y",), {"axis": -1}),
    "RMSNormalization": Op("RMSNormalization", ("x", "g"), ("y",), {"axis": -1}),
}
REGISTERS, MOST_WARPS = 65536, 64  # of one processor


def cut(cols: int, held: int, splits: int) -> Config:
    return {"rows": 1, "cols": cols, "warps": 1, "whole": False, "splits": splits, "stages": 1, "held": held}


SHARED, ALONE = cut(8, 2, 3), cut(16, 3, 1)


@pytest.mark.parametrize("columns", [48, 41])
@pytest.mark.parametrize("name", OPS)
def test_norms_and_softmax(name: str, columns: int) -> None:
    """Three processes to a row, each of which really waits for the others; and one alone."""
    inputs = {"x": random(2, columns) * 4 + 1, "g": random(columns, seed=1), "b": random(columns, seed=2)}
    inputs = {n: t for n, t in inputs.items() if n in OPS[name].inputs}
    site = make_site([OPS[name]], inputs, ["y"], weights=OPS[name].inputs[1:])
    check(TACTIC, site, inputs, [SHARED, ALONE])


def test_residual_and_outputs_of_the_row() -> None:
    """Two values are kept; what belongs to a row is written once."""
    inputs = {"x": random(2, 3, 40), "r": random(2, 3, 40, seed=1), "s": random(2, 3, 1, seed=2)}
    axes = {"a": torch.tensor([2]).numpy()}
    ops = [
        Op("Add", ("x", "r"), ("t",)), Op("Mul", ("t", "s"), ("u",)), Op("Softmax", ("u",), ("p",)),
        Op("ReduceMax", ("u", "a"), ("m",), {"keepdims": 0}),
    ]  # fmt: skip
    check(TACTIC, make_site(ops, inputs, ["t", "p", "m"], constants=axes), inputs, [SHARED, ALONE])


def test_half_precision_in_two_passes() -> None:
    half = torch.float16
    inputs = {"x": random(3, 40, dtype=half), "g": random(40, seed=1, dtype=half)}
    ops = [Op("LayerNormalization", ("x", "g"), ("n",)), Op("Softmax", ("n",), ("y",))]
    site = make_site(ops, inputs, ["y"])
    check(TACTIC, site, inputs, [ALONE])
    with pytest.raises(RefusedError, match="a shared row takes one pass"):
        stages_of(TACTIC, site, SHARED)


def test_a_part_that_looks_absent_is_told_all_the_same() -> None:
    """A NaN of just the bits that stand for nothing, and rows of infinities."""
    x = random(4, 40)
    x[0] = torch.tensor([ABSENT], dtype=torch.int32).view(torch.float32)
    x[1], x[2, 5] = -torch.inf, torch.inf
    axes = {"a": torch.tensor([1]).numpy()}
    ops = [Op(f"Reduce{n}", ("x", "a"), (f"o_{n}",)) for n in ("Max", "Min", "Sum")]
    site = make_site(ops, {"x": x}, [op.outputs[0] for op in ops], constants=axes)
    check(TACTIC, site, {"x": x}, [SHARED])
    check(TACTIC, make_site([OPS["Softmax"]], {"x": x[1:]}, ["y"]), {"x": x[1:]}, [SHARED])


def test_launch_after_launch() -> None:
    """Two sets of words in turn: one is told with, the other cleared; tickets begin anew after both."""
    inputs = {"x": random(2, 48)}
    site = make_site([OPS["Softmax"]], inputs, ["y"])
    stages = stages_of(TACTIC, site, SHARED)
    (stage,) = stages.launches
    (want,) = run_stages(site, stages, inputs)
    words, y = torch.zeros(stages.word_items, dtype=torch.int32), torch.empty(2, 48)
    tensors = {**dict(zip(stages.pointers.names, [inputs["x"], y], strict=True)), WORDS: words}
    args = [*(tensors[name] for name in stage.pointers), *stage.numbers]
    for launch in range(3):
        y.fill_(torch.nan)
        interpret_together(without_pdl(stage.kernel), stage.programs, stages.together, args)
        assert torch.equal(y, want)
        told, cleared = words[FIRST_WORD:].view(2, -1)[[0, 1] if launch % 2 == 0 else [1, 0]]
        assert told.all()
        assert not cleared.any()
        assert words[0] == (stage.programs if launch % 2 == 0 else 0)
        assert not words[1:FIRST_WORD].any()


def test_refusals() -> None:
    site = make_site([OPS["Softmax"]], {"x": torch.zeros(4, 2048)}, ["y"])
    with pytest.raises(RefusedError, match="2048 columns in 2 pieces of 4 tiles of 64"):
        stages_of(TACTIC, site, cut(64, 4, 2))
    with pytest.raises(RefusedError, match="64 to a row, want at most 32"):
        stages_of(TACTIC, site, cut(16, 2, 64))
    tail = make_site([Op("Softmax", ("x",), ("y",), {"axis": 0})], {"x": torch.zeros(64, 4)}, ["y"])
    with pytest.raises(RefusedError, match="columns lie side by side"):
        stages_of(TACTIC, tail, cut(64, 1, 1))


def test_who_waits_for_others_is_known_by_its_kernel() -> None:
    """Such launches never run side by side: a plan has them on one stream."""
    site = make_site([OPS["Softmax"]], {"x": torch.zeros(4, 128)}, ["y"])
    shared, alone = (stages_of(TACTIC, site, cut(32, held, 4 // held)) for held in (2, 4))
    split = stages_of(TACTIC, site, {**cut(32, 0, 2), "stages": 2})
    assert [stages.together for stages in (shared, alone, split)] == [2, 1, 1]
    waits = [any(waits_inside(stage.kernel) for stage in each.launches) for each in (shared, alone, split)]
    assert waits == [True, False, False]


def test_what_is_stated_of_memory() -> None:
    """Words count as scratch; an output of the row may not lie where other programs of it still read."""
    long = long_site("Softmax", 65536, rows=300)
    shared = next(config for config in offered(TACTIC, long).configs if config["held"])
    states = 2
    assert offered(TACTIC, long).footprint(shared).scratch_bytes == 4 * (
        FIRST_WORD + 2 * states * 300 * int(shared["splits"])
    )
    assert offered(TACTIC, long).footprint(shared).in_place
    inputs = {"x": torch.zeros(2, 48), "m": torch.zeros(2)}
    axes = {"a": torch.tensor([1]).numpy()}
    ops = [Op("ReduceMax", ("x", "a"), ("t",), {"keepdims": 0}), Op("Add", ("t", "m"), ("y",))]
    narrow = make_site(ops, inputs, ["y"], constants=axes)
    assert offered(TACTIC, narrow).footprint(ALONE).in_place
    assert not offered(TACTIC, narrow).footprint(SHARED).in_place


def test_offered_where_rows_are_long() -> None:
    def pieces(columns: int, rows: int) -> list[tuple[int, int]]:
        configs = offered(TACTIC, long_site("Softmax", columns, rows=rows)).configs
        return [(int(c["splits"]), int(c["held"]) * int(c["cols"])) for c in configs if c["held"]]

    assert pieces(8192, 4096) == []
    assert pieces(32768, 4096) == [(1, 32768), (1, 32768), (2, 16384)]
    assert pieces(65536, 300) == [(8, 8192), (4, 16384), (2, 32768), (8, 8192), (8, 8192), (2, 32768)]
    assert pieces(262144, 300) == [
        *((32, 8192), (16, 16384), (8, 32768)),
        *((32, 8192), (32, 8192), (8, 32768)),
    ]
    assert pieces(65536, 1) == [(32, 2048)]
    assert pieces(2**20, 1) == [(32, 32768)]


def long_site(name: str, columns: int, *, rows: int) -> Site:
    op = OPS[name]
    specs = {n: TensorSpec("float16", (columns,)) for n in op.inputs[1:]}
    specs |= {n: TensorSpec("float16", (rows, columns)) for n in ("x", "y")}
    return Site(Body(op.inputs, ("y",), (op,)), specs, frozenset(op.inputs[1:]), {}, Target("cuda", "sm_90"))


@pytest.mark.parametrize("name", OPS)
def test_machine_code(name: str) -> None:
    """No spills, 16 bytes an access, at least two programs to a processor, which keep 64 KiB and more."""
    for columns, rows in ((32768, 4096), (262144, 300), (65536, 7)):
        site = long_site(name, columns, rows=rows)
        config = next(c for c in offered(TACTIC, site).configs if c["held"])
        ((compiled, code),) = machine_code(stages_of(TACTIC, site, config))
        assert compiled.spills == 0
        assert "LDG.E.128" in code
        assert "STG.E.128" in code
        piece_bytes = 2 * int(config["held"]) * int(config["cols"])
        assert programs_at_once(compiled) >= 2
        assert programs_at_once(compiled) * piece_bytes >= 64 << 10


def programs_at_once(compiled: Compiled) -> int:
    """On one processor, as registers and warps allow."""
    registers = -(-compiled.registers // 8) * 8 * 32 * compiled.num_warps
    return min(REGISTERS // registers, MOST_WARPS // compiled.num_warps)


@pytest.mark.parametrize("splits", [2, 8, 32])
def test_the_wait_in_machine_code(splits: int) -> None:
    """Parts are told with strong writes; the loop loads them anew, past L1, and holds no barrier."""
    site = long_site("Softmax", splits * 2048, rows=64)
    config = {**cut(1024, 2, splits), "warps": 4}
    ((_, code),) = machine_code(stages_of(TACTIC, site, config))
    assert len(re.findall(r"ATOMG\S*EXCH\S*STRONG\.GPU", code)) == 2
    waiting = [body for body in loops(code) if re.search(r"LDG\S*\.STRONG", body)]
    assert len(waiting) == 1
    assert len(re.findall(r"LDG\S*\.STRONG", waiting[0])) == 2
    assert not re.search(r"\b(BAR|LDS|STS)\b", waiting[0]), "warps wait for one another in the loop"


def loops(code: str) -> list[str]:
    """The text between a label and each jump back to it."""
    lines = code.splitlines()
    labels: Mapping[str, int] = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".L_x")}
    jumps = ((i, re.search(r"BRA `\((\.L_x_\d+)\)", line)) for i, line in enumerate(lines))
    back = [(labels[jump[1]], i) for i, jump in jumps if jump and labels.get(jump[1], i) < i]
    # code that a loop was jumped out of to, and back, stands far behind it
    return ["\n".join(lines[start:end]) for start, end in back if end - start < 60]
