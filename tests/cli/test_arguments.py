from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.cli.arguments import parse_names, parse_profiles, parse_without
from ridgeline.cli.arrays import read_inputs
from ridgeline.errors import OptionError


def test_shapes_are_split_at_the_first_equals_sign() -> None:
    assert parse_profiles(["x=1..8x3", "a/b:0=4"], None) == {"x": "1..8x3", "a/b:0": "4"}
    assert parse_profiles(None, None) is None


@pytest.mark.parametrize("given", [["x"], ["=3"], ["x="], ["x=1", "x=2"]])
def test_shapes_that_do_not_read(given: list[str]) -> None:
    with pytest.raises(OptionError, match="--shapes"):
        parse_profiles(given, None)


def test_without_takes_commas_and_repeats() -> None:
    assert parse_without(["ort,cpp", "onednn"]) == ("ort", "cpp", "onednn")
    assert parse_without(None) is None


def test_an_unknown_peer_offers_the_near_one() -> None:
    assert parse_names("torch,ort,torch", option="--peers", known=("ort", "torch")) == ("torch", "ort")
    with pytest.raises(OptionError, match="did you mean 'torch'"):
        parse_names("troch", option="--peers", known=("ort", "torch"))


def test_inputs_come_from_npy_and_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "bc.npz", b=np.ones(2), c=np.zeros(1))
    arrays = read_inputs([f"a={tmp_path / 'a.npy'}", str(tmp_path / "bc.npz")])
    assert list(arrays) == ["a", "b", "c"]
    assert read_inputs([f"b={tmp_path / 'bc.npz'}"])["b"].tolist() == [1, 1]


def test_an_input_given_twice_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(OptionError, match="twice"):
        read_inputs([f"a={tmp_path / 'a.npy'}"] * 2)


def test_files_that_hold_no_array(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_text("not an array")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("empty.npy", "text.npy", "cut.npz", "objects.npy"):
        with pytest.raises(OptionError, match="does not load as an array"):
            read_inputs([f"x={tmp_path / name}"])
    with pytest.raises(OptionError, match="does not exist"):
        read_inputs([f"x={tmp_path / 'none.npy'}"])
