"""Pointwise ops with their product as one kernel on the GPU: the interpreter's cases, networks, engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import on_gpu
import pytest
import test_triton_prologue as before
import torch
from product_cases import require_close
from prologue_cases import GATED, NORMED, SCALED, alone, between, convolution, meant, product
from torch import Tensor

import ridgeline
from cross_models import squeezed
from ridgeline.base.spec import Config, Site
from ridgeline.kernels.triton.compiler import COMPILED_HERE
from ridgeline.select import refine
from ridgeline.tactics.cuda.triton_conv import TritonConv1x1
from ridgeline.tactics.cuda.triton_product import TritonProduct
from ridgeline.tactics.offer import require_offer

# EfficientNet-B0 and RegNet with 16 images, a pre-activation network, a decoder's gate; what divides nothing
LARGE = [
    convolution(SCALED, (16, 56, 56, 96, 24)), convolution(SCALED, (16, 14, 14, 480, 80)),
    convolution(SCALED, (16, 7, 7, 1152, 192)), convolution(SCALED, (16, 14, 14, 320, 320), follows=True),
    convolution(NORMED, (16, 14, 14, 256, 128)), convolution(SCALED, (5, 13, 11, 515, 77)),
    product(GATED, (512, 1024, 768)),
]  # fmt: skip
RUNS = 200


def run(site: Site, tensors: Mapping[str, Tensor], tile: Any) -> Tensor:
    """As the interpreter's, through the tactic's own launch between guards."""
    return launched(before.TACTIC, site, tensors, tile)


def apart(site: Site, tensors: Mapping[str, Tensor], tile: Any) -> Tensor:
    given = {**tensors, "z": between(site, tensors)}
    return launched(TritonConv1x1(), alone(site), given, tile)


def launched(tactic: TritonProduct, site: Site, tensors: Mapping[str, Tensor], tile: Any) -> Tensor:
    site = on_gpu.here(site)
    found = tactic.product(site)
    if on_gpu.WANTED.is_asking:
        on_gpu.WANTED.kernels.append(found.kernel(tile))
        return torch.zeros(site.outputs[0].shape)
    weights = {name: tensors[name].cuda() for name in site.weights}
    (made,) = on_gpu.run_launch(found.bind(tile, weights, COMPILED_HERE), site, tensors)
    return made


def check(site: Site, tensors: Mapping[str, Tensor], tile: Any, *, is_exact: bool = True) -> None:
    """As the interpreter's, but that a GPU may join a multiplication with an addition."""
    made = run(site, tensors, tile)
    if not on_gpu.WANTED.is_asking:
        want, magnitude = meant(site, tensors)
        slack = 2**24 * torch.finfo(made.dtype).eps
        require_close(made, want, magnitude, terms=int(between(site, tensors).shape[1] + slack))


PATCHES = [(before, "run", run), (before, "check", check), (before, "apart", apart)]
CASES = (
    "a_scale_of_every_image chains_before_a_convolution chains_before_a_matrix "
    "what_is_not_finite_stays_in_its_row a_value_beyond_its_type_is_an_infinity_as_in_memory"
)
pytestmark = pytest.mark.usefixtures("on_the_gpu")
globals().update(on_gpu.tests_of(before, CASES))


@pytest.mark.parametrize("place", range(len(LARGE)))
def test_every_cut_that_is_offered(place: int) -> None:
    site, tensors = LARGE[place]
    on_gpu.check_offered(before.TACTIC, site, lambda tile: check(site, tensors, tile))


@pytest.mark.parametrize("place", range(8))
def test_registers_are_not_overwritten_while_they_are_multiplied(place: int) -> None:
    """Each run of a cut has the same bits: an early write to its registers or buffers would change some."""
    site, tensors = LARGE[1]
    site = on_gpu.here(site)
    configs = require_offer(before.TACTIC, site).configs
    if place >= len(configs):
        pytest.skip("fewer cuts are offered")
    if on_gpu.WANTED.is_asking:
        on_gpu.WANTED.kernels += require_offer(before.TACTIC, site).kernels(configs[place])
        return
    call, y = _frozen(site, configs[place], tensors)
    call()
    first = y.clone()
    for _ in range(RUNS):
        y.fill_(torch.nan)
        call()
        assert torch.equal(y, first)


def _frozen(site: Site, config: Config, tensors: Mapping[str, Tensor]) -> tuple[Any, Tensor]:
    placed = {
        name: torch.empty_strided(t.shape, site.specs[name].strides, dtype=t.dtype, device="cuda").copy_(t)
        for name, t in tensors.items()
    }
    launch = require_offer(before.TACTIC, site).bind(config, {name: placed[name] for name in site.weights})
    (spec,) = site.outputs
    y = torch.empty_strided(spec.shape, spec.strides, dtype=tensors["x"].dtype, device="cuda")
    return launch.frozen([placed[name] for name in site.body.inputs], [y]), y


def test_an_engine_whose_pairs_are_joined_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the times say: the whole plan is taken to be faster with each candidate."""
    monkeypatch.setattr(refine, "_is_faster", lambda *_: True)
    monkeypatch.setattr(refine, "CLOSE", 100.0)
    profiles = {"x0": "1..2..4x64x28x28"}
    engine = ridgeline.build(squeezed("N"), target="cuda", profiles=profiles, level=2)
    on_gpu.require_joined(engine, before.TACTIC)
    context = engine.context()
    for batch in (1, 2, 4):
        x = torch.randn(batch, 64, 28, 28).half().cuda()
        (one,), (other,) = (context.run({"x0": x}).values() for _ in range(2))
        assert torch.equal(one, other)
