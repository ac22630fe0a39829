"""cuBLASLt called directly: its whole list of algorithms, and a residual added beside bias and activation.

PyTorch's calls take the first algorithm and either a bias or an addend. Only algorithms without scratch
memory are asked for: those that split the sum zero theirs first, which a graph pays for at every launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.gpu_graph import raw_stream

LIBRARY = "libcublasLt.so"
# cudaDataType_t
DATA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14, torch.float8_e4m3fn: 28}
COMPUTE_FLOAT32 = 68  # CUBLAS_COMPUTE_32F: operands as they are, sums in float32
COMPUTE_TF32 = 77  # CUBLAS_COMPUTE_32F_FAST_TF32: float32 operands are rounded
TRANSPOSED = 1
# attributes of a product's description
TRANSPOSE_A, EPILOGUE, BIAS_POINTER, FAST_SUMS, BIAS_TYPE = 3, 7, 8, 25, 26
# attributes of a search
MOST_SCRATCH, ALIGNMENTS = 1, (5, 6, 7, 8)
PLAIN, BIAS = 1, 4  # cublasLtEpilogue_t; activations are bits to add
ACTIVATIONS = {"": 0, "relu": 2, "gelu_tanh": 32}
ALIGNMENT = 16  # of every operand
LISTED = 8  # algorithms to ask for


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("scratch", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """y[M, N] = x[M, K] · w[N, K]ᵀ (+ r[M, N]); rows of x, y and r are this many elements apart.

    x and w are of `dtype`; y, r and a bias of `made`.
    """

    rows: int
    columns: int
    depth: int
    x_row: int
    y_row: int
    r_row: int
    dtype: torch.dtype
    made: torch.dtype
    rounds: bool = False  # float32 operands to TF32


@dataclass(frozen=True)
class Factor:
    """What a product of codes is multiplied by, and whether its sums may stay in the tensor cores."""

    alpha: float = 1.0
    is_fast: bool = False


PLAIN_FACTOR = Factor()


@cache
def _library() -> ctypes.CDLL:
    """The copy that PyTorch has loaded."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if LIBRARY in line}
    if not paths:
        raise RefusedError("PyTorch has not loaded cuBLASLt")
    library = ctypes.CDLL(min(paths))
    library.cublasLtMatmul.argtypes = [ctypes.c_void_p] * 14 + [ctypes.c_size_t, ctypes.c_void_p]
    return library


@cache
def _handle(device: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _check(_library().cublasLtCreate(ctypes.byref(handle)), "making a handle")
    return handle


def _check(status: int, what: str) -> None:
    if status:
        raise RefusedError(f"cuBLASLt: {what} failed with status {status}")


class _Owned:
    """A description that the library made; destroyed with its owner."""

    def __init__(self, kind: str, *args: Any) -> None:
        self.pointer, self._kind = ctypes.c_void_p(), kind
        made = getattr(_library(), f"cublasLt{kind}Create")(ctypes.byref(self.pointer), *args)
        _check(made, f"making a {kind}")

    def set(self, attribute: int, value: Any) -> None:
        change = getattr(_library(), f"cublasLt{self._kind}SetAttribute")
        status = change(self.pointer, attribute, ctypes.byref(value), ctypes.sizeof(value))
        _check(status, f"attribute {attribute} of a {self._kind}")

    def __del__(self) -> None:
        if self.pointer:
            getattr(_library(), f"cublasLt{self._kind}Destroy")(self.pointer)


class Matmul:
    """One algorithm for fixed sizes: y = activation(alpha · x · wᵀ + bias + r).

    The library counts down columns: our y[M, N] is its [N, M], the product of our w and x in that order.
    """

    def __init__(
        self,
        sizes: Sizes,
        bias: Tensor | None,
        activation: str,
        place: int,
        *,
        adds: bool,
        factor: Factor = PLAIN_FACTOR,
    ) -> None:
        """Parameters: the library's own list."""
        y_apart, r_apart = (row * sizes.made.itemsize for row in (sizes.y_row, sizes.r_row))
        if any(step % ALIGNMENT for step in (sizes.x_row * sizes.dtype.itemsize, y_apart, r_apart)):
            raise RefusedError(f"rows do not start at multiples of {ALIGNMENT} bytes")
        read, made = DATA_TYPES[sizes.dtype], DATA_TYPES[sizes.made]
        self._bias = bias  # its address is in the description
        compute = COMPUTE_TF32 if sizes.rounds else COMPUTE_FLOAT32
        self._what = _Owned("MatmulDesc", compute, DATA_TYPES[torch.float32])
        self._what.set(TRANSPOSE_A, ctypes.c_int32(TRANSPOSED))
        if factor.is_fast:
            self._what.set(FAST_SUMS, ctypes.c_int8(1))
        epilogue = ACTIVATIONS[activation] | (BIAS if bias is not None else 0) or PLAIN
        self._what.set(EPILOGUE, ctypes.c_int32(epilogue))
        if bias is not None:
            self._what.set(BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))
            self._what.set(BIAS_TYPE, ctypes.c_int32(DATA_TYPES[bias.dtype]))
        m, n, k = sizes.rows, sizes.columns, sizes.depth
        sides = (
            (read, k, n, k), (read, k, m, sizes.x_row), (made, n, m, sizes.r_row), (made, n, m, sizes.y_row),
        )  # fmt: skip
        self._layouts = [
            _Owned("MatrixLayout", kind, ctypes.c_uint64(high), ctypes.c_uint64(wide), ctypes.c_int64(apart))
            for kind, high, wide, apart in sides
        ]
        self._alpha, self._beta = ctypes.c_float(factor.alpha), ctypes.c_float(1.0 if adds else 0.0)
        self._algorithm = self._found(place)

    def _found(self, place: int) -> Any:
        search = _Owned("MatmulPreference")
        search.set(MOST_SCRATCH, ctypes.c_size_t(0))
        for attribute in ALIGNMENTS:
            search.set(attribute, ctypes.c_uint32(ALIGNMENT))
        found, count = (_Found * LISTED)(), ctypes.c_int()
        status = _library().cublasLtMatmulAlgoGetHeuristic(
            _handle(torch.cuda.current_device()), self._what.pointer, *(one.pointer for one in self._layouts),
            search.pointer, LISTED, found, ctypes.byref(count),
        )  # fmt: skip
        _check(status, "the search for an algorithm")
        if place >= count.value:
            raise RefusedError(f"cuBLASLt lists {count.value} algorithms here, want number {place}")
        return found[place].algorithm

    def freeze(self, x: int, w: int, r: int, y: int) -> Callable[[], None]:
        """A call over these addresses, on whatever stream is current then."""
        a, b, c, d = (one.pointer for one in self._layouts)
        device = torch.cuda.current_device()
        arguments = (
            _handle(device), self._what.pointer, ctypes.addressof(self._alpha),
            w, a, x, b, ctypes.addressof(self._beta), r, c, y, d, ctypes.addressof(self._algorithm), None, 0,
        )  # fmt: skip
        launch = _library().cublasLtMatmul

        def call(_held: Matmul = self) -> None:
            _check(launch(*arguments, raw_stream(device)), "a product")

        return call
