"""Random chains of moves as one generated kernel, and as a plan for a GPU that the floor runs."""

from __future__ import annotations

import random

import pytest
import torch
from random_moves import Chain
from triton_cases import check, evaluate, make_site

import ridgeline
from offers import offered, why_not
from ridgeline.base.spec import Site
from ridgeline.kernels.elements import fill
from ridgeline.runtime.instance import Instance
from ridgeline.tactics.base import Launch, Offer
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise, TritonRows
from ridgeline.tactics.offer import read_offer

NANS = 0xFF  # as every byte of a float


@pytest.mark.parametrize("seed", range(50))
def test_a_chain_is_one_kernel_or_is_refused(seed: int) -> None:
    chain = Chain(seed)
    site = make_site(chain.ops, chain.inputs, chain.outputs, constants=chain.constants)
    for tactic in (TritonPointwise(), TritonRows()):
        if why_not(tactic, site) is None:
            configs = offered(tactic, site).configs
            check(tactic, site, chain.inputs, [random.Random(seed).choice(configs)])


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_for_a_gpu_computes_the_chain(seed: int) -> None:
    """Steps by the floor over the memory that their tactics would get, every byte of it wrong before."""
    chain = Chain(seed, products=True)
    engine = ridgeline.build(chain.model(), target="null:sm_90", verify="off", level=0, progress=False)
    executable, fused = engine.variants[0].executable, engine.fused
    inferred = fused.inference.at(executable.planned_shapes)

    def bind(index: int, site: Site) -> Launch:
        step = executable.steps[index]
        offer = read_offer(fused.tactics[step.tactic], site)
        footprint = offer.footprint(step.config) if isinstance(offer, Offer) and offer.footprint else None

        def call(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
            values = evaluate(site.body, dict(zip(site.body.inputs, inputs, strict=True)))
            # all are computed before the first is written, which may lie on an input
            for output, made in zip(outputs, [values[n].clone() for n in site.body.outputs], strict=True):
                output.copy_(made)

        return Launch(call, writes_out=True, in_place=footprint is not None and footprint.in_place)

    with torch.inference_mode():
        instance = Instance(
            fused.program, inferred, executable.sites(inferred), fused.placed_weights.host, bind, None,
            executable.schedule,
        )  # fmt: skip
        fill(instance.inputs["x"], chain.inputs["x"])
        instance.arena.fill_(NANS)
        instance.execute()
        for name in chain.outputs:
            torch.testing.assert_close(instance.result(name), chain.values[name], rtol=1e-4, atol=1e-4)
