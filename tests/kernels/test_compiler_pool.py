"""The processes that compile kernels: what happens to them when a build is given up half-way."""

from __future__ import annotations

import pytest

from ridgeline.analyze.calibration_ahead import jobs_of
from ridgeline.analyze.calibration_graph import HALF, Graph
from ridgeline.analyze.calibration_networks import Rows
from ridgeline.base.spec import Target
from ridgeline.kernels.triton.compiler import Compiled, KernelLeftOutError, _Pool
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Offer

TARGET = Target("cuda", "sm_90")


def kernels() -> list[Kernel]:
    """Of different functions."""
    graph = Graph("g", HALF)
    Rows(((64, 256),)).add_to(graph)
    found = {
        kernel.function: kernel
        for _, _, offer, config in jobs_of(graph.model(), TARGET)
        if isinstance(offer, Offer)
        for kernel in offer.kernels(config)
    }
    return list(found.values())


def test_who_gives_up_leaves_no_answers_for_the_next() -> None:
    """They would be taken for other kernels, and kept in the cache under their names."""
    pytest.importorskip("triton")
    first, second, third = kernels()[:3]
    pool = _Pool()

    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            pool.run([first, second], TARGET.arch, 1, give_up)
        (made,) = pool.run([third], TARGET.arch, 1)
        (again,) = pool.run([third], TARGET.arch, 1)
    finally:
        pool.close()
    assert isinstance(made, Compiled)
    assert isinstance(again, Compiled)
    assert made.name == again.name


def test_when_the_time_is_over_no_kernel_is_begun() -> None:
    pytest.importorskip("triton")
    first, second = kernels()[:2]
    pool = _Pool()
    try:
        made, left = pool.run([first, second], TARGET.arch, 1, is_over=lambda: True)
    finally:
        pool.close()
    assert isinstance(made, Compiled), "it was begun before"
    assert isinstance(left, KernelLeftOutError)
    assert left.digest == second.digest
