"""The values that cross between stages: specs of tensors, bodies of regions, targets, sites.

Nothing here computes, allocates or imports a framework; equal values mean equal work.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ridgeline.base.architectures import ARCHITECTURES

if TYPE_CHECKING:  # plans are read without numpy
    import numpy as np

Layout: TypeAlias = Literal["contiguous", "channels_last"]
Config: TypeAlias = Mapping[str, int | float | str | bool]

ITEM_BITS = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8,
    # these lie one value to a byte wherever they are computed with
    "float4_e2m1fn": 8, "int4": 8, "int2": 8, "uint4": 8, "uint2": 8,
    "bool": 8, "complex64": 64, "complex128": 128, "string": 64,
}  # fmt: skip

TF32 = "tf32"
# distance from 1.0 to the next value of the type
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

TF32_EPSILON = 2.0**-10


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type, settled shape and layout of one tensor. ``channels_last`` says how NCHW lies in memory."""

    dtype: str
    shape: tuple[int, ...]
    layout: Layout = "contiguous"
    value: tuple[int, ...] | None = None  # of an input that says how large others are: known before the run

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return (self.numel * ITEM_BITS[self.dtype] + 7) // 8

    @property
    def is_float(self) -> bool:
        return self.dtype in EPSILON

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements, outermost first, as torch counts them."""
        order = list(range(len(self.shape)))
        if self.layout == "channels_last":
            order = [0, *order[2:], 1]
        strides = [1] * len(order)
        step = 1
        for axis in reversed(order):
            strides[axis] = step
            step *= max(self.shape[axis], 1)
        return tuple(strides)

    def __str__(self) -> str:
        mark = "nhwc" if self.layout == "channels_last" else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{mark}"


@dataclass(frozen=True)
class Port:
    """One input or output of the engine. A dim is a size, or the name of a symbol."""

    name: str
    dtype: str
    dims: tuple[int | str, ...] | None  # None: not even the rank is known before the engine runs

    @property
    def is_non_tensor(self) -> bool:
        """No memory can be planned for it: strings, and whatever is not a tensor."""
        return self.dtype == "string" or self.dtype not in ITEM_BITS

    def __str__(self) -> str:
        if "(" in self.dtype:
            return self.dtype
        dims = "?" if self.dims is None else ",".join(map(str, self.dims))
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True)
class Op:
    """One ONNX node of a region. An absent optional input is ``""``; a subgraph attribute is a ``Body``."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    math: str = ""  # TF32: a product that may round its float32 operands to ten digits; no type says so

    @property
    def key(self) -> str:
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


@dataclass(frozen=True)
class Body:
    """What a region computes, as plain ONNX ops in order. Free names of a subgraph come from outside it."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[Op, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    graph: Any = field(default=None, compare=False)  # a subgraph as onnx_ir has it, to write it out again

    @cached_property
    def digest(self) -> str:
        """Equal for bodies that differ only in the names of their values."""
        return hashlib.sha256("\n".join(_lines(self)).encode()).hexdigest()

    @property
    def may_round(self) -> bool:
        """Whether a product in it may round its float32 operands to TF32."""
        return any(op.math == TF32 for op in self.ops)

    def producer(self, value: str) -> Op | None:
        return next((op for op in self.ops if value in op.outputs), None)

    def consumers(self, value: str) -> tuple[Op, ...]:
        return tuple(op for op in self.ops if value in op.inputs)

    def free_names(self) -> tuple[str, ...]:
        """Values that the body (and its subgraphs) reads from outside, in order of first use."""
        made = {*self.inputs, *self.constants}
        free: dict[str, None] = {}
        for op in self.ops:
            wanted = [*op.inputs]
            for attr in op.attrs.values():
                if isinstance(attr, Body):
                    wanted += attr.free_names()
            free.update((name, None) for name in wanted if name and name not in made)
            made.update(op.outputs)
        free.update((name, None) for name in self.outputs if name not in made)
        return tuple(free)


def _lines(body: Body, outer: Mapping[str, str] | None = None) -> Iterator[str]:
    names = dict(outer or {})

    def short(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}") if name else "-"

    yield "in " + " ".join(short(n) for n in body.inputs)
    for name, array in body.constants.items():
        yield f"const {short(name)} {array.dtype}{list(array.shape)} {_array_digest(array)}"
    for op in body.ops:
        reads = " ".join(short(n) for n in op.inputs)
        math = f" {op.math}" if op.math else ""
        yield f"{' '.join(short(n) for n in op.outputs)} = {op.key} {reads}{math}"
        for key in sorted(op.attrs):
            attr = op.attrs[key]
            if isinstance(attr, Body):
                yield from (f"  {key}: {line}" for line in _lines(attr, names))
            else:
                yield f"  {key}={_attr_text(attr)}"
    yield "out " + " ".join(short(n) for n in body.outputs)


def _array_digest(array: np.ndarray) -> str:
    # objects are strings; their bytes would be addresses
    content = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def _attr_text(attr: Any) -> str:
    if hasattr(attr, "tobytes"):  # an array: other attributes are Python's own values
        return f"{attr.dtype}{list(attr.shape)}{_array_digest(attr)}"
    return repr(attr)


@dataclass(frozen=True)
class Traits:
    """What a kind of target is like, as far as passes, tactics and the runtime need to know."""

    device: str  # where PyTorch keeps its tensors
    architectures: tuple[str, ...] = ()  # that can be built for, here or elsewhere; none: of any name
    is_gpu: bool = False  # it has memory of its own, and replays a whole run as one graph
    reads_by_index: bool = False  # its generated kernels do: regions take in views, moves and whole rows
    view_alignment: int = 1  # bytes; kernels are compiled for tensors that begin so
    dependent_launch_from: int = 0  # the first architecture whose kernels start before the last ends; 0: none
    async_copies_from: int = 0  # the first architecture that copies to shared memory meanwhile; 0: none
    tf32_from: int = 0  # the first architecture that multiplies in TF32; 0: none
    float8_from: int = 0  # the first that multiplies and converts float8; 0: none
    bfloat16_from: int = 0  # the first that multiplies bfloat16; 0: none


# a new kind of target is a line here, its object in `targets/`, and its tactics
TRAITS = {
    "cpu": Traits("cpu"),
    "cuda": Traits(
        "cuda", tuple(ARCHITECTURES), is_gpu=True, reads_by_index=True, view_alignment=16,
        dependent_launch_from=90, async_copies_from=80, tf32_from=80, float8_from=89, bfloat16_from=80,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """The machine an engine is for, as plans and locks have it. `targets/` has objects that know more."""

    kind: str = "cpu"
    arch: str = ""
    threads: int = 1
    is_null: bool = False  # of no machine: choices follow a rule, so that they are the same everywhere

    @property
    def traits(self) -> Traits:
        return TRAITS[self.kind]

    @property
    def exists(self) -> bool:
        """Whether anything can run there."""
        return not self.is_null

    @property
    def arch_number(self) -> int:
        """Of an architecture that is counted: 90 for sm_90."""
        return int("".join(filter(str.isdigit, self.arch)))

    @property
    def has_dependent_launch(self) -> bool:
        """Whether a kernel may start before the one in front of it has ended."""
        return self._is_from(self.traits.dependent_launch_from)

    @property
    def has_async_copies(self) -> bool:
        """Whether blocks copy to shared memory while they compute: kernels of tiles are made for it."""
        return self._is_from(self.traits.async_copies_from)

    @property
    def has_tf32(self) -> bool:
        """Whether products of float32 may be faster when they round to TF32."""
        return self._is_from(self.traits.tf32_from)

    @property
    def has_float8(self) -> bool:
        """Whether the hardware multiplies float8 numbers, and converts them."""
        return self._is_from(self.traits.float8_from)

    @property
    def has_bfloat16(self) -> bool:
        """Whether the hardware of a GPU multiplies bfloat16 numbers."""
        return self._is_from(self.traits.bfloat16_from)

    def _is_from(self, first: int) -> bool:
        return first > 0 and self.arch_number >= first

    def __str__(self) -> str:
        kind = f"null {self.kind}" if self.is_null else self.kind
        return f"{kind}:{self.arch}" if self.arch else kind


@dataclass(frozen=True)
class Needed:
    """What an engine uses of a plugin, as its file says it; `get` is a line on how to get the plugin."""

    plugin: str
    version: str
    get: str
    uses: tuple[str, ...]  # ops and tactics
    schemas: str = ""  # a digest of those of the ops


@dataclass(frozen=True)
class Site:
    """Everything that decides how one region may run. Equal keys share one timing."""

    body: Body
    specs: Mapping[str, TensorSpec]  # every value of the body: inputs, intermediates, outputs
    weights: frozenset[str]  # inputs that never change between runs and may be prepacked
    values: Mapping[str, np.ndarray]  # inputs whose value is known on the host before work starts
    target: Target
    name: str = ""  # for people; not part of the key
    non_tensor: Mapping[str, str] = field(default_factory=dict)  # what values are that no spec can describe
    power_scales: frozenset[str] = frozenset()  # scales that are powers of two: a product divides by them

    @property
    def inputs(self) -> tuple[TensorSpec | None, ...]:
        """None for an absent input, and for one whose shape depends on data."""
        return tuple(self.specs.get(n) for n in self.body.inputs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(self.specs[n] for n in self.body.outputs)

    @cached_property
    def is_inferred(self) -> bool:
        """Every shape of the region is known before it runs."""
        names = [n for op in self.body.ops for n in (*op.inputs, *op.outputs) if n]
        return all(name in self.specs or name in self.body.constants for name in names)

    @cached_property
    def key(self) -> str:
        parts = [self.body.digest, str(self.target), str(self.target.threads)]
        for name, spec in zip(self.body.inputs, self.inputs, strict=True):
            mark = ("w" if name in self.weights else "") + ("2" if name in self.power_scales else "")
            known = _attr_text(self.values[name]) if name in self.values else ""
            parts.append(f"{spec}{mark}{known}")
        parts += [str(self.specs.get(name)) for name in self.body.outputs]
        parts += [f"{name} {kind}" for name, kind in self.non_tensor.items() if name in self.body.inputs]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]
