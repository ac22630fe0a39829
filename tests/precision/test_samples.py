"""Data sets: every kind of source gives the same rows, and a wrong one is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ridgeline.base.arrays import load_sample
from ridgeline.base.spec import Port
from ridgeline.errors import OptionError, SampleShapeError
from ridgeline.precision.samples import Samples, division_warnings, rows_of_sample

PORTS = (Port("x", "float32", ("N", 3)), Port("ids", "int64", ("N",)))
X = np.arange(24, dtype=np.float32).reshape(8, 3)
IDS = np.arange(8, dtype=np.int64)
OUT = (Port("y", "float32", ("N", 5)),)


def batches(size: int) -> list[dict[str, np.ndarray]]:
    return [{"x": X[i : i + size], "ids": IDS[i : i + size]} for i in range(0, 8, size)]


def folder(path: Path, size: int) -> Path:
    for i, batch in enumerate(batches(size)):
        np.savez(path / f"{i}.npz", **batch)
    return path


class Columns:
    """A data set with columns, as Hugging Face has them: rows without a batch axis, in plain lists."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i >= 8:
            raise IndexError
        return {"x": X[i].tolist(), "ids": int(IDS[i]), "label": "cat"}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(8))


def loader(size: int) -> Any:
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(IDS)), batch_size=size
    )


def sources(path: Path) -> dict[str, Any]:
    return {
        "folder": folder(path, 4),
        "text": str(path),
        "list": batches(1),
        "iterator": iter(batches(8)),
        "function": lambda: batches(2),
        "loader": loader(4),
        "columns": Columns(),
    }


@pytest.mark.parametrize("kind", ["folder", "text", "list", "iterator", "function", "loader", "columns"])
def test_every_source_gives_the_same_rows_again_and_again(kind: str, tmp_path: Path) -> None:
    samples = Samples.of(sources(tmp_path)[kind], PORTS, OUT)
    for _ in range(2):
        rows = list(samples)
        assert [row["x"].shape for row in rows] == [(1, 3)] * 8
        np.testing.assert_array_equal(np.concatenate([row["x"] for row in rows]), X)
        np.testing.assert_array_equal(np.concatenate([row["ids"] for row in rows]), IDS)


def test_batches_and_order_change_neither_the_digest_nor_the_split() -> None:
    shuffled = [batches(1)[i] for i in (3, 1, 7, 0, 2, 6, 5, 4)]
    sets = [Samples.of(source, PORTS, OUT) for source in (batches(1), batches(4), batches(8), shuffled)]
    assert len({samples.digest() for samples in sets}) == 1
    halves = [[sorted(float(row["x"][0, 0]) for row in part) for part in samples.split()] for samples in sets]
    assert all(half == halves[0] for half in halves)
    assert halves[0][0]
    assert halves[0][1]
    assert not set(halves[0][0]) & set(halves[0][1])


def test_one_sample_is_not_divided() -> None:
    samples = Samples.of(batches(1)[:1], PORTS, OUT)
    first, second = samples.split()
    assert len(list(first)) == len(list(second)) == 1
    (said,) = division_warnings(first, second)
    assert "1 different samples, too few to hold any back" in said
    assert "give 32 or more" in said
    assert division_warnings(*Samples.of(batches(1), PORTS, OUT).split()) == []


def test_a_model_of_fixed_batch_takes_batches_of_many() -> None:
    samples = Samples.of(batches(8), (Port("x", "float32", (2, 3)), Port("ids", "int64", (2,))), OUT)
    assert [row["x"].shape for row in samples] == [(2, 3)] * 4


FIXED_OUT = (Port("y", "float32", (5, 5)),)
FIXED = (Port("x", "float32", (5, 3)), Port("ids", "int64", (5,)))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_rows_are_joined_to_the_batch_that_a_model_takes(size: int) -> None:
    for source in (batches(size), Columns()):
        samples = Samples.of(source, FIXED, FIXED_OUT, lambda: True)
        made = np.concatenate([row["x"] for row in samples])
        np.testing.assert_array_equal(made, np.concatenate([X, X[:2]]))  # filled up with the first rows
        assert [row["ids"].shape for row in samples] == [(5,)] * 2
    first, second = samples.split()  # row by row, before they are joined
    assert not {float(x) for row in first for x in row["x"][:, 0]} & {
        float(x) for row in second for x in row["x"][:, 0]
    }


def test_whole_batches_stay_as_they_are() -> None:
    asked: list[bool] = []
    samples = Samples.of(batches(5)[:1], FIXED, FIXED_OUT, lambda: bool(asked.append(True)))
    assert [row["x"].shape for row in samples] == [(5, 3)]
    assert not asked
    both = Samples.of(batches(5), FIXED, FIXED_OUT, lambda: True)
    made = [row["ids"].tolist() for row in both]
    assert made == [[0, 1, 2, 3, 4], [5, 6, 7, 5, 6]]


@pytest.mark.parametrize(
    ("outputs", "joins"), [(FIXED_OUT, False), ([Port("y", "float32", (1, 5))], True), ([], True)]
)
def test_rows_that_are_no_samples_are_not_joined(outputs: list[Port], joins: bool) -> None:
    with pytest.raises(SampleShapeError, match=r"(?s)another shape.*\[3, 3\].*float32\[5,3\]"):
        Samples.of(batches(3), FIXED, outputs, lambda: joins)


def test_joined_inputs_have_as_many_rows_as_one_another() -> None:
    with pytest.raises(SampleShapeError, match="another shape"):
        Samples.of([{"x": X[:3], "ids": IDS[:2]}], FIXED, FIXED_OUT, lambda: True)


def port(*dims: int | str) -> Port:
    return Port("p", "float32", dims)


@pytest.mark.parametrize(
    ("inputs", "outputs", "rows"),
    [
        ([port("N", 3), port("N")], [port("N", 5), port("N", "T")], 1),
        ([port("N", 3)], [port("M", 5)], 0),  # the file does not say that it is the same axis
        ([port("N", 3)], [port("N", 5), port(5)], 0),  # a sum over the rows
        ([port("N", 3)], [port()], 0),
        ([port("N", 3)], [Port("p", "float32", None)], 0),
        ([port("N")], [port(1, "N")], 0),  # sound, of which N is the length
        ([port("N", 3), port("N", "N")], [port("N", 3)], 0),  # points and the edges between them
        ([port(2, "N", 128), port("N", 8)], [port("N", 1)], 0),  # a state beside its input
        ([port("N", 3), port()], [port("N", 1)], 0),
        ([port(4, 3)], [port(7)], 4),  # it takes no other number
        ([port("N", 3)], [], 0),
    ],
)  # fmt: skip
def test_rows_are_samples_only_where_the_model_says_so(
    inputs: list[Port], outputs: list[Port], rows: int
) -> None:
    assert rows_of_sample(inputs, outputs) == rows


def test_what_is_no_batch_is_one_sample() -> None:
    sound = Samples.of([{"x": X[:, 0]}, {"x": X[:3, 0]}], [Port("x", "float32", ("N",))], [port(1, "N")])
    assert [row["x"].shape for row in sound] == [(8,), (3,)]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([], "no sample"),
        ([{"y": X, "ids": IDS}], "nothing for input 'x'"),
        ([{"x": X[:, :2], "ids": IDS}], "another shape"),
        ([{"x": X.astype(np.float16), "ids": IDS}], "another type"),
        ([{"x": X, "ids": IDS.astype(np.float64)}], "another type"),
        ([{"x": np.full((1, 3), np.nan, np.float32), "ids": IDS[:1]}], "NaN in 'x'"),
        ([{"x": np.full((1, 3), np.inf, np.float32), "ids": IDS[:1]}], "infinity in 'x'"),
        ([(X,)], "1 values"),
        (7, "no data set"),
        (lambda: None, "returns no data set"),
        ([{"x": [[1.0], [1.0, 2.0]], "ids": [0, 1]}], "no array for 'x'"),
        ([{"x": np.full((1, 3), 1e39), "ids": IDS[:1]}], "numbers in 'x' that float32 does not hold"),
        ("/nowhere", "no folder"),
    ],
)
def test_wrong_data_is_refused(source: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Samples.of(source, PORTS, OUT)


def test_whole_numbers_become_narrow_ones_if_they_fit() -> None:
    """Python's own integers are int64; none may wrap."""
    ports = (Port("ids", "int32", ("N",)),)
    kept = Samples.of([{"ids": [2**31 - 1, -(2**31)]}], ports, ports)
    assert [row["ids"].tolist() for row in kept] == [[2**31 - 1], [-(2**31)]]
    with pytest.raises(OptionError, match=r"(?s)sample 0 has numbers in 'ids' .*got   2147483648"):
        Samples.of([{"ids": [5, 2**31]}], ports, ports)


def test_an_array_that_is_no_input_says_what_files_hold(tmp_path: Path) -> None:
    np.savez(tmp_path / "0.npz", x=np.zeros(3, np.float32), label=np.zeros(1))
    with pytest.raises(OptionError, match="holds 'label', which is no input of the model") as caught:
        load_sample(tmp_path / "0.npz", ["x"])
    assert caught.value.want == "x"
    (tmp_path / "1.npz").write_text("junk")
    with pytest.raises(OptionError, match="does not load as an array") as caught:
        load_sample(tmp_path / "1.npz", ["x"])
    assert "pickle" not in caught.value.got
