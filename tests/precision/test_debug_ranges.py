"""`ridge debug ranges`: who overflows, underflows, becomes subnormal, saturates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

from ridgeline.analyze.ranges import FITS, FORMAT_NAMES, Holds, RangeReport, range_report
from ridgeline.errors import OptionError
from ridgeline.options import Options

Ridge = Callable[..., tuple[int, str, str]]
MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (float[4] x) => (float[4] y)
<float[1] big = {40000.0}, float[1] small = {0.0000001}>
{
  [grow] a = Mul(x, big)
  [square] b = Mul(a, x)
  [shrink] c = Mul(x, small)
  [fine] d = Tanh(x)
  [one] e = Add(b, c)
  [last] y = Add(e, d)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "s.npz", x=np.array([0.0, 1.0, -2.0, 0.25], np.float32))
    return tmp_path / "s.npz"


def verdicts(report: RangeReport) -> dict[str, str]:
    return {row.node or row.value: row.verdict for row in report.rows}


def test_nodes_are_named_with_what_happens_to_them(model: Path, data: Path) -> None:
    report = range_report(model, "fp16", Options(data=data))
    found = verdicts(report)
    assert found["grow"] == "overflows"  # 80,000
    assert found["square"] == "overflows"
    assert found["shrink"] == "underflows"
    assert found["small"] == "subnormal"
    assert found["fine"] == FITS
    rows = {row.node: row for row in report.rows}
    assert (rows["grow"].low, rows["grow"].high, rows["grow"].zeros) == (-80000.0, 40000.0, 0.25)
    assert rows["grow"].overflow == 0.25
    assert rows["fine"].histogram == {-3: 1, -1: 2}
    assert [row.verdict == FITS for row in report.rows] == sorted(row.verdict == FITS for row in report.rows)


def test_bfloat16_holds_what_float32_holds(model: Path, data: Path) -> None:
    assert range_report(model, "bf16", Options(data=data)).suffering == 0


def test_a_scale_that_is_too_small_saturates(model: Path, data: Path) -> None:
    own = range_report(model, "int8", Options(data=data))
    assert verdicts(own)["grow"] == FITS
    given = range_report(model, "int8", Options(data=data), scale=1.0)
    assert verdicts(given)["grow"] == "saturates"
    assert verdicts(given)["fine"] in ("underflows", FITS)


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_ends_of_every_format_are_those_of_its_type(name: str) -> None:
    holds = Holds.of(name)
    assert 0 < holds.least <= holds.normal < holds.largest < holds.overflow


@pytest.mark.parametrize(("name", "dtype"), [("fp16", np.float16), ("fp8", ml_dtypes.float8_e4m3fn)])
def test_the_first_magnitude_that_overflows(name: str, dtype: type) -> None:
    holds = Holds.of(name)
    with np.errstate(over="ignore"):
        assert np.isfinite(np.array(np.nextafter(holds.overflow, 0), np.float64).astype(dtype))
        if name == "fp16":
            assert not np.isfinite(np.array(holds.overflow).astype(dtype))
    assert float(np.array(holds.least).astype(dtype)) == holds.least
    assert float(np.array(holds.least / 2).astype(dtype)) == 0.0


def test_nan_and_infinity_are_counted(tmp_path: Path) -> None:
    text = MODEL.replace("Tanh(x)", "Log(x)")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", x=np.array([0.0, 1.0, -2.0, 0.25], np.float32))
    report = range_report(tmp_path / "m.onnx", "fp16", Options(data=tmp_path / "s.npz"))
    row = next(row for row in report.rows if row.node == "fine")
    assert (row.nans, row.infs) == (1, 1)


def test_values_that_no_product_reads_do_not_suffer_from_codes(tmp_path: Path) -> None:
    made = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x, float[4,4] w) => (float[2,4] y) {
            h = MatMul(x, w)
            y = Exp(h)
        }""")
    rng = np.random.default_rng(0)
    path = tmp_path / "one.npz"
    # most elements are far below a step of the scale that the largest sets
    shapes = {"x": (2, 4), "w": (4, 4)}
    arrays = {n: np.exp(6 * rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}
    np.savez(path, **arrays)
    report = range_report(made, "int8", Options(data=path))
    codes = {row.value: row.gets_codes for row in report.rows}
    assert codes == {"x": True, "w": True, "h": False, "y": False}
    assert {row.value for row in report.rows if row.suffers} <= {"x", "w"}
    assert (report.suffering, report.never_quantised) == (sum(row.suffers for row in report.rows), 2)


def test_the_command(ridge: Ridge, model: Path, data: Path) -> None:
    status, out, _ = ridge("debug", "ranges", model, "--data", data)
    assert status == 0
    assert "overflows" in out
    assert "grow" in out
    assert "█" in out
    status, out, _ = ridge("debug", "ranges", model, "--data", data, "--json", "--format", "int8")
    report = json.loads(out)
    assert (status, report["schema"], report["format"]) == (0, "ridgeline/ranges/1", "int8")
    assert any(row["verdict"] == FITS for row in report["rows"])


def test_what_cannot_be_asked(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no number format"):
        range_report(model, "fp61", Options())
    with pytest.raises(OptionError, match="no scale"):
        range_report(model, "fp16", Options(), scale=0.0)
    np.savez(tmp_path / "bad.npz", x=np.array([np.nan, 1, 2, 3], np.float32))
    with pytest.raises(OptionError, match="NaN"):
        range_report(model, "fp16", Options(data=tmp_path / "bad.npz"))
