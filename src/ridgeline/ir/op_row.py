"""One row of the op table: everything the engine knows of an op, apart from the functions that compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import TypeAlias

import numpy as np

from ridgeline.base.spec import Op, TensorSpec
from ridgeline.ir.op_given import Rule


class Kind(Flag):
    """What an op does to its operands. Identity is both pointwise and a view."""

    OTHER = 0
    POINTWISE = auto()  # a result element needs one element of each operand; regions take such ops along
    ROW = auto()  # norms, softmax and reductions: a result element needs a row of the operand
    PRODUCT = auto()  # sums of products: what a region is grown around
    VIEW = auto()  # the result shares the operand's memory if that is contiguous
    MOVEMENT = auto()  # result elements are operand elements at other places; includes the views
    CONTROL = auto()  # it has subgraphs
    RANDOM = auto()  # two runs differ


class Trait(Flag):
    """What else stages ask about an op."""

    NONE = 0
    COMMUTATIVE = auto()  # of two operands
    KEEPS_LAYOUT = auto()  # its rank-4 result has the memory layout of its operand
    SHAPE_ARITHMETIC = auto()  # applied to a shape tensor, it makes another one
    MAY_RETURN_INPUT = auto()  # PyTorch may return the operand itself instead of new memory
    WRONG_IN_REFERENCE = auto()  # the onnx reference evaluator does not follow the standard here
    NEVER_EMPTY = auto()  # ONNX Runtime ends the process if there is no row or no step to compute
    SIZED_BY_DATA = auto()  # the shape of the result depends on the operand's elements
    STRIDED = auto()  # a strided read of the operand can stand for it
    REPEATS = auto()  # it runs a subgraph several times
    READS_NARROW = auto()  # it takes types of fewer than 8 bits, which others receive widened


Specs: TypeAlias = Mapping[str, TensorSpec]
# of an op whose operands all have specs
Flops: TypeAlias = Callable[[Op, Specs], int]
# (op, specs of its inputs, values of its inputs known before the run) -> specs of its outputs, None for an
# output that these do not decide; None in place of the list if ONNX's inference is to be asked instead
InferRule: TypeAlias = Callable[
    [Op, Sequence[TensorSpec | None], Sequence[np.ndarray | None]], Sequence[TensorSpec | None] | None
]


@dataclass(frozen=True, kw_only=True)
class OpRow:
    """What an op is. `check` validates a site and says which shapes the op makes of given ones."""

    op_type: str
    domain: str = ""
    kind: Kind = Kind.OTHER
    traits: Trait = Trait.NONE
    check: Rule | None = None
    infer: InferRule | None = None  # used in place of ONNX's inference, which is wrong or silent
    flops: Flops | int = 1  # an integer counts per element of the first output
    shape_operands: tuple[int, ...] = ()  # inputs that decide the shape of the result
    host_inputs: tuple[int, ...] = ()  # inputs that PyTorch's form of the op needs as numbers on the host
    has_floor: bool = False  # PyTorch runs it (`kernels/floor`)

    @property
    def key(self) -> str:
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type
