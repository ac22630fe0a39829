"""`ridge calibrate`: rates are those of the threads it names, and a busy machine is told of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ridgeline.analyze import calibrate
from ridgeline.analyze.calibrate import doubt, measure_rates
from ridgeline.base.spec import Target
from ridgeline.options import make_options
from ridgeline.targets import target_named
from ridgeline.targets.ceilings import stated_ceilings


def processor(threads: int) -> Target:
    return target_named(make_options({"target": "cpu", "threads": threads}))


@pytest.mark.parametrize("threads", [1, 2])
def test_rates_are_measured_with_the_threads_that_the_result_names(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def noted(target: Target) -> list[tuple[float, float]]:
        seen.append(torch.get_num_threads())
        return [(4096.0, 1e3)]

    monkeypatch.setattr(calibrate, "copy_curve", noted)
    monkeypatch.setattr(calibrate, "product_rates", lambda target: {"float32": 1e5})
    monkeypatch.setattr(calibrate, "launch_us", lambda target: 2.0)
    before = torch.get_num_threads()
    torch.set_num_threads(3 - threads)
    try:
        found = measure_rates(processor(threads))
    finally:
        torch.set_num_threads(before)
    assert seen == [threads]
    assert found.threads == threads
    assert ("1 thread" if threads == 1 else f"{threads} threads") in found.measured


def test_a_copy_a_thousand_times_slower_than_a_smaller_one_is_doubted() -> None:
    found = stated_ceilings(processor(1))
    steady = replace(found, copy=((65536.0, 54e3), (262144.0, 90e3), (2.0**26, 40e3), (2.0**28, 17e3)))
    assert not doubt(steady)
    busy = replace(found, copy=((65536.0, 53e3), (262144.0, 22.0), (2.0**28, 11e3)))
    assert "the machine was busy" in doubt(busy)
    assert "262,144 bytes" in doubt(busy)
