"""Generated kernels on the GPU: the cases of the interpreter's tests, in every float type."""

from __future__ import annotations

import math

import on_gpu
import pytest
import test_triton_gathered as gathered
import test_triton_pointwise as pointwise
import test_triton_rows as rows
import torch

from offers import offered
from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise

PATCHES = [(module, "check", on_gpu.check_generated) for module in (gathered, pointwise, rows)]
pytestmark = pytest.mark.usefixtures("on_the_gpu")

globals().update(
    on_gpu.tests_of(
        gathered,
        """a_rotation_reads_its_columns_in_place a_rotation_is_joined_to_its_cache some_items_of_joined_parts
        rows_of_some_items_of_joined_parts windows_are_put_together_and_cut equal_parts_are_cut_in_one_pass
        joined_images_are_scaled_where_they_are_read shuffled_channels_are_written_last
        parts_of_shuffled_channels_are_made_together""",
    )
)
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


def test_more_elements_than_32_bits_count() -> None:
    shape = ((1 << 20) + 1, 2048)
    specs = {name: TensorSpec("int8", shape) for name in ("x", "y")}
    body = Body(("x",), ("y",), (Op("Neg", ("x",), ("y",)),))
    site = on_gpu.here(Site(body, specs, frozenset(), {}, pointwise.GPU))
    offer = offered(TritonPointwise(), site)
    if on_gpu.WANTED.is_asking:
        on_gpu.WANTED.kernels += offer.kernels(offer.configs[0])
        return
    if on_gpu.driver_free_bytes() < 5 * math.prod(shape):
        pytest.skip("the GPU has too little memory")
    x = torch.randint(-100, 100, shape, dtype=torch.int8, device="cuda")
    y = torch.zeros_like(x)
    offer.bind(offer.configs[0], {}).frozen([x], [y])()
    assert torch.equal(y, -x)
