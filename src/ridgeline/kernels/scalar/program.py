"""A region's body as scalar steps over named axes: what the generators work from.

A step's template is common to all dialects: infix arithmetic and calls of `rl_` functions that each defines.
How a body becomes a program is in `lowering.py`; how text is made of a program is up to a dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ridgeline.base.choices import RefusedError
from ridgeline.kernels.scalar.axes import Coordinate

DTYPES = frozenset({
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "bool", "float8_e4m3fn", "float8_e5m2",
})  # fmt: skip
# float8 types, which only some dialects store, and the largest value of each
FLOAT8_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
# types that are computed in float32
NARROW_FLOATS = frozenset({"float16", "bfloat16", *FLOAT8_LARGEST})


@dataclass(frozen=True)
class Number:
    """A scalar known now; a dialect writes it as a literal of that type."""

    value: float | int | bool
    dtype: str


Term: TypeAlias = str | Number


@dataclass(frozen=True)
class Traits:
    """What a dialect can do; the lowering asks nothing else about it."""

    name: str
    baked_items: int = 0  # constants up to this many items become part of the source
    folds_keep_nan: bool = False  # it has the folds max_nan and min_nan
    has_float8: bool = False  # it loads, stores and rounds to float8


@dataclass(frozen=True)
class Guard:
    """`low <= coordinate < high`: outside of it a load reads nothing."""

    coordinate: Coordinate
    low: int
    high: int

    @property
    def is_never(self) -> bool:
        """Whether nothing is ever read: no index is inside, or the only one there is lies outside."""
        return self.low >= self.high or (not self.coordinate and not self.low <= 0 < self.high)


@dataclass(frozen=True)
class Memory:
    """A value that is read from or written to a pointer; strides by axis, in elements.

    `gathers` are index values, each with its stride: they are steps or loads that come before this load.
    """

    value: Term
    pointer: str
    dtype: str
    strides: Mapping[int, int]
    offset: int = 0
    guards: tuple[Guard, ...] = ()
    gathers: tuple[tuple[Term, int], ...] = ()


@dataclass(frozen=True)
class Step:
    """One scalar assignment, or a reduction by `fold` of its one argument over the axes `over`.

    `cast` names the dtype an argument is converted to and rounded through; `coordinate` makes the value an
    index of the nest. Folds are sum, prod, max, min, and max_nan and min_nan, in which a NaN wins.
    """

    name: str
    dtype: str
    template: str
    args: tuple[Term, ...]
    axes: frozenset[int] = frozenset()
    fold: str = ""
    over: frozenset[int] = frozenset()
    cast: str = ""
    coordinate: Coordinate = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arg for arg in self.args if isinstance(arg, str)))


@dataclass(frozen=True)
class Program:
    """Loads, steps in order, stores. Pointers: `inputs` are p0…, outputs q0…, `extras` x0…, `tables` t0…."""

    sizes: Mapping[int, int]
    loads: tuple[Memory, ...]
    steps: tuple[Step, ...]
    stores: tuple[Memory, ...]
    inputs: tuple[int, ...]  # positions among the body's inputs, in pointer order
    tables: tuple[tuple[Number, ...], ...]  # baked arrays
    extras: tuple[np.ndarray, ...]  # constants too large to bake, in pointer order
    # bytes that text beside the loads and stores touches, by pointer; packed weights are w0…
    touched: Mapping[str, int] = field(default_factory=dict)

    @property
    def memories(self) -> tuple[Memory, ...]:
        return self.loads + self.stores

    @property
    def is_empty(self) -> bool:
        """No output has any elements."""
        return all(0 in (self.sizes[axis] for axis in m.strides) for m in self.stores)


def compute_dtype(dtype: str) -> str:
    if dtype not in DTYPES:
        raise RefusedError(f"dtype {dtype} has no type in generated kernels")
    return "float32" if dtype in NARROW_FLOATS else dtype
