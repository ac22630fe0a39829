"""Quantised products and generated kernels on the GPU: the cases of the interpreter's tests, and bfloat16."""

from __future__ import annotations

import on_gpu
import on_gpu_quant
import pytest
import quant_cases
import resize_cases
import test_triton_pool as pool
import test_triton_qattention as qattention
import test_triton_qconv as qconv
import test_triton_qgemm as qgemm
import test_triton_quant as quant
import test_triton_resize as resize
import test_triton_weight_only as weight_only
import torch
from quant_cases import codes, scales

from offers import offered
from ridgeline.base.choices import RefusedError
from ridgeline.kernels.triton.compiler import compile_kernels
from ridgeline.tactics.cuda.cublas_codes import CublasCodes
from ridgeline.tactics.cuda.cublas_float8 import CublasFloat8

COMPARE = on_gpu.compare_with(quant_cases.require_near)
PATCHES = [
    *((module, "run", on_gpu_quant.run_quantised) for module in (qgemm, qconv, weight_only)),
    *((module, "require_near", COMPARE) for module in (qgemm, qconv, weight_only)),
    (quant, "run_stages", on_gpu_quant.run_stages),
    (resize, "run", on_gpu_quant.run_resize),
    (resize, "require_as_floor", on_gpu.compare_with(resize_cases.require_as_floor)),
    (resize, "close", on_gpu.compare_with(resize.close)),
    (pool, "run", on_gpu_quant.run_pool),
    (qattention, "run", on_gpu_quant.run_code_attention),
    (qattention, "require_near", COMPARE),
]
pytestmark = pytest.mark.usefixtures("on_the_gpu")

globals().update(
    on_gpu.tests_of(
        qgemm,
        "bias_and_relu_with_odd_sizes codes_in_and_out_with_a_residual_of_codes "
        "a_float_result_beside_the_codes zero_points_of_the_activation unsigned_weights_around_128 "
        "a_scale_for_every_row "
        "gemm_with_a_quantised_bias_and_a_weight_by_rows half_scales_make_half_results",
    )
)
globals().update(
    on_gpu.tests_of(
        qattention,
        "codes_into_half codes_into_codes halves_into_codes causal_and_masked views_before_and_after "
        "views_behind_the_codes_of_the_result",
    )
)
globals().update(
    on_gpu.tests_of(
        pool,
        "every_type_and_edge means blocks_that_share_their_loads images_of_other_axes norms axes_of_size_one "
        "nan_stays infinities_and_windows_of_nothing_but_padding what_follows what_follows_a_maximum",
    )
)
globals().update(
    on_gpu.tests_of(
        resize,
        "kernel layouts_and_every_offered_cut cells_deeper_than_programs_are_offered "
        "other_ranks_and_sizes_of_one special_values_reach_what_reads_them a_cast_takes_the_rounded_value "
        "what_follows what_follows_in_every_offered_cut what_follows_in_other_ranks_and_sizes_of_one",
    )
)
globals().update(
    on_gpu.tests_of(
        qconv,
        "window single_positions_with_a_residual_into_codes planes_and_a_quantised_bias "
        "unsigned_codes_are_padded_with_their_zero one_spatial_axis a_zero_point_without_padding",
    )
)
globals().update(
    on_gpu.tests_of(
        weight_only,
        "int4_in_blocks unsigned_codes_with_zero_points scales_that_do_not_vary_along_the_sum "
        "blocks_of_other_formats any_number_of_rows_in_the_offered_cuts a_weight_by_rows "
        "one_row_without_tensor_cores "
        "depth_that_ends_inside_a_block_and_a_group two_levels_of_scales scales_that_are_powers_of_two",
    )
)
globals().update(
    on_gpu.tests_of(
        quant,
        "quantize_with_one_scale quantize_with_a_power_of_two quantize_per_channel_with_zero_points "
        "dequantize_every_code blocks "
        "cast_to_float8_and_back",
    )
)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_pools_of_bfloat16(op_type: str) -> None:
    """The interpreter cannot compute with it."""
    x = pool.image("bfloat16")
    pool.check(pool.pooled(x, op_type, **pool.STEM), {"x": x})


@pytest.mark.parametrize("dtype", ["int4", "int8", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
@pytest.mark.parametrize("block", [0, 128])
def test_weights_with_bfloat16_activations(dtype: str, block: int) -> None:
    site, tensors = weight_only.site_of(dtype, 300, block=block, half=torch.bfloat16)
    weight_only.check(site, tensors, [weight_only.tile(16, 64, 128)])
    if dtype != "float4_e2m1fn":
        site, tensors = weight_only.site_of(dtype, 1100, block=block, rows=1, half=torch.bfloat16)
        weight_only.check(site, tensors, [weight_only.tile(1, 4, 1024)])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_every_offered_cut(dtype: str) -> None:
    """Large tiles, with sums of float8 kept in float32 and in the tensor cores."""
    rows, columns, depth = 260, 200, 1000
    tensors = {
        "x": codes(rows, depth, dtype=dtype), "xs": scales(), "w": codes(depth, columns, dtype=dtype, seed=2),
        "ws": scales(columns, seed=3), "c": scales(columns),
    }  # fmt: skip
    site = on_gpu.here(quant_cases.make_site(tensors, [*qgemm.PRODUCT, *qgemm.BIAS_RELU]))
    offer = offered(qgemm.TACTIC, site)
    compile_kernels([kernel for config in offer.configs for kernel in offer.kernels(config)], on_gpu.arch())
    want = quant_cases.exact(site, tensors)
    for config in offer.configs:
        (got,) = on_gpu_quant.run_quantised(qgemm.TACTIC, site, config, tensors)
        in_cores = int(config["bk"]) if config["is_promoted"] else depth
        quant_cases.require_near(got, want["y"], qgemm.bound_of(site, tensors, in_cores=in_cores))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_products_by_cublaslt(dtype: str) -> None:
    """Sums by the library, then scales, bias, relu and codes by a generated kernel."""
    tensors = {
        "x": codes(64, 256, dtype=dtype), "xs": scales(), "w": codes(256, 128, dtype=dtype, seed=2),
        "ws": scales(128, seed=3), "c": scales(128), "ys": scales() * 20,
    }  # fmt: skip
    ops = [*qgemm.PRODUCT, quant_cases.op("Add", "p c", "q"), quant_cases.op("Relu", "q", "s")]
    site = on_gpu.here(quant_cases.make_site(tensors, [*ops, quant_cases.quantize("s", "y", dtype)]))
    bound = qgemm.bound_of(site, tensors, in_cores=256) / float(tensors["ys"])
    for config in offered(CublasCodes(), site).configs:
        (got,) = on_gpu_quant.run_quantised(CublasCodes(), site, config, tensors)
        quant_cases.require_near(got, quant_cases.exact(site, tensors)["y"], bound)


RELU = quant_cases.op("Relu", "q", "s")
FLOAT8_TAILS = {
    "bias": [quant_cases.op("Add", "p c", "y")],
    "bias and residual": [quant_cases.op("Add", "p c", "q"), quant_cases.op("Add", "q r", "y")],
    "bias, relu and codes": [
        quant_cases.op("Add", "p c", "q"), RELU, quant_cases.quantize("s", "y", "float8_e4m3fn"),
    ],
    "bias, gelu and codes": [
        quant_cases.op("Add", "p c", "q"), quant_cases.op("Gelu", "q", "s"),
        quant_cases.quantize("s", "y", "float8_e4m3fn"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("tail", FLOAT8_TAILS)
def test_float8_products_in_one_launch_of_cublaslt(tail: str, rows: int) -> None:
    """One scale for each operand; bias and residual are half, as the result is."""
    kind, half = "float8_e4m3fn", torch.float16
    tensors = {
        "x": codes(rows, 272, dtype=kind), "xs": scales().to(half), "w": codes(272, 144, dtype=kind, seed=2),
        "ws": scales(seed=3).to(half), "c": scales(144).to(half),
    }  # fmt: skip
    tensors |= {"r": torch.randn(rows, 144).to(half)} if "residual" in tail else {}
    tensors |= {"ys": (scales() * 20).to(half)} if "codes" in tail else {}
    site = on_gpu.here(quant_cases.make_site(tensors, [*qgemm.PRODUCT, *FLOAT8_TAILS[tail]]))
    want = quant_cases.exact(site, tensors)["y"]
    bound = qgemm.bound_of(site, tensors, in_cores=272) / float(tensors.get("ys", torch.ones(())))
    tactic, made = CublasFloat8(), 0
    for config in offered(tactic, site).configs:
        try:
            (got,) = on_gpu_quant.run_quantised(tactic, site, config, tensors)
        except RefusedError:  # the library lists fewer algorithms
            continue
        quant_cases.require_near(got, want, bound)
        made += 1
    assert made
