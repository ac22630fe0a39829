"""A site is offered to a tactic once: refusals carry reasons, and what is compiled ahead is data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import device_of
from ridgeline.base.spec import Body, Config, Op, Site, Target, TensorSpec
from ridgeline.errors import PlanError
from ridgeline.kernels.cpp.compiler import find_compiler
from ridgeline.tactics.base import Launch, Offer, Refused, Tactic
from ridgeline.tactics.cpu.cpp import CppPointwise
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise
from ridgeline.tactics.offer import kernels_of, precompile, read_offer, require_offer
from ridgeline.tactics.registry import TacticOptions, cpu_tactics, cuda_tactics
from ridgeline.tactics.staging import staged_launch

SPEC = TensorSpec("float32", (4, 6))
BODY = Body(("x",), ("y",), (Op("Relu", ("x",), ("y",)),))
SITE = Site(BODY, {"x": SPEC, "y": SPEC}, frozenset(), {}, Target("cpu", threads=2))
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
GPU = replace(SITE, target=Target("cuda", "sm_90"))


class Picky(Tactic):
    """Counts how often a site is read."""

    name = "test.picky"
    runs_on = "cpu"

    def __init__(self, raises: Exception | None = None) -> None:
        self.raises, self.reads = raises, 0

    def offer(self, site: Site) -> Offer | Refused:
        self.reads += 1
        if self.raises is not None:
            raise self.raises
        return Offer(
            configs=({"width": 1}, {"width": 2}),
            bind=lambda config, weights: Launch(lambda inputs, outputs: None),
            cpp_source=self.source,
            other_configs=({"width": 4},),
            compiles=True,
        )

    def source(self, config: Config) -> str:
        if config["width"] == 2:
            raise ValueError("no text of this width")
        return 'extern "C" void run(void **) {}\n'


def test_a_reader_that_refuses_gives_its_reason() -> None:
    assert read_offer(Picky(RefusedError("row has 3 columns, want 4")), SITE) == Refused(
        "row has 3 columns, want 4"
    )


def test_a_site_that_nobody_thought_of_is_refused_with_the_error() -> None:
    offer = read_offer(Picky(KeyError("axis")), SITE)
    assert isinstance(offer, Refused)
    assert "KeyError" in offer.reason


def test_another_target_and_open_shapes_are_refused_before_the_tactic_is_asked() -> None:
    tactic = Picky()
    assert read_offer(tactic, GPU) == Refused("target is cuda:sm_90, want cpu")
    assert read_offer(tactic, replace(SITE, specs={"x": SPEC})) == Refused("a shape inside depends on data")
    assert tactic.reads == 0


def test_only_configs_that_could_be_offered_are_known() -> None:
    offer = require_offer(Picky(), SITE)
    assert [offer.has({"width": width}) for width in (1, 2, 3, 4)] == [True, True, False, True]


@needs_compiler
def test_what_fails_ahead_is_returned_and_nothing_is_read_again(tmp_path: Path) -> None:
    tactic = Picky()
    tactic.cache_dir = tmp_path
    offer = require_offer(tactic, SITE)
    failed = precompile([(tactic, SITE, offer, config) for config in offer.configs])
    assert [str(error) for error in failed] == ["no text of this width"]
    assert len(list(tmp_path.glob("*.so"))) == 1
    assert tactic.reads == 1


def test_a_candidate_that_refuses_launches_no_kernels() -> None:
    tactics = {tactic.name: tactic for tactic in cuda_tactics(TacticOptions({"": 23}))}
    config = require_offer(tactics["triton.pointwise"], GPU).configs[0]
    assert len(kernels_of(tactics, GPU, "triton.pointwise", config)) == 1
    assert kernels_of(tactics, GPU, "triton.pointwise", {"width": 7}) == ()
    assert kernels_of(tactics, GPU, "triton.gemm", config) == ()
    assert kernels_of(tactics, GPU, "nobody", config) == ()


@pytest.mark.parametrize("site", [SITE, GPU], ids=["cpu", "cuda"])
def test_every_tactic_answers_and_every_offer_is_whole(site: Site) -> None:
    tactics = (cpu_tactics if site is SITE else cuda_tactics)(TacticOptions({"": 23}))
    offers = {tactic.name: read_offer(tactic, site) for tactic in tactics}
    assert all(offer.reason for offer in offers.values() if isinstance(offer, Refused))
    willing = {name: offer for name, offer in offers.items() if isinstance(offer, Offer)}
    assert {"aten", "cpp.pointwise" if site is SITE else "triton.pointwise"} <= willing.keys()
    for name, offer in willing.items():
        assert offer.configs, name
        if site is GPU:
            assert offer.footprint is not None, name
            assert offer.predict_us is not None, name
            assert all(
                offer.predict_us(config, device_of(site.target.arch)) > 0 for config in offer.configs
            ), name


@needs_compiler
def test_launches_have_the_extents_of_their_offer() -> None:
    offer = require_offer(CppPointwise(), SITE)
    config = offer.configs[0]
    assert offer.extents is not None
    assert offer.extents(config) == {0: SPEC.nbytes, 1: SPEC.nbytes}
    launch = offer.bind(config, {})
    assert launch.extents == offer.extents(config)
    with pytest.raises(PlanError, match="past its input 0"):
        launch.frozen([torch.zeros(4, 5)], [torch.zeros(4, 6)])


def test_cuts_follow_the_number_of_processors() -> None:
    spec = TensorSpec("float32", (10, 100, 100))  # more than 1024 items for each of 84, fewer for each of 132
    site = replace(GPU, specs={"x": spec, "y": spec})
    widths = {
        arch: require_offer(TritonPointwise(), replace(site, target=Target("cuda", arch))).configs[0]["width"]
        for arch in ("sm_86", "sm_90")
    }
    assert widths == {"sm_86": 1024, "sm_90": 512}


def test_tensors_that_lie_otherwise_have_stand_ins() -> None:
    """Read and written through copies, also when the call was frozen before the values came."""

    def freeze(inputs, outputs):
        assert inputs[0].is_contiguous()
        assert outputs[0].is_contiguous()
        x, y = (t.numpy() for t in (inputs[0], outputs[0]))
        return lambda: np.multiply(x, 2.0, out=y)

    launch = staged_launch(freeze, SITE, {0})
    x, y = torch.zeros(6, 4).t(), torch.zeros(6, 4).t()
    call = launch.frozen([x], [y])
    x.copy_(torch.arange(24.0).view(4, 6))
    call()
    assert torch.equal(y, 2 * x)
    plain, made = x.contiguous(), torch.zeros(4, 6)
    launch.run([plain], [made])
    assert torch.equal(made, 2 * x)
