"""The C++ prelude's float32 functions against float64, in units of the last place."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cpp_cases import needs_compiler

from ridgeline.kernels.cpp.compiler import Library, compile_cpp
from ridgeline.kernels.cpp.prelude import PRELUDE

NAMES = ("exp", "expm1", "log", "log1p", "erf", "tanh")
erf = np.vectorize(math.erf, otypes=[np.float64])


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Library:
    loops = (
        f'extern "C" void run_{n}(const float* x, float* y, long count) {{\n#pragma omp simd\n'
        f"for (long i = 0; i < count; ++i) y[i] = rl_{n}(x[i]); }}"
        for n in NAMES
    )
    return compile_cpp(PRELUDE + "\n".join(loops) + "\n", cache_dir=Path(tmp_path_factory.mktemp("cpp")))


def apply(library: Library, name: str, x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(x, dtype=np.float32)
    y = np.full_like(x, np.nan)
    library[f"run_{name}"](
        x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(x.size)
    )
    return y


@needs_compiler
@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "ulps"),
    [
        ("exp", np.exp, -87.0, 88.7, 2),
        ("expm1", np.expm1, -30.0, 88.0, 3),
        ("log", np.log, 1e-37, 1e30, 2),
        ("log", np.log, 0.5, 2.0, 2),
        ("log1p", np.log1p, 1e-6, 1.0, 3),
        ("erf", erf, -4.5, 4.5, 2),
        ("tanh", np.tanh, -10.0, 10.0, 2),
        ("tanh", np.tanh, -0.7, 0.7, 2),
    ],
)
def test_error_in_ulps(
    functions: ctypes.CDLL, name: str, exact: Callable[..., np.ndarray], low: float, high: float, ulps: int
) -> None:
    rng = np.random.default_rng(0)
    spread = (
        np.exp(rng.uniform(np.log(low), np.log(high), 20_000)) if low > 0 else rng.uniform(low, high, 20_000)
    )
    x = spread.astype(np.float32)
    want = exact(x.astype(np.float64))
    error = np.abs(apply(functions, name, x) - want) / np.spacing(np.abs(want).astype(np.float32))
    assert error.max() <= ulps


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_ends(functions: ctypes.CDLL, name: str) -> None:
    # log1p serves softplus alone, where its argument lies in [0, 1]
    rest = {"log": [np.inf, 100.0], "log1p": [1.0]}.get(name, [np.inf, 100.0, -np.inf, -110.0, -0.0])
    x = np.array([np.nan, 0.0, 1e-42, *rest], dtype=np.float32)
    with np.errstate(all="ignore"):
        want = (erf if name == "erf" else getattr(np, name))(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(apply(functions, name, x), want, rtol=2 * np.finfo(np.float32).eps, atol=2e-45)
