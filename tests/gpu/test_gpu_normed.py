"""A norm with its product as one kernel on the GPU: the interpreter's cases, BERT's sizes, whole engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networks
import on_gpu
import pytest
import test_triton_normed_gemm as normed
import torch
from normed_cases import LAYER, RMS, span
from torch import Tensor

import ridgeline
from ridgeline.base.spec import Config, Site
from ridgeline.kernels.triton.compiler import COMPILED_HERE
from ridgeline.select import refine
from ridgeline.tactics.offer import require_offer

# as BERT, ViT and a decoder have them at batch 1, and what divides nothing
LARGE = [
    ((128, 2304, 768), torch.float16, LAYER, True),
    ((197, 3072, 768), torch.float16, LAYER, False),
    ((128, 4096, 2048), torch.bfloat16, RMS, True),
    ((77, 1003, 515), torch.bfloat16, LAYER, True),
]
RUNS = 300


def run(site: Site, tensors: Mapping[str, Tensor], tile: Any) -> list[Tensor]:
    """As the interpreter's, through the tactic's own launch between guards."""
    site = on_gpu.here(site)
    found = normed.TACTIC.product(site)
    if on_gpu.WANTED.is_asking:
        on_gpu.WANTED.kernels.append(found.kernel(tile))
        return [torch.zeros(spec.shape) for spec in site.outputs]
    weights = {name: tensors[name].cuda() for name in site.weights}
    return on_gpu.run_launch(found.bind(tile, weights, COMPILED_HERE), site, tensors)


PATCHES = [(normed, "run", run)]
CASES = (
    "numbers rows_far_from_zero_are_centred_before_they_are_multiplied a_constant_row_is_the_shift "
    "scales_that_would_leave_the_type_with_the_weight a_row_that_is_not_finite_is_nan_and_no_other "
    "squares_that_leave_float32_make_zeros_of_an_rms_norm gemm_with_a_transposed_weight"
)
pytestmark = pytest.mark.usefixtures("on_the_gpu")
globals().update(on_gpu.tests_of(normed, CASES))


@pytest.mark.parametrize(("sizes", "dtype", "norm", "is_shared"), LARGE)
def test_every_cut_that_is_offered(
    sizes: tuple[int, int, int], dtype: torch.dtype, norm: str, is_shared: bool
) -> None:
    site, tensors = span(*sizes, dtype, norm=norm, is_shared=is_shared)
    tensors["x"][3] += 40  # in some tiles, the other way
    on_gpu.check_offered(normed.TACTIC, site, lambda tile: normed.check(site, tensors, tile))


@pytest.mark.parametrize("place", range(6))
def test_rows_are_not_overwritten_while_they_are_multiplied(place: int) -> None:
    """Each run of a large tile has the same bits: an early copy into its buffers would change some."""
    site, tensors = span(128, 2304, 768, is_shared=True)
    site = on_gpu.here(site)
    configs = require_offer(normed.TACTIC, site).configs
    if place >= len(configs):
        pytest.skip("fewer cuts are offered")
    if on_gpu.WANTED.is_asking:
        on_gpu.WANTED.kernels += require_offer(normed.TACTIC, site).kernels(configs[place])
        return
    call, outputs = _frozen(site, configs[place], tensors)
    call()
    first = [out.clone() for out in outputs]
    for _ in range(RUNS):
        for out in outputs:
            out.fill_(torch.nan)
        call()
        assert all(torch.equal(out, one) for out, one in zip(outputs, first, strict=True))


def _frozen(site: Site, config: Config, tensors: Mapping[str, Tensor]) -> tuple[Any, list[Tensor]]:
    weights = {name: tensors[name].cuda() for name in site.weights}
    launch = require_offer(normed.TACTIC, site).bind(config, weights)
    outputs = [torch.empty(spec.shape, dtype=tensors["x"].dtype, device="cuda") for spec in site.outputs]
    inputs = [tensors[name].cuda() for name in site.body.inputs]
    return launch.frozen(inputs, outputs), outputs


def test_an_engine_whose_pairs_are_joined_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the times say: the whole plan is taken to be faster with each candidate."""
    monkeypatch.setattr(refine, "_is_faster", lambda *_: True)
    monkeypatch.setattr(refine, "CLOSE", 100.0)
    engine = ridgeline.build(networks.encoder(), target="cuda", profiles={"ids": "1..2..4x16"}, level=2)
    on_gpu.require_joined(engine, normed.TACTIC)
    context = engine.context()
    for batch in (1, 2, 4):
        ids = torch.randint(0, 100, (batch, 16))
        outputs = [context.run({"ids": ids.cuda()}) for _ in range(2)]
        (one,), (other,) = (made.values() for made in outputs)
        assert torch.equal(one, other)
