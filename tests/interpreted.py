"""Kernels run by Triton's interpreter, on CPU tensors: how tests check numerics without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.kernels.triton.source import Kernel, constants_of, function_of


def interpret(kernel: Kernel, grid: Sequence[int], args: Sequence[Any]) -> None:
    """Run a kernel on CPU tensors; TRITON_INTERPRET=1 must be in the environment."""
    given = iter(args)
    call: dict[str, Any] = constants_of(kernel)
    for name, kind in kernel.signature:
        if kind != "constexpr":
            call[name] = tuple(next(given) for _ in kind) if isinstance(kind, tuple) else next(given)
    function_of(kernel)[tuple(grid)](**call)
