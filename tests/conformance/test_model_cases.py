"""Small models: hand-written ones, and what PyTorch once exported."""

from __future__ import annotations

import pytest
from onnx_suite import Case, cases_of, check


@pytest.mark.parametrize("case", cases_of("simple", "converted", "operator"), ids=lambda case: case.name)
def test_case(case: Case) -> None:
    check(case)
