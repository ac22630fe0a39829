"""A profile tuned at several points: a plan for each part of its range, one profile to callers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from moving_models import close, expected, model_of, own, rand

import ridgeline
from ridgeline.base.spec import Port, TensorSpec
from ridgeline.base.tuning_points import parse_points
from ridgeline.errors import InputError, OptionError, PlanError
from ridgeline.frontend.profiles import Resolved, resolve_profile
from ridgeline.frontend.tuned_parts import tuned_parts
from ridgeline.options import DimRange
from ridgeline.plan.check import check_ports, check_sizes
from ridgeline.plan.plan import Plan
from ridgeline.select.shapes import refusals_at

CONV = """conv (float[N,3,16,16] x) => (float[N,8] y) {
  a = Conv <kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]> (x, k1) b = Relu(a)
  c = Conv <kernel_shape = [1,1]> (b, k2) d = Relu(c) e = GlobalAveragePool(d) y = Flatten(e) }"""
KERNELS = {"k1": rand(8, 3, 3, 3, scale=0.3), "k2": rand(8, 8, 1, 1, seed=1, scale=0.3)}
PAIR = """g (float[N,S] x, float[N,4] y) => (float[N,4] z) { m = ReduceMean <keepdims = 1> (x, one)
  a = Add (m, y) z = Relu (a) }"""
SIZED = (
    """g (float[N,8] x, int64[1] upto) => (float[N,M] y) { c = Slice (x, zero, upto, one) y = Relu (c) }"""
)
RANGE = {"x": "1..8..32x3x16x16"}


def parts(plan: Plan, name: str = "x", axis: int = 0) -> list[str]:
    return [str(each.part[name][axis]) for each in (plan, *plan.parts)]


def points(plan: Plan) -> list[dict[str, tuple[int, ...]]]:
    return [{n: s.shape for n, s in each.planned_shapes.items()} for each in (plan, *plan.parts)]


def place(engine: ridgeline.Engine, feeds: dict[str, np.ndarray]) -> int | None:
    return engine.signature.find(engine.signature.specs(engine.signature.checked(feeds)))


@pytest.fixture(scope="module")
def conv() -> onnx.ModelProto:
    return model_of(CONV, **KERNELS)


@pytest.fixture(scope="module")
def engine(conv: onnx.ModelProto) -> ridgeline.Engine:
    return own(conv, profiles=RANGE, tune_at="N=1,8,32")


def test_one_moving_dim_is_split_at_the_geometric_middle(engine: ridgeline.Engine) -> None:
    assert parts(engine.plan) == ["3..8..16", "1..1..2", "17..32..32"]
    assert [str(each.profile["x"][0]) for each in engine.plan.every_plan] == ["1..8..32"] * 3
    assert not engine.plan.others


@pytest.mark.parametrize(
    ("rows", "part"), [(1, 1), (2, 1), (3, 0), (8, 0), (16, 0), (17, 2), (31, 2), (32, 2)]
)
def test_every_size_is_run_by_its_part(
    engine: ridgeline.Engine, conv: onnx.ModelProto, rows: int, part: int
) -> None:
    feeds = {"x": rand(rows, 3, 16, 16)}
    assert place(engine, feeds) == part
    close(engine.run(feeds), expected(conv, feeds))


def test_outside_the_error_speaks_of_the_whole_profile(engine: ridgeline.Engine) -> None:
    with pytest.raises(InputError) as caught:
        engine.run({"x": rand(33, 3, 16, 16)})
    text = caught.value.text()
    assert "float32[1..32, 3, 16, 16]" in text
    assert "--shapes x=1..33x3x16x16" in text
    assert "profiles" not in text


def test_parts_come_back_from_the_file(
    engine: ridgeline.Engine, conv: onnx.ModelProto, tmp_path: Path
) -> None:
    again = ridgeline.load(engine.save(tmp_path / "parts.ridge"))
    assert again.plan == engine.plan
    assert [variant.is_further for variant in again.variants] == [False, True, True]
    for rows in (2, 3, 16, 17):
        feeds = {"x": rand(rows, 3, 16, 16)}
        assert place(again, feeds) == place(engine, feeds)
        close(again.run(feeds), expected(conv, feeds))


def test_each_part_is_tuned_and_verified_at_its_ends(conv: onnx.ModelProto) -> None:
    built = ridgeline.build(conv, level=1, profiles=RANGE, tune_at="min", progress=False)
    shapes = {check.name: check.shapes for check in built.report.checks}
    assert shapes["min shapes"] == "x[3x3x16x16]"
    assert shapes["tuned at x=1x3x16x16: max shapes"] == "x[2x3x16x16]"
    assert "tuned at x=1x3x16x16: min shapes" not in shapes  # it is the planned one
    assert built.report.verified
    assert all(step.median_us is not None for each in built.plan.every_plan for step in each.steps)
    assert len(built.plan.every_plan) == 2


def test_the_weights_are_shared(engine: ridgeline.Engine) -> None:
    assert engine.memory()["weights"] == sum(tensor.nbytes for tensor in engine.weights.values())
    assert len({id(variant.executable.fused) for variant in engine.variants}) == 1


@pytest.mark.parametrize("library", ["cpp", "ort"])
def test_parts_share_what_they_pack_alike(library: str) -> None:
    without = tuple({"ort", "cpp", "onednn", "mkl", "aten.linear"} - {library})
    model = model_of(
        "g (float[N,64] x) => (float[N,48] y) { a = MatMul (x, w) y = Relu (a) }", w=rand(64, 48)
    )

    def packed(**options: Any) -> int:
        engine = own(model, without=without, **options)
        for each in engine.variants:
            engine.run(engine.example_inputs(shapes=each.plan.planned_shapes))
        return engine.memory()["packed"]

    alone = packed(profiles={"N": "32..64..96"})
    assert packed(profiles={"N": "32..64..96"}, tune_at="min,max") == alone > 0


def test_a_lock_pins_every_part(conv: onnx.ModelProto, tmp_path: Path) -> None:
    lock, cache = tmp_path / "ridge.lock", tmp_path / "timings.toml"
    options: dict[str, Any] = {"profiles": RANGE, "tune_at": "min,max", "verify": "off", "progress": False}
    options["timing_cache"] = cache
    first = ridgeline.build(conv, level=1, lock=lock, **options)
    assert first.report.sites_timed
    text = lock.read_text()
    again = ridgeline.build(conv, level=1, lock=lock, **options)
    assert lock.read_text() == text
    assert again.report.sites_timed == 0
    paths = [each.save(tmp_path / name) for each, name in ((again, "a.ridge"), (first, "b.ridge"))]
    assert [each.plan.to_json() for each in map(ridgeline.load, paths)] == [first.plan.to_json()] * 2
    cached = ridgeline.build(conv, level=1, **options)
    assert cached.report.sites_timed == 0
    assert cached.report.sites_cached == first.report.sites_timed + first.report.sites_cached


@pytest.mark.parametrize(
    ("tune_at", "sizes"),
    [
        (None, [4]),
        ("opt", [4]),
        ((), [4]),
        ("min,max", [4, 1, 9]),
        (["max", {"N": 2}], [4, 2, 9]),
        ({"N": [1, "9"]}, [4, 1, 9]),
        ("N=4", [4]),
        ("min N=1,2", [4, 1, 2]),
        ("x=2x3x16x16,9x3x16x16", [4, 2, 9]),
        ({"x": [(2, 3, 16, 16), "9x3x16x16"]}, [4, 2, 9]),
    ],
)
def test_points_are_given_in_several_ways(conv: onnx.ModelProto, tune_at: object, sizes: list[int]) -> None:
    plan = own(conv, target="null", profiles={"N": "1..4..9"}, tune_at=tune_at).plan
    assert [each["x"][0] for each in points(plan)] == sizes
    assert bool(plan.part) == (len(sizes) > 1)


def test_several_moving_dims_keep_the_whole_range() -> None:
    model = model_of(PAIR, one=np.array([1]))
    profile = {"x": "1..4..8x2..16..64", "y": "1..4..8x4"}
    engine = own(model, profiles=profile, tune_at=["min", "N=8 S=2,64", "x=4x64"])
    assert [each["x"] for each in points(engine.plan)] == [(4, 16), (1, 2), (4, 64), (8, 2), (8, 64)]
    assert [each["y"] for each in points(engine.plan)] == [(4, 4), (1, 4), (4, 4), (8, 4), (8, 4)]
    assert parts(engine.plan) == ["1..4..8", "1..1..8", "1..4..8", "1..8..8", "1..8..8"]
    assert parts(engine.plan, axis=1)[3] == "2..2..64"
    for shape, part in (((1, 2), 1), ((8, 60), 4), ((7, 3), 3), ((4, 20), 0), ((1, 64), 2)):
        feeds = {"x": rand(*shape), "y": rand(shape[0], 4, seed=1)}
        assert place(engine, feeds) == part
        close(engine.run(feeds), expected(model, feeds))


def test_values_of_shape_tensors_are_at_the_ends_too() -> None:
    model = model_of(SIZED, zero=np.array([0]), one=np.array([1]))
    engine = own(model, profiles={"N": "1..2..4", "upto": "[1..4..8]"}, tune_at="min,max")
    assert [each.planned_shapes["upto"].value for each in engine.plan.every_plan] == [(4,), (1,), (8,)]
    assert parts(engine.plan) == ["1..2..4", "1..1..4", "1..4..4"]
    for rows, upto in ((1, 8), (4, 1), (2, 4)):
        feeds = {"x": rand(rows, 8), "upto": np.array([upto])}
        close(engine.run(feeds), expected(model, feeds))


def test_a_point_belongs_to_each_profile_that_holds_it(conv: onnx.ModelProto) -> None:
    profiles = [{"N": "1..4"}, {"N": "3..8"}, {"N": "16"}]
    engine = own(conv, profiles=profiles, tune_at="N=3,8")
    plans = (engine.plan, *engine.plan.others)
    assert [[each["x"][0] for each in points(plan)] for plan in plans] == [[2, 3], [5, 3, 8], [16]]
    assert [place(engine, {"x": rand(n, 3, 16, 16)}) for n in (1, 3, 5, 7, 16)] == [0, 1, 2, 4, 5]
    with pytest.raises(InputError, match=r"\(3 profiles\)"):
        engine.run({"x": rand(9, 3, 16, 16)})


def test_nothing_is_padded_inside_a_profile(conv: onnx.ModelProto) -> None:
    engine = own(conv, profiles=[{"N": "2..4..16"}, {"N": "20..32..40"}], tune_at="min,max", pad=True)
    context = engine.context()
    for rows, run in ((1, 2), (2, 2), (3, 3), (5, 5), (9, 9), (16, 16), (17, 20), (26, 26)):
        feeds = {"x": rand(rows, 3, 16, 16)}
        assert context.instance(feeds).inputs["x"].shape[0] == run
        close(context.run(feeds), expected(conv, feeds))
    built = own(conv, profiles={"N": "2..4..16"}, tune_at="min,max", pad=True, verify="fast")
    padded = {check.shapes for check in built.report.checks if check.name == "padded along N"}
    assert padded == {"x[1x3x16x16]"}


@pytest.mark.parametrize("level", [3, 4, 5])
def test_high_levels_take_both_ends(conv: onnx.ModelProto, level: int) -> None:
    def sizes(**options: object) -> list[int]:
        plan = own(conv, target="null", level=level, **options).plan
        return [each["x"][0] for each in points(plan)]

    assert sizes(profiles={"N": "1..4..9"}) == ([4, 1, 9] if level >= 4 else [4])
    assert sizes(profiles={"N": "1..4..9"}, tune_at="opt") == [4]
    assert sizes(profiles={"N": "4"}) == [4]
    assert len(sizes()) == 1


@pytest.mark.parametrize(
    ("tune_at", "text"),
    [
        ("N=64", r"(?s)N=64, which no profile holds.*want  N=1\.\.8\.\.32"),
        ("x=33x3x16x16", "which no profile holds"),
        ("x=1x3x8x16", r"(?s)does not fit the model.*want  float32\[N,3,16,16\]"),
        ("x=8", r"(?s)does not fit the model.*by its name"),
        ("M=8", r"(?s)tune_at names 'M', which the model does not have.*known: N, x"),
        ("xx=8", "did you mean 'x'"),
        ("N=1x3", "'N' is one dim"),
        ("N=1 x=2x3x16x16", "dim 'N' has two sizes in one point"),
        ("N=1,1", r"(?s)names a point twice.*N=1"),
        (["N=1", "N=2,1"], "names a point twice"),
        (["N=1", "x=1x3x16x16"], "names a point twice"),
        ("N=1 N=2", "names 'N' twice in one point"),
        ("mid", "does not know 'mid'"),
        ("maxi", "did you mean 'max'"),
        ("N=a", "does not read as points"),
        ({"N": True}, "does not read as points"),
        ({"N": []}, "does not read as points"),
        (8, "is not a list of points"),
        (" ".join(f"d{i}=1,2,3,4,5,6,7,8" for i in range(9)), "too many points"),
    ],
)
def test_points_that_do_not_fit_are_refused(conv: onnx.ModelProto, tune_at: object, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        own(conv, target="null", profiles=RANGE, tune_at=tune_at)


def test_points_want_a_range(conv: onnx.ModelProto) -> None:
    for options in ({"profiles": {"N": "4"}}, {}):
        with pytest.raises(OptionError, match="there is no range of sizes to tune in"):
            own(conv, target="null", tune_at="min,max", **options)


def test_points_that_the_model_forbids() -> None:
    """Such as sizes that break a guard: an error if they were asked for, else they are left out."""
    inputs = (Port("x", "float32", ("N", 8)),)
    profile = resolve_profile(inputs, {"N": (DimRange(2, 4, 9),)})

    def why_not(part: Resolved) -> list[str]:
        return ["N > 2"] if part.symbols["N"].opt <= 2 else []

    (usual,) = tuned_parts(inputs, [profile], None, ("min", "max"), why_not)
    assert [str(part.symbols["N"]) for part in usual] == ["2..4..6", "7..9..9"]
    (asked,) = tuned_parts(inputs, [profile], parse_points("N=3,9"), (), why_not)
    assert [part.symbols["N"].opt for part in asked] == [4, 3, 9]
    for points in ("min", "N=2"):
        with pytest.raises(OptionError, match=r"(?s)cannot be tuned.*N > 2.*N=2"):
            tuned_parts(inputs, [profile], parse_points(points), (), why_not)


def test_ends_that_are_empty_or_do_not_run_are_left_out(conv: onnx.ModelProto) -> None:
    plan = own(conv, target="null", level=4, profiles={"N": "0..4..9"}).plan
    assert parts(plan) == ["0..4..6", "7..9..9"]

    class Refuses:
        def open(self) -> None: ...

        def run(self, feeds: Any, *, keep: bool = False) -> None:
            raise ValueError(f"{len(feeds['x'])} rows are too few")

    inference = own(conv, target="null", profiles={"N": "4"}).inference
    one = {"x": TensorSpec("float32", (1, 3, 16, 16))}
    assert refusals_at(one, inference, None) == []
    assert refusals_at(one, inference, Refuses()) == ["1 rows are too few"]


def test_a_plan_with_a_part_that_does_not_fit_is_refused(engine: ridgeline.Engine) -> None:
    wrong = replace(engine.plan.parts[0], part={"x": engine.plan.part["x"][1:]})
    with pytest.raises(PlanError, match="3 dims"):
        check_ports(replace(engine.plan, parts=(wrong,)), engine.program)
    memory = replace(wrong.memory, arena_bytes=-1)
    with pytest.raises(PlanError, match="arena_bytes"):
        check_sizes(replace(engine.plan, parts=(replace(engine.plan.parts[0], memory=memory),)))


@pytest.mark.parametrize(("low", "high"), [(17, 64), (0, 32)])
def test_a_part_beyond_its_profile_is_refused(engine: ridgeline.Engine, low: int, high: int) -> None:
    *others, last = engine.plan.parts
    rows, *rest = last.part["x"]
    wrong = replace(last, part={"x": (replace(rows, min=low, max=high), *rest)})
    with pytest.raises(
        PlanError, match=rf"takes x={low}\.\.32\.\.{high}x3x16x16, the profile x=1\.\.8\.\.32x"
    ):
        check_sizes(replace(engine.plan, parts=(*others, wrong)))
    of_another = replace(last, profile=last.part)
    with pytest.raises(PlanError, match="of another profile"):
        check_sizes(replace(engine.plan, parts=(*others, of_another)))


def test_a_size_that_no_part_takes_is_an_error_in_words(engine: ridgeline.Engine) -> None:
    missing = ridgeline.Engine(engine.variants[:2], engine.planner)
    assert missing.run({"x": rand(8, 3, 16, 16)})
    with pytest.raises(InputError, match="no part of the plan takes these inputs"):
        missing.run({"x": rand(32, 3, 16, 16)})


def test_the_command_line_says_which_part_is_tuned_where(
    ridge: Callable[..., tuple[int, str, str]], conv: onnx.ModelProto, tmp_path: Path
) -> None:
    onnx.save(conv, tmp_path / "conv.onnx")
    file = tmp_path / "conv.ridge"
    given = ("--shapes", "x=1..8..32x3x16x16", "--tune-at", "N=1", "--tune-at", "max")
    status, out, _ = ridge("build", tmp_path / "conv.onnx", "-o", file, *given, "--level", "0", "--json")
    assert status == 0
    made = json.loads(out)
    assert made["profiles"] == ["x=1..8..32x3x16x16"]
    rows = [(row["profile"], row["part"], row["tuned_at"], row["takes"]) for row in made["parts"]]
    assert rows == [
        (1, 1, "x=8x3x16x16", "x=3..16x3x16x16"),
        (1, 2, "x=1x3x16x16", "x=1..2x3x16x16"),
        (1, 3, "x=32x3x16x16", "x=17..32x3x16x16"),
    ]
    _, out, _ = ridge("show", file)
    assert "Tuned at several points" in out
    assert "x=17..32x3x16x16" in out
    _, out, _ = ridge("explain", file, "--part", "3", "--json")
    assert json.loads(out)["profile"] == (
        "x=1..8..32x3x16x16; part 3 of 3, tuned at x=32x3x16x16 for x=17..32x3x16x16"
    )
    status, _, err = ridge("explain", file, "--part", "4")
    assert status == 1
    assert "profile 1 has no part 4" in err
    status, _, err = ridge("run", file, "--tune-at", "N=1")
    assert status == 1
    assert "is built already, and --tune-at can only be given to a build" in err
