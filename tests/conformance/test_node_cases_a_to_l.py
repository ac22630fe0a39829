"""Single ops, the first half of ONNX's cases."""

from __future__ import annotations

import pytest
from onnx_suite import Case, cases_of, check


@pytest.mark.parametrize("case", cases_of("node", last="l"), ids=lambda case: case.name)
def test_case(case: Case) -> None:
    check(case)
