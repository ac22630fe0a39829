"""`bench/kernels_gpu.py` without a GPU: what it binds, what it calls the least time, and peers that fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from bench import kernels_gpu, quant_gpu, rows_gpu
from bench.kernel_cases import FAMILIES, Case, conv, depthwise, pool
from torch import Tensor

from ridgeline.base.spec import Config, Site, Target, TensorSpec
from ridgeline.base.timing import Timing
from ridgeline.tactics.base import Offer, Tactic
from ridgeline.tactics.shared_copies import shared_copy

TARGET = Target("cuda", "sm_90")
SMALL = conv(1, 8, 8, 3, 1, 4)


def _on_the_host(spec: TensorSpec) -> Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=torch.float16).normal_()


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are the calls themselves, and every one takes a microsecond."""

    def capture(call: Callable[[], object]) -> Callable[[], object]:
        call()
        return call

    def interleave(graphs: list[Any], *, calls: int) -> list[Timing]:
        return [Timing((1.0,) * 3, inner=calls) for _ in graphs]

    monkeypatch.setattr(kernels_gpu, "_random", _on_the_host)
    monkeypatch.setattr(kernels_gpu, "capture", capture)
    monkeypatch.setattr(kernels_gpu, "interleave_graphs", interleave)
    monkeypatch.setattr(kernels_gpu, "candidates", lambda site: [])


@pytest.mark.usefixtures("without_gpu")
def test_launches_do_not_share_packed_weights() -> None:
    """They would find the one that they share in L2, where rivals read theirs from memory."""
    operands = kernels_gpu.Operands.of(SMALL, SMALL.site(TARGET), is_hot=False)
    packed = [shared_copy(weight.flatten(1).t().contiguous(), weight) for weight in operands.weights]
    assert len({copy.data_ptr() for copy in packed}) == len(operands.weights) >= kernels_gpu.MIN_CALLS


def test_copies_of_quantised_weights_are_not_shared() -> None:
    stored = {"w": torch.zeros(8, 16, dtype=torch.uint8), "s": torch.ones(8), "z": torch.zeros(8).byte()}
    sets = quant_gpu.copies_of(stored, 12)
    packed = [shared_copy(each["w"].t().contiguous(), each["w"]) for each in sets]
    assert len({copy.data_ptr() for copy in packed}) == len(sets) == 12
    assert sets[0] is stored
    assert all((each["w"] != stored["w"]).sum() == 1 for each in sets[1:])
    assert all(torch.equal(each["z"], stored["z"]) for each in sets)


@pytest.mark.usefixtures("without_gpu")
def test_a_peer_that_fails_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        raise RuntimeError("unable to find an engine")

    def works(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(torch.conv2d(x, w, b, padding=1))

    case = replace(SMALL, peers={"fails": fails, "works": works})
    rows = {row.label: row for row in kernels_gpu.measure(case, TARGET, is_hot=False)}
    assert rows["= fails"].said == "unable to find an engine"
    assert rows["= works"].us == rows[kernels_gpu.COPY].us == 1.0
    assert kernels_gpu.show(case, list(rows.values()), 3, least=0.5) == 0.0  # none of ours ran
    assert "= fails: unable to find an engine" in capsys.readouterr().out


def test_shares_are_of_our_time(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        kernels_gpu.Row("conv", 4.0), kernels_gpu.Row("= cudnn", 8.0), kernels_gpu.Row(kernels_gpu.COPY, 3.0),
    ]  # fmt: skip
    assert kernels_gpu.show(SMALL, rows, 3, least=1.0) == 2.0
    assert "least   1.00 us ( 25%)  copy   3.00 us ( 75%)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("case", "us"),
    [
        (depthwise(16, 96, 1, 56, 7), 2 * 49 * 16 * 96 * 56**2 / 67e6),  # float32 units of an H200
        (conv(16, 336, 336, 3, 1, 56, groups=2), 2 * 16 * 336 * 56**2 * 168 * 9 / 989.4e6),  # tensor cores
        (pool("MaxPool", 8, 64, 112, 3, 2, 1), 2 * 8 * 64 * (112**2 + 56**2) / 4e6),  # bytes
    ],
    ids=["plain", "tensor cores", "bytes"],
)
def test_least_time_is_at_the_peak_of_the_units(case: Case, us: float) -> None:
    assert kernels_gpu.least_us(case, case.site(TARGET), bytes_per_us=4e6) == pytest.approx(us)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_is_offered_kernels(family: str) -> None:
    """And their labels tell them apart."""
    for case in FAMILIES[family]():
        found = kernels_gpu.candidates(case.site(TARGET))
        labels = [label for label, _, _ in found]
        assert found, case.name
        assert math.isfinite(case.flops)
        assert len(set(labels)) == len(labels), case.name


def test_rows_are_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(rows_gpu, "COLUMNS", (1024,))
    monkeypatch.setattr(rows_gpu, "precompile", lambda given: jobs.extend(offered(*job) for job in given))

    def offered(tactic: Tactic, site: Site, offer: Offer, config: Config) -> int:
        return len(offer.kernels(config))

    rows_gpu.compile_all(TARGET)
    assert len(jobs) >= len(rows_gpu.OPS)
