"""Generated convolutions: 1x1, depthwise, few input channels; odd sizes, borders, every kind of epilogue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_cases import check, empty, make_site, needs_compiler, random
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.spec import Op, Site
from ridgeline.tactics.cpu.cpp import CppGemv
from ridgeline.tactics.cpu.cpp_conv import CppConv1x1, CppConvSmall, CppDepthwise
from ridgeline.tactics.offer import precompile

LAST = "channels_last"


@pytest.fixture
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.getbasetemp()) / "cpp-conv"


def image(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed).contiguous(memory_format=torch.channels_last)


def conv_site(
    inputs: dict[str, Tensor], attrs: dict[str, Any], *ops: Op, outputs: tuple[str, ...] = ("y",),
    flat: tuple[str, ...] = (), weights: tuple[str, ...] = ("w", "b"),
) -> Site:  # fmt: skip
    """y = ops(Conv(x, w, b)), all images channels last but those in `flat`."""
    reads = ("x", "w", "b") if "b" in inputs else ("x", "w")
    conv = Op("Conv", reads, ("a",) if ops else ("y",), attrs)
    images = {name for name, t in inputs.items() if name not in ("w", "b") and t.dim() == 4}
    images |= {name for op in (conv, *ops) for name in op.outputs}
    layouts = {name: LAST for name in images if name not in flat}
    known = [name for name in weights if name in inputs]
    return make_site([conv, *ops], inputs, outputs, layouts=layouts, weights=known)


CLIP = Op("Clip", ("a",), ("y",), {"min": 0.0, "max": 6.0})


@needs_compiler
@pytest.mark.parametrize(
    ("batch", "channels", "made", "size"),
    [
        (1, 1, 1, 5), (1, 3, 7, 5), (2, 17, 96, 7), (1, 96, 17, 7), (1, 16, 24, 56), (3, 40, 3, 1),
        (2, 400, 33, 5),
    ],
)  # fmt: skip
def test_1x1(cache_dir: Path, batch: int, channels: int, made: int, size: int) -> None:
    inputs = {"x": image(batch, channels, size, size), "w": random(made, channels, 1, 1, seed=1)}
    inputs["b"] = random(made, seed=2)
    check(CppConv1x1(cache_dir=cache_dir), conv_site(inputs, {}, CLIP), inputs)


@needs_compiler
@pytest.mark.parametrize(("height", "width"), [(5, 7), (1, 6), (13, 4)])
def test_1x1_stride(cache_dir: Path, height: int, width: int) -> None:
    inputs = {"x": image(2, 19, height, width), "w": random(33, 19, 1, 1, seed=1)}
    check(CppConv1x1(cache_dir=cache_dir), conv_site(inputs, {"strides": (2, 3)}), inputs)


@needs_compiler
def test_1x1_epilogues(cache_dir: Path) -> None:
    tactic = CppConv1x1(cache_dir=cache_dir)
    inputs = {"x": image(2, 24, 5, 7), "w": random(50, 24, 1, 1, seed=1), "b": random(50, seed=2)}
    residual = {**inputs, "r": image(2, 50, 5, 7, seed=3)}
    check(tactic, conv_site(residual, {}, Op("Add", ("a", "r"), ("y",))), residual)
    scaled = {**inputs, "s": random(1, 50, 1, 1, seed=4)}
    gate = (Op("Mul", ("a", "s"), ("c",)), Op("HardSwish", ("c",), ("y",)))
    check(tactic, conv_site(scaled, {}, *gate, outputs=("y", "c"), flat=("s",)), scaled)
    silu = (Op("Sigmoid", ("a",), ("c",)), Op("Mul", ("a", "c"), ("y",)))
    check(tactic, conv_site(inputs, {}, *silu), inputs)
    flat = {"x": random(2, 24, 1, 1), "w": inputs["w"], "b": inputs["b"]}
    check(tactic, conv_site(flat, {}, Op("Relu", ("a",), ("y",)), flat=("x", "a", "y")), flat)


DEPTHWISE = [
    (1, 1, (5, 5), {"pads": (1, 1, 1, 1)}, (3, 3)),
    (2, 3, (7, 7), {"pads": (1, 1, 1, 1), "strides": (2, 2)}, (3, 3)),
    (1, 7, (1, 1), {"pads": (1, 1, 1, 1)}, (3, 3)),
    (2, 17, (5, 7), {"pads": (0, 1, 2, 3)}, (3, 3)),
    (1, 96, (56, 56), {"pads": (1, 1, 1, 1), "strides": (2, 2)}, (3, 3)),
    (1, 96, (7, 7), {"pads": (2, 2, 2, 2), "strides": (1, 1)}, (5, 5)),
    (1, 33, (9, 14), {"pads": (2, 1, 0, 4), "dilations": (2, 2)}, (3, 3)),
    (2, 20, (8, 5), {"strides": (1, 2), "dilations": (1, 2), "pads": (3, 4, 3, 4)}, (4, 5)),
    (1, 16, (6, 6), {}, (1, 1)),
    (1, 48, (4, 4), {"pads": (6, 6, 6, 6)}, (3, 3)),
    (1, 528, (7, 7), {"pads": (3, 3, 3, 3)}, (7, 7)),
]


@needs_compiler
@pytest.mark.parametrize(("batch", "channels", "size", "attrs", "kernel"), DEPTHWISE)
def test_depthwise(
    cache_dir: Path, batch: int, channels: int, size: tuple[int, int], attrs: dict[str, Any],
    kernel: tuple[int, int],
) -> None:  # fmt: skip
    inputs = {"x": image(batch, channels, *size), "w": random(channels, 1, *kernel, seed=1)}
    inputs["b"] = random(channels, seed=2)
    site = conv_site(inputs, {"group": channels, **attrs}, CLIP)
    check(CppDepthwise(cache_dir=cache_dir), site, inputs)


@needs_compiler
def test_depthwise_epilogues(cache_dir: Path) -> None:
    tactic = CppDepthwise(cache_dir=cache_dir)
    attrs = {"group": 40, "pads": (1, 1, 1, 1)}
    inputs = {"x": image(2, 40, 5, 7), "w": random(40, 1, 3, 3, seed=1), "b": random(40, seed=2)}
    residual = {**inputs, "r": image(2, 40, 5, 7, seed=3)}
    check(tactic, conv_site(residual, attrs, Op("Add", ("a", "r"), ("y",))), residual)
    # the input itself as residual, an operand in the other layout, one that varies by image only
    check(tactic, conv_site(inputs, attrs, Op("Add", ("x", "a"), ("y",))), inputs)
    flat = {**inputs, "r": random(2, 40, 5, 7, seed=3)}
    check(tactic, conv_site(flat, attrs, Op("Add", ("a", "r"), ("y",)), flat=("r",)), flat)
    gated = {**inputs, "s": random(2, 40, 1, 1, seed=4)}
    gate = (Op("Swish", ("a",), ("c",)), Op("Mul", ("c", "s"), ("y",)))
    check(tactic, conv_site(gated, attrs, *gate, outputs=("y", "c"), flat=("s",)), gated)


@needs_compiler
@pytest.mark.parametrize(
    ("batch", "shape", "made", "attrs", "kernel"),
    [
        (1, (3, 56, 56), 32, {"pads": (1, 1, 1, 1), "strides": (2, 2)}, (3, 3)),
        (2, (3, 17, 23), 64, {"pads": (3, 3, 3, 3), "strides": (2, 2)}, (7, 7)),
        (1, (1, 5, 5), 1, {"pads": (0, 1, 2, 3)}, (3, 3)),
        (2, (7, 5, 9), 17, {"pads": (2, 1, 0, 4), "dilations": (2, 2)}, (3, 2)),
        (1, (3, 1, 1), 96, {"pads": (5, 4, 5, 4), "strides": (3, 2)}, (3, 3)),
        (1, (3, 16, 16), 48, {"strides": (4, 4)}, (4, 4)),
    ],
)
def test_few_channels(
    cache_dir: Path, batch: int, shape: tuple[int, int, int], made: int, attrs: dict[str, Any],
    kernel: tuple[int, int],
) -> None:  # fmt: skip
    inputs = {"x": random(batch, *shape), "w": random(made, shape[0], *kernel, seed=1)}
    inputs["b"] = random(made, seed=2)
    check(CppConvSmall(cache_dir=cache_dir), conv_site(inputs, attrs, CLIP, flat=("x",)), inputs)


@needs_compiler
def test_auto_pad(cache_dir: Path) -> None:
    inputs = {"x": image(1, 20, 7, 8), "w": random(20, 1, 3, 3, seed=1)}
    explicit = conv_site(inputs, {"group": 20, "strides": (2, 2), "pads": (1, 0, 1, 1)})
    conv = Op("Conv", ("x", "w"), ("y",), {"group": 20, "strides": (2, 2), "auto_pad": "SAME_UPPER"})
    implied = replace(explicit, body=replace(explicit.body, ops=(conv,)))
    tactic = CppDepthwise(cache_dir=cache_dir)
    outs = []
    for site in (explicit, implied):
        out = empty(site.outputs[0])
        offered(tactic, site).bind(offered(tactic, site).configs[0], {"w": inputs["w"]}).call(
            list(inputs.values()), [out]
        )
        outs.append(out)
    assert torch.equal(*outs)


@needs_compiler
def test_source_is_a_function_of_the_site(cache_dir: Path) -> None:
    inputs = {"x": image(1, 24, 7, 7), "w": random(24, 1, 3, 3, seed=1)}
    tactic = CppDepthwise(cache_dir=cache_dir)
    jobs = []
    for _ in range(2):
        site = conv_site(inputs, {"group": 24, "pads": (1, 1, 1, 1)})
        offer = offered(tactic, site)
        jobs += [(tactic, site, offer, config) for config in offer.configs]
    assert precompile(jobs) == []
    sources = [offer.cpp_source(config) for _, _, offer, config in jobs]
    assert sources[: len(sources) // 2] == sources[len(sources) // 2 :]


@needs_compiler
def test_refusals(cache_dir: Path) -> None:
    conv1x1, depthwise = CppConv1x1(cache_dir=cache_dir), CppDepthwise(cache_dir=cache_dir)
    small = CppConvSmall(cache_dir=cache_dir)
    inputs = {"x": image(1, 6, 4, 4), "w": random(6, 6, 1, 1)}
    plain = conv_site(inputs, {})
    assert why_not(depthwise, plain) == "1 groups of 6 channels into 6, want all alike"
    assert why_not(small, plain) == "x is not contiguous"
    assert why_not(conv1x1, conv_site(inputs, {}, flat=("x",))) == "channels of x do not lie together"
    assert why_not(conv1x1, conv_site(inputs, {}, flat=("y",))) == "columns of an output are not contiguous"
    assert why_not(conv1x1, conv_site(inputs, {}, weights=())) == "weight 'w' changes between runs"
    padded = conv_site(inputs, {"pads": (1, 1, 1, 1)})
    assert why_not(conv1x1, padded) == "kernel [1, 1] in 1 groups is no plain product, want 1x1"
    spread = {**inputs, "r": image(5, 6, 4, 4)}
    wide = conv_site(spread, {}, Op("Add", ("a", "r"), ("y",)))
    assert why_not(conv1x1, wide) == "an output is larger than the product"
    many = {"x": random(1, 9, 4, 4), "w": random(6, 9, 3, 3)}
    assert why_not(small, conv_site(many, {}, flat=("x",))) == "9 channels in 1 groups, want at most 8 in one"
    long = {"x": image(1, 2000, 1, 70), "w": random(2000, 1, 1, 1)}
    assert why_not(depthwise, conv_site(long, {"group": 2000})) is None
    odd = {"x": image(1, 2017, 1, 70), "w": random(2017, 1, 1, 1)}
    reason = "an output line of 564760 bytes at a time, want at most 524288"
    assert why_not(depthwise, conv_site(odd, {"group": 2017})) == reason
    relu = make_site([Op("Relu", ("x",), ("y",))], {"x": inputs["x"]}, ["y"])
    assert {why_not(t, relu) for t in (conv1x1, depthwise, small)} == {"region has no Conv, want one"}


@needs_compiler
def test_rows_that_are_not_those_of_the_product(cache_dir: Path) -> None:
    tactic = CppGemv(cache_dir=cache_dir)
    product = Op("MatMul", ("x", "w"), ("a",))
    inputs = {"x": random(2, 3, 8), "w": random(8, 5, seed=1)}
    turned = make_site(
        [product, Op("Transpose", ("a",), ("y",), {"perm": (1, 0, 2)})], inputs, ["y"], weights="w"
    )
    assert why_not(tactic, turned) == "an epilogue operand broadcasts among the rows"
    single = {"x": random(1, 8), "w": inputs["w"], "r": random(4, 5, seed=2)}
    spread = make_site([product, Op("Add", ("a", "r"), ("y",))], single, ["y"], weights="w")
    assert why_not(tactic, spread) == "an output is larger than the product"
