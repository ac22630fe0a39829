"""An NVIDIA GPU: the one of this machine, or another one by its architecture."""

from __future__ import annotations

from ridgeline.base.architectures import architecture_of
from ridgeline.base.spec import Target
from ridgeline.kernels.triton.source import triton_version
from ridgeline.runtime.device import current_device, require_device
from ridgeline.select.context import Timer
from ridgeline.select.graph_replay import GraphReplay
from ridgeline.select.prediction import Prediction
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cost_model import CostModel
from ridgeline.tactics.registry import TacticOptions, cuda_tactics
from ridgeline.targets.ceilings import find_ceilings
from ridgeline.targets.machine import Machine


class Cuda(Machine):
    """Candidates are timed as CUDA graphs if the GPU is here; else they are compiled and predicted."""

    half_always_pays = True  # tensor cores, and half the bytes
    plans_bodies = True

    @property
    def half_types(self) -> tuple[str, ...]:
        return ("float16", "bfloat16") if self.target.has_bfloat16 else ("float16",)

    @property
    def device_key(self) -> str:
        return require_device(self.target).key if self.is_here else ""

    @staticmethod
    def named(arch: str, cores: int) -> Target:
        arch = arch or current_device().arch
        architecture_of(arch)  # of a GPU that nothing is known of this is an error
        return Target("cuda", arch, 1)

    def own_tactics(self, options: TacticOptions) -> tuple[Tactic, ...]:
        return cuda_tactics(options)

    def missing_tools(self) -> tuple[str, ...]:
        if triton_version() is not None:
            return ()
        return (
            "Triton is not installed: no kernels of our own were compiled, PyTorch and the libraries run all "
            "regions; pip install 'ridgeline[gpu]'",
        )

    def timer(self, *, is_timed: bool) -> Timer:
        return GraphReplay() if self.is_here else Prediction(CostModel(find_ceilings(self.target)))
