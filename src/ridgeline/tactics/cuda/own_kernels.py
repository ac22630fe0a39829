"""What tactics with kernels of our own share: whether there can be any, which may run, how tensors lie."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ridgeline.base.devices import device_of
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.errors import PlanError
from ridgeline.kernels.scalar.axes import Refusal
from ridgeline.kernels.triton.compiler import COMPILED_HERE, Compiled, CompileError, KernelStore
from ridgeline.tactics.base import Tactic

ALIGNED_BYTES = 16  # where kernels take tensors to begin
FIRST_ARCH = 80  # the first with asynchronous copies
PDL_ARCH = 90  # the first with dependent launch


class TritonTactic(Tactic):
    """What tactics with kernels of our own share: where they run, and where compiled kernels come from."""

    runs_on = "cuda"

    def __init__(self, *, store: KernelStore = COMPILED_HERE) -> None:
        self.store = store

    def require_kernels(self, site: Site, *, first_arch: int = 0) -> None:
        """Refuse where no kernel of ours can run, whatever the region is."""
        if arch_of(site) < first_arch:
            raise Refusal(f"{site.target.arch} has no asynchronous copies, want sm_{first_arch} or newer")
        reason = self.store.why_none(site.target.arch)
        if reason is not None:
            raise Refusal(reason)


def arch_of(site: Site) -> int:
    """As a number: 90 of sm_90."""
    return int(site.target.arch.removeprefix("sm_"))


def has_pdl(site: Site) -> bool:
    """Whether a kernel may start before the one it depends on has ended."""
    return arch_of(site) >= PDL_ARCH


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


def placed(tensor: Tensor, spec: TensorSpec | None) -> Tensor:
    """The tensor itself where it lies as the kernel expects, else a copy that does."""
    if spec is None or lies_as(tensor, spec):
        return tensor
    return empty_like_spec(tensor, spec).copy_(tensor)
