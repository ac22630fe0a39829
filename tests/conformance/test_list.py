"""The list of failing cases: for one version of the suite, in order, and short enough."""

from __future__ import annotations

from collections import Counter

import onnx
from onnx_suite import ONNX_VERSION, all_cases, cases_of, read_failing


def test_the_suite_is_the_pinned_one() -> None:
    assert onnx.__version__ == ONNX_VERSION, "counts hold for one version: pip install -e '.[dev]'"


def test_the_list_is_in_order_and_names_cases_that_exist() -> None:
    listed = read_failing()
    assert list(listed) == sorted(listed)
    assert not set(listed) - {case.label for case in all_cases()}
    assert all(len(reason) > 10 for reason in listed.values())


def test_every_case_is_in_one_of_the_files() -> None:
    halves = [*cases_of("node", last="l"), *cases_of("node", first="m")]
    assert sorted([*halves, *cases_of("simple", "converted", "operator")], key=lambda c: c.label) == list(
        all_cases()
    )


def test_enough_cases_pass() -> None:
    total = Counter(case.kind for case in all_cases())
    failing = Counter(label.split("/")[0] for label in read_failing())
    assert total == {"node": 1884, "simple": 23, "converted": 82, "operator": 35}
    assert total["node"] - failing["node"] >= 1800
    assert total.total() - failing.total() >= 1930
