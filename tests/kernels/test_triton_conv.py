"""Convolutions in Triton: numbers in the interpreter, machine code, how sites are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from product_cases import (
    GPU,
    BiasRelu,
    machine_code,
    make_site,
    op,
    random,
    require_close,
    require_dependent_launch,
    run_tactic,
    run_twice,
)
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.spec import Body, Site, TensorSpec
from ridgeline.kernels.triton.conv import conv_ref
from ridgeline.kernels.triton.products import Tile, Window
from ridgeline.kernels.triton.ranking import rank_gemm
from ridgeline.tactics.cuda.triton_conv import TritonConv, TritonConv1x1, TritonDepthwise
from ridgeline.tactics.cuda.triton_product import TritonProduct

HALF, SINGLE = torch.float16, torch.float32


def window(
    x: tuple[int, int, int, int], columns: int, kernel: int, *, stride: int = 1, pad: int = 0,
    dilation: int = 1, dtype: torch.dtype = HALF, is_nchw: bool = False, groups: int = 1,
) -> Window:  # fmt: skip
    """x as (images, channels, height, width)."""
    images, channels, *size = x
    high, wide = size
    made = [(side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for side in size]
    nchw = (channels * high * wide, wide, 1, high * wide)
    nhwc = (channels * high * wide, wide * channels, channels, 1)
    whole = Window(
        (high, wide), (made[0], made[1]), (kernel, kernel), (stride, stride), (dilation, dilation),
        (pad, pad),
        images, channels, columns, nchw if is_nchw else nhwc, str(dtype).removeprefix("torch."),
    )  # fmt: skip
    return whole if groups == 1 else whole.in_groups(groups)


@pytest.mark.parametrize(
    ("problem", "tile"),
    [
        pytest.param(window((2, 16, 5, 7), 24, 3, pad=1), Tile(32, 16, 16), id="3x3 padded"),
        pytest.param(window((1, 32, 7, 6), 20, 3, stride=2, pad=1), Tile(16, 16, 32, split=3), id="stride"),
        pytest.param(window((1, 16, 9, 9), 16, 3, dilation=2), Tile(16, 16, 16, split=4), id="dilation"),
        pytest.param(window((1, 32, 7, 5), 16, 1, stride=2), Tile(16, 16, 32), id="1x1 stride 2"),
        pytest.param(window((1, 16, 6, 6), 16, 3, pad=2), Tile(32, 16, 16, split=2), id="uneven parts"),
        pytest.param(
            window((2, 3, 9, 11), 8, 5, stride=2, pad=2, is_nchw=True), Tile(32, 16, 32), id="stem"
        ),
        pytest.param(window((2, 3, 16, 24), 24, 8, stride=8, is_nchw=True), Tile(16, 16, 64), id="patches"),
        pytest.param(window((1, 12, 5, 5), 8, 3, pad=1, dtype=SINGLE), Tile(16, 16, 32), id="odd channels"),
    ],
)  # fmt: skip
def test_conv(problem: Window, tile: Tile) -> None:
    dtype = getattr(torch, problem.dtype)
    x = random(problem.images, problem.channels, *problem.size, dtype=dtype)
    w = random(problem.columns, problem.channels, *problem.kernel, dtype=dtype)
    bias, y = random(problem.columns, dtype=dtype), torch.empty(problem.rows, problem.columns, dtype=dtype)
    placed = x if problem.x_strides[3] != 1 else x.permute(0, 2, 3, 1).contiguous()
    run_twice(problem, tile, placed, problem.pack(w), bias, y)

    def summed(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        made = conv_ref(x, w, stride=problem.stride, pads=problem.pads * 2, dilation=problem.dilation)
        return made.permute(0, 2, 3, 1).reshape(problem.rows, problem.columns) + bias

    want = torch.relu(summed(x.double(), w.double(), bias.double()))
    magnitude = summed(x.double().abs(), w.double().abs(), bias.double().abs())
    require_close(y, want, magnitude, terms=problem.depth)


def grouped(*args: Any, groups: int, **more: Any) -> tuple[Window, int]:
    return window(*args, groups=groups, **more), groups


@pytest.mark.parametrize(
    ("problem", "groups", "tile"),
    [
        pytest.param(
            *grouped((2, 48, 5, 7), 48, 3, pad=1, groups=2), Tile(32, 32, 32), id="width 24, padded"
        ),
        pytest.param(
            *grouped((1, 64, 7, 6), 64, 3, stride=2, pad=1, groups=2), Tile(16, 16, 32, split=3),
            id="width 32, stride, parts",
        ),
        pytest.param(
            *grouped((1, 32, 7, 5), 32, 3, pad=1, groups=8), Tile(32, 32, 32), id="width 4, in one product"
        ),
        pytest.param(
            *grouped((1, 64, 3, 5), 64, 3, dilation=2, pad=2, groups=8), Tile(16, 32, 32),
            id="width 8, in two",
        ),
        pytest.param(*grouped((1, 60, 3, 5), 36, 1, groups=3), Tile(16, 16, 32), id="1x1, 20 into 12"),
        pytest.param(
            *grouped((1, 24, 5, 7), 40, 3, stride=2, pad=1, is_nchw=True, groups=4), Tile(16, 32, 32),
            id="planes",
        ),
        pytest.param(
            *grouped((1, 16, 3, 4), 32, 3, pad=1, groups=2, dtype=SINGLE), Tile(16, 16, 16), id="float32"
        ),
    ],
)  # fmt: skip
def test_groups(problem: Window, groups: int, tile: Tile) -> None:
    """Infinities reach the columns of their own group alone."""
    dtype = getattr(torch, problem.dtype)
    channels, columns = problem.channels * problem.batch, problem.columns * problem.batch
    x = random(problem.images, channels, *problem.size, dtype=dtype)
    w = random(columns, channels // groups, *problem.kernel, dtype=dtype)
    bias, y = random(columns, dtype=dtype), torch.empty(problem.rows, columns, dtype=dtype)

    def meant(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        made = conv_ref(x, w, stride=problem.stride, pads=problem.pads * 2, dilation=problem.dilation)
        return made.permute(0, 2, 3, 1).reshape(problem.rows, columns) + bias

    def ran(x: Tensor) -> Tensor:
        placed = x if problem.is_planes else x.permute(0, 2, 3, 1).contiguous()
        with np.errstate(invalid="ignore"):
            run_twice(problem, tile, placed, problem.pack(w), bias, y)
        return y

    magnitude = meant(x.double().abs(), w.double().abs(), bias.double().abs())
    terms = problem.depth // problem.members
    require_close(ran(x), torch.relu(meant(x.double(), w.double(), bias.double())), magnitude, terms=terms)
    if problem.members > 1:
        x[0, 0, 1, 1], x[-1, -1, 2, 2] = torch.inf, -torch.inf
        want = torch.relu(meant(x.double(), w.double(), bias.double()))
        require_close(ran(x), want, magnitude, terms=terms)


# tactics


@pytest.mark.parametrize(
    ("shapes", "ops", "last", "tactic"),
    [
        pytest.param(
            {"x": (2, 16, 6, 5), "w": (24, 16, 3, 3), "b": (24,), "r": (2, 24, 6, 5)},
            [op("Conv", "x w b", "c", pads=(1, 1, 1, 1)), op("Add", "c r", "s"), op("Relu", "s", "y")],
            "x r c s y", TritonConv(), id="3x3, residual, relu",
        ),
        pytest.param(
            {"x": (1, 3, 12, 12), "w": (8, 3, 7, 7), "b": (8,)},
            [op("Conv", "x w b", "c", strides=(2, 2), pads=(3, 3, 2, 2)), op("Relu", "c", "y")],
            "c y", TritonConv(), id="stem from NCHW, uneven pads",
        ),
        pytest.param(
            {"x": (2, 8, 7, 9), "w": (24, 8, 2, 4), "b": (24,)},
            [op("Conv", "x w b", "c", strides=(2, 4)), op("Relu", "c", "y")],
            "x c y", TritonConv(), id="patches",
        ),
        pytest.param(
            {"x": (2, 16, 9), "w": (8, 16, 3)}, [op("Conv", "x w", "y", pads=(1, 1))],
            "", TritonConv(), id="one spatial axis, NCW throughout",
        ),
        pytest.param(
            {"x": (1, 48, 6, 5), "w": (48, 12, 3, 3), "b": (48,), "r": (1, 48, 3, 3)},
            [
                op("Conv", "x w b", "c", group=4, strides=(2, 2), pads=(1, 1, 1, 1)),
                op("Add", "c r", "s"), op("Relu", "s", "y"),
            ],
            "x r c s y", TritonConv(), id="groups, residual, relu",
        ),
        pytest.param(
            {"x": (2, 24, 5, 3), "w": (16, 24, 1, 1), "b": (16,)}, [op("Conv", "x w b", "y")],
            "x y", TritonConv1x1(), id="1x1",
        ),
        pytest.param(
            {"x": (2, 24, 5, 3), "w": (16, 24, 1, 1)}, [op("Conv", "x w", "y")],
            "", TritonConv1x1(), id="1x1, NCHW",
        ),
    ],
)  # fmt: skip
def test_tactic(shapes: dict, ops: list, last: str, tactic: TritonProduct) -> None:
    tensors = {name: random(*shape, dtype=HALF) for name, shape in shapes.items()}
    site, values = make_site(tensors, ops, weights="w b", channels_last=last)
    assert why_not(tactic, site) is None
    magnitude = make_site({n: t.abs() for n, t in tensors.items()}, ops)[1]["y"]
    configs = offered(tactic, site).configs
    for config in (configs[0], configs[-1]):
        y = run_tactic(tactic, site, config, tensors)
        require_close(y, values["y"], magnitude, terms=tensors["w"][0].numel())


@pytest.mark.parametrize(
    ("weight", "attrs", "tactic", "reason"),
    [
        ((8, 16, 1, 1), {}, TritonConv(), "triton.conv1x1 takes it"),
        ((8, 16, 3, 3), {}, TritonConv1x1(), "want 1x1 stride 1"),
        ((16, 4, 1, 1), {"group": 4}, TritonConv1x1(), "4 groups, want one"),
        ((16, 1, 3, 3), {"group": 16}, TritonConv(), "triton.depthwise takes it"),
    ],
)
def test_refuses(weight: tuple[int, ...], attrs: dict, tactic: TritonProduct, reason: str) -> None:
    tensors = {"x": random(1, 16, 5, 5, dtype=HALF), "w": random(*weight, dtype=HALF)}
    site, _ = make_site(tensors, [op("Conv", "x w", "y", **attrs)], weights="w", channels_last="x y")
    assert reason in str(why_not(tactic, site))


@pytest.mark.parametrize(
    ("x", "weight", "attrs", "tactic", "last", "counted"),
    [
        ((1, 64, 6000, 6000), (64, 64, 3, 3), {}, TritonConv(), "x y", 64 * 6000**2),
        ((1, 64, 6000, 6000), (64, 8, 3, 3), {"group": 8}, TritonConv(), "x y", 64 * 6000**2),
        ((1, 64, 6000, 6000), (64, 1, 7, 7), {"group": 64}, TritonDepthwise(), "x y", 64 * 6000**2),
        ((1, 64, 6000, 6000), (64, 64, 1, 1), {}, TritonConv1x1(), "", 63 * 6000**2),
        ((1 << 13, 8, 515, 515), (8, 8, 3, 3), {}, TritonConv(), "x y", (1 << 13) * 513**2),
    ],
    ids=["one group", "groups", "depthwise", "planes", "positions"],
)
def test_what_32_bits_do_not_count_is_refused(
    x: tuple[int, ...], weight: tuple[int, ...], attrs: dict, tactic: TritonProduct, last: str, counted: int
) -> None:
    """An offset would wrap around, and the kernel would read elsewhere. Many images are no matter."""

    def reason_at(x: tuple[int, ...]) -> str | None:
        lost = [weight[2] - 1, weight[3] - 1]
        y = (x[0], weight[0], *(side - less for side, less in zip(x[2:], lost, strict=True)))
        specs = {
            name: TensorSpec("float16", shape, "channels_last" if name in last.split() else "contiguous")
            for name, shape in {"x": x, "w": weight, "y": y}.items()
        }
        body = Body(("x", "w"), ("y",), (op("Conv", "x w", "y", **attrs),))
        return why_not(tactic, Site(body, specs, frozenset("w"), {}, GPU))

    assert f"{counted:,} items" in str(reason_at(x))
    assert reason_at((128, x[1], 600, 600)) is None  # as many elements or more, in images of their own


# ranking and machine code


def test_a_line_of_a_patch_is_one_tap() -> None:
    patches = window((2, 24, 9, 11), 48, 4, stride=4)
    joined = patches.with_lines_joined()
    assert (joined.channels, joined.kernel, joined.stride) == (96, (4, 1), (4, 1))
    assert (joined.depth, joined.rows, joined.made) == (patches.depth, patches.rows, patches.made)
    assert joined.touched[0] <= patches.touched[0]
    # windows that overlap, reach outside or lie on planes stay as they are
    others = (
        window((2, 24, 9, 11), 48, 3, stride=2), window((2, 24, 9, 11), 48, 2, stride=2, pad=1),
        window((2, 24, 9, 11), 48, 4, stride=4, is_nchw=True),
    )  # fmt: skip
    assert all(each.with_lines_joined() is each for each in others)


def test_narrow_groups_share_a_product() -> None:
    found = [window((1, 960, 8, 8), 960, 3, groups=groups) for groups in (240, 120, 60, 40, 8)]
    assert [(each.members, each.channels, each.batch) for each in found] == [
        (6, 24, 40), (3, 24, 40), (2, 32, 30), (1, 24, 40), (1, 120, 8),
    ]  # fmt: skip
    # plain cores gain nothing from more than the narrowest tile
    assert window((1, 64, 8, 8), 64, 3, groups=4, dtype=SINGLE).members == 1
    # 29 groups cannot be shared out
    assert window((1, 116, 8, 8), 116, 3, groups=29).members == 1
    assert window((1, 64, 8, 8), 128, 3, groups=64).columns == 64


def test_groups_are_offered_through_l1() -> None:
    stages = [tile.stages for tile in rank_gemm(window((16, 144, 28, 28), 144, 3, pad=1, groups=6), "sm_90")]
    assert stages.count(1) == 3
    assert stages[0] > 1


def test_small_maps_are_split() -> None:
    assert rank_gemm(window((1, 512, 7, 7), 512, 3, pad=1), "sm_90")[0].split > 1


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_machine_code(arch: str) -> None:
    is_new = arch == "sm_90"
    problems = [
        window((1, 512, 7, 7), 512, 3, pad=1),
        window((32, 64, 56, 56), 64, 3, pad=1),
        window((1, 3, 224, 224), 64, 7, stride=2, pad=3, is_nchw=True),
        window((16, 144, 28, 28), 144, 3, pad=1, groups=6),
        window((16, 128, 56, 56), 128, 3, pad=1, groups=32),
    ]
    tiles = [rank_gemm(problem, arch)[0] for problem in problems]
    # through registers, as the last of a convolution in groups
    problems, tiles = [*problems, problems[-1]], [*tiles, rank_gemm(problems[-1], arch)[-1]]
    kernels = [p.describe(t, BiasRelu(p.columns), pdl=is_new) for p, t in zip(problems, tiles, strict=True)]
    for (compiled, code), tile in zip(machine_code(kernels, arch), tiles, strict=True):
        assert not compiled.spills, f"{tile} spills"
        assert ("LDG.E.128" if tile.stages == 1 else "LDGSTS.E.BYPASS.128") in code, "copies are narrow"
        assert ("CCTL.E.PF2" in code) == (tile.prefetch and is_new)
        assert ("HGMMA" if is_new and tile.bm >= 64 else "HMMA") in code
        if is_new:
            require_dependent_launch(code)
