"""Generated kernels on the GPU: the cases of the interpreter's tests, in every float type."""

from __future__ import annotations

import on_gpu
import pytest
import test_triton_pointwise as pointwise
import test_triton_rows as rows

PATCHES = [(module, "check", on_gpu.check_generated) for module in (pointwise, rows)]
pytestmark = pytest.mark.usefixtures("on_the_gpu")

globals().update(
    on_gpu.tests_of(
        pointwise,
        """unary_ops binary_ops large_arguments nan_and_inf_stay half_precision_is_computed_in_single
        logic_and_choice integers broadcasting channels_last transposes moves gather""",
    )
)
globals().update(
    on_gpu.tests_of(
        rows,
        """layer_norm_with_its_residual masked_softmax every_reduction offered_cuts_are_right
        rms_norm_spelt_out spatial_mean_and_max softmax_over_a_middle_axis image_norms lp_norm half_precision
        integers nan_inf_and_nothing mean_of_large_numbers_keeps_its_spread""",
    )
)
