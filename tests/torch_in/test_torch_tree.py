"""Calls and results taken apart and put together; dims as users write them. No export, no engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim
from torch_modules import Cache, Encoded

from ridgeline.errors import OptionError
from ridgeline.frontend.torch_dims import axes_of, bounded_profile
from ridgeline.frontend.torch_tree import flatten, holds_tensors, leaf_names, unflatten
from ridgeline.options import DimRange

X = torch.zeros(2, 3)


def test_a_nested_result_comes_back_as_it_was() -> None:
    cache = Cache()
    cache.states = [X, X + 1]
    value = {"a": (X, [None, 3]), "b": Encoded(X, "text"), "c": cache}
    leaves, tree = flatten(value)
    again = unflatten(leaves, tree)
    assert isinstance(again["c"], Cache)
    assert again["c"] is not cache
    assert again["c"].states[1] is cache.states[1]
    assert again["b"] == value["b"]
    assert again["a"][1] == [None, 3]
    assert flatten(again)[1] == tree
    assert hash(flatten(again)[1]) == hash(tree)


def test_leaves_are_named_by_keys_fields_and_places() -> None:
    cache = Cache()
    cache.states = [X]
    names = leaf_names({"out": Encoded(X, X), "cache": cache, "many": [X, X]}, "")
    assert names == ["out_states", "out_pooled", "cache_states_0", "cache_name", "many_0", "many_1"]
    assert leaf_names(X, "") == [""]


@pytest.mark.parametrize("value", [X, torch.nn.Linear(2, 2), "text", 3, None, Cache(), torch.float32, len])
def test_what_is_no_container_of_tensors_is_left_alone(value: Any) -> None:
    assert not holds_tensors(value)


def test_dims_are_told_by_name_place_or_list() -> None:
    arguments = {"x": X, "flag": True, "more": {"y": X, "z": [X, X]}}
    rows = Dim("rows", max=8)
    spelled = {"x": {0: "batch", -1: None}, "more": {"y": (rows, None), "z": [None, {1: Dim.AUTO}]}}
    assert axes_of(arguments, spelled) == [{0: "batch"}, {0: rows}, {}, {1: Dim.AUTO}]
    assert axes_of(arguments, ({0: "batch"},)) == [{0: "batch"}, {}, {}, {}]
    assert axes_of(arguments, None) == [{}, {}, {}, {}]


def test_a_dim_with_a_largest_size_makes_a_range() -> None:
    axes = [{0: Dim("rows", min=2, max=8), 1: "free"}, {0: Dim("x", max=4)}]
    assert bounded_profile(["x", "y"], [X, X], axes) == {"rows": (DimRange(2, 2, 8),)}


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"y": {0: "batch"}}, "which the call does not give"),
        ({"x": {2: "batch"}}, r"axes of \[2, 3\]"),
        ({"x": {0: "two words"}}, "letters, digits"),
        ({"x": "batch"}, "one entry for each axis"),
        (({0: "a"}, None), "more entries than"),
        (3, "does not read"),
        ({"x": {0: 1.5}}, "torch.export.Dim in place"),
    ],
)
def test_dims_that_do_not_read_are_errors(dims: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        axes_of({"x": X}, dims)
