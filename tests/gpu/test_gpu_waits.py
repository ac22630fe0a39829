"""Dependent launch: kernels that use the same memory in turns, against the same kernels one after the other.

The first kernel of the chain runs long and lets the next one start at once; a kernel that read or wrote
before its wait would do so far too early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import on_gpu
import pytest
import torch
from torch import Tensor
from triton_cases import make_site, without_pdl

from offers import stages_of
from ridgeline.base.gpu_timing import capture
from ridgeline.base.spec import Config, Op, Target
from ridgeline.kernels.triton.compiler import compile_kernels
from ridgeline.kernels.triton.driver import Launcher
from ridgeline.tactics.cuda.triton_codegen import GeneratedTriton, TritonPointwise, TritonRows

ROWS, COLUMNS = 64, 65536
LOOP: Config = {"rows": 1, "cols": 1024, "warps": 4, "whole": False, "splits": 1, "stages": 1}
FLAT: Config = {"width": 1024, "warps": 4, "height": 0}
ROUNDS = 200
PER_GRAPH = 10
Call = Callable[[], object]


class Chain:
    """state -> long rows -> first -> second -> state, in memory that each of them writes over."""

    def __init__(self, *, waits: bool = True, is_launched_early: bool = True) -> None:
        self.waits, self.is_launched_early = waits, is_launched_early
        shape = (ROWS, COLUMNS)
        self.x = torch.linspace(-1, 1, ROWS * COLUMNS, device="cuda").view(shape)
        self.state, self.one, self.two = (torch.zeros(shape, device="cuda") for _ in range(3))
        softmax = [Op("Add", ("a", "b"), ("s",)), Op("Softmax", ("s",), ("z",))]
        mix = [Op("Mul", ("a", "b"), ("s",)), Op("Add", ("s", "b"), ("z",))]
        add = [Op("Add", ("a", "b"), ("s",)), Op("Tanh", ("s",), ("z",))]
        self.calls = [
            self.call(TritonRows(), softmax, LOOP, (self.x, self.state), self.one, waits=True),
            self.call(TritonPointwise(), mix, FLAT, (self.one, self.x), self.two),
            self.call(TritonPointwise(), add, FLAT, (self.two, self.x), self.one),
            self.call(TritonPointwise(), mix, FLAT, (self.one, self.two), self.state),
        ]

    def call(
        self, tactic: GeneratedTriton, ops: list[Op], config: Config, reads: tuple[Tensor, Tensor],
        writes: Tensor, *, waits: bool | None = None,
    ) -> Call:  # fmt: skip
        shapes = {"a": torch.zeros(ROWS, COLUMNS), "b": torch.zeros(ROWS, COLUMNS)}
        site = make_site(ops, shapes, ["z"], target=Target("cuda", on_gpu.arch()))
        stages = stages_of(tactic, site, config)
        (stage,) = stages.launches
        is_waiting = self.waits if waits is None else waits
        kernel = stage.kernel if is_waiting and self.is_launched_early else without_pdl(stage.kernel)
        (made,) = compile_kernels([kernel], on_gpu.arch())
        compiled = replace(on_gpu.required(made), pdl=self.is_launched_early)
        tensors = dict(zip(stages.pointers.names, [*reads, writes], strict=True))
        args = [*(tensors[name] for name in stage.pointers), *stage.numbers]
        return Launcher(compiled).freeze((stage.programs,), args)

    def reset(self) -> None:
        for tensor in (self.state, self.one, self.two):
            tensor.zero_()

    def step(self) -> None:
        for call in self.calls:
            call()

    def run(self, *, in_graph: bool) -> list[Tensor]:
        graph = capture(self.step, PER_GRAPH) if in_graph else None
        self.reset()
        for _ in range(ROUNDS // PER_GRAPH if graph is not None else ROUNDS):
            graph.replay() if graph is not None else self.step()
        torch.cuda.synchronize()
        return [tensor.clone() for tensor in (self.state, self.one, self.two)]


@pytest.fixture(scope="module")
def serial() -> list[Tensor]:
    return Chain(is_launched_early=False).run(in_graph=False)


@pytest.fixture(scope="module", autouse=True)
def _needs_dependent_launch() -> None:
    if int(on_gpu.arch().removeprefix("sm_")) < 90:
        pytest.skip("dependent launch begins with sm_90")


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_chain_in_shared_memory_computes_the_same_bits(serial: list[Tensor], in_graph: bool) -> None:
    for got, want in zip(Chain().run(in_graph=in_graph), serial, strict=True):
        assert torch.equal(got, want)
        assert got.isfinite().all()


def test_kernels_that_do_not_wait_are_seen(serial: list[Tensor]) -> None:
    """The chain would show it: the same kernels started early without their waits compute something else."""
    hasty = Chain(waits=False).run(in_graph=True)
    assert not all(torch.equal(got, want) for got, want in zip(hasty, serial, strict=True))
