"""Products and convolutions on the GPU: the cases of the interpreter's tests, in every float type."""

from __future__ import annotations

import on_gpu
import product_cases
import pytest
import test_triton_conv as conv
import test_triton_depthwise as depthwise
import test_triton_gemm as gemm
import torch

MODULES = (gemm, conv, depthwise)
COMPARE = on_gpu.compare_with(product_cases.require_close)
PATCHES = [
    *((module, "run_twice", on_gpu.run_problem) for module in MODULES),
    *((module, "run_tactic", on_gpu.run_product) for module in MODULES),
    *((module, "require_close", COMPARE) for module in MODULES),
]
pytestmark = pytest.mark.usefixtures("half_type", "on_the_gpu")


@pytest.fixture(params=on_gpu.FLOATS, ids=str)
def half_type(request: pytest.FixtureRequest) -> torch.dtype:
    """What the cases call HALF."""
    dtype: torch.dtype = request.param
    return dtype


globals().update(on_gpu.tests_of(gemm, "gemm gemv tactic splits_where_tiles_are_few"))
globals().update(on_gpu.tests_of(conv, "conv groups tactic"))
globals().update(on_gpu.tests_of(depthwise, "depthwise infinity_stays_in_its_windows tactic"))
