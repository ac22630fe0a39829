"""Resize in generated C++: every mode and layout beside the floor, lines that repeat, special values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_cases import needs_compiler
from quant_cases import _as_spec, _poisoned
from resize_cases import UNIT32, require_as_floor, resized
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.spec import Site, Target
from ridgeline.kernels.triton.resize import resize_ref
from ridgeline.tactics.cpu.cpp_resize import CppResize
from ridgeline.tactics.read.resize import read_resize

CPU = Target(threads=2)
LAST = "x y"
pytestmark = needs_compiler


@pytest.fixture
def tactic(tmp_path_factory: pytest.TempPathFactory) -> CppResize:
    return CppResize(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cpp-resize")


def image(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def run(tactic: CppResize, site: Site, x: Tensor) -> Tensor:
    y = _poisoned(site.outputs[0])
    offer = offered(tactic, site)
    given = [_as_spec(x, site.specs["x"]), torch.from_numpy(site.values["s"])]
    offer.bind(offer.configs[0], {}).frozen(given, [y])()
    return y


# more lines than one task has, so that buffers begin anew; odd ratios; sizes of one
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, dict[str, Any]]] = {
    "linear": ((2, 3, 5, 7), (37, 11), "", {"mode": "linear"}),
    "linear, smaller": ((1, 2, 40, 9), (17, 4), "", {"mode": "linear"}),
    "linear, one column": ((1, 2, 1, 1), (3, 4), "", {"mode": "linear"}),
    "linear, one axis": ((2, 3, 9), (20,), "", {"mode": "linear"}),
    "linear, channels last": ((2, 3, 5, 7), (20, 4), LAST, {"mode": "linear"}),
    "cubic": ((1, 2, 6, 7), (19, 5), "", {"mode": "cubic"}),
    "cubic, channels last": ((1, 5, 6, 7), (19, 5), LAST, {"mode": "cubic"}),
    "nearest": ((2, 3, 5, 7), (37, 11), "", {"mode": "nearest"}),
    "nearest, three times": ((2, 3, 5, 7), (15, 21), "", {"mode": "nearest"}),
    "nearest, channels last": ((2, 3, 5, 7), (37, 11), LAST, {"mode": "nearest"}),
}


@pytest.mark.parametrize("name", CASES)
def test_as_the_floor(tactic: CppResize, name: str) -> None:
    shape, size, last, attrs = CASES[name]
    x = image(*shape)
    site = resized(x, size, last=last, target=CPU, **attrs)
    require_as_floor(site, x, run(tactic, site, x))


def test_more_work_than_one_thread_is_given(tactic: CppResize) -> None:
    x = image(2, 3, 40, 60)
    site = resized(x, (80, 150), mode="linear", target=CPU)
    assert offered(tactic, site).configs[0] == {"threads": 2}
    require_as_floor(site, x, run(tactic, site, x))


def test_halves_and_integers_are_copied(tactic: CppResize) -> None:
    x = (image(1, 3, 4, 5) * 50).to(torch.int64)
    site = resized(x, (9, 7), mode="nearest", target=CPU)
    require_as_floor(site, x, run(tactic, site, x))


@pytest.mark.parametrize("last", ["", LAST])
def test_special_values_reach_what_reads_them(tactic: CppResize, last: str) -> None:
    x = image(1, 3, 6, 6)
    x[0, 0, 2, 3], x[0, 1, 0, 0], x[0, 2, 5, 5] = torch.nan, torch.inf, -torch.inf
    site = resized(x, (18, 9), mode="linear", last=last, target=CPU)
    found = read_resize(site)
    taps = [torch.from_numpy(array) for t in (found.lines, found.columns) for array in (t.places, t.shares)]
    want, got = resize_ref(x.double(), *taps), run(tactic, site, x).double()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    # sums of 4 terms whose shares are 1 together
    bound = 12 * UNIT32 * float(x.nan_to_num(0, 0, 0).abs().max())
    assert ((got - want).abs() <= bound)[want.isfinite()].all()


@pytest.mark.parametrize(
    ("x", "last", "attrs", "reason"),
    [
        (image(1, 3, 4, 5).half(), "", {"mode": "linear"}, "type float16 are added up, want float32"),
        (image(1, 3, 4, 5), "x", {"mode": "linear"}, "different layouts"),
        (image(1, 1, 4, 5), "", {"mode": "linear", "axes": (0, 3)}, "axes [0, 3] of 4"),
    ],
)
def test_refuses(tactic: CppResize, x: Tensor, last: str, attrs: dict[str, Any], reason: str) -> None:
    site = resized(x, (8, 9), last=last, target=CPU, **attrs)
    assert reason in str(why_not(tactic, site))


def test_refuses_lines_that_no_buffer_holds(tactic: CppResize) -> None:
    site = resized(image(1, 1, 2, 2), (3, 40_000), mode="linear", target=CPU)
    assert "do not fit in a thread's buffer" in str(why_not(tactic, site))
