"""What a GPU candidate's results are held against the floor's by; the comparison itself needs no GPU."""

from __future__ import annotations

import pytest
import torch

from ridgeline.base.spec import EPSILON, TF32_EPSILON
from ridgeline.errors import BuildError
from ridgeline.select.graph_replay import _require_close

WANT = torch.arange(-100, 100, dtype=torch.int8).repeat(5)


def test_integers_are_equal() -> None:
    _require_close([WANT.clone()], [WANT], may_round=False)
    with pytest.raises(BuildError, match="whole numbers differ"):
        _require_close([torch.zeros_like(WANT)], [WANT], may_round=False)


@pytest.mark.parametrize(("step", "count", "is_right"), [(1, 5, True), (1, 500, False), (2, 5, False)])
def test_quantised_results_may_lie_a_step_aside_here_and_there(step: int, count: int, is_right: bool) -> None:
    got = WANT.clone()
    got[:count] += step
    if is_right:
        _require_close([got], [WANT], may_round=True)
    else:
        with pytest.raises(BuildError, match="whole numbers differ"):
            _require_close([got], [WANT], may_round=True)
    with pytest.raises(BuildError, match="whole numbers differ"):
        _require_close([got], [WANT], may_round=False)


def test_floats_are_within_roundings() -> None:
    want = torch.linspace(-1, 1, 64)
    _require_close([want * (1 + 1e-6)], [want], may_round=False)
    for wrong in (want * 1.01, torch.full_like(want, float("nan"))):
        with pytest.raises(BuildError, match="wrong result"):
            _require_close([wrong], [want], may_round=False)


def test_products_that_may_round_are_held_to_what_they_read() -> None:
    want = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    _require_close([want * (1 + 4 * TF32_EPSILON)], [want], may_round=False, operands=TF32_EPSILON)
    with pytest.raises(BuildError, match="wrong result"):
        _require_close([want * (1 + 4 * TF32_EPSILON)], [want], may_round=False)
    with pytest.raises(BuildError, match="wrong result"):
        _require_close([want.roll(1, 0)], [want], may_round=False, operands=TF32_EPSILON)


def test_float8_results_may_lie_one_number_aside() -> None:
    want = torch.linspace(-3, 3, 1000).to(torch.float8_e4m3fn)
    codes = want.view(torch.uint8)
    for step, is_right in ((0, True), (1, True), (2, False)):
        got = codes.clone()
        got[700] += step
        if is_right:
            _require_close([got.view(want.dtype)], [want], may_round=True)
        else:
            with pytest.raises(BuildError, match="differ"):
                _require_close([got.view(want.dtype)], [want], may_round=True)
    with pytest.raises(BuildError, match="differ"):
        _require_close([torch.zeros_like(want)], [want], may_round=True)


HALF = EPSILON["float16"]
NUMBERS = torch.nn.functional.gelu(torch.linspace(-4, 4, 4001))
UNIT = 2.0**-6


def test_float8_results_near_zero_may_differ_by_the_rounding_of_the_type_between() -> None:
    """The steps of float8 are smaller there than what float16 sums are off by."""
    want = (NUMBERS / UNIT).to(torch.float8_e4m3fn)
    noise = torch.randn(NUMBERS.shape, generator=torch.Generator().manual_seed(0)) * HALF
    got = ((NUMBERS + noise) / UNIT).to(torch.float8_e4m3fn)
    _require_close([got], [want], may_round=True, coarsest=HALF)
    with pytest.raises(BuildError, match="differ"):  # of float32 between, they would be wrong
        _require_close([got], [want], may_round=True, coarsest=EPSILON["float32"])


@pytest.mark.parametrize("name", ["scale", "truncated", "relu", "nan", "zero"])
def test_wrong_float8_results_are_refused_whatever_the_type_between(name: str) -> None:
    want = (NUMBERS / UNIT).to(torch.float8_e4m3fn)
    codes = want.view(torch.uint8).clone()
    codes[codes > 128] -= 1  # towards zero
    codes[(codes > 0) & (codes < 128)] -= 1
    wrong = {
        "scale": (NUMBERS / UNIT * 2).clamp(-448, 448).to(torch.float8_e4m3fn),
        "truncated": codes.view(torch.float8_e4m3fn),
        "relu": (torch.linspace(-4, 4, 4001).relu() / UNIT).to(torch.float8_e4m3fn),
        "nan": torch.full_like(NUMBERS, float("nan")).to(torch.float8_e4m3fn),
        "zero": torch.zeros_like(want),
    }[name]
    with pytest.raises(BuildError, match="differ"):
        _require_close([wrong], [want], may_round=True, coarsest=HALF)
