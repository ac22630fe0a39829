"""Generated kernels for regions that take in what moves their operands: rotations, caches, norms of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from cpp_cases import random
from torch import Tensor
from triton_cases import check, make_site

from offers import why_not
from ridgeline.base.spec import Op
from ridgeline.kernels.triton.text import lower
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


# a joined with b along the middle axis, 3 + 4 items; then what is taken of that
JOINED = Op("Concat", ("a", "b"), ("j",), {"axis": 1})
TAKEN: dict[str, list[Op]] = {
    "the first part": [Op("Slice", ("j", "zero", "three", "one"), ("t",))],
    "some of both": [Op("Slice", ("j", "two", "five", "one"), ("t",))],
    "one of the first": [Op("Slice", ("j", "zero", "one", "one"), ("t",))],
    "one of the second": [Op("Slice", ("j", "five", "six", "one"), ("t",))],
    "every second": [Op("Slice", ("j", "zero", "all", "one", "two"), ("t",))],
    "backwards": [Op("Slice", ("j", "back", "before", "one", "minus"), ("t",))],
    "twice": [
        Op("Slice", ("j", "one", "six", "one"), ("s",)),
        Op("Slice", ("s", "one", "three", "one"), ("t",)),
    ],
    "joined again": [Op("Concat", ("j", "c"), ("k",), {"axis": 1}),
                     Op("Slice", ("k", "two", "eight", "one"), ("t",))],
    "padded": [Op("Pad", ("j", "pads"), ("k",)), Op("Slice", ("k", "one", "eight", "one"), ("t",))],
    "rolled": [
        Op("Slice", ("j", "five", "all", "one"), ("end",)),
        Op("Slice", ("j", "zero", "five", "one"), ("start",)),
        Op("Concat", ("end", "start"), ("t",), {"axis": 1}),
    ],
}  # fmt: skip
PLACES = {
    "zero": [0], "one": [1], "two": [2], "three": [3], "five": [5], "six": [6], "eight": [8], "all": [7],
    "back": [6], "before": [-8], "minus": [-1], "pads": [0, 1, 0, 0, 2, 0],
}  # fmt: skip


def joined_site(taken: list[Op], after: list[Op]) -> tuple[Any, dict[str, Tensor]]:
    inputs = {name: random(2, size, 5, seed=size) for name, size in (("a", 3), ("b", 4), ("c", 6))}
    ops = [JOINED, *taken, *after]
    inputs = {name: value for name, value in inputs.items() if any(name in op.inputs for op in ops)}
    used = {name for op in ops for name in op.inputs}
    constants = {name: np.array(value) for name, value in PLACES.items() if name in used}
    return make_site(ops, inputs, ["y"], constants=constants), inputs


@pytest.mark.parametrize("name", TAKEN)
def test_some_items_of_joined_parts(name: str) -> None:
    site, inputs = joined_site(TAKEN[name], [Op("Neg", ("t",), ("y",))])
    check(TritonPointwise(), site, inputs)


@pytest.mark.parametrize("name", TAKEN)
def test_rows_of_some_items_of_joined_parts(name: str) -> None:
    site, inputs = joined_site(TAKEN[name], [Op("Softmax", ("t",), ("y",), {"axis": -1})])
    check(TritonRows(), site, inputs)


def test_a_joined_axis_that_is_split_and_cut() -> None:
    """The index of the joined axis is that of its parts, of which only some are taken."""
    inputs = {"a": random(2, 3, 5), "b": random(2, 5, 5, seed=1)}
    constants = {"shape": np.array([2, 4, 2, 5]), "one": np.array([1]), "three": np.array([3])}
    ops = [
        JOINED,
        Op("Reshape", ("j", "shape"), ("r",)),
        Op("Slice", ("r", "one", "three", "one"), ("t",)),
        Op("Neg", ("t",), ("y",)),
    ]
    check(TritonPointwise(), make_site(ops, inputs, ["y"], constants=constants), inputs)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 1, 1), (2, 3), (1, 4)])
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean", "ReduceMax"])
def test_a_joined_axis_is_reduced(kind: str, sizes: tuple[int, ...]) -> None:
    inputs = {f"x{i}": random(4, size, 6, seed=i) for i, size in enumerate(sizes)}
    ops = [Op("Concat", tuple(inputs), ("j",), {"axis": 1}), Op(kind, ("j", "axes"), ("y",), {"keepdims": 0})]
    check(TritonRows(), make_site(ops, inputs, ["y"], constants={"axes": np.array([1])}), inputs)


# windows of a shifted image, as attention made them: put together, rolled back, added to what came before
WINDOWS = {
    "shape": np.array([2, 6, 8, 4]), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
    "at": np.array([4]), "six": np.array([6]), "eight": np.array([8]), "minus": np.array([-1]),
    "back": np.array([5]), "before": np.array([-9]), "pads": np.array([0, 1, 0, 0, 0, 2, 0, 0]),
}  # fmt: skip
ROLL = [
    Op("Slice", ("r", "at", "six", "one"), ("a",)),
    Op("Slice", ("r", "zero", "at", "one"), ("b",)),
    Op("Concat", ("a", "b"), ("c",), {"axis": 1}),
    Op("Slice", ("c", "one", "eight", "two"), ("d",)),
    Op("Slice", ("c", "zero", "one", "two"), ("e",)),
    Op("Concat", ("d", "e"), ("m",), {"axis": 2}),
]
CUTS: dict[str, list[Op]] = {
    "rolled along both": ROLL,
    "cut": [Op("Slice", ("r", "one", "six", "one"), ("m",))],
    "one line": [Op("Slice", ("r", "at", "back", "one"), ("m",))],
    "every second": [Op("Slice", ("r", "zero", "eight", "two", "two"), ("m",))],
    "backwards": [Op("Slice", ("r", "back", "before", "one", "minus"), ("m",))],
    "padded": [Op("Pad", ("r", "pads"), ("m",))],
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_windows_are_put_together_and_cut(name: str, dtype: torch.dtype) -> None:
    inputs = {"x": random(2, 2, 2, 3, 4, 4).to(dtype)}
    ops = [
        Op("Transpose", ("x",), ("t",), {"perm": (0, 1, 3, 2, 4, 5)}),
        Op("Reshape", ("t", "shape"), ("r",)),
    ]
    ops += [*CUTS[name], Op("Neg", ("m",), ("y",))]
    used = {name for op in ops for name in op.inputs}
    constants = {name: value for name, value in WINDOWS.items() if name in used}
    check(TritonPointwise(), make_site(ops, inputs, ["y"], constants=constants), inputs)


def test_a_part_of_what_was_gathered() -> None:
    inputs = {"x": random(7, 6)}
    ops = [
        Op("Gather", ("x", "places"), ("g",), {"axis": 0}),
        Op("Slice", ("g", "one", "three", "zero"), ("s",)),
        Op("Neg", ("s",), ("y",)),
    ]
    constants = {"places": np.array([6, 0, 3, 2]), "one": np.array([1]), "three": np.array([3]),
                 "zero": np.array([0])}  # fmt: skip
    check(TritonPointwise(), make_site(ops, inputs, ["y"], constants=constants), inputs)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_equal_parts_are_cut_in_one_pass(axis: int, last: bool) -> None:
    shape = [2, 3, 4, 5]
    shape[axis] *= 3
    x = random(*shape)
    names = ("x", "a", "b", "c") if last else ()
    inputs = {"x": x.contiguous(memory_format=torch.channels_last) if last else x}
    split = Op("Split", ("x",), ("a", "b", "c"), {"axis": axis, "num_outputs": 3})
    site = make_site([split], inputs, ["a", "b", "c"], last=names)
    check(TritonPointwise(), site, inputs)
    assert math.prod(lower(site).sizes.values()) == x.numel() // 3


def test_parts_of_several_sizes_are_no_pass_over_every_combination() -> None:
    inputs = {"x": random(4, 7)}
    split = Op("Split", ("x", "sizes"), ("a", "b"), {"axis": 1})
    site = make_site([split], inputs, ["a", "b"], constants={"sizes": np.array([3, 4])})
    assert why_not(TritonPointwise(), site) == "no output spans all axes"


ONE_ITEM = {
    "padded": ((6,), [Op("Gather", ("x", "i"), ("g",)), Op("Pad", ("g", "pads"), ("y",))]),
    "beside others": ((6, 4), [Op("Gather", ("x", "i"), ("g",), {"axis": 1}), Op("Mul", ("x", "g"), ("y",))]),
    "of one axis": ((6,), [Op("Gather", ("x", "i"), ("g",)), Op("Mul", ("x", "g"), ("y",))]),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_ITEM)
@pytest.mark.parametrize("is_known", [True, False])
def test_one_item_is_gathered(name: str, is_known: bool) -> None:
    """An index that is one number makes one address, which no mask of a block fits."""
    shape, ops = ONE_ITEM[name]
    places = np.array([3])
    inputs = {"x": random(*shape)} | ({} if is_known else {"i": torch.from_numpy(places)})
    constants = {"i": places} if is_known else {}
    if name == "padded":
        constants["pads"] = np.array([1, 2])
    check(TritonPointwise(), make_site(ops, inputs, ["y"], constants=constants), inputs)


@pytest.mark.parametrize("places", [(), (1,), (6,)])
def test_a_row_is_added_to_what_was_gathered(places: tuple[int, ...]) -> None:
    inputs = {"x": random(5, 6), "t": random(7), "i": torch.arange(6)[: places[0] if places else 1] % 7}
    if not places:
        inputs["i"] = inputs["i"][0].clone()
    ops = [
        Op("Gather", ("t", "i"), ("g",)), Op("Add", ("x", "g"), ("a",)),
        Op("Softmax", ("a",), ("y",), {"axis": -1}),
    ]  # fmt: skip
    check(TritonRows(), make_site(ops, inputs, ["y"]), inputs)


MET = {
    "sum": Op("Add", ("x", "t"), ("m",)),
    "join": Op("Concat", ("x", "t"), ("m",), {"axis": 2}),
}


@pytest.mark.parametrize("name", MET)
@pytest.mark.parametrize("taken", [Op("Gather", ("m", "i"), ("y",)), Op("Slice", ("m", "i", "j"), ("y",))])
def test_a_part_of_a_value_that_met_its_own_transpose_is_refused(name: str, taken: Op) -> None:
    """One axis stands for two dims there; taking a part of one would take it of the other."""
    ops = [Op("Transpose", ("x",), ("t",), {"perm": (1, 0, 2)}), MET[name], taken]
    constants = {"i": np.array([1]), "j": np.array([2])}
    used = {name: value for name, value in constants.items() if name in taken.inputs}
    site = make_site(ops, {"x": random(4, 4, 3)}, ["y"], constants=used)
    assert "its own transpose" in (why_not(TritonPointwise(), site) or "")


@pytest.mark.parametrize("first", [0, 1])
def test_a_part_of_what_was_added_to_its_sum(first: int) -> None:
    """The sum is over the whole axis, also where a part of it is read."""
    ops = [
        Op("ReduceSum", ("x", "axes"), ("s",), {"keepdims": 0}),
        Op("Add", ("s", "x"), ("a",)),
        Op("Reshape", ("a", "shape"), ("r",)),
        Op("Slice", ("r", "from", "to"), ("p",)),
        Op("Add", ("p", "r"), ("y",)),
    ]
    constants = {"axes": np.array([0]), "shape": np.array([2, 3]), "from": np.array([first]),
                 "to": np.array([first + 1])}  # fmt: skip
    inputs = {"x": random(6)}
    check(TritonRows(), make_site(ops, inputs, ["y"], constants=constants), inputs)


def test_items_across_parts_of_which_one_is_reduced_are_refused() -> None:
    """The place in the part that stays would follow from that in the whole, and the sum with it."""
    ops = [
        Op("ReduceSum", ("x", "axes"), ("s",), {"keepdims": 1}),
        Op("Sub", ("x", "s"), ("a",)),
        Op("Reshape", ("a", "shape"), ("r",)),
        Op("Slice", ("r", "from", "to"), ("y",)),
    ]
    constants = {"axes": np.array([0]), "shape": np.array([6]), "from": np.array([1]), "to": np.array([4])}
    site = make_site(ops, {"x": random(2, 3)}, ["y"], constants=constants)
    assert "a part is reduced" in (why_not(TritonRows(), site) or "")


def image(channels: int, seed: int, dtype: torch.dtype = torch.float32, batch: int = 2) -> Tensor:
    made = random(batch, channels, 3, 5, seed=seed).to(dtype)
    return made.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("widths", [(16, 8, 8), (5, 1, 3), (32,) + 20 * (4,)])
@pytest.mark.parametrize("batch", [1, 2])
def test_joined_images_are_scaled_where_they_are_read(
    widths: tuple[int, ...], dtype: torch.dtype, batch: int
) -> None:
    inputs = {f"x{i}": image(width, i, dtype, batch) for i, width in enumerate(widths)}
    inputs["x1"][0, 0, 0] = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0], dtype=dtype)
    weights = {name: random(sum(widths), 1, 1, seed=seed).to(dtype) for name, seed in (("w", 7), ("b", 8))}
    ops = [
        Op("Concat", tuple(inputs), ("j",), {"axis": 1}),
        Op("Mul", ("j", "w"), ("m",)),
        Op("Add", ("m", "b"), ("a",)),
        Op("Relu", ("a",), ("y",)),
    ]
    site = make_site(ops, inputs | weights, ["y"], last=(*inputs, "j", "m", "a", "y"), weights=tuple(weights))
    check(TritonPointwise(), site, inputs | weights)


def shuffled(groups: int, channels: int) -> tuple[list[Op], dict[str, np.ndarray]]:
    """The channels of a joined with b, an item of each group in turn, as exports write it."""
    each = channels // groups
    constants = {
        "apart": np.array([0, groups, each, 3, 5]), "whole": np.array([0, channels, 3, 5]),
        "one": np.array([1]),
    }  # fmt: skip
    ops = [
        Op("Concat", ("a", "b"), ("j",), {"axis": 1}),
        Op("Reshape", ("j", "apart"), ("r",)),
        Op("Transpose", ("r",), ("t",), {"perm": (0, 2, 1, 3, 4)}),
        Op("Reshape", ("t", "whole"), ("s",)),
    ]
    return ops, constants


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("groups", "channels"), [(2, 8), (2, 16), (4, 24), (3, 12), (8, 8)])
def test_shuffled_channels_are_written_last(
    groups: int, channels: int, batch: int, dtype: torch.dtype
) -> None:
    ops, constants = shuffled(groups, channels)
    inputs = {name: image(channels // 2, i, dtype, batch) for i, name in enumerate("ab")}
    made = ("j", "s")
    check(
        TritonPointwise(), make_site(ops, inputs, ["s"], last=("a", "b", *made), constants=constants), inputs
    )


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize(
    ("groups", "channels", "parts"), [(2, 8, 2), (2, 12, 3), (4, 16, 4), (4, 16, 2), (2, 4, 2)]
)
def test_parts_of_shuffled_channels_are_made_together(
    groups: int, channels: int, parts: int, is_last: bool
) -> None:
    ops, constants = shuffled(groups, channels)
    size = channels // parts
    for i in range(parts):
        constants |= {f"from{i}": np.array([i * size]), f"to{i}": np.array([(i + 1) * size])}
        ops.append(Op("Slice", ("s", f"from{i}", f"to{i}", "one"), (f"y{i}",)))
    made = [f"y{i}" for i in range(parts)]
    inputs = {name: image(channels // 2, i) for i, name in enumerate("ab")}
    last = ("a", "b", "j", "s", *made) if is_last else ()
    inputs = inputs if is_last else {name: value.contiguous() for name, value in inputs.items()}
    check(TritonPointwise(), make_site(ops, inputs, made, last=last, constants=constants), inputs)


def test_a_part_that_cuts_a_group_is_refused() -> None:
    ops, constants = shuffled(4, 24)
    constants |= {"from": np.array([0]), "to": np.array([6])}
    ops.append(Op("Slice", ("s", "from", "to", "one"), ("y",)))
    inputs = {name: image(12, i) for i, name in enumerate("ab")}
    site = make_site(ops, inputs, ["y"], last=("a", "b", "j", "s", "y"), constants=constants)
    assert "cut after it was split" in str(why_not(TritonPointwise(), site))
