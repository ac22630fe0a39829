"""Attention on the GPU: the cases of the interpreter's tests, the blocks on offer, torch's backends."""

from __future__ import annotations

import on_gpu
import pytest
import test_triton_attention as cases

from offers import offered
from ridgeline.base.spec import Target
from ridgeline.errors import UnsupportedError
from ridgeline.tactics.cuda.sdpa import BACKENDS, CudaSdpa
from ridgeline.tactics.cuda.triton_attention import rank_blocks
from ridgeline.tactics.read.attention import read_attention

PATCHES = [(cases, "run", on_gpu.run_attention)]
pytestmark = pytest.mark.usefixtures("on_the_gpu")
globals().update(
    on_gpu.tests_of(
        cases,
        """merged_projection lengths block_shapes head_widths lengths_that_are_arguments shared_key_heads
        scales_that_are_not_positive masks queries_that_see_no_key_get_zeros keys_that_come_transposed
        rows_that_are_not_aligned""",
    )
)
DTYPES = ["float16", "bfloat16", "float32"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("length", [37, 130, 300])
def test_offered_blocks(length: int, is_causal: int, dtype: str) -> None:
    site = cases.merged(2, length, heads=3, width=64, dtype=dtype, is_causal=is_causal)
    ranked = rank_blocks(read_attention(site), Target("cuda", on_gpu.arch()))
    for blocks in {ranked[0], ranked[-1]}:
        cases.check(site, blocks=blocks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["merged", "causal", "masked", "shared keys"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_backends(backend: str, case: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = None
    if case == "masked":
        mask = cases.torch.randn(2, 1, 20, 40)
        site = cases.apart(2, 20, 40, mask=(2, 1, 20, 40), mask_dtype=dtype, dtype=dtype)
    elif case == "shared keys":
        site = cases.apart(2, 20, 40, heads=6, kv_heads=2, dtype=dtype)
    else:
        site = cases.merged(2, 37, dtype=dtype, is_causal=int(case == "causal"))
    if {"backend": backend} not in offered(CudaSdpa(), on_gpu.here(site)).configs:
        pytest.skip(f"{backend} is not offered here")
    monkeypatch.setattr(cases, "run", on_gpu.run_tactic(CudaSdpa(), {"backend": backend}))
    try:
        cases.check(site, mask=mask)
    except UnsupportedError as error:
        pytest.skip(str(error))
