"""Several profiles, dims by name, values of shape tensors: each input finds its plan or a clear refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from moving_models import close, expected, model_of, own, rand

import ridgeline
from ridgeline.errors import InputError, OptionError
from ridgeline.runtime import context as context_module

PAIR = """g (float[N,8] x, float[N,4] y) => (float[N,4] z) { a = MatMul(x, w) b = Add(a, y) z = Relu(b) }"""
RESHAPED = """g (float[A,B] x, int64[2] s) => (float[C,D] y) {
  r = Reshape(x, s) e = Exp(r) t = Transpose <perm = [1, 0]> (e) u = Softmax(t)
  y = Transpose <perm = [1, 0]> (u) }"""
SLICED = """g (float[N,8] x, int64[1] upto) => (float[N,M] y) { c = Slice(x, zero, upto, one) y = Relu(c) }"""
SIZES = {"zero": np.array([0]), "one": np.array([1])}


def pair_feeds(rows: int) -> dict[str, np.ndarray]:
    return {"x": rand(rows, 8), "y": rand(rows, 4, seed=1)}


@pytest.fixture(scope="module")
def pair():  # type: ignore[no-untyped-def]
    return model_of(PAIR, w=rand(8, 4, seed=2))


@pytest.fixture(scope="module")
def engine(pair):  # type: ignore[no-untyped-def]
    return own(pair, profiles=[{"N": "1..4"}, {"x": "16..32..64x8"}])


def test_a_named_dim_is_spread_over_all_inputs(engine) -> None:  # type: ignore[no-untyped-def]
    first, second = engine.plan, engine.plan.others[0]
    assert [str(r) for r in first.profile["y"]] == ["1..2..4", "4"]
    assert [str(r) for r in second.profile["y"]] == ["16..32..64", "4"]
    assert second.planned_shapes["y"].shape == (32, 4)


@pytest.mark.parametrize(("rows", "profile"), [(1, 0), (4, 0), (16, 1), (33, 1), (64, 1)])
def test_inputs_run_by_the_profile_that_holds_them(engine, pair, rows: int, profile: int) -> None:  # type: ignore[no-untyped-def]
    feeds = pair_feeds(rows)
    specs = engine.signature.specs(engine.signature.checked(feeds))
    assert engine.profiles.at(specs) is engine.variants[profile]
    close(engine.run(feeds), expected(pair, feeds))


def test_between_profiles_every_one_says_what_it_takes(engine) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as caught:
        engine.run(pair_feeds(8))
    text = caught.value.text()
    assert "no profile of this engine takes these inputs (2 profiles)" in text
    assert "profile 1: 'x' is float32[8, 8], want float32[1..4, 8]" in text
    assert "profile 2: 'x' is float32[8, 8], want float32[16..64, 8]" in text
    assert "--profile 'x=8x8 y=8x4'" in text
    engine.run(pair_feeds(2))


def test_a_name_has_one_size(engine) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=r"(?s)dim 'N' has two sizes.*2 in 'x'.*3 in 'y'"):
        engine.run({"x": rand(2, 8), "y": rand(3, 4)})


def test_profiles_come_back_from_the_file(engine, pair, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    again = ridgeline.load(engine.save(tmp_path / "two.ridge"))
    assert len(again.variants) == 2
    assert again.plan == engine.plan
    feeds = pair_feeds(40)
    close(again.run(feeds), expected(pair, feeds))


def test_every_profile_is_tuned_and_verified(pair) -> None:  # type: ignore[no-untyped-def]
    built = ridgeline.build(pair, level=1, profiles=[{"N": "2"}, {"N": "64"}])
    names = {check.name for check in built.report.checks}
    assert {"planned shapes", "profile 2: planned shapes"} <= names
    assert built.report.verified
    assert all(step.median_us is not None for step in built.plan.others[0].steps)


@pytest.mark.parametrize(
    ("profiles", "text"),
    [
        (
            [{"x": "1..4x8", "y": "1..8x4"}],
            r"(?s)dim 'N' is given two ranges.*x: 1\.\.2\.\.4.*y: 1\.\.4\.\.8",
        ),
        ([{"M": "1..4"}], "the model has no input 'M'"),
        ([{"x": "[1,2]"}], "which does not take them"),
        ([{"N": "1..4x8"}], "the model has no input 'N'"),
        (["N=4"], "profiles is not a mapping"),
        ([{"x": "[1,a]"}], "do not read as such"),
        ([{"x": "[4..1]"}], "out of order"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(pair, profiles: object, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OptionError, match=text):
        own(pair, profiles=profiles)


def test_a_shape_tensor_is_settled_with_the_shapes() -> None:
    model = model_of(RESHAPED)
    engine = own(model, profiles={"x": "4x6", "s": "[1..8..24, 1..3..24]"})
    for sizes in ([8, 3], [3, 8], [24, 1], [8, 3]):
        feeds = {"x": rand(4, 6), "s": np.array(sizes)}
        close(engine.run(feeds), expected(model, feeds))
    instance = engine.context(wait=True).instance({"x": rand(4, 6), "s": np.array([8, 3])})
    # nothing is decided while it runs: every value has its place
    assert not instance.dynamic_names
    assert "Reshape" not in [op for step in instance.steps if step.launch for op in step.region.op_types]


def test_values_outside_their_profile_are_refused() -> None:
    engine = own(model_of(SLICED, **SIZES), profiles={"N": "2", "upto": "[1..4]"})
    with pytest.raises(InputError, match=r"(?s)values \[5\].*want  values \[1..4\].*--shapes 'upto="):
        engine.run({"x": rand(2, 8), "upto": np.array([5])})


def test_values_that_change_all_the_time_stop_making_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "KEPT_VALUES", 8)
    model = model_of(SLICED.replace("float[N,8]", "float[N,40]"), **SIZES)
    engine = own(model, profiles={"N": "2", "upto": "[1..40]"})
    context = engine.context(wait=True)
    for upto in range(1, 12):
        feeds = {"x": rand(2, 40), "upto": np.array([upto])}
        close(context.run(feeds), expected(model, feeds))
    assert context._key([feeds["x"], feeds["upto"]]) == ((2, 40), (1,))


def test_an_open_shape_tensor_runs_as_an_island_and_says_so() -> None:
    engine = ridgeline.build(model_of(SLICED, **SIZES), level=0, without=("ort",), profiles={"N": "2"})
    assert any("'upto' is a shape tensor (read by Slice)" in text for text in engine.report.warnings)
    assert engine.run({"x": rand(2, 8), "upto": np.array([3])})["y"].shape == (2, 3)


def test_values_for_data_are_refused() -> None:
    model = model_of("g (int64[2] i) => (float[2,4] y) { y = Gather(t, i) }", t=rand(5, 4))
    with pytest.raises(OptionError, match="no shape depends on them"):
        own(model, profiles={"i": "[0..4, 0..4]"})
