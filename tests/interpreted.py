"""Kernels run by Triton's interpreter, on CPU tensors: how tests check numerics without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ridgeline.kernels.triton.source import Kernel, constants_of, function_of

# of Triton's float8 types
FLOAT8 = {"fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2}


@cache
def compute_as_a_gpu() -> None:
    """What the interpreter does not do as a GPU does it.

    It rounds halves up and loses carries on the way to float8, rounds twice in an fma, and keeps a NaN in
    every minimum and maximum.
    """
    from triton.runtime import interpreter

    plain: Callable[..., np.ndarray] = interpreter._convert_float

    def convert(data: np.ndarray, source: Any, target: Any, mode: Any) -> np.ndarray:
        if target.name in FLOAT8 and source.name in ("fp16", "fp32"):
            with np.errstate(invalid="ignore", over="ignore"):
                return np.asarray(data).astype(FLOAT8[target.name]).view(np.uint8)
        if source.name in FLOAT8 and target.name in ("fp16", "fp32"):
            wide = np.float16 if target.name == "fp16" else np.float32
            return np.asarray(data).view(FLOAT8[source.name]).astype(wide)
        return plain(data, source, target, mode)

    interpreter._convert_float = convert

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        """One rounding, as a GPU has it: products of float32 numbers are exact in float64."""
        wide = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)

    interpreter.InterpreterBuilder.create_fma = fma
    interpreter.InterpreterBuilder.create_minnumf = lambda self, x, y: self.binary_op(x, y, np.fmin)
    interpreter.InterpreterBuilder.create_maxnumf = lambda self, x, y: self.binary_op(x, y, np.fmax)


def interpret(kernel: Kernel, grid: Sequence[int], args: Sequence[Any]) -> None:
    """Run a kernel on CPU tensors; TRITON_INTERPRET=1 must be in the environment."""
    compute_as_a_gpu()
    given = iter(args)
    call: dict[str, Any] = constants_of(kernel)
    for name, kind in kernel.signature:
        if kind != "constexpr":
            call[name] = tuple(next(given) for _ in kind) if isinstance(kind, tuple) else next(given)
    function_of(kernel)[tuple(grid)](**call)
