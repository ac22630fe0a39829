"""Quantised cases of the interpreter's tests on a GPU, through the launches of their tactics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from on_gpu import WANTED, arch, here, required, run_launch
from torch import Tensor

from offers import offered
from ridgeline.base.spec import Config, Site
from ridgeline.kernels.elements import on_device
from ridgeline.kernels.triton.compiler import compile_kernels
from ridgeline.kernels.triton.driver import Launcher
from ridgeline.kernels.triton.stage import Stages
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cuda.triton_attention import Blocks
from ridgeline.tactics.cuda.triton_code_attention import TritonCodeAttention
from ridgeline.tactics.cuda.triton_codegen import bind_stages
from ridgeline.tactics.cuda.triton_pool import TritonPool
from ridgeline.tactics.cuda.triton_resize import TritonResize
from ridgeline.tactics.staging import staged_launch

DEFAULT_BLOCKS = Blocks(16, 32, 4, 2)


def run_quantised(tactic: Tactic, site: Site, config: Config, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """As `quant_cases.run`, through the tactic's own launch."""
    site = here(site)
    if WANTED.is_asking:
        WANTED.kernels += offered(tactic, site).kernels(config)
        return [torch.zeros(spec.shape) for spec in site.outputs]
    weights = {name: on_device(tensors[name], "cuda") for name in site.weights & set(tensors)}
    # sums of the library are whole numbers too, and no counters
    has_counters = tactic.name.startswith("triton")
    return run_launch(offered(tactic, site).bind(config, weights), site, tensors, has_counters=has_counters)


def run_pool(site: Site, tensors: Mapping[str, Tensor], config: Config) -> list[Tensor]:
    """As `test_triton_pool.run`, through the tactic's own launch."""
    return run_quantised(TritonPool(), site, config, tensors)


def run_resize(site: Site, x: Tensor, config: Config, **more: Tensor) -> Tensor:
    """As `test_triton_resize.run`, through the tactic's own launch."""
    tensors = {"x": x, "s": torch.from_numpy(site.values["s"]), **more}
    (y,) = run_quantised(TritonResize(), site, config, tensors)
    return y


def run_code_attention(site: Site, tensors: Mapping[str, Tensor], blocks: Any = DEFAULT_BLOCKS) -> Tensor:
    """As `test_triton_qattention.run`, through the tactic's own launch."""
    (y,) = run_quantised(TritonCodeAttention(), site, blocks.config(), tensors)
    return y


def run_stages(site: Site, stages: Stages, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """As `triton_cases.run_stages`."""
    kernels = [stage.kernel for stage in stages.launches]
    if WANTED.is_asking:
        WANTED.kernels += kernels
        return [torch.zeros(spec.shape) for spec in site.outputs]
    made = compile_kernels(kernels, arch())
    freeze = bind_stages(stages, [Launcher(required(compiled)) for compiled in made])
    return run_launch(staged_launch(freeze, site, stages.pointers.inputs), here(site), inputs)
