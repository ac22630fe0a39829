"""What tactics offer depends on the architecture that is built for, and on nothing that an H200 has."""

from __future__ import annotations

import pytest

from offers import offered, why_not
from ridgeline.base.architectures import ARCHITECTURES
from ridgeline.base.devices import device_of
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.products import Product, Tile
from ridgeline.kernels.triton.ranking import rank_gemm, shared_bytes
from ridgeline.tactics.predict import predict_us
from ridgeline.tactics.registry import TacticOptions, cuda_tactics
from ridgeline.targets import machine_of

TACTICS = {tactic.name: tactic for tactic in cuda_tactics(TacticOptions({"": 23}))}


def attention(arch: str, *, keys: int = 512, width: int = 64, dtype: str = "float16") -> Site:
    spec = TensorSpec(dtype, (2, 8, keys, width))
    body = Body(("q", "k", "v"), ("y",), (Op("Attention", ("q", "k", "v"), ("y",)),))
    return Site(body, dict.fromkeys("qkvy", spec), frozenset(), {}, Target("cuda", arch))


def softmax(arch: str, rows: int, columns: int) -> Site:
    spec = TensorSpec("float16", (rows, columns))
    body = Body(("x",), ("y",), (Op("Softmax", ("x",), ("y",), {"axis": -1}),))
    return Site(body, dict.fromkeys("xy", spec), frozenset(), {}, Target("cuda", arch))


def convolution(arch: str) -> Site:
    x, w = TensorSpec("float16", (32, 64, 56, 56), "channels_last"), TensorSpec("float16", (64, 64, 3, 3))
    body = Body(("x", "w"), ("y",), (Op("Conv", ("x", "w"), ("y",), {"pads": [1, 1, 1, 1]}),))
    return Site(body, {"x": x, "w": w, "y": x}, frozenset({"w"}), {}, Target("cuda", arch))


@pytest.mark.parametrize("arch", ["sm_86", "sm_89", "sm_120"])
def test_attention_takes_small_blocks_where_operands_go_through_registers(arch: str) -> None:
    for config in offered(TACTICS["triton.attention"], attention(arch)).configs:
        held = int(config["queries"]) * (int(config["keys"]) + 64) / (32 * int(config["warps"]))
        assert held < 96, f"{dict(config)} spills"
    large = offered(TACTICS["triton.attention"], attention("sm_100")).configs[0]
    assert (large["queries"], large["keys"]) == (64, 128)


def test_turing_has_no_flash_attention_and_no_kernels_of_products() -> None:
    backends = [config["backend"] for config in offered(TACTICS["cuda.sdpa"], attention("sm_75")).configs]
    assert backends == ["efficient", "math"]
    for name, site in (("triton.attention", attention("sm_75")), ("triton.conv", convolution("sm_75"))):
        assert "no asynchronous copies" in str(why_not(TACTICS[name], site))
    assert why_not(TACTICS["triton.rows"], softmax("sm_75", 64, 1000)) is None
    assert machine_of(Target("cuda", "sm_75")).half_types == ("float16",)
    assert machine_of(Target("cuda", "sm_80")).half_types == ("float16", "bfloat16")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_programs_that_wait_for_one_another_fit_the_processors(arch: str) -> None:
    configs = offered(TACTICS["triton.rows"], softmax(arch, 512, 262_144)).configs
    waiting = [int(config["splits"]) for config in configs if config["held"]]
    assert all(2 * splits <= device_of(arch).sms for splits in waiting)
    # a row of so many columns is shared by 8, 16 or 32
    assert max(waiting) == min(32, device_of(arch).sms // 16 * 8)


def test_overlapping_windows_come_from_memory_once() -> None:
    """7.4 GFLOP of an L40S; nine times its 26 MB would be the larger part, and every tile as good."""
    site = convolution("sm_89")
    offer = offered(TACTICS["triton.conv"], site)
    best = offer.configs[0]
    assert predict_us(offer, site, best) < 80
    assert (best["bm"], best["bn"]) == (256, 64)


def test_a_stage_less_is_buffered_where_operands_go_through_registers() -> None:
    """As Triton reports of tiles of 128x256x64: 98,304 bytes of 3 stages on sm_80, 196,608 of 4 on sm_100."""
    problem = Product(4096, 4096, 1024, "float16", (0, 1024, 1), (0, 1024, 1))
    assert shared_bytes(Tile(128, 256, 64, stages=3), problem, device_of("sm_80")) == 98_304
    assert shared_bytes(Tile(128, 256, 64, stages=4), problem, device_of("sm_100")) == 196_608
    for arch in ARCHITECTURES:
        limit = device_of(arch).shared_bytes
        assert all(shared_bytes(tile, problem, device_of(arch)) <= limit for tile in rank_gemm(problem, arch))


def test_figures_of_an_h200_are_those_that_kernels_were_fitted_with() -> None:
    device = device_of("sm_90")
    assert (device.sms, device.warps, device.blocks, device.cycles_per_us) == (132, 64, 32, 1700)
    assert 0.85 * device.flops_per_cycle == pytest.approx(3000, rel=0.01)
    assert device.plain_flops_per_cycle == pytest.approx(200, rel=0.01)
    assert device_of("sm_80").cycles_per_us == 1211
