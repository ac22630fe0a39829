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

    It rounds halves up and loses carries on the way to float8, cuts off digits on the way to bfloat16, rounds
    twice in an fma, keeps a NaN in every minimum and maximum, and multiplies matrices of bfloat16 as the
    integers that it keeps them in.
    """
    from triton.runtime import interpreter

    plain: Callable[..., np.ndarray] = interpreter._convert_float

    def convert(data: np.ndarray, source: Any, target: Any, mode: Any) -> np.ndarray:
        if target.name in FLOAT8 and source.name in ("fp16", "fp32"):
            with np.errstate(invalid="ignore", over="ignore"):
                return np.asarray(data).astype(FLOAT8[target.name]).view(np.uint8)
        if target.name == "bf16" and source.name == "fp32":
            with np.errstate(invalid="ignore", over="ignore"):
                return np.asarray(data).astype(ml_dtypes.bfloat16).view(np.uint16)
        if source.name in FLOAT8 and target.name in ("fp16", "fp32"):
            wide = np.float16 if target.name == "fp16" else np.float32
            return np.asarray(data).view(FLOAT8[source.name]).astype(wide)
        return plain(data, source, target, mode)

    interpreter._convert_float = convert

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        """One rounding, as a GPU has it: products of float32 numbers are exact in float64."""
        wide = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, most: Any) -> Any:
        """Sums of products of bfloat16 numbers, which the interpreter keeps as bits."""
        if a.dtype.scalar.name != "bf16":
            return plain_dot(self, a, b, d, precision, most)
        x, y = (t.data.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float32) for t in (a, b))
        return interpreter.TensorHandle(np.matmul(x, y) + d.data, d.dtype.scalar)

    plain_dot = interpreter.InterpreterBuilder.create_dot
    interpreter.InterpreterBuilder.create_dot = dot
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
