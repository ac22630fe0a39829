"""Modules whose forward changes their attributes: refused by name, unless a cache is filled once."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ridgeline
from ridgeline.errors import UnsupportedError

FAST: dict[str, Any] = {"level": 0, "threads": 1, "progress": False}
X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))


class Kept(nn.Module):
    """With something in `kept`."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.kept = kept


class Count(Kept):
    def forward(self, x: Tensor) -> Tensor:
        self.kept += 1
        return x * self.kept


class First(Kept):
    def forward(self, x: Tensor) -> Tensor:
        is_first, self.kept = self.kept, False
        return x * 2 if is_first else x * 3


class History(Kept):
    def forward(self, x: Tensor) -> Tensor:
        self.kept.append(x)
        return torch.stack(self.kept).sum(0)


class Mean(Kept):
    def forward(self, x: Tensor) -> Tensor:
        self.kept["mean"] = self.kept["mean"] * 0.5 + x
        return self.kept["mean"] + 0


class Field(Kept):
    def forward(self, x: Tensor) -> Tensor:
        self.kept.steps += 1
        return x * self.kept.steps


class Array(Kept):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[0] += 1
        return x * float(self.kept[0])


class Late(Kept):
    """Differs at a call that no build makes."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept += 1
        return x * 2 if self.kept < 100 else x * 3


class Unseen(Kept):
    """Changes only where nobody traces."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            self.kept += 1
        return x * 2 if self.kept < 2 else x * 3


CHANGING = {
    "count": lambda: Count(0),
    "first": lambda: First(True),
    "list": lambda: History([]),
    "dict": lambda: Mean({"mean": torch.zeros(3)}),
    "field": lambda: Field(SimpleNamespace(steps=0)),
    "numpy": lambda: Array(np.zeros(1)),
    "late": lambda: Late(0),
    "deep": lambda: nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), Count(0))),
}


@pytest.mark.parametrize("verify", ["off", "fast"])
@pytest.mark.parametrize("name", CHANGING)
def test_a_module_that_changes_at_each_call_is_refused(name: str, verify: str) -> None:
    said = "1.1.kept" if name == "deep" else "kept"
    with pytest.raises(UnsupportedError, match=rf"changes attributes of the module(?s:.*)\n  {said}\n"):
        ridgeline.compile(CHANGING[name]().eval(), verify=verify, **FAST)(X)


def test_build_refuses_it_too() -> None:
    with pytest.raises(UnsupportedError, match="changes attributes of the module"):
        ridgeline.build(Count(0).eval(), X, verify="off", **FAST)


def test_changes_outside_a_trace_are_seen_when_the_module_is_asked() -> None:
    with pytest.raises(UnsupportedError, match="changes attributes of the module"):
        ridgeline.compile(Unseen(0).eval(), verify="fast", **FAST)(X)


class Length(Kept):
    """A number that is worked out once."""

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = x.shape[-1]
        return x / self.kept


class Table(Kept):
    """Tensors by size, made when they are first wanted."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] not in self.kept:
            self.kept[x.shape[-1]] = torch.arange(x.shape[-1], dtype=torch.float32)
        return x + self.kept[x.shape[-1]]


class Last(Kept):
    """Leaves behind what it computed on the way."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept["last"] = x.softmax(-1)
        return self.kept["last"] * 2


class Settings(Kept):
    """Objects that stay as they are, one of them twice and one that no value tells apart."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.kept["a"].scale


def settings() -> Settings:
    shared = SimpleNamespace(scale=3.0, itself=None, count=itertools.count())
    shared.itself = shared
    return Settings({"a": shared, "b": shared, "c": {1, 2}, "d": np.arange(3)})


@pytest.mark.parametrize(
    "make",
    [lambda: Length(None), lambda: Table({}), lambda: Last({}), settings],
    ids=["number", "tensors", "left behind", "settings"],
)
def test_what_is_the_same_after_the_first_call_works(make: Any) -> None:
    compiled = ridgeline.compile(make().eval(), verify="fast", **FAST)
    for x in (X, X + 1, X):
        torch.testing.assert_close(compiled(x), make()(x))
    assert len(compiled.engines) == 1
