"""Depthwise convolutions in Triton: numbers in the interpreter, machine code, how sites are read."""

from __future__ import annotations

import re

import pytest
import torch
from product_cases import (
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

from offers import offered, why_not
from ridgeline.kernels.triton.depthwise_products import Block, Depthwise, rank_depthwise
from ridgeline.kernels.triton.sass import disassemble, read_instructions
from ridgeline.kernels.triton.sass_mix import in_loops, inner_loops
from ridgeline.tactics.cuda.triton_conv import TritonDepthwise

HALF, SINGLE = torch.float16, torch.float32


def window(
    x: tuple[int, int, int, int], kernel: int, *, stride: int = 1, pad: int = 0, dilation: int = 1,
    dtype: torch.dtype = HALF,
) -> Depthwise:  # fmt: skip
    """x as (images, channels, height, width), channels last."""
    images, channels, high, wide = x
    made = [(side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for side in (high, wide)]
    return Depthwise(
        (high, wide), (made[0], made[1]), (kernel, kernel), (stride, stride), (dilation, dilation),
        (pad, pad),
        images, channels, channels, (channels * high * wide, wide * channels, channels, 1),
        str(dtype).removeprefix("torch."),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "block"),
    [
        pytest.param(window((2, 24, 7, 9), 3, pad=1), Block(2, 2, 4, 32, 1), id="blocks over every edge"),
        pytest.param(window((1, 16, 9, 8), 3, stride=2, pad=1), Block(1, 4, 8, 16, 1), id="stride 2"),
        pytest.param(window((1, 8, 9, 9), 3, dilation=2, dtype=SINGLE), Block(2, 1, 4, 16, 1), id="dilation"),
        pytest.param(window((1, 24, 5, 6), 7, pad=3), Block(1, 1, 16, 16, 1), id="7x7"),
        pytest.param(window((2, 16, 5, 9), 7, pad=3), Block(2, 4, 8, 16, 1), id="7x7, two lines of outputs"),
        pytest.param(window((1, 16, 7, 8), 5, pad=2), Block(3, 7, 4, 16, 1), id="5x5, three lines"),
        pytest.param(window((1, 8, 9, 8), 5, stride=2, pad=2), Block(1, 4, 8, 16, 1), id="5x5, stride 2"),
        pytest.param(
            window((1, 8, 8, 9), 4, dilation=2, pad=3, dtype=SINGLE), Block(1, 3, 8, 16, 1),
            id="4x4, dilation, float32",
        ),
    ],
)  # fmt: skip
def test_depthwise(problem: Depthwise, block: Block) -> None:
    dtype = getattr(torch, problem.dtype)
    x = random(problem.images, problem.channels, *problem.size, dtype=dtype)
    w = random(problem.channels, 1, *problem.kernel, dtype=dtype)
    bias, y = random(problem.channels, dtype=dtype), torch.empty(problem.rows, problem.channels, dtype=dtype)
    run_twice(problem, block, x.permute(0, 2, 3, 1).contiguous(), problem.pack(w), bias, y)

    def summed(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        made = torch.conv2d(
            x, w, bias, problem.stride, problem.pads, problem.dilation, groups=problem.channels
        )
        return made.permute(0, 2, 3, 1).reshape(y.shape)

    want = torch.relu(summed(x.double(), w.double(), bias.double()))
    magnitude = summed(x.double().abs(), w.double().abs(), bias.double().abs())
    require_close(y, want, magnitude, terms=w[0].numel())


def test_infinity_stays_in_its_windows() -> None:
    problem = window((1, 16, 5, 6), 4, pad=2)
    dtype = getattr(torch, problem.dtype)
    x, w = random(1, 16, 5, 6, dtype=dtype), random(16, 1, 4, 4, dtype=dtype)
    x[0, 3, 2, 1], x[0, 5, 4, 5] = torch.inf, -torch.inf
    bias, y = random(16, dtype=dtype), torch.empty(problem.rows, 16, dtype=dtype)
    placed = x.permute(0, 2, 3, 1).contiguous()
    run_twice(problem, Block(2, 2, 8, 16, 1), placed, problem.pack(w), bias, y)

    def summed(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        made = torch.conv2d(x.double(), w.double(), bias.double(), padding=2, groups=16)
        return made.permute(0, 2, 3, 1).reshape(y.shape)

    want, magnitude = torch.relu(summed(x, w, bias)), summed(x.abs(), w.abs(), bias.abs())
    require_close(y, want, magnitude, terms=16)


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        (3, {"pads": (1, 1, 1, 1)}),
        (3, {"strides": (2, 2), "pads": (0, 0, 1, 1)}),
        (5, {"pads": (2, 2, 2, 2)}),
    ],
)
def test_tactic(kernel: int, attrs: dict) -> None:
    tactic = TritonDepthwise()
    tensors = {
        "x": random(2, 16, 6, 6, dtype=HALF),
        "w": random(16, 1, kernel, kernel, dtype=HALF),
        "b": random(16, dtype=HALF),
    }
    ops = [op("Conv", "x w b", "c", group=16, **attrs), op("Relu", "c", "y")]
    site, values = make_site(tensors, ops, weights="w b", channels_last="x c y")
    assert why_not(tactic, site) is None
    magnitude = make_site({n: t.abs() for n, t in tensors.items()}, ops)[1]["y"]
    configs = offered(tactic, site).configs
    for config in (configs[0], configs[-1]):
        require_close(run_tactic(tactic, site, config, tensors), values["y"], magnitude, terms=kernel**2)


def test_refuses() -> None:
    tensors = {"x": random(1, 16, 5, 5, dtype=HALF), "w": random(16, 1, 3, 3, dtype=HALF)}
    ops = [op("Conv", "x w", "y", group=16)]
    assert "do not lie together" in str(why_not(TritonDepthwise(), make_site(tensors, ops, weights="w")[0]))
    tensors["w"] = random(32, 1, 3, 3, dtype=HALF)
    site, _ = make_site(tensors, ops, weights="w", channels_last="x y")
    assert "16 groups of 16 channels into 32" in str(why_not(TritonDepthwise(), site))


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_machine_code(arch: str) -> None:
    is_new = arch == "sm_90"
    problems = [window((1, 144, 56, 56), 3, pad=1), window((32, 96, 112, 112), 3, stride=2, pad=1)]
    ranked = [rank_depthwise(problem, arch) for problem in problems]
    cuts = [(problem, block) for problem, best in zip(problems, ranked, strict=True) for block in best[:3:2]]
    kernels = [problem.describe(block, BiasRelu(problem.channels), pdl=is_new) for problem, block in cuts]
    for (compiled, code), (_, block) in zip(machine_code(kernels, arch), cuts, strict=True):
        assert not compiled.spills, f"{block} spills"
        assert "LDG.E.128" in code, f"{block} loads narrowly"
        assert "STG.E.128" in code, f"{block} stores narrowly"
        if is_new:
            require_dependent_launch(code)


def test_large_windows() -> None:
    """Blocks of several outputs, in which most instructions of the loop multiply and add."""
    problem = window((16, 96, 56, 56), 7, pad=3)
    blocks = rank_depthwise(problem, "sm_90")
    assert {(1, 8, 4), (2, 8, 4)} <= {(block.high, block.wide, block.held) for block in blocks}
    kernel = problem.describe(Block(1, 8, 32, 32, 8), BiasRelu(96), pdl=True)
    [(compiled, code)] = machine_code([kernel], "sm_90")
    assert not compiled.spills
    assert not re.search(r"\b(LDS|STS|SHFL)\b", code), "weights go from thread to thread"
    instructions = read_instructions(disassemble(compiled.cubin) or "")
    inner = in_loops(instructions, inner_loops(instructions))
    assert sum(each.opcode == "FFMA" for each in inner) > 0.65 * len(inner)


def test_tiny_maps_have_small_blocks() -> None:
    first = rank_depthwise(window((1, 96, 14, 14), 7, pad=3), "sm_90")[0]
    assert first.high * first.wide * first.held <= 8
    # a block of two lines wants lines of x that both contain
    strided = rank_depthwise(window((16, 96, 56, 56), 5, stride=2, pad=2), "sm_90")
    assert {block.high for block in strided} == {1}
