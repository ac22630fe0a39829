"""Single ops, the second half of ONNX's cases."""

from __future__ import annotations

import pytest
from onnx_suite import Case, cases_of, check


@pytest.mark.parametrize("case", cases_of("node", first="m"), ids=lambda case: case.name)
def test_case(case: Case) -> None:
    check(case)
