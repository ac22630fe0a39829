"""Launches compiled kernels through the CUDA driver, without Triton or a compiler, with dependent launch.

Kernels use the context that PyTorch made. A module is loaded once per process and device.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.gpu_graph import cuda_driver, joined_streams, raw_stream
from ridgeline.errors import RidgelineError
from ridgeline.kernels.triton.compiler import Compiled

SCALARS: dict[str, Any] = {
    "i1": ctypes.c_int8, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32,
    "i64": ctypes.c_int64, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64, "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}  # fmt: skip
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DEPENDENT_LAUNCH = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
PLAIN_SHARED_BYTES = 48 << 10


class CudaError(RidgelineError):
    """The CUDA driver returned an error."""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int),
                ("rest", ctypes.c_char * 60))  # fmt: skip


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


@cache
def _cuda() -> ctypes.CDLL:
    try:
        return cuda_driver()
    except OSError as error:
        raise CudaError("no CUDA driver is installed", got=str(error)) from error


def _check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _cuda().cuGetErrorString(code, ctypes.byref(text))
        raise CudaError(f"{what} failed", got=f"CUDA error {code}: {(text.value or b'?').decode()}")


def driver_version() -> str:
    """The newest CUDA version the driver knows, such as 13.0."""
    version = ctypes.c_int()
    _check(_cuda().cuDriverGetVersion(ctypes.byref(version)), "asking for the driver's version")
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


_functions: dict[tuple[int, bytes], ctypes.c_void_p] = {}
_lock = threading.Lock()


def _function(compiled: Compiled) -> ctypes.c_void_p:
    """The entry point on the current device; it is loaded when it is first used."""
    key = (torch.cuda.current_device(), compiled.cubin)
    with _lock:
        if key not in _functions:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().synchronize()  # makes the device's context
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            cuda = _cuda()
            _check(cuda.cuModuleLoadData(ctypes.byref(module), compiled.cubin), f"loading {compiled.name}")
            name = compiled.name.encode()
            _check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name), f"finding {compiled.name}")
            if compiled.shared > PLAIN_SHARED_BYTES:
                code = cuda.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, compiled.shared)
                _check(code, f"{compiled.shared:,} bytes of shared memory for {compiled.name}")
            _functions[key] = function
        return _functions[key]


class Launcher:
    """One compiled kernel, ready to launch."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def freeze(self, grid: Sequence[int], args: Sequence[Tensor | int | float]) -> Callable[[], None]:
        """A function without arguments that launches on the stream that is current when it is called."""
        compiled = self.compiled
        function = _function(compiled)
        slots = [_slot(kind, arg) for kind, arg in zip(compiled.types, args, strict=True)]
        slots += [ctypes.c_void_p(0) for _ in range(compiled.parameters - len(slots))]
        pointers = (ctypes.c_void_p * len(slots))(*(ctypes.addressof(slot) for slot in slots))
        attribute = _Attribute(DEPENDENT_LAUNCH, b"", 1, b"")
        config = _LaunchConfig(
            (ctypes.c_uint * 3)(*grid, *(1,) * (3 - len(grid))),
            (ctypes.c_uint * 3)(32 * compiled.num_warps, 1, 1),
            compiled.shared, None, ctypes.pointer(attribute), int(compiled.pdl),
        )  # fmt: skip
        launch, reference, name = _cuda().cuLaunchKernelEx, ctypes.byref(config), compiled.name
        device = torch.cuda.current_device()  # where the function was loaded
        held = (slots, attribute, [arg for arg in args if isinstance(arg, Tensor)])

        def call(_held: object = held) -> None:
            config.stream = stream = raw_stream(device)
            if joined_streams and stream in joined_streams:
                # behind a wait for another stream everything must have ended first: no dependent launch
                joined_streams.discard(stream)
                config.count = 0
                code = launch(reference, function, pointers, None)
                config.count = int(compiled.pdl)
            else:
                code = launch(reference, function, pointers, None)
            if code:
                _check(code, f"launching {name}")

        return call


def _slot(kind: str, arg: Tensor | int | float) -> Any:
    if isinstance(arg, Tensor):
        return ctypes.c_void_p(arg.data_ptr())
    if kind.startswith("*"):
        return ctypes.c_void_p(int(arg))
    made = SCALARS[kind](arg)
    # ctypes would cut it off, and the kernel do less than it should
    if kind[0] in "iu" and made.value != arg:
        raise CudaError(f"the argument {arg} of a kernel does not fit", want=kind)
    return made
