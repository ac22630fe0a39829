"""Products that may round to TF32: machine code that does, and that does not where nobody asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from product_cases import machine_code, make_site, op

from offers import offered
from ridgeline.base.devices import device_of
from ridgeline.base.spec import TF32, Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.products import EXACT
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cuda.triton_attention import TritonAttention
from ridgeline.tactics.cuda.triton_conv import TritonConv, TritonConv1x1
from ridgeline.tactics.cuda.triton_linear import TritonGemm, TritonGemv

GPU = Target("cuda", "sm_90")


def linear(rows: int = 64) -> Site:
    x, w = torch.zeros(rows, 64), torch.zeros(64, 64)
    return make_site({"x": x, "w": w}, [op("MatMul", "x w", "y")], weights="w")[0]


def activations() -> Site:
    return make_site({"x": torch.zeros(2, 32, 64), "w": torch.zeros(2, 64, 32)}, [op("MatMul", "x w", "y")])[
        0
    ]


def image(size: int = 3) -> Site:
    tensors = {"x": torch.zeros(1, 32, 8, 8), "w": torch.zeros(32, 32, size, size)}
    pads = (size // 2,) * 4
    return make_site(tensors, [op("Conv", "x w", "y", pads=pads)], weights="w", channels_last="x y")[0]


def heads() -> Site:
    specs = {name: TensorSpec("float32", (1, 2, 64, 32)) for name in "qkvy"}
    body = Body(("q", "k", "v"), ("y",), (Op("Attention", ("q", "k", "v"), ("y",)),))
    return Site(body, specs, frozenset(), {}, GPU)


def rounding(site: Site) -> Site:
    """The same site, its product free to round."""
    return replace(site, body=replace(site.body, ops=tuple(replace(o, math=TF32) for o in site.body.ops)))


CASES: dict[str, tuple[Callable[[], Site], Tactic]] = {
    "weight": (linear, TritonGemm()),
    "activations": (activations, TritonGemm()),
    "1x1": (lambda: image(1), TritonConv1x1()),
    "3x3": (image, TritonConv()),
    "attention": (heads, TritonAttention()),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_exact_unless_their_op_may_round(name: str) -> None:
    make, tactic = CASES[name]
    for site, wanted in ((make(), EXACT), (rounding(make()), TF32)):
        offer = offered(tactic, site)
        precisions = {dict(k.constants)["PRECISION"] for c in offer.configs for k in offer.kernels(c)}
        assert precisions == {wanted}


def test_a_few_rows_are_multiplied_on_plain_cores_either_way() -> None:
    exact, free = (offered(TritonGemv(), site) for site in (linear(1), rounding(linear(1))))
    assert exact.kernels(exact.configs[0]) == free.kernels(free.configs[0])


def test_machine_code_rounds_where_asked() -> None:
    exact = offered(TritonGemm(), linear())
    kernels = [*exact.kernels(exact.configs[0])]
    for make, tactic in (CASES[name] for name in ("weight", "attention")):
        offer = offered(tactic, rounding(make()))
        kernels += offer.kernels(offer.configs[0])
    made = machine_code(kernels, "sm_90")
    assert [".TF32" in code for _, code in made] == [False, True, True]
    assert not any(compiled.spills for compiled, _ in made)


def test_a_rounding_site_shares_no_timing_with_an_exact_one() -> None:
    for make, _ in CASES.values():
        exact, free = make(), rounding(make())
        assert exact.key != free.key
        assert exact.body.digest != free.body.digest
        assert not exact.body.may_round
        assert free.body.may_round


def test_tensor_cores_take_larger_tiles_than_plain_cores() -> None:
    tensors = {"x": torch.zeros(2048, 256), "w": torch.zeros(256, 2048)}
    site = make_site(tensors, [op("MatMul", "x w", "y")], weights="w")[0]
    exact, free = offered(TritonGemm(), site), offered(TritonGemm(), rounding(site))
    areas = [int(o.configs[0]["bm"]) * int(o.configs[0]["bn"]) for o in (exact, free)]
    assert areas[1] > areas[0]
    assert exact.predict_us is not None
    assert free.predict_us is not None
    device = device_of(site.target.arch)
    assert free.predict_us(free.configs[0], device) < exact.predict_us(exact.configs[0], device) / 2
