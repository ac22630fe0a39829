"""Rates, limiters, groups and hot spots of hand-made traces, on a machine that does not exist."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hand_made_traces import step, trace

from ridgeline.analyze.limiter import find_limit
from ridgeline.analyze.profile_groups import group_steps
from ridgeline.analyze.profile_report import find_bound, part_rows, report_profile
from ridgeline.base.ceilings import Ceilings
from ridgeline.errors import OptionError
from ridgeline.plan.trace import HostTime, KernelTime, NodeTime, NodeWork, StepTime

# per µs: 4 MB from memory, 8 MB from a cache of 50 MB; 50 Mflop in float32, 800 Mflop in float16
GPU = Ceilings(
    "made up", "cuda", "sm_90", measured="today", sms=100, l2_bytes=50_000_000, launch_us=2.0,
    copy=((1e5, 2e6), (1e7, 8e6), (1e9, 4e6)), flops={"float32": 50e6, "float16": 800e6},
)  # fmt: skip


def limited(us: float, nbytes: float, flops: float, **more: Any) -> StepTime:
    return step(1, "a", us, bytes=int(nbytes), flops=int(flops), **{"precision": "float16", **more})


def kernels(blocks: int) -> tuple[KernelTime, ...]:
    return (KernelTime("k", 0.0, 1.0, blocks),)


@pytest.mark.parametrize(
    ("made", "limiter", "evidence"),
    [
        (limited(2.5, 1e4, 1e5), "launch", "2.50 µs, and every step at least 2.00 µs"),
        (limited(100.0, 360e6, 1e6, op_class="pointwise"), "memory", "3.6 TB/s, 90 % of what a large copy"),
        (limited(5.0, 30e6, 1e6, op_class="pointwise"), "L2", "6 TB/s, more than memory delivers"),
        (limited(4.0, 10e6, 1e6, op_class="pointwise"), "memory", "62 % of what a large copy"),
        (limited(100.0, 40e6, 70e9), "tensor cores", "700 TFLOP/s in float16, 88 %"),
        (limited(100.0, 40e6, 4e9, precision="float32"), "ALU/SFU", "40 TFLOP/s in float32, 80 %"),
        # outside products float16 data are computed with in float32
        (limited(100.0, 40e6, 4e9, op_class="norm/reduction"), "ALU/SFU", "80 %"),
        # Erf and Tanh count as 8 operations and are more: long, and more arithmetic than bytes
        (limited(100.0, 40e6, 1.5e9, op_class="pointwise"), "ALU/SFU", "30 % of arithmetic"),
        (limited(15.0, 6e6, 0.2e9, op_class="pointwise"), "latency", "far from every roof"),
        (limited(50.0, 4e6, 10e9, kernels=kernels(120)), "tail/wave", "120 blocks on 100 processors"),
        (limited(50.0, 4e6, 10e9, kernels=kernels(190)), "latency", "2 % of memory, 25 % of arithmetic"),
        (limited(50.0, 4e6, 10e9, kernels=kernels(8)), "latency", "8 blocks leave 92 of 100 processors"),
        (limited(3.0, 4e6, 1e6, gap_us=9.0), "host", "nothing runs for 9.0 µs before it"),
        # gaps between kernels of a captured graph are no wait for the host
        (limited(1.5, 1e4, 1e5, gap_us=1.8), "launch", "every step"),
    ],
)
def test_what_limits_a_step(made: StepTime, limiter: str, evidence: str) -> None:
    found = find_limit(made, GPU)
    assert found.limiter == limiter, found
    assert evidence.replace(" %", "%") in found.evidence.replace(" %", "%")


def test_without_ceilings_nothing_is_guessed() -> None:
    found = find_limit(limited(100.0, 360e6, 1e6), None)
    assert (found.limiter, found.roofline) == ("unknown", None)
    assert "ridge calibrate" in found.evidence
    report = report_profile(trace(), None, why_no_ceilings="nobody measured")
    assert report.ceilings == "none: nobody measured"
    assert all(row.roofline is None for row in report.rows)


def test_a_row_has_rates_and_the_share_of_the_roof() -> None:
    made = trace(limited(100.0, 200e6, 1e9, op_class="pointwise"), step(2, "b", 300.0))
    report = report_profile(made, GPU)
    first = report.rows[0]
    assert (first.share, first.intensity) == (0.25, 5.0)
    assert (first.tb_per_s, first.tflop_per_s) == (2.0, 10.0)
    assert first.roofline == pytest.approx(0.5)  # 200 MB at 4 MB/µs
    assert report.ceilings == "measured today"
    assert (report.steps_us, report.covered_us) == (400.0, 400.0)
    assert report.coverage == pytest.approx(400 / made.total_us)


def test_hot_spots_say_what_to_do_and_what_is_inside() -> None:
    span = step(
        3, "span", 50.0, tactic="ort", op_class="library span",
        inside=(NodeTime("n1", "Conv", 30.0, ("/a/Conv",)), NodeTime("n2", "Relu", 10.0)),
    )  # fmt: skip
    report = report_profile(
        trace(limited(100.0, 360e6, 1e6), span, step(4, "c", 1.0), step(5, "d", 2.0)), GPU
    )
    assert [spot.index for spot in report.hot_spots] == [1, 3, 5]
    first, second, _ = report.hot_spots
    assert "move fewer bytes" in first.advice
    assert first.could_save_us == pytest.approx(10.0)
    assert first.parts[0].op_type == "Gemm"
    assert "Conv /a/Conv takes longest" in second.advice
    assert [part.time_share for part in second.parts] == [0.75, 0.25]


def test_steps_are_grouped() -> None:
    def at(index: int, us: float, *sources: str, **more: Any) -> StepTime:
        return step(index, f"s{index}", us, sources=sources, **more)

    made = trace(
        at(1, 10.0, "/model/embed/Gather", tactic="cpp", precision="int64"),
        at(2, 20.0, "/model/layer.0/MatMul", "/model/layer.0/Add"),
        at(3, 30.0, "/model/layer.1/MatMul", "/model/layer.1/Add", "/model/layer.0/Mul"),
        at(4, 40.0, "/model/layer.1/MatMul_1"),
    )
    by_layer = {row.name: (row.steps, row.total_us) for row in group_steps(made, "layer")}
    assert by_layer == {"model/embed": (1, 10), "model/layer.0": (1, 20), "model/layer.1": (2, 70)}
    assert group_steps(made, "layer")[0].name == "model/layer.1"
    assert {row.name: row.total_us for row in group_steps(made, "tactic")} == {"mkl": 90, "cpp": 10}
    assert {row.name: row.total_us for row in group_steps(made, "precision")} == {"float32": 90, "int64": 10}
    assert sum(row.share for row in group_steps(made, "op")) == pytest.approx(1.0)
    with pytest.raises(OptionError, match="not grouped by 'layers'") as caught:
        group_steps(made, "layers")
    assert "did you mean 'layer'?" in str(caught.value)


def test_time_inside_a_library_goes_to_what_it_timed() -> None:
    sources = tuple(f"/model/{layer}/Conv" for layer in ("one", "two", "three"))
    inside = (NodeTime("a", "Conv", 3.0, sources[:1]), NodeTime("b", "Add", 1.0))
    span = step(1, "span", 100.0, sources=sources, inside=inside)
    other = step(2, "b", 60.0, work=(NodeWork("x", "Conv", 10, 10), NodeWork("y", "Relu", 1, 10)))
    by_op = {row.name: row.total_us for row in group_steps(trace(span, other), "op")}
    assert by_op == {"Conv": 135, "Add": 25}
    by_layer = {row.name: row.total_us for row in group_steps(trace(span), "layer")}
    assert by_layer == {"model/one": 75, "(no layer name)": 25}


def test_a_part_of_a_fused_region_keeps_the_library_s_name() -> None:
    fused = ("/a/Conv", "/a/Erf", "/a/Mul")
    nodes = (
        NodeTime("v1", "Conv", 3.0, fused),
        NodeTime("v2", "Gelu", 2.0, fused),
        NodeTime("v3", "Gemm", 1.0, ("/b/MatMul",)),
    )
    assert [row.name for row in part_rows(step(1, "s", 9.0, inside=nodes))] == ["/a/Conv", "v2", "/b/MatMul"]


def test_the_host_or_the_device_sets_the_pace() -> None:
    made = trace()
    assert find_bound(replace(made, host=HostTime(2 * made.total_us, None, None)))[0] == "host"
    assert find_bound(replace(made, host=HostTime(made.total_us / 2, None, None)))[0] == "device"
    assert find_bound(replace(made, host=HostTime(None, 100.0, 60.0)))[0] == "host"
    assert find_bound(replace(made, host=HostTime(None, 100.0, 10.0))) == (
        "device", "10.0 of 100.0 µs of a call are spent outside the steps"
    )  # fmt: skip


def test_a_name_in_advice_is_one_word_of_a_shell() -> None:
    """The name comes from the model, and people paste the command."""
    name = "x; touch '$HOME'/gone"
    made = trace(step(1, "stem", 100.0, sources=(name,)))
    assert shlex.quote(name) in report_profile(made, None).hot_spots[0].advice
