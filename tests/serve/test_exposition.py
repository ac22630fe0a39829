"""Prometheus' text format, byte for byte: histograms, and numbers that its readers can read."""

from __future__ import annotations

import pytest

from ridgeline.base.exposition import Distribution, Family, HistogramFamily, exposition


def test_a_histogram_counts_upward_to_all_there_are() -> None:
    made = Distribution((0.5, 1000.0), (1, 2, 4), 7200.25)
    empty = Distribution((0.5, 1000.0), (0, 0, 0), 0)
    samples = (({"model": 'a"b', "version": "1"}, made), ({}, empty))
    assert exposition([HistogramFamily("t_us", "Times.", samples)]) == (
        "# HELP t_us Times.\n"
        "# TYPE t_us histogram\n"
        't_us_bucket{model="a\\"b",version="1",le="0.5"} 1\n'
        't_us_bucket{model="a\\"b",version="1",le="1000"} 3\n'
        't_us_bucket{model="a\\"b",version="1",le="+Inf"} 7\n'
        't_us_sum{model="a\\"b",version="1"} 7200.25\n'
        't_us_count{model="a\\"b",version="1"} 7\n'
        't_us_bucket{le="0.5"} 0\n'
        't_us_bucket{le="1000"} 0\n'
        't_us_bucket{le="+Inf"} 0\n'
        "t_us_sum 0\n"
        "t_us_count 0\n"
    )


def test_a_family_without_samples_is_left_out() -> None:
    assert exposition([HistogramFamily("t_us", "Times.", ()), Family("n", "counter", "N.", ())]) == ""


def test_counts_must_fit_their_bounds() -> None:
    with pytest.raises(ValueError, match="zip"):
        exposition([HistogramFamily("t", "T.", (({}, Distribution((1.0,), (1,), 1.0)),))])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.50754820096e11, "150754820096"),
        (0.37, "0.37"),
        (118.4, "118.4"),
        (1e-9, "0"),
        (0.5, "0.5"),
        (3, "3"),
    ],
)
def test_numbers_have_no_exponent_and_no_bare_point(value: float, text: str) -> None:
    assert exposition([Family("m", "gauge", "M.", (({}, value),))]).splitlines()[-1] == f"m {text}"
