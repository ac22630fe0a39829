"""What tactics with kernels of our own share: whether there can be any, compiling ahead, which may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ridgeline.base.devices import device_of
from ridgeline.base.spec import Config, Site, TensorSpec
from ridgeline.errors import PlanError
from ridgeline.kernels.triton.compiler import (
    COMPILED_HERE,
    Compiled,
    CompileError,
    KernelStore,
    compile_kernels,
)
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import HasKernels

ALIGNED_BYTES = 16  # where kernels take tensors to begin
FIRST_ARCH = 80  # the first with asynchronous copies


def why_not_own(site: Site, store: KernelStore, *, first_arch: int = 0) -> str | None:
    """Why no kernel of ours can run there, whatever the region is."""
    if site.target.kind != "cuda":
        return f"target is {site.target}, want cuda"
    if int(site.target.arch.removeprefix("sm_")) < first_arch:
        return f"{site.target.arch} has no asynchronous copies, want sm_{first_arch} or newer"
    return store.why_none(site.target.arch)


def compile_ahead(
    tactic: HasKernels, jobs: Sequence[tuple[Site, Config]], *, store: KernelStore = COMPILED_HERE
) -> list[CompileError]:
    """Compile what these sites will bind, several at a time; failures return when bound."""
    by_arch: dict[str, list[Kernel]] = {}
    for site, config in jobs:
        by_arch.setdefault(site.target.arch, []).extend(tactic.kernels(site, config))
    made = [m for arch, kernels in by_arch.items() for m in compile_kernels(kernels, arch, store=store)]
    return [answer for answer in made if isinstance(answer, CompileError)]


def require_fit(made: Compiled | CompileError) -> Compiled:
    """Raise for a kernel that does not compile, or would run slowly or not at all."""
    if isinstance(made, CompileError):
        raise made
    limit = device_of(made.arch).shared_bytes
    if made.shared > limit:
        raise CompileError(f"wants {made.shared:,} bytes of shared memory, {made.arch} has {limit:,}")
    if made.spills:
        raise CompileError(f"spills {made.spills} bytes of registers per thread")
    return made


def shapes_only(site: Site) -> dict[str, Tensor]:
    """The site's weights without their data, to see what packing would make of them."""
    return {
        name: torch.empty(site.specs[name].shape, dtype=getattr(torch, site.specs[name].dtype), device="meta")
        for name in site.weights
        if name in site.specs
    }


def bytes_packed(stored: Tensor, pack: Callable[[Tensor], Tensor]) -> int:
    """Of the copy that packing makes; 0 where the weight lies so already."""
    packed = pack(stored)
    is_view = packed.untyped_storage()._cdata == stored.untyped_storage()._cdata
    return 0 if is_view else packed.nbytes


def lies_as(tensor: Tensor, spec: TensorSpec) -> bool:
    """Whether a kernel made for the spec may be given the tensor: aligned, and dense in its order."""
    if tuple(tensor.shape) != spec.shape:
        raise PlanError("a tensor is not what was planned", got=str(list(tensor.shape)), want=str(spec))
    # strides of axes of size one mean nothing
    strides = zip(spec.shape, tensor.stride(), spec.strides, strict=True)
    is_dense = tensor.numel() == 0 or all(size == 1 or got == want for size, got, want in strides)
    return is_dense and (not tensor.is_cuda or tensor.data_ptr() % ALIGNED_BYTES == 0)


def empty_like_spec(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Memory for the same values that lies as the spec says."""
    return torch.empty_strided(tensor.shape, spec.strides, dtype=tensor.dtype, device=tensor.device)
