"""Generated small convolutions over lines and images: borders, strides, dilations, epilogues, odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_cases import check, close, make_site, needs_compiler, random
from torch import Tensor
from torch.nn import functional as F

from offers import offered, why_not
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.tactics.cpu.cpp_conv import CppConvRows


@pytest.fixture
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.getbasetemp()) / "cpp-conv-rows"


def _meaning(given: dict[str, Tensor], attrs: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    x, w, b, other = (given[name].to(dtype) for name in ("x", "w", "b", "other"))
    left, right = attrs.get("pads", (0, 0))
    stride, dilation = attrs.get("strides", (1,)), attrs.get("dilations", (1,))
    a = F.conv1d(F.pad(x, (left, right)), w, b, stride, 0, dilation)
    return {"a": a, "s": a + other, "y": torch.relu(a + other)}


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("batch", "channels", "size", "made", "kernel", "attrs"),
    [
        (1, 1, 640, 258, 256, {"strides": [128]}), (1, 129, 4, 128, 3, {"pads": [1, 1]}),
        (1, 64, 1, 64, 3, {"pads": [1, 1], "strides": [2]}), (3, 5, 13, 19, 4, {"dilations": [2]}),
        (2, 17, 211, 33, 5, {"pads": [0, 3], "strides": [3]}), (1, 7, 301, 1, 2, {}), (5, 3, 9, 40, 9, {}),
        (1, 1, 900, 70, 513, {"pads": [5, 0]}),
    ],
)  # fmt: skip
def test_conv_line(
    cache_dir: Path,
    batch: int,
    channels: int,
    size: int,
    made: int,
    kernel: int,
    attrs: dict[str, Any],
    threads: int,
) -> None:
    given = {
        "x": random(batch, channels, size),
        "w": random(made, channels, kernel, seed=1),
        "b": random(made, seed=2),
        "other": random(made, 1, seed=3),
    }
    plain, exact = (_meaning(given, attrs, dtype) for dtype in (torch.float32, torch.float64))
    ops = (
        Op("Conv", ("x", "w", "b"), ("a",), attrs),
        Op("Add", ("a", "other"), ("s",)),
        Op("Relu", ("s",), ("y",)),
    )
    specs = {name: TensorSpec("float32", tuple(t.shape)) for name, t in {**given, **plain}.items()}
    site = Site(
        Body(tuple(given), ("y",), ops), specs, frozenset({"w", "b"}), {}, Target(threads=threads)
    )  # fmt: skip
    tactic = CppConvRows(cache_dir=cache_dir)
    assert why_not(tactic, site) is None
    for config in offered(tactic, site).configs:
        out = torch.full(specs["y"].shape, float("nan"))
        launch = offered(tactic, site).bind(config, {"w": given["w"], "b": given["b"]})
        launch.frozen(list(given.values()), [out])()
        close(out, plain["y"], exact["y"])


@needs_compiler
@pytest.mark.parametrize("layout", ["channels_last", "contiguous"])
@pytest.mark.parametrize(
    ("batch", "channels", "size", "made", "kernel", "attrs"),
    [
        (1, 24, (74, 32), 24, (1, 3), {"pads": [0, 1, 0, 1]}), (1, 33, (4, 1), 70, (3, 1), {}),
        (2, 5, (9, 7), 19, (3, 3), {"strides": [2, 1]}),
        (3, 7, (6, 11), 3, (2, 3), {"dilations": [2, 3], "pads": [1, 0, 2, 4]}),
    ],
)  # fmt: skip
def test_images(
    cache_dir: Path,
    batch: int,
    channels: int,
    size: Any,
    made: int,
    kernel: Any,
    attrs: dict[str, Any],
    layout: Any,
) -> None:
    form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    inputs = {
        "x": random(batch, channels, *size).contiguous(memory_format=form),
        "w": random(made, channels, *kernel, seed=1),
        "b": random(made, seed=2),
    }
    ops = [Op("Conv", ("x", "w", "b"), ("a",), attrs), Op("LeakyRelu", ("a",), ("y",), {"alpha": 0.2})]
    layouts = dict.fromkeys(("x", "a", "y"), layout)
    check(
        CppConvRows(cache_dir=cache_dir),
        make_site(ops, inputs, ("y",), layouts=layouts, weights=("w", "b")),
        inputs,
    )


def test_refusals() -> None:
    shapes = {"x": (1, 4, 9), "w": (4, 2, 3), "y": (1, 4, 7)}
    specs = {name: TensorSpec("float32", shape) for name, shape in shapes.items()}
    op = Op("Conv", ("x", "w"), ("y",), {"group": 2})
    site = Site(Body(("x", "w"), ("y",), (op,)), specs, frozenset({"w"}), {}, Target())
    assert "2 groups" in (why_not(CppConvRows(), site) or "")
