"""Ceilings of machines: shipped files with their sources, what is read back, what is refused."""

from __future__ import annotations

import math
import platform
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.base.ceilings import Ceilings, Point
from ridgeline.base.devices import device_with
from ridgeline.base.spec import Target
from ridgeline.base.target_files import (
    KNOWN,
    STANDS_FOR,
    known_ceilings,
    known_targets,
    read_target,
    write_target,
)
from ridgeline.errors import TargetError
from ridgeline.targets import ceilings
from ridgeline.targets.ceilings import calibration_path, named_ceilings

MEASURED = Ceilings(
    name="mine", kind="cuda", arch="sm_90", title='a "GPU"\n', measured="2026-11-16 on a GPU", sms=10,
    l2_bytes=1 << 20, peak_bytes=1e6, peak_flops={"float16": 1e8}, launch_us=1.25,
    copy=((1e4, 1e5), (1e6, 8e5)), flops={"float16": 7e7},
    points=(Point("product float16", (1.0, 2.5), 3.0, 2.0),),
)  # fmt: skip


@pytest.mark.parametrize("name", ["h200", "h100", "a100", "l4", "t4", "orin", "thor", "b200"])
def test_every_shipped_figure_has_a_source(name: str) -> None:
    raw = tomllib.loads((KNOWN / f"{name}.toml").read_text())
    figures = {key for key in raw["stated"] if key != "tflops"}
    figures |= {f"tflops.{key}" for key in raw["stated"]["tflops"]}
    assert figures == raw["sources"].keys()
    assert all(address.startswith("https:") for address in raw["sources"].values())
    assert not known_ceilings(name).is_measured


@pytest.mark.parametrize("name", known_targets())
def test_kernels_can_be_modelled_for_every_shipped_machine(name: str) -> None:
    device = device_with(known_ceilings(name))
    assert all(math.isfinite(rate) and rate > 0 for rate in (device.flops, device.plain_flops, device.bytes))
    assert device.flops > device.plain_flops, "tensor cores are faster than plain ones"


def test_every_architecture_has_a_machine_that_stands_for_it() -> None:
    assert {known_ceilings(name).arch: name for name in STANDS_FOR.values()} == STANDS_FOR


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    read = read_target(write_target(MEASURED, tmp_path / "mine.toml"))
    assert replace(read, title=MEASURED.title) == MEASURED
    assert read.title == 'a "GPU" '


def test_rates_between_measured_sizes_lie_between() -> None:
    assert MEASURED.bytes_per_us(1) == 1e5
    assert MEASURED.bytes_per_us(1e9) == MEASURED.memory_bytes_per_us == 8e5
    assert MEASURED.bytes_per_us(1e5) == pytest.approx(math.sqrt(1e5 * 8e5))
    assert MEASURED.flops_per_us("float16") == 7e7
    assert MEASURED.flops_per_us("bfloat16") == 7e7, "the same tensor cores"
    assert math.isnan(MEASURED.flops_per_us("float64")), "unknown stays unknown"
    assert MEASURED.bound_us(8e5, 1.4e8, "float16") == pytest.approx(2.0)


def test_what_if_multiplies_figures() -> None:
    faster = MEASURED.what_if(bandwidth=2.0, sms=1.5, clock=1.1)
    assert faster.memory_bytes_per_us == 2 * MEASURED.memory_bytes_per_us
    assert faster.flops["float16"] == pytest.approx(1.65 * MEASURED.flops["float16"])
    assert faster.sms == 15
    assert MEASURED.what_if() == MEASURED


@pytest.mark.parametrize(
    ("line", "instead", "names"),
    [
        ("format = 1", "format = 2", "format"),
        ('kind = "cuda"', 'kind = "tpu"', "kind"),
        ("sms = 10", "sms = -3", "sms"),
        ("sms = 10", "sms = nan", "sms"),
        ("  [10000, 0.1],", "  [10000, inf],", "TB/s"),
        ("  [10000, 0.1],", "  [10000000, 0.1],", "copy"),
        ('["product float16", 3, 2, 1, 2.5]', '["product float16", 3, 0, 1, 2.5]', "points"),
        ('["product float16", 3, 2, 1, 2.5]', '["product float16", "3"]', "points"),
        ("float16 = 100", "float15 = 100", "tflops"),
        ('name = "mine"', "", "name"),
        ("[stated]", "[stated", "line"),
        ("format = 1", "format = true", "format"),
        ('arch = "sm_90"', 'arch = "sm_95"', "sm_90 or sm_100"),
        ("sms = 10", "sms = 0.5", "whole number"),
        ("threads = 1", "threads = 0.5", "whole number"),
        ("sms = 10", f"sms = 1{'0' * 400}", "sms"),
        ("sms = 10", f"sms = 1{'0' * 5000}", "digits"),
        ("sms = 10", f"sms = {'[' * 3000}{']' * 3000}", "recursion"),
        ("sms = 10", "smss = 10", "did you mean 'sms'"),
        ("format = 1", "format = 1\nspeed = 3", "speed"),
        ("sms = 10", "", "sms in [stated]"),
        ("memory_tb_s = 1", "memory_tb_s = 1e308", "memory_tb_s"),
        ("memory_tb_s = 1", "memory_tb_s = 1e-320", "memory_tb_s"),
        ('when = "2026-11-16 on a GPU"', "", "when"),
        ('["product float16", 3, 2, 1, 2.5]', '["product float16", 3, 2, true, 2.5]', "points"),
        ('["product float16", 3, 2, 1, 2.5]', f'["product float16", 3, 2, 1{"0" * 400}, 2.5]', "points"),
        ('["product float16", 3, 2, 1, 2.5]', '["a", 3, 2, 1, 2], ["a", 3, 2, 1]', "2 features"),
    ],
)
def test_a_file_that_does_not_read_is_refused(tmp_path: Path, line: str, instead: str, names: str) -> None:
    path = write_target(MEASURED, tmp_path / "mine.toml")
    text = path.read_text()
    assert line in text
    path.write_text(text.replace(line, instead))
    with pytest.raises(TargetError) as refused:
        read_target(path)
    assert names in str(refused.value)


@pytest.mark.parametrize("rest", ["", "[stated]\nsms = 4\n", "[measured]\nwhen = 'now'\npoints = 5\n"])
def test_a_file_that_says_too_little_is_refused(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'format = 1\nname = "mine"\nkind = "cuda"\narch = "sm_90"\n{rest}')
    with pytest.raises(TargetError) as refused:
        read_target(path)
    assert ("points = 5" if "points" in rest else "memory_tb_s") in str(refused.value)
    assert "ridge calibrate" in refused.value.help


def test_an_arithmetic_that_is_not_known_bounds_nothing() -> None:
    assert math.isnan(MEASURED.bound_us(8e5, 1.4e8, "float64")), "memory alone would be called the bound"
    assert MEASURED.bound_us(8e5, 0, "float64") == pytest.approx(1.0)


def test_an_unknown_target_names_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="h200"):
        named_ceilings("h2OO")
    with pytest.raises(TargetError, match="no target file"):
        named_ceilings(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_this_processor_is_known_once_it_was_calibrated_as_the_error_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(ceilings, "CALIBRATIONS", tmp_path)
    monkeypatch.setattr(ceilings, "available_cores", lambda: cores)
    with pytest.raises(TargetError) as refused:
        named_ceilings("cpu")
    assert refused.value.help == f"ridge calibrate --target cpu --threads {cores} measures it"
    write_target(MEASURED, calibration_path(Target("cpu", platform.machine(), cores)))
    assert named_ceilings("cpu").copy == MEASURED.copy
