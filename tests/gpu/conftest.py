"""Tests that need a GPU: skipped with the reason where there is none.

The kernels of all cases are asked for first and compiled together, since one by one takes many minutes.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# cases are shared with the tests that run them in the interpreter and on the CPU
sys.path.append(str(Path(__file__).parents[1] / "kernels"))
sys.path.append(str(Path(__file__).parents[1] / "tactics"))
sys.path.append(str(Path(__file__).parents[1] / "shapes"))

import networks
import on_gpu

import ridgeline
from ridgeline.kernels.triton.compiler import CACHE_DIR
from ridgeline.runtime.device import why_no_gpu

HERE = Path(__file__).parent
WHY_NOT = why_no_gpu()
KERNELS = "RIDGELINE_TESTS_KERNELS"  # a folder that `compile_ahead.py` filled elsewhere
SMALL = {"level": 1, "verify": "fast"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            # libraries on a GPU machine warn of much that is not ours
            item.add_marker(pytest.mark.filterwarnings("default"))
            if WHY_NOT is not None:
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {WHY_NOT}"))


@pytest.fixture(scope="session", autouse=True)
def _compiled_ahead(request: pytest.FixtureRequest) -> None:
    """Every case runs once without running: it only says which kernels it wants."""
    if WHY_NOT is not None:
        return
    if KERNELS in os.environ:
        shutil.copytree(os.environ[KERNELS], CACHE_DIR.expanduser(), dirs_exist_ok=True)
    with on_gpu.asking():
        for item in request.session.items:
            patches: list[on_gpu.Patch] = getattr(getattr(item, "module", None), "PATCHES", [])
            if patches and isinstance(item, pytest.Function):
                _ask(item, patches)
    on_gpu.compile_wanted()


def _ask(item: pytest.Function, patches: list[on_gpu.Patch]) -> None:
    spec = getattr(item, "callspec", None)
    params: dict[str, Any] = dict(spec.params) if spec is not None else {}
    takes = inspect.signature(item.function).parameters
    if set(takes) - set(params):
        return
    with pytest.MonkeyPatch.context() as patch:
        on_gpu.apply(patch, patches, params.get("half_type"))
        try:
            item.function(**{name: value for name, value in params.items() if name in takes})
        except Exception:  # nothing was computed, so what is compared afterwards differs
            return


@pytest.fixture
def on_the_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's cases, with the GPU in the place of the interpreter."""
    half_type = request.getfixturevalue("half_type") if "half_type" in request.fixturenames else None
    on_gpu.apply(monkeypatch, request.module.PATCHES, half_type)


@pytest.fixture(scope="session")
def mlp() -> ridgeline.Engine:
    """float32, any batch up to 8, planned for 4."""
    return ridgeline.build(networks.mlp(), target="cuda", profiles={"x": "1..4..8x64"}, level=3)


@pytest.fixture(scope="session")
def encoder() -> ridgeline.Engine:
    """Two transformer layers in float16, any batch up to 4."""
    return ridgeline.build(networks.encoder(), target="cuda", profiles={"ids": "1..2..4x16"}, **SMALL)


@pytest.fixture(scope="session")
def image_net() -> ridgeline.Engine:
    """Convolutions in float16, batch 2."""
    return ridgeline.build(networks.image_net(), target="cuda", profiles={"x": "2x3x32x32"}, **SMALL)


@pytest.fixture(params=["mlp", "encoder", "image_net"])
def engine(request: pytest.FixtureRequest) -> ridgeline.Engine:
    """Each of the three in turn."""
    made: ridgeline.Engine = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def clean_memory() -> Iterator[Callable[[], int]]:
    """A way to ask the driver for its free bytes with nothing of PyTorch's in between."""
    yield on_gpu.driver_free_bytes
    on_gpu.driver_free_bytes()
