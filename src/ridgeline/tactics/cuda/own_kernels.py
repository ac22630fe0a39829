"""What tactics with Triton kernels share: whether there can be any, which may run, what packing costs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ridgeline.base.architectures import REGISTERS, architecture_of
from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.kernels.scalar.program import FLOAT8_LARGEST
from ridgeline.kernels.triton.compiler import (
    COMPILED_HERE,
    Compiled,
    CompileError,
    KernelStore,
    compile_kernel,
)
from ridgeline.kernels.triton.driver import Launcher
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Tactic

WARP = 32


class KernelTactic(Tactic):
    """What tactics with kernels of our own share: where they run, and where compiled kernels come from."""

    runs_on = "cuda"

    def __init__(self, *, store: KernelStore = COMPILED_HERE) -> None:
        self.store = store

    def require_kernels(self, site: Site, *, of_tiles: bool = False) -> None:
        """Refuse where no kernel of ours can run, or none of tiles, whatever the region is."""
        traits = site.target.traits
        if of_tiles and not site.target.has_async_copies:
            first = traits.async_copies_from
            raise RefusedError(f"{site.target.arch} has no asynchronous copies, want sm_{first} or newer")
        float8 = [spec.dtype for spec in site.specs.values() if spec.dtype in FLOAT8_LARGEST]
        if float8 and not site.target.has_float8:
            raise RefusedError(
                f"{site.target.arch} does not convert {float8[0]}, want sm_{traits.float8_from} or newer"
            )
        reason = self.store.why_none(site.target.arch)
        if reason is not None:
            raise RefusedError(reason)


def launcher_of(kernel: Kernel, site: Site, store: KernelStore) -> Launcher:
    """The kernel compiled for the site's target and loaded."""
    return Launcher(require_fit(compile_kernel(kernel, site.target.arch, store=store)))


def require_fit(made: Compiled | CompileError) -> Compiled:
    """Raise for a kernel that does not compile, or would run slowly or not at all."""
    if isinstance(made, CompileError):
        raise made
    limit = architecture_of(made.arch).shared_bytes
    if made.shared > limit:
        raise CompileError(f"wants {made.shared:,} bytes of shared memory, {made.arch} has {limit:,}")
    wanted = made.registers * made.num_warps * WARP
    if wanted > REGISTERS:
        raise CompileError(f"wants {wanted:,} registers for a block, {made.arch} has {REGISTERS:,}")
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
    """Size of the copy that packing makes; 0 where packing returns a view."""
    packed = pack(stored)
    is_view = packed.untyped_storage()._cdata == stored.untyped_storage()._cdata
    return 0 if is_view else packed.nbytes
