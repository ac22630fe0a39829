"""The processor of this machine."""

from __future__ import annotations

import platform

import torch

from ridgeline.base.spec import Target
from ridgeline.kernels.cpp.compiler import find_compiler
from ridgeline.select.context import Timer
from ridgeline.select.wall_clock import FirstThatRuns, WallClock
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.registry import TacticOptions, cpu_tactics
from ridgeline.targets.machine import Machine


class Cpu(Machine):
    """Candidates are timed by the wall clock, and whole plans as well."""

    plans_bodies = True
    time_limits_s = (None, 15.0, 20.0, 30.0, 120.0, None)

    @property
    def half_types(self) -> tuple[str, ...]:
        """What oneDNN says of this processor: AVX512-FP16 or AMX-FP16, AVX512-BF16 or AMX."""
        asked = (("float16", "_is_mkldnn_fp16_supported"), ("bfloat16", "_is_mkldnn_bf16_supported"))
        return tuple(half for half, name in asked if getattr(torch.ops.mkldnn, name)())

    @staticmethod
    def named(arch: str, cores: int) -> Target:
        return Target("cpu", platform.machine(), cores)

    def own_tactics(self, options: TacticOptions) -> tuple[Tactic, ...]:
        return cpu_tactics(options)

    def missing_tools(self) -> tuple[str, ...]:
        if find_compiler() is not None:
            return ()
        return (
            "no C++ compiler found: no kernels are generated, libraries run all regions; install g++ or "
            "clang++",
        )

    def timer(self, *, is_timed: bool) -> Timer:
        return WallClock() if is_timed else FirstThatRuns()

    def prepare(self) -> None:
        if torch.get_num_threads() != self.target.threads:
            torch.set_num_threads(self.target.threads)
