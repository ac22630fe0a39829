"""Pairs of regions as one step: a norm with the product that reads it, for a GPU that is not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from test_one_loop import Later, context_of

import ridgeline
from cross_models import _model
from ridgeline.base.gpu_graph import CaptureError
from ridgeline.options import make_options
from ridgeline.runtime.engine import Engine
from ridgeline.select import heats, pairs, refine
from ridgeline.select.context import APART, Selection, SelectionContext
from ridgeline.select.graph_replay import GraphReplay
from ridgeline.select.heats import Timed, Trial
from ridgeline.select.loop import select
from ridgeline.select.refine import Refinement
from ridgeline.select.retune import choose_again, context_at, embedded
from ridgeline.select.site_race import SiteRace
from ridgeline.tactics.cache import TimingCache
from ridgeline.tactics.cuda.triton_normed import MOST_ROWS

NORMED = "triton.normed_gemm"
LAYERS, WIDTH, TOKENS = 2, 64, 16
ATTENTION = """
  qkv{i} = MatMul ({read}, qkv_w{i})
  q{i}, k{i}, v{i} = Split <axis = -1, num_outputs = 3> (qkv{i})
  a{i} = Attention <q_num_heads = 2, kv_num_heads = 2> (q{i}, k{i}, v{i})
  o{i} = MatMul (a{i}, out_w{i})
  r{i} = Add (o{i}, x{i})
"""
# the norms of BERT, whose results are residuals too, and those of ViT and GPT-2, which only products read
POST = (
    ATTENTION.replace("{read}", "x{i}")
    + """
  m{i} = LayerNormalization <axis = -1> (r{i}, scale_m{i}, shift_m{i})
  f{i} = MatMul (m{i}, up_w{i})
  g{i} = Gelu (f{i})
  d{i} = MatMul (g{i}, down_w{i})
  s{i} = Add (d{i}, m{i})
  x{next} = LayerNormalization <axis = -1> (s{i}, scale_n{i}, shift_n{i})
"""
)
PRE = """
  n{i} = LayerNormalization <axis = -1> (x{i}, scale_n{i}, shift_n{i})
""" + ATTENTION.replace("{read}", "n{i}") + """
  m{i} = LayerNormalization <axis = -1> (r{i}, scale_m{i}, shift_m{i})
  f{i} = MatMul (m{i}, up_w{i})
  g{i} = Gelu (f{i})
  d{i} = MatMul (g{i}, down_w{i})
  x{next} = Add (d{i}, r{i})
"""  # fmt: skip


@cache
def network(layer: str, *, tokens: int = TOKENS) -> bytes:
    rng = np.random.default_rng(2)
    lines = "".join(layer.format(i=i, next=i + 1) for i in range(LAYERS))
    shape = f"1,{tokens},{WIDTH}"
    sizes = {"qkv_w": (WIDTH, 3 * WIDTH), "out_w": (WIDTH, WIDTH), "up_w": (WIDTH, 4 * WIDTH)}
    sizes |= {"down_w": (4 * WIDTH, WIDTH)}
    norms = [f"{part}_{norm}" for part in ("scale", "shift") for norm in "mn"]
    weights = {
        f"{name}{i}": (rng.standard_normal(shape) * 0.1).astype(np.float16)
        for i in range(LAYERS)
        for name, shape in (sizes | dict.fromkeys(norms, (WIDTH,))).items()
    }
    return _model(f"net (float16[{shape}] x0) => (float16[{shape}] x{LAYERS}) {{ {lines} }}", weights)


def built(layer: str, **options: Any) -> Engine:
    return ridgeline.build(network(layer), target="cuda:sm_90", verify="off", progress=False, **options)


@cache
def engine_of(layer: str) -> Engine:
    return built(layer)


@cache
def apart(layer: str) -> Engine:
    return built(layer, without=[NORMED])


@pytest.mark.parametrize("layer", [POST, PRE], ids=["post-norm", "pre-norm"])
def test_a_layer_is_five_steps_instead_of_seven(layer: str) -> None:
    plan, before = engine_of(layer).plan, apart(layer).plan
    joined = [step for step in plan.steps if step.tactic == NORMED]
    # the first norm of a pre-norm layer and the last of a post-norm network have no product beside them
    count = 2 * LAYERS - (layer == POST)
    assert len(joined) == count
    assert len(before.steps) == 7 * LAYERS
    assert len(plan.steps) == len(before.steps) - count
    for step in joined:
        assert len(step.regions) == 2
        assert step.op_types[:2] == ("LayerNormalization", "MatMul")
        assert len(step.outputs) == (2 if layer == POST else 1), "residuals are written, and nothing else"
        assert len(step.kernels) == 1
        rivals = {loser.tactic: loser for loser in step.losers}
        assert rivals[APART].predicted_us > step.predicted_us > 0
        assert "faster than regions" in step.why
    covered = [name for step in plan.steps for name in step.regions]
    assert len(covered) == len(set(covered)) == 7 * LAYERS


@pytest.mark.parametrize("layer", [POST, PRE], ids=["post-norm", "pre-norm"])
def test_rows_that_only_the_product_reads_take_no_memory(layer: str) -> None:
    plan, before = engine_of(layer).plan, apart(layer).plan
    kept = {block.value for block in plan.memory.blocks}
    normed = {block.value for block in before.memory.blocks} - kept
    assert len(normed) == (0 if layer == POST else 2 * LAYERS)
    assert plan.memory.arena_bytes <= before.memory.arena_bytes
    # the weight carries the norm's scale: a copy as large as before, three numbers a column, two a row
    products = [(WIDTH, 4 * WIDTH)] * LAYERS + [(WIDTH, 3 * WIDTH)] * (LAYERS - (layer == POST))
    more = sum(4 * (3 * columns + 2 * depth) for depth, columns in products)
    assert plan.memory.packed_bytes - before.memory.packed_bytes == more


def test_what_lost_says_why_and_a_lock_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lock = tmp_path / "ridge.lock"
    with monkeypatch.context() as patch:
        patch.setattr(pairs, "MARGIN", 10.0)
        engine = built(PRE, lock=lock)
    assert not [step for step in engine.plan.steps if step.tactic == NORMED]
    lost = [refusal for refusal in engine.plan.refusals if refusal.rule == NORMED]
    assert len(lost) == 2, "equal layers share a contest"
    assert all("one step takes" in refusal.reason and "its regions" in refusal.reason for refusal in lost)
    again = built(PRE, lock=lock)
    assert not [step for step in again.plan.steps if step.tactic == NORMED], "pinned apart"
    entries = [e for e in TimingCache.read(lock).entries.values() if e.candidates[0].tactic == APART]
    assert len(entries) == 2


def test_a_lock_pins_a_pair(tmp_path: Path) -> None:
    lock = tmp_path / "ridge.lock"
    first, again = built(PRE, lock=lock), built(PRE, lock=lock)
    assert again.plan.to_json() == first.plan.to_json()
    assert [step for step in again.plan.steps if step.tactic == NORMED]


def test_a_lock_from_before_there_were_pairs_pins_regions(tmp_path: Path) -> None:
    lock = tmp_path / "ridge.lock"
    built(PRE, lock=lock, without=[NORMED])
    assert not [step for step in built(PRE, lock=lock).plan.steps if step.tactic == NORMED]


def test_many_rows_are_left_apart() -> None:
    context = context_of(network(PRE, tokens=MOST_ROWS + 1), "cuda:sm_90", 1)
    assert pairs.open_pairs(context) == []


def test_a_profile_that_grows_past_the_limit_is_left_apart() -> None:
    model = onnx.load_from_string(network(PRE))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "T"
    grows = {"x0": f"1x1..16..{MOST_ROWS + 1}x64"}
    made = ridgeline.build(model, target="cuda:sm_90", verify="off", progress=False, profiles=grows)
    assert not [step for step in made.plan.steps if step.tactic == NORMED]


def test_the_machine_may_settle_on_either(tmp_path: Path) -> None:
    loaded = ridgeline.load(engine_of(PRE).save(tmp_path / "net.ridge"))
    (variant,) = loaded.variants
    competitors = embedded(variant)
    program, target = loaded.fused.program, loaded.fused.target
    held = loaded.fused.kernels.compiled
    joined = next(step for step in variant.plan.steps if step.tactic == NORMED)
    sites = {step.name: site for step, site in variant.sites_to_embed()}
    assert target.arch == "sm_90"
    assert len(program.regions) == 7 * LAYERS
    for name, tactic in ((joined.name, NORMED), *((name, "triton.") for name in joined.regions)):
        willing, _ = competitors(sites[name])
        assert willing[0].tactic.startswith(tactic)
        assert not any(candidate.tactic == APART for candidate in willing)
        kernels = loaded.fused.tactics[willing[0].tactic].offer(sites[name]).kernels(willing[0].config)  # type: ignore[union-attr]
        assert {kernel.digest for kernel in kernels} <= held.keys()
    nobody = replace(sites[joined.name], name="a…b")
    assert competitors(nobody) == ([], [])


# measured choices, with times that were taken elsewhere


class Told(Later):
    """A pair takes 4 µs, its regions 3 each."""

    def time(self, each: SiteRace, places: Sequence[int]) -> Timed:
        us = {NORMED: 4.0, "aten": 50.0}
        return Timed({p: us.get(each.willing[p].tactic, 3.0) + p / 100 for p in places})


class Measured(GraphReplay):
    def trial(self, context: SelectionContext) -> Trial:
        return Told()


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SelectionContext:
    monkeypatch.setattr(heats, "precompile", lambda *_, **__: [])
    monkeypatch.setattr(Refinement, "_graph", graph_of)
    made = context_of(network(PRE), "cuda:sm_90", 3)
    return replace(made, timer=Measured(), options=replace(made.options, level=3))


def graph_of(self: Refinement, contest: Any = None, rival: int = 0, *, pair: Any = None) -> str:
    steps = self.made.joined(pair)
    return f"{'pair' if pair else 'regions'} {len(steps)} joined"


def joined_in(made: Selection) -> list[str]:
    return [step.tactic for step in made.steps if len(step.regions) == 2]


def test_the_whole_plan_decides(context: SelectionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine, "_is_faster", lambda new, old, rounds: new.startswith("pair"))
    made = select(context)
    assert joined_in(made) == [NORMED] * (2 * LAYERS)
    for step in made.steps:
        if step.tactic == NORMED:
            assert step.median_us is not None
            assert 4.0 <= step.median_us < 4.1
            assert [c.median_us for c in step.entry.candidates if c.tactic == APART] == [6.0]
    assert made.refusals == []
    # what was measured here counts for the next build, which tries nothing again
    monkeypatch.setattr(refine, "_is_faster", lambda *_: pytest.fail("nothing is fresh"))
    again = select(context)
    assert joined_in(again) == joined_in(made)


def test_a_pair_that_makes_the_plan_no_faster_stays_apart(
    context: SelectionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refine, "_is_faster", lambda *_: False)
    made = select(context)
    assert joined_in(made) == []
    assert len(made.steps) == 7 * LAYERS
    assert [r.rule for r in made.refusals] == [NORMED, NORMED]
    assert "the whole plan is no faster with it" in made.refusals[0].reason
    assert joined_in(select(context)) == []


def test_what_no_graph_holds_is_decided_by_its_own_times(
    context: SelectionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise CaptureError("it waits")

    monkeypatch.setattr(Refinement, "_graph", fail)
    assert joined_in(select(context)) == [NORMED] * (2 * LAYERS)


def test_level_0_times_nothing_and_joins_nothing(context: SelectionContext) -> None:
    made = select(replace(context, options=replace(context.options, level=0)))
    assert joined_in(made) == []
    assert made.pairs == []


def test_overlapping_pairs_are_taken_once(context: SelectionContext) -> None:
    found = pairs.open_pairs(context)
    assert [len(pair.parts) for pair in found] == [LAYERS, LAYERS]
    made = Selection(pairs=[found[0], replace(found[0])])
    assert len(made.joined((found[0], 0))) == LAYERS
    made.pairs[1].taken = 0
    assert len(made.joined((found[0], 0))) == LAYERS


@pytest.mark.parametrize("is_faster", [True, False])
def test_a_plan_that_was_predicted_is_settled_by_times(
    is_faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (variant,) = ridgeline.load(engine_of(PRE).save(tmp_path / "net.ridge")).variants
    monkeypatch.setattr(heats, "precompile", lambda *_, **__: [])
    monkeypatch.setattr(Refinement, "_graph", graph_of)
    monkeypatch.setattr(refine, "_is_faster", lambda new, *_: is_faster and new.startswith("pair"))
    executable = variant.executable
    options = make_options({"target": "cuda:sm_90", "level": 3})
    found = context_at(executable.planned_shapes, executable, Measured(), options)
    settled, made = choose_again(variant, replace(found, competitors=embedded(variant)))
    joined = [step for step in settled.plan.steps if step.tactic == NORMED]
    assert len(joined) == (2 * LAYERS if is_faster else 0)
    assert len(settled.plan.steps) == 7 * LAYERS - len(joined)
    assert all(step.median_us is not None for step in settled.plan.steps)
    assert len(made.pairs) == 2
