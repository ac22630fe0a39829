"""Predictions keep the measured order: own kernels for small work, libraries for large products."""

from __future__ import annotations

import pytest

from offers import offered, why_not
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.predict import predict_us
from ridgeline.tactics.registry import TacticOptions, cuda_tactics

TACTICS = {tactic.name: tactic for tactic in cuda_tactics(TacticOptions({"": 23}))}


def linear(rows: int, columns: int, depth: int, *, arch: str = "sm_90") -> Site:
    specs = {"x": (rows, depth), "w": (depth, columns), "y": (rows, columns)}
    body = Body(("x", "w"), ("y",), (Op("MatMul", ("x", "w"), ("y",)),))
    held = {name: TensorSpec("float16", shape) for name, shape in specs.items()}
    return Site(body, held, frozenset({"w"}), {}, Target("cuda", arch, 1))


def best_us(site: Site, name: str) -> float:
    tactic: Tactic = TACTICS[name]
    assert why_not(tactic, site) is None
    return min(
        predict_us(offered(tactic, site), site, c, rank=i)
        for i, c in enumerate(offered(tactic, site).configs)
    )


# graph replays on one H200, µs
MEASURED = [(128, 768, 768, 3.39), (128, 2304, 768, 4.2), (128, 3072, 768, 4.3), (128, 768, 3072, 7.1),
            (4096, 4096, 4096, 219.0), (8192, 8192, 8192, 1700.0), (1, 4096, 4096, 13.7)]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "depth", "us"), MEASURED)
def test_cublas_is_predicted_near_what_was_measured(rows: int, columns: int, depth: int, us: float) -> None:
    assert best_us(linear(rows, columns, depth), "cublas") == pytest.approx(us, rel=0.2)


def test_small_products_are_ours_and_large_ones_the_library_s() -> None:
    small, large = linear(128, 768, 768), linear(8192, 8192, 8192)
    assert best_us(small, "triton.gemm") < best_us(small, "cublas")
    assert best_us(large, "cublas") < best_us(large, "triton.gemm")


def test_few_rows_stream_the_weight() -> None:
    assert best_us(linear(1, 4096, 4096), "triton.gemv") < best_us(linear(1, 4096, 4096), "cublas")


def test_nobody_is_predicted_behind_the_floor_by_much() -> None:
    for site in (linear(128, 768, 768), linear(4096, 4096, 4096)):
        assert best_us(site, "cublas") < 1.1 * best_us(site, "aten")


def test_a_slower_gpu_takes_longer() -> None:
    times = [
        best_us(linear(4096, 4096, 4096, arch=a), "cublas") for a in ("sm_100", "sm_90", "sm_80", "sm_86")
    ]
    assert times == sorted(times)


def test_a_fused_region_beats_op_by_op() -> None:
    spec = TensorSpec("float16", (4096, 1024))
    body = Body(("x",), ("z",), (Op("Relu", ("x",), ("y",)), Op("Sigmoid", ("y",), ("z",))))
    site = Site(body, dict.fromkeys("xyz", spec), frozenset(), {}, Target("cuda", "sm_90", 1))
    assert best_us(site, "triton.pointwise") < best_us(site, "aten") / 1.8


def test_pools_are_ours_and_larger_windows_take_longer() -> None:
    """A window of a few places costs its bytes, one of many its places."""

    def pool(window: int) -> Site:
        attrs = {"kernel_shape": (window, window), "pads": (window // 2,) * 4}
        body = Body(("x",), ("y",), (Op("AveragePool", ("x",), ("y",), attrs),))
        spec = TensorSpec("float16", (8, 192, 35, 35), "channels_last")
        return Site(body, dict.fromkeys("xy", spec), frozenset(), {}, Target("cuda", "sm_90", 1))

    assert best_us(pool(3), "triton.pool") < best_us(pool(3), "aten")
    assert best_us(pool(3), "triton.pool") == best_us(pool(1), "triton.pool")
    assert best_us(pool(31), "triton.pool") > 2 * best_us(pool(3), "triton.pool")
