"""A region's body as scalar steps over named axes: what the loop generators work from.

Every dim of a value larger than one lies on an axis; an elementwise op makes the axes of its operands one.
Which ops there are is in `ops.py`; text of whole kernels is in `pointwise.py`, `reduce.py`, `linear.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.spec import Op, Site, TensorSpec

C_TYPES = {
    "float32": "float", "float64": "double", "float16": "_Float16", "bfloat16": "unsigned short",
    "int64": "i64", "int32": "int", "int16": "short", "int8": "signed char", "uint64": "unsigned long long",
    "uint32": "unsigned", "uint16": "unsigned short", "uint8": "unsigned char", "bool": "unsigned char",
}  # fmt: skip
BAKED_ITEMS = 256  # constants up to this many items become part of the source
ONE = -1  # the axis of a dim of size one


class Refusal(Exception):
    """Why a body cannot be generated; the text reaches the plan."""


@dataclass(frozen=True)
class Val:
    """A value while lowering: its C name or literal, compute dtype, shape, and one axis per dim."""

    text: str
    dtype: str
    shape: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Memory:
    """A value that is read from or written to a pointer; strides by axis, in elements."""

    value: str
    pointer: str
    dtype: str
    strides: Mapping[int, int]


@dataclass(frozen=True)
class Step:
    """One scalar assignment, or a reduction (`fold` is sum, max or min) of `reads[0]` over `over`."""

    name: str
    dtype: str
    text: str
    reads: tuple[str, ...]
    axes: frozenset[int]
    fold: str = ""
    over: frozenset[int] = frozenset()

    @property
    def c_type(self) -> str:
        return "bool" if self.dtype == "bool" else C_TYPES[self.dtype]


@dataclass(frozen=True)
class Program:
    """Loads, steps in order, stores. The pointer array holds `inputs`, then outputs, then `extras`."""

    sizes: Mapping[int, int]
    loads: tuple[Memory, ...]
    steps: tuple[Step, ...]
    stores: tuple[Memory, ...]
    inputs: tuple[int, ...]  # positions among the body's inputs, in pointer order
    tables: tuple[str, ...]  # definitions of baked arrays
    extras: tuple[np.ndarray, ...]  # constants too large to bake, in pointer order
    pointers: tuple[str, ...]  # statements that name the pointers

    @property
    def memories(self) -> tuple[Memory, ...]:
        return self.loads + self.stores


def compute_dtype(dtype: str) -> str:
    if dtype not in C_TYPES:
        raise Refusal(f"dtype {dtype} has no C++ type here")
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def literal(value: float | int | bool, dtype: str) -> str:
    """Exact C++ text of a scalar; negative ones in parentheses."""
    dtype = compute_dtype(dtype)
    if dtype == "bool":
        return "true" if value else "false"
    if dtype not in ("float32", "float64"):
        # the most negative int64 has no literal of its own
        text = f"{int(value)}LL" if int(value) != -(2**63) else "(-9223372036854775807LL - 1)"
        return f"(({C_TYPES[dtype]}){text})"
    tail = "f" if dtype == "float32" else ""
    if math.isnan(value):
        return f'__builtin_nan{tail}("")'
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}__builtin_inf{tail}())"
    number = float(np.float32(value)) if tail else float(value)
    return f"({number.hex()}{tail})"


class Lowering:
    """Turns the ops of one site into a `Program`. `handlers` gives each op's meaning."""

    def __init__(self, site: Site, handlers: Mapping[str, Callable[..., Sequence[Val]]]) -> None:
        self.site = site
        self.handlers = handlers
        self.values: dict[str, Val] = {}
        self.arrays: dict[str, np.ndarray] = {**site.body.constants, **site.values}
        self._parent: list[int] = []
        self._sizes: list[int] = []
        self._steps: list[tuple[Step, Val]] = []
        self._loads: list[tuple[Val, str, str, tuple[int, ...]]] = []
        self._seen: dict[tuple[str, str], Val] = {}
        self._tables: list[str] = []
        self._extras: list[np.ndarray] = []
        self._inputs: list[int] = []
        self._numbers: dict[str, float] = {}  # by literal

    # values

    def value(self, name: str) -> Val:
        """The value of that ONNX name, loading an input or constant at its first use."""
        if name not in self.values:
            self.values[name] = self._leaf(name)
        return self.values[name]

    def array(self, name: str, what: str) -> np.ndarray:
        """An input whose numbers must be known now, such as axes."""
        if name not in self.arrays:
            raise Refusal(f"{what} is not known before the run")
        return self.arrays[name]

    def scalar(self, val: Val) -> float | None:
        """The number behind a literal, None for anything else."""
        return self._numbers.get(val.text)

    def constant(self, number: float | int | bool, dtype: str) -> Val:
        text = literal(number, dtype)
        self._numbers[text] = float(number)
        return Val(text, compute_dtype(dtype))

    def declare(self, text: str, spec: TensorSpec) -> Val:
        """A value on fresh axes."""
        axes = tuple(ONE if size == 1 else self.axis(size) for size in spec.shape)
        return Val(text, compute_dtype(spec.dtype), spec.shape, axes)

    def axis(self, size: int) -> int:
        self._parent.append(len(self._parent))
        self._sizes.append(size)
        return len(self._parent) - 1

    def _leaf(self, name: str) -> Val:
        array = self.arrays.get(name)
        spec = self.site.specs.get(name)
        if spec is None:
            if array is None:
                raise Refusal(f"value {name} has no spec")
            spec = TensorSpec(str(array.dtype), array.shape)
        if array is not None and array.size == 1:
            return replace(self.constant(array.reshape(-1)[0].item(), spec.dtype), shape=spec.shape,
                           axes=(ONE,) * len(spec.shape))  # fmt: skip
        val = self.declare(f"v{len(self.values)}", spec)
        strides = spec.strides
        if array is not None and array.size <= BAKED_ITEMS:
            pointer, dtype = f"t{len(self._tables)}", val.dtype
            items = ", ".join(literal(item, dtype) for item in array.reshape(-1).tolist())
            c_type = C_TYPES[dtype]
            self._tables.append(f"static const {c_type} {pointer}[] = {{{items}}};")
            strides = TensorSpec(spec.dtype, spec.shape).strides
        elif name in self.site.body.inputs:
            pointer, dtype = f"p{len(self._inputs)}", spec.dtype
            self._inputs.append(self.site.body.inputs.index(name))
        else:
            pointer, dtype = f"x{len(self._extras)}", spec.dtype
            assert array is not None, f"{name} is neither an input nor a constant"
            self._extras.append(np.ascontiguousarray(array))
            strides = TensorSpec(spec.dtype, spec.shape).strides
        self._loads.append((val, pointer, dtype, strides))
        return val

    # steps

    def map(self, template: str, *args: Val, dtype: str = "") -> Val:
        """An elementwise step with broadcasting; `{0}` in the template is the first operand's text."""
        shape, axes = self.broadcast(args)
        made = compute_dtype(dtype) if dtype else args[0].dtype
        return self._step(template.format(*(a.text for a in args)), args, Val("", made, shape, axes))

    def fold(self, kind: str, val: Val, dims: Iterable[int], *, keepdims: bool) -> Val:
        """A reduction over dims, by `kind` sum, max or min."""
        gone = {d % len(val.shape) for d in dims} if val.shape else set()
        kept = [d for d in range(len(val.shape)) if keepdims or d not in gone]
        shape = tuple(1 if d in gone else val.shape[d] for d in kept)
        axes = tuple(ONE if d in gone else val.axes[d] for d in kept)
        over = [val.axes[d] for d in sorted(gone) if val.axes[d] != ONE]
        if not over:
            return replace(val, shape=shape, axes=axes)
        return self._step(val.text, (val,), Val("", val.dtype, shape, axes), kind, over)

    def broadcast(self, args: Sequence[Val]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The common shape; axes that meet become one."""
        rank = max((len(a.shape) for a in args), default=0)
        shape, axes = [1] * rank, [ONE] * rank
        for arg in args:
            for back in range(1, len(arg.shape) + 1):
                if arg.axes[-back] == ONE:
                    continue
                if axes[-back] != ONE:
                    self._unite(axes[-back], arg.axes[-back])
                axes[-back], shape[-back] = arg.axes[-back], arg.shape[-back]
        return tuple(shape), tuple(axes)

    def _step(
        self, text: str, args: Sequence[Val], like: Val, fold: str = "", over: Sequence[int] = ()
    ) -> Val:
        # a fold over other axes is another value: the axes are part of what makes two steps equal
        key = (f"{fold} {sorted(over)} {text}", like.dtype)
        if key in self._seen:
            return replace(self._seen[key], shape=like.shape, axes=like.axes)
        val = replace(like, text=f"s{len(self._steps)}")
        names = tuple(dict.fromkeys(a.text for a in args))
        step = Step(val.text, val.dtype, text, names, frozenset(), fold, frozenset(over))
        self._steps.append((step, val))
        self._seen[key] = val
        return val

    def _unite(self, a: int, b: int) -> None:
        a, b = self.root(a), self.root(b)
        if self._sizes[a] != self._sizes[b]:
            raise Refusal(f"axes of {self._sizes[a]} and {self._sizes[b]} items meet")
        self._parent[max(a, b)] = min(a, b)

    def root(self, axis: int) -> int:
        while self._parent[axis] != axis:
            axis = self._parent[axis]
        return axis

    # the whole body

    def run(self, op: Op) -> None:
        handler = self.handlers.get(op.key)
        if handler is None:
            raise Refusal(f"op {op.key} is neither pointwise nor a reduction known here")
        made = handler(self, op)
        for name, val in zip(op.outputs, made, strict=False):
            if name:
                self.values[name] = val

    def finish(self) -> Program:
        """Resolve axes, drop steps nobody reads, lay out the pointer array."""
        body = self.site.body
        outputs = [self.value(name) for name in body.outputs]
        alive = {val.text for val in outputs}
        kept: list[Step] = []
        for step, val in reversed(self._steps):
            if step.name in alive:
                alive.update(step.reads)
                over = frozenset(map(self.root, step.over))
                kept.append(replace(step, axes=frozenset(self._axes(val)) - {ONE}, over=over))
        loads = []
        for val, pointer, dtype, strides in self._loads:
            if val.text in alive:
                loads.append(Memory(val.text, pointer, dtype, self._strides(val, strides)))
        stores = []
        for place, (name, val) in enumerate(zip(body.outputs, outputs, strict=True)):
            spec = self.site.specs[name]
            stores.append(Memory(val.text, f"q{place}", spec.dtype, self._strides(val, spec.strides)))
        dtypes = {m.pointer: m.dtype for m in loads}
        names = [
            *((f"p{i}", "const ") for i in range(len(self._inputs))),
            *((m.pointer, "") for m in stores),
            *((f"x{i}", "const ") for i in range(len(self._extras))),
        ]
        dtypes |= {m.pointer: m.dtype for m in stores}
        pointers = tuple(
            f"{const}{C_TYPES[dtypes[name]]}* {name} = ({const}{C_TYPES[dtypes[name]]}*)p[{slot}];"
            for slot, (name, const) in enumerate(names)
            if name in dtypes
        )
        used = {axis for m in (*loads, *stores) for axis in m.strides}
        return Program(
            sizes={axis: self._sizes[axis] for axis in sorted(used)},
            loads=tuple(loads), steps=tuple(reversed(kept)), stores=tuple(stores),
            inputs=tuple(self._inputs), tables=tuple(self._tables), extras=tuple(self._extras),
            pointers=pointers,
        )  # fmt: skip

    def _axes(self, val: Val) -> tuple[int, ...]:
        roots = tuple(axis if axis == ONE else self.root(axis) for axis in val.axes)
        real = [axis for axis in roots if axis != ONE]
        if len(set(real)) != len(real):
            raise Refusal("a value meets its own transpose")
        return roots

    def _strides(self, val: Val, strides: Sequence[int]) -> dict[int, int]:
        return {axis: step for axis, step in zip(self._axes(val), strides, strict=True) if axis != ONE}
