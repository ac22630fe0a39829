"""Launches of kernels of our own: they take tensors that lie as planned, and stand-ins for all others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.spec import Site, TensorSpec
from ridgeline.errors import PlanError
from ridgeline.tactics.base import Freeze, Launch, once

ALIGNED_BYTES = 16  # where kernels on a GPU take tensors to begin


def is_dense(tensor: Tensor, spec: TensorSpec) -> bool:
    """Whether the elements lie in the spec's order, without gaps."""
    # strides of axes of size one mean nothing
    strides = zip(spec.shape, tensor.stride(), spec.strides, strict=True)
    return tensor.numel() == 0 or all(size == 1 or got == want for size, got, want in strides)


def lies_as(tensor: Tensor, spec: TensorSpec) -> bool:
    """Whether a kernel made for the spec may be given the tensor: aligned, and dense in its order."""
    if tuple(tensor.shape) != spec.shape:
        raise PlanError("a tensor is not what was planned", got=str(list(tensor.shape)), want=str(spec))
    return is_dense(tensor, spec) and (not tensor.is_cuda or tensor.data_ptr() % ALIGNED_BYTES == 0)


def staged_launch(freeze: Freeze, site: Site, slots: Collection[int], **more: Any) -> Launch:
    """A launch of kernels that read these inputs of the site, and read and write tensors as planned."""
    reads = [spec if i in slots else None for i, spec in enumerate(site.inputs)]
    return launch_over(freeze, reads, site.outputs, _stand_in, **more)


def launch_over(
    freeze: Freeze,
    read: Sequence[TensorSpec | None],
    written: Sequence[TensorSpec],
    stand_in: Callable[[Any, TensorSpec | None], Any],
    **more: Any,
) -> Launch:
    """A launch of kernels that read and write tensors of these specs.

    A tensor that lies otherwise has a stand-in, copied before or after every call.
    """

    def freeze_staged(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
        reads = [stand_in(t, spec) for t, spec in zip(inputs, read, strict=True)]
        writes = [stand_in(t, spec) for t, spec in zip(outputs, written, strict=True)]
        call = freeze(reads, writes)
        before = [(place, t) for place, t in zip(reads, inputs, strict=True) if place is not t]
        after = [(t, place) for place, t in zip(writes, outputs, strict=True) if place is not t]
        return partial(_run_staged, before, call, after) if before or after else call

    return Launch(
        once(freeze_staged),
        writes_out=True, freeze=freeze_staged, **more,
    )  # fmt: skip


def _stand_in(tensor: Any, spec: TensorSpec | None) -> Any:
    if not isinstance(tensor, Tensor) or spec is None or lies_as(tensor, spec):
        return tensor
    return torch.empty_strided(tensor.shape, spec.strides, dtype=tensor.dtype, device=tensor.device)


def _run_staged(
    before: Sequence[tuple[Tensor, Tensor]],
    call: Callable[[], object],
    after: Sequence[tuple[Tensor, Tensor]],
) -> None:
    for place, given in before:
        place.copy_(given)
    call()
    for wanted, place in after:
        wanted.copy_(place)
