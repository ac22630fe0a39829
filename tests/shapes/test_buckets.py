"""Buckets from observed shapes: the best with one moving dim, good ones with two, told and built."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from moving_models import model_of, own, rand

from ridgeline.analyze.buckets import propose
from ridgeline.cli.arguments import parse_profiles
from ridgeline.cli.main import main
from ridgeline.errors import OptionError
from ridgeline.runtime.observation import Histogram, read_histogram


def histogram(counts: dict[int, int]) -> Histogram:
    seen = tuple(({"ids": (n, 4), "mask": (n, 4)}, count) for n, count in counts.items())
    return Histogram("m", {"ids": ("S", 4), "mask": ("S", 4)}, seen)


def cost(counts: dict[int, int], buckets: tuple[int, ...]) -> int:
    return sum(min(b for b in buckets if b >= size) * n for size, n in counts.items())


@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_one_dim_is_solved_exactly(budget: int) -> None:
    counts = {3: 10, 7: 2, 8: 40, 15: 1, 16: 9, 64: 3, 65: 5, 100: 1}
    made = propose(histogram(counts), buckets=budget)
    chosen = tuple(bucket.sizes["S"] for bucket in made.buckets)
    others = itertools.combinations(counts, budget)
    best = min(cost(counts, pick) for pick in others if max(pick) == max(counts))
    assert cost(counts, chosen) == best
    assert made.is_exact
    real = sum(size * n for size, n in counts.items())
    assert made.padded == pytest.approx(1 - real / best)
    assert sum(bucket.calls for bucket in made.buckets) == sum(counts.values())


def test_more_buckets_never_pad_more() -> None:
    made = propose(histogram({n: n % 5 + 1 for n in range(1, 40)}), buckets=8)
    shares = list(made.by_budget.values())
    assert list(made.by_budget) == list(range(1, 9))
    assert shares == sorted(shares, reverse=True)


def test_two_dims_are_joined_pair_by_pair() -> None:
    shapes = {(1, 16): 50, (1, 20): 5, (8, 128): 20, (7, 120): 4, (8, 16): 1}
    seen = tuple(({"x": (b, s, 3)}, n) for (b, s), n in shapes.items())
    made = propose(Histogram("m", {"x": ("B", "S", 3)}, seen), buckets=3)
    assert made.moving == ("B", "S")
    assert [bucket.sizes for bucket in made.buckets] == [
        {"B": 1, "S": 20}, {"B": 8, "S": 16}, {"B": 8, "S": 128},
    ]  # fmt: skip
    assert "--profile 'x=8x128x3'" in made.option


def test_many_shapes_are_rounded_first() -> None:
    seen = tuple(({"x": (h, w)}, 1) for h in range(20, 45) for w in range(30, 50))
    made = propose(Histogram("m", {"x": None}, seen), buckets=4)
    assert len(made.buckets) <= 4
    assert max(bucket.sizes["x.0"] for bucket in made.buckets) == 44
    assert made.padded < 0.25


def test_nothing_moves() -> None:
    made = propose(histogram({5: 3}), buckets=4)
    assert made.moving == ()
    assert made.padded == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "does not read as observed shapes"),
        ('{"dims": {}, "seen": [{"shapes": {"x": [1]}, "count": 1}]}', "unknown input"),
        ('{"dims": {"x": ["N"]}, "seen": [{"shapes": {"x": [-1]}, "count": 1}]}', "negative"),
        ('{"dims": {"x": ["N"]}, "seen": []}', "saw no shape"),
    ],
)
def test_files_that_are_no_histogram(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "seen.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=message):
        read_histogram(path)
    with pytest.raises(OptionError, match="there is no file"):
        read_histogram(tmp_path / "none.json")


def run(*arguments: object) -> None:
    with pytest.raises(SystemExit) as done:
        main([str(argument) for argument in arguments])
    assert done.value.code == 0


def test_from_observing_to_a_padded_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of("g (float[N,8] x) => (float[N,4] y) { a = MatMul(x, w) y = Relu(a) }", w=rand(8, 4))
    engine = own(model, profiles={"N": "1..8..32"})
    with engine.observe(tmp_path / "seen.json"):
        for rows in (3, 4, 4, 4, 30, 31):
            engine.run({"x": rand(rows, 8)})
    engine.save(tmp_path / "g.ridge")
    run("shapes", tmp_path / "seen.json", "--buckets", 2, "--engine", tmp_path / "g.ridge", "--json")
    told = json.loads(capsys.readouterr().out)
    assert [row["sizes"] for row in told["buckets"]] == [{"N": 4}, {"N": 31}]
    assert told["paddable"] == "along 'N': cannot change results"
    assert told["work"] == "operations"
    run("shapes", tmp_path / "seen.json", "--buckets", 2)
    text = capsys.readouterr().out
    assert "Buckets" in text
    assert "--pad" in text
    (tmp_path / "g.onnx").write_bytes(model.SerializeToString())
    options = ["--profile", "x=4x8", "--profile", "x=31x8", "--pad", "--level", 0, "--verify", "fast"]
    run("build", tmp_path / "g.onnx", *options, "-o", tmp_path / "padded.ridge")
    assert "x" in capsys.readouterr().out
    run("explain", tmp_path / "padded.ridge", "--profile", 2)
    assert "2 of 2: x=31x8" in capsys.readouterr().out


def test_profiles_on_the_command_line() -> None:
    assert parse_profiles(None, ["x=1x8 s=[1, 2..4]", "x=2x8  s=[3, 4]"]) == [
        {"x": "1x8", "s": "[1, 2..4]"}, {"x": "2x8", "s": "[3, 4]"},
    ]  # fmt: skip
    assert parse_profiles(["x=1x8"], None) == {"x": "1x8"}
    with pytest.raises(OptionError, match="given together"):
        parse_profiles(["x=1x8"], ["x=2x8"])
