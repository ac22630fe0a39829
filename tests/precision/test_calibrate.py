"""Calibration: the same bits for any batch size and order, choice by layer output, the file, bad data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from quant_models import model_of

from ridgeline.base.formats import FORMATS
from ridgeline.base.spec import Op, Port
from ridgeline.errors import InputError, OptionError
from ridgeline.precision.calibrate import Calibrated, Group, Layer, _chosen, calibrate, compared_rows
from ridgeline.precision.calibration_file import (
    VERSION,
    CalibrationFile,
    model_digest,
    read_calibration,
    rows_of,
    write_calibration,
)
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.histograms import METHODS, Range
from ridgeline.precision.samples import Samples

K, N = 32, 16
RNG = np.random.default_rng(0)
W = RNG.standard_normal((K, N)).astype(np.float32)
TEXT = f"""g (float[B,{K}] x) => (float[B,{N}] y) {{
    t = Tanh(x)
    s = Exp(t)
    y = MatMul(s, w)
}}"""
PORTS = (Port("x", "float32", ("B", K)),)
DATA = RNG.standard_t(3, (192, K)).astype(np.float32)


def model(text: str = TEXT) -> ir.Model:
    return model_of(text, w=W)


def batches(data: np.ndarray, size: int) -> Samples:
    return Samples.of([{"x": data[i : i + size]} for i in range(0, len(data), size)], PORTS, PORTS)


GROUPS = (
    Group(("s",), FORMATS["uint8"], symmetric=False),
    Group(("x", "t"), FORMATS["int8"]),
)


def layers() -> list[Layer]:
    op = Op("MatMul", ("s", "w"), ("y",))
    return [Layer(op, {"w": (torch.from_numpy(W), torch.from_numpy(W).half().float())})]


def run(samples: Samples, **options) -> dict[str, Calibrated]:
    return calibrate(Emulator(model()), samples, GROUPS, layers=layers(), **options)


@pytest.mark.parametrize("method", ["auto", "entropy"])
def test_batch_size_and_order_change_no_bit(method: str) -> None:
    wanted = run(batches(DATA, 1), method=method)
    shuffled = DATA[np.random.default_rng(9).permutation(len(DATA))]
    for data, size in ((DATA, 8), (DATA, 64), (shuffled, 1), (shuffled, 64)):
        assert run(batches(data, size), method=method) == wanted


def test_the_choice_has_the_least_output_error() -> None:
    found = run(batches(DATA, 64))["s"]
    assert set(found.errors) == set(METHODS)
    assert found.errors[found.method] * 0.9 <= min(found.errors.values())
    assert run(batches(DATA, 64))["x"].method == "mse"  # no layer reads it


def test_of_ranges_that_are_about_as_good_the_widest_is_taken() -> None:
    ranges = {"max": Range(-4.0, 4.0), "mse": Range(-3.0, 3.0), "entropy": Range(-2.0, 2.0)}
    assert _chosen({"max": 1.0, "mse": 0.95, "entropy": 0.93}, ranges) == "max"
    assert _chosen({"max": 1.0, "mse": 0.6, "entropy": 0.5}, ranges) == "entropy"
    assert _chosen({"max": 1.0, "mse": 0.6, "entropy": 0.58}, ranges) == "mse"
    assert _chosen(dict.fromkeys(ranges, 0.0), ranges) == "max"


def test_groups_share_what_any_member_reached() -> None:
    found = run(batches(DATA, 64), method="max")
    assert found["x"].range == Range(float(DATA.min()), float(DATA.max()))
    assert found["x"].values == 2 * DATA.size


def test_fixed_ranges_need_no_data() -> None:
    groups = [Group(("s",), FORMATS["uint8"], symmetric=False, fixed=Range(0.0, 1.0))]
    found = calibrate(Emulator(model()), batches(DATA[:1], 1), groups)
    assert (found["s"].range, found["s"].method) == (Range(0.0, 1.0), "fixed")


def test_compared_rows_are_the_same_in_any_order() -> None:
    one = compared_rows(batches(DATA, 8), 5)
    other = compared_rows(batches(DATA[::-1].copy(), 64), 5)
    assert len(one) == 5
    assert all((a["x"] == b["x"]).all() for a, b in zip(one, other, strict=True))
    assert len(compared_rows(batches(DATA[:3], 8), 5)) == 3


def test_unknown_methods_and_misfits() -> None:
    with pytest.raises(OptionError, match="did you mean 'entropy'"):
        run(batches(DATA, 8), method="entrpy")
    groups = [Group(("s",), FORMATS["fp8"])]
    with pytest.raises(OptionError, match="not equal"):
        calibrate(Emulator(model()), batches(DATA, 8), groups, method="entropy")
    found = calibrate(Emulator(model()), batches(DATA, 8), groups, layers=layers())
    assert "entropy" not in found["s"].errors


def test_tensors_that_overflow_are_named() -> None:
    made = model(TEXT.replace("t = Tanh(x)", "t = Exp(x)"))
    with pytest.raises(InputError, match=r"(?s)1 tensors .* NaN or infinite.*s: \d+ of"):
        calibrate(Emulator(made), batches(DATA * 4, 8), [Group(("s",), FORMATS["int8"])])


def test_layers_that_overflow_choose_nothing() -> None:
    huge = torch.full((K, N), 3.4e38)
    found = calibrate(
        Emulator(model()), batches(DATA, 8), GROUPS[:1],
        layers=[Layer(Op("MatMul", ("s", "w"), ("y",)), {"w": (huge, huge)})],
    )  # fmt: skip
    assert found["s"].method == "mse"
    assert not found["s"].errors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "t = Gather(w, i)",
            r"'t' has an index out of range in row 3 .*\n  got   32 in 'i'\n  want  -32 to 31",
        ),
        ("p = Unsqueeze(i, one) t = GatherND(w, p)", r"GatherND .*row 3 of sample 0"),
        ("t = Reshape(w, i)", r"Reshape .*'t' cannot run on row 0 of sample 0"),
    ],
)
def test_samples_that_the_model_cannot_run_on_are_named(text: str, said: str) -> None:
    made = model_of(f"g (int64[B] i) => (float[B,{N}] t) {{ {text} }}", w=W, one=np.array([1]))
    ports = (Port("i", "int64", ("B",)),)
    samples = Samples.of([{"i": np.array([0, 1, -32, 32])}], ports, ports)
    with pytest.raises(InputError, match=said):
        calibrate(Emulator(made), samples, [Group(("t",), FORMATS["int8"])])


def test_data_without_values_is_refused() -> None:
    groups = [Group(("s",), FORMATS["int8"])]
    with pytest.raises(OptionError, match="no sample"):
        batches(DATA[:0], 8)
    with pytest.raises(InputError, match=r"(?s)no value on this data.*never"):
        calibrate(Emulator(model()), batches(DATA, 8), [*groups, Group(("never",), FORMATS["int8"])])


def file_of(samples: Samples) -> CalibrationFile:
    found = run(samples)
    return CalibrationFile(
        VERSION, model_digest(model()), samples.digest(), 192, "auto", rows_of(GROUPS, found)
    )


def test_the_file_reads_back_exactly_and_is_readable(tmp_path: Path) -> None:
    made = file_of(batches(DATA, 8))
    path = tmp_path / "cal.json"
    write_calibration(made, path)
    assert read_calibration(path) == made
    assert made.ranges() == run(batches(DATA, 64))
    again = tmp_path / "again.json"
    write_calibration(file_of(batches(DATA[::-1].copy(), 64)), again)
    assert again.read_bytes() == path.read_bytes()
    assert json.loads(path.read_text())["groups"][0]["calibrated"]["method"] in METHODS


def test_a_file_of_something_else_says_what(tmp_path: Path) -> None:
    made = file_of(batches(DATA, 8))
    assert made.misfit(made, with_data=True) == ""
    assert "another model" in made.misfit(replace(made, model="x"), with_data=False)
    assert "other data" in made.misfit(replace(made, data="x"), with_data=True)
    assert made.misfit(replace(made, data="", samples=0), with_data=False) == ""
    assert "other tensors" in made.misfit(replace(made, groups=made.groups[:1]), with_data=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw | {"version": 7}, "another version"),
        (lambda raw: {k: v for k, v in raw.items() if k != "model"}, "not a calibration file"),
        (lambda raw: raw["groups"][0]["calibrated"].update(low=1.0), "cannot be"),
        (lambda raw: raw["groups"][0]["calibrated"].update(high=1e9), "cannot be"),
        (lambda raw: raw["groups"][0]["calibrated"].update(high="wide"), "not a calibration file"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change, said: str) -> None:
    path = tmp_path / "cal.json"
    write_calibration(file_of(batches(DATA, 8)), path)
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(change(raw) or raw))
    with pytest.raises(OptionError, match=said):
        read_calibration(path)
    path.write_text("{")
    with pytest.raises(OptionError, match="not a calibration file"):
        read_calibration(path)
    with pytest.raises(OptionError, match="no calibration file"):
        read_calibration(tmp_path / "none.json")
