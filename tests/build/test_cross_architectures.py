"""Kernels of every kind, compiled for GPUs before and after Hopper, against what each architecture allows."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from cross_models import block, codes, images
from offers import offered
from ridgeline.base.architectures import (
    ARCHITECTURES,
    BLOCK_THREADS,
    PREDICTED_AS,
    REGISTERS,
    THREAD_REGISTERS,
    architecture_of,
)
from ridgeline.base.devices import device_of
from ridgeline.base.spec import TRAITS, Site, Target
from ridgeline.base.target_files import STANDS_FOR, ceilings_of_arch, known_ceilings
from ridgeline.errors import OptionError, TargetError
from ridgeline.kernels.triton.compiler import COMPILED_HERE, Compiled, CompileError
from ridgeline.kernels.triton.sass import disassemble, read_instructions, static_shared
from ridgeline.options import make_options
from ridgeline.plan.check import _wrong_target
from ridgeline.runtime.engine import Engine
from ridgeline.select.prediction import Prediction
from ridgeline.tactics.cost_model import CostModel
from ridgeline.tactics.cuda.own_kernels import require_fit
from ridgeline.targets import machine_of, target_named
from ridgeline.targets.cuda import Cuda

DOCS = Path(__file__).parents[2] / "docs"
ARCHS = ("sm_80", "sm_89", "sm_100")
MODELS = {
    "images": images,
    "block": block,
    "int8": lambda: codes("int8"),
    "float8": lambda: codes("float8_e4m3fn"),
}
# instructions that came with an architecture: products of warpgroups, of tensor memory, bulk copies, and what
# dependent launch waits with and starts the next kernel with
WGMMA, TENSOR_MEMORY = ("HGMMA", "QGMMA", "IGMMA"), ("UTCHMMA", "UTCQMMA", "UTCIMMA", "LDTM", "STTM")
BULK, DEPENDENT = ("UTMALDG", "UTMASTG", "UBLKCP"), ("ACQBULK", "PREEXIT")
MMA = ("HMMA", "IMMA", "QMMA")


@cache
def built(name: str, arch: str) -> Engine:
    return ridgeline.build(MODELS[name](), target=f"cuda:{arch}", verify="off", level=0)


def kernels_of(engine: Engine) -> Iterator[tuple[str, Compiled]]:
    """Every kernel that was compiled for a plan, of choices and of others, with its tactic and config."""
    tactics, seen = engine.fused.tactics, set()
    for step, site in engine.planned_sites():
        willing = [(step.tactic, step.config)]
        willing += [(loser.tactic, loser.config) for loser in step.losers if loser.refused is None]
        for tactic, config in willing:
            describe = offered(tactics[tactic], site).kernels
            for kernel in [] if describe is None else describe(config):
                made = COMPILED_HERE.find(kernel, site.target.arch)
                if made is not None and kernel.digest not in seen:
                    seen.add(kernel.digest)
                    yield f"{made.name} of {tactic} {dict(config)} at {step.name}", made


def wrong_size(made: Compiled) -> Iterator[str]:
    """What a processor of the architecture has no room for, or no code for."""
    limit = architecture_of(made.arch)
    shared = made.shared + static_shared(made.cubin, made.arch)
    if shared > limit.shared_bytes:
        yield f"{shared:,} bytes of shared memory, want {limit.shared_bytes:,}"
    if made.registers > THREAD_REGISTERS:
        yield f"{made.registers} registers in a thread"
    if made.num_warps * 32 > BLOCK_THREADS or made.registers * made.num_warps * 32 > REGISTERS:
        yield f"{made.registers} registers in each of {made.num_warps} warps"
    if made.spills:
        yield f"spills {made.spills} bytes"
    if f"sm_{made_for(made.cubin)}" != made.arch:
        yield f"code for sm_{made_for(made.cubin)}"


def made_for(cubin: bytes) -> int:
    """The architecture in the flags of an ELF file, whose layout changed with CUDA 13."""
    (flags,) = struct.unpack_from("<I", cubin, 48)
    return flags >> 8 & 0xFF if cubin[8] >= 8 else flags & 0xFF


def wrong_code(made: Compiled, opcodes: frozenset[str]) -> Iterator[str]:
    """Instructions that the architecture does not have, or lacks."""
    limit, new = architecture_of(made.arch), Target("cuda", made.arch).has_dependent_launch
    for names, is_known in (
        (WGMMA, limit.multiplier == "wgmma"),
        (TENSOR_MEMORY, limit.multiplier == "tcgen05"),
        (BULK, new),
        (DEPENDENT, new),
    ):
        if not is_known and opcodes & set(names):
            yield f"has {', '.join(sorted(opcodes & set(names)))}"
    if made.pdl != new or made.pdl != (set(DEPENDENT) <= opcodes):
        yield f"{'has no' if new else 'has'} dependent launch"


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_keep_to_the_limits_of_their_architecture(arch: str) -> None:
    faults, tactics, opcodes = [], set(), set()
    for model in MODELS:
        for label, made in kernels_of(built(model, arch)):
            found, tactic = [*wrong_size(made)], label.split(" of ")[1].split()[0]
            if tactic not in tactics:  # the disassembler takes longer than the rest
                tactics.add(tactic)
                code = disassemble(made.cubin)
                assert code is not None, label
                used = frozenset(each.opcode for each in read_instructions(code))
                found += wrong_code(made, used)
                opcodes |= used
            faults += [f"{arch} {model}: {label}: {fault}" for fault in found]
    assert not faults, "\n".join(faults)
    own = "gemm qgemm attention conv conv1x1 depthwise pool rows gemv"
    assert tactics >= {f"triton.{name}" for name in own.split()}
    assert opcodes & set({"mma": MMA, "tcgen05": TENSOR_MEMORY}[architecture_of(arch).multiplier])


def test_float8_is_refused_where_the_hardware_has_none() -> None:
    (step,) = built("float8", "sm_80").plan.steps
    assert step.tactic == "aten"
    assert not list(kernels_of(built("float8", "sm_80")))
    refused = {loser.tactic: loser.refused for loser in step.losers}
    assert refused["triton.qgemm"] == "sm_80 does not convert float8_e4m3fn, want sm_89 or newer"
    (step,) = built("float8", "sm_89").plan.steps
    assert step.tactic == "triton.qgemm"


@pytest.mark.parametrize("arch", ARCHS)
def test_a_build_is_predicted_with_the_figures_of_its_own_gpu(arch: str) -> None:
    timer = machine_of(Target("cuda", arch)).timer(is_timed=False)
    assert isinstance(timer, Prediction)
    assert timer.cost.ceilings == known_ceilings(STANDS_FOR[arch])
    engine, on_h200 = built("block", arch), CostModel(known_ceilings("h200"))
    for step, site in engine.planned_sites():
        offer = offered(engine.fused.tactics[step.tactic], site)
        rank = [dict(config) for config in offer.configs].index(dict(step.config))
        own_us = timer.cost.candidate_us(offer, site, step.config, rank=rank)
        assert step.predicted_us == own_us != on_h200.candidate_us(offer, site, step.config, rank=rank)


def test_cuts_are_ranked_for_the_gpu_that_is_built_for() -> None:
    """What suits an H200 wants more shared memory than an L40S has, and more processors than an A100."""
    engine = built("block", "sm_80")
    (site,) = (site for step, site in engine.planned_sites() if step.name.startswith("f#"))
    tactic = engine.fused.tactics["triton.gemm"]
    cuts = {arch: _configs(tactic, site, arch) for arch in ("sm_80", "sm_89", "sm_90")}
    assert cuts["sm_80"] != cuts["sm_90"] != cuts["sm_89"]
    assert device_of("sm_80").sms == 108
    assert device_of("sm_89").shared_bytes < device_of("sm_80").shared_bytes < device_of("sm_90").shared_bytes


def _configs(tactic: Any, site: Site, arch: str) -> list[dict[str, Any]]:
    there = Site(site.body, site.specs, site.weights, site.values, Target("cuda", arch))
    return [dict(config) for config in offered(tactic, there).configs]


# the table


def test_every_architecture_has_limits_and_figures() -> None:
    assert TRAITS["cuda"].architectures == tuple(ARCHITECTURES)
    assert STANDS_FOR.keys() | PREDICTED_AS.keys() == ARCHITECTURES.keys()
    for arch, limit in ARCHITECTURES.items():
        device = device_of(arch)
        assert (device.shared_bytes, device.warps, device.blocks) == (
            limit.shared_bytes, limit.warps, limit.blocks,
        )  # fmt: skip
        assert ceilings_of_arch(arch).arch == arch
        assert target_named(make_options({"target": f"cuda:{arch}"})) == Target("cuda", arch, 1)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(OptionError, match="cuda:sm_103"):
        make_options({"target": "cuda:sm_70"})
    with pytest.raises(TargetError, match="no figures of GPUs of the architecture 'sm_70'") as caught:
        Cuda.named("sm_70", 1)
    assert "sm_75, sm_80" in str(caught.value)
    plan = built("float8", "sm_80").plan
    assert not list(_wrong_target(plan))
    (fault,) = _wrong_target(replace(plan, target=Target("cuda", "sm_999")))
    assert fault.startswith("target: cuda:sm_999, want cuda:sm_75, cuda:sm_80")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shared": 102_400}, "102,400 bytes of shared memory, sm_89 has 101,376"),
        ({"registers": 255, "num_warps": 16}, "130,560 registers for a block, sm_89 has 65,536"),
        ({"spills": 8}, "spills 8 bytes"),
    ],
)
def test_a_kernel_that_does_not_fit_is_refused(change: dict[str, int], reason: str) -> None:
    facts: dict[str, Any] = {"shared": 101_376, "registers": 128, "num_warps": 16, "spills": 0} | change
    made = Compiled("k", "sm_89", b"", pdl=False, parameters=3, types=(), seconds=0.0, triton="", **facts)
    with pytest.raises(CompileError, match=re.escape(reason)):
        require_fit(made)


def test_the_page_has_a_row_for_every_architecture() -> None:
    page = (DOCS / "gpu.md").read_text(encoding="utf-8")
    missing = [row for row in rows_of_the_page() if row not in page]
    assert not missing, "docs/gpu.md lacks:\n" + "\n".join(missing)


def rows_of_the_page() -> Iterator[str]:
    for arch, limit in ARCHITECTURES.items():
        target, known = Target("cuda", arch), ceilings_of_arch(arch)
        title = (
            f"as {PREDICTED_AS[arch]}"
            if arch in PREDICTED_AS
            else known.title.split(",")[0].removeprefix("NVIDIA ")
        )
        cells = [
            f"`{arch}`", title, f"{limit.shared_bytes // 1024} KiB", str(limit.warps), str(limit.blocks),
            limit.multiplier, *("yes" if has else "no" for has in (
                target.has_tf32, target.has_float8, target.has_dependent_launch,
            )),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"
