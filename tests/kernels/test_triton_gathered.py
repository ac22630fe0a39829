"""Generated kernels for regions that take in what moves their operands: rotations, caches, norms of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpp_cases import random
from torch import Tensor
from triton_cases import check, make_site

from ridgeline.base.spec import Op
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise, TritonRows

# B batch, S sequence, H heads, D head width
B, S, H, D = 2, 5, 3, 8
BOUNDS = {
    "zero": np.array([0]), "half": np.array([D // 2]), "all": np.array([D]), "last": np.array([3]),
    "from": np.array([D]), "to": np.array([D + H * D]), "columns": np.array([2]),
    "heads": np.array([0, 0, H, D]),
}  # fmt: skip


def rotation(length: int) -> tuple[list[Op], dict[str, Tensor]]:
    """q·cos + rotated(q)·sin, where q is some columns of x, split into heads."""
    ops = [
        Op("Slice", ("x", "from", "to", "columns"), ("q",)),
        Op("Reshape", ("q", "heads"), ("r",)),
        Op("Transpose", ("r",), ("t",), {"perm": (0, 2, 1, 3)}),
        Op("Mul", ("t", "cos"), ("straight",)),
        Op("Slice", ("t", "half", "all", "last"), ("right",)),
        Op("Neg", ("right",), ("turned",)),
        Op("Slice", ("t", "zero", "half", "last"), ("left",)),
        Op("Concat", ("turned", "left"), ("swapped",), {"axis": -1}),
        Op("Mul", ("swapped", "sin"), ("across",)),
        Op("Add", ("straight", "across"), ("y",)),
    ]
    inputs = {
        "x": random(B, length, (H + 2) * D),
        "cos": random(length, D, seed=1),
        "sin": random(length, D, seed=2),
    }
    return ops, inputs


@pytest.mark.parametrize("length", [S, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_rotation_reads_its_columns_in_place(length: int, dtype: torch.dtype) -> None:
    ops, inputs = rotation(length)
    inputs = {name: value.to(dtype) for name, value in inputs.items()}
    check(TritonPointwise(), make_site(ops, inputs, ["y"], constants=BOUNDS), inputs)


def test_a_rotation_is_joined_to_its_cache() -> None:
    ops, inputs = rotation(1)
    ops.append(Op("Concat", ("keys", "y"), ("all_keys",), {"axis": 2}))
    inputs["keys"] = random(B, H, 7, D, seed=3)
    check(TritonPointwise(), make_site(ops, inputs, ["all_keys"], constants=BOUNDS), inputs)


@pytest.mark.parametrize("last", [(), ("x",)])
def test_a_norm_over_channels_reads_them_once(last: tuple[str, ...]) -> None:
    inputs = {"x": random(2, 24, 3, 5)}
    if last:
        inputs["x"] = inputs["x"].contiguous(memory_format=torch.channels_last)
    ops = [Op("ReduceL2", ("x", "axes"), ("n",), {"keepdims": 1}), Op("Div", ("x", "n"), ("y",))]
    check(TritonRows(), make_site(ops, inputs, ["y"], last=last, constants={"axes": np.array([1])}), inputs)


def test_a_group_norm_writes_channels_last() -> None:
    inputs = {"x": random(2, 16, 3, 5), "w": random(16, seed=1), "b": random(16, seed=2)}
    ops = [
        Op("GroupNormalization", ("x", "w", "b"), ("n",), {"num_groups": 4, "epsilon": 1e-5}),
        Op("Sigmoid", ("n",), ("s",)),
        Op("Mul", ("n", "s"), ("y",)),
    ]
    check(TritonRows(), make_site(ops, inputs, ["y"], last=("n", "s", "y"), weights=("w", "b")), inputs)
