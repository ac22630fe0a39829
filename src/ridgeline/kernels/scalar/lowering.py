"""Lowers the ops of a region to a program: values with their axes, steps, and values at moved indices.

Every dim larger than one has an axis; an elementwise op unites the axes of its operands. `ops.py`,
`reductions.py` and `moves.py` define the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site, TensorSpec
from ridgeline.kernels.scalar.axes import ONE, Axes, Coordinate
from ridgeline.kernels.scalar.program import (
    FLOAT8_LARGEST,
    NARROW_FLOATS,
    Guard,
    Memory,
    Number,
    Program,
    Step,
    Term,
    Traits,
    compute_dtype,
)


@dataclass(frozen=True)
class Val:
    """A value while lowering: its name or number, compute dtype, shape, and one axis per dim."""

    term: Term
    dtype: str
    shape: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Move:
    """How one axis of a value is replaced: by `start + step * by[0]`, or by the index `value` over `by`.

    If `by` is empty, the value is taken at `start`.
    """

    axis: int
    by: tuple[int, ...]
    start: int = 0
    step: int = 1
    value: Term | None = None


Gathers: TypeAlias = tuple[tuple[Term, int], ...]


class Lowering:
    """Turns the ops of one site into a `Program`. `handlers` gives each op's meaning."""

    def __init__(
        self, site: Site, handlers: Mapping[str, Callable[..., Sequence[Val]]], traits: Traits
    ) -> None:
        self.site, self.handlers, self.traits = site, handlers, traits
        self.axes = Axes()
        self.values: dict[str, Val] = {}
        self.arrays: dict[str, np.ndarray] = {**site.body.constants, **site.values}
        self._steps: dict[str, tuple[Step, Val]] = {}
        self._loads: dict[str, tuple[Memory, Val]] = {}
        self._seen: dict[object, Val] = {}
        self._tables: list[tuple[Number, ...]] = []
        self._extras: list[np.ndarray] = []
        self._inputs: list[int] = []

    # values

    def value(self, name: str) -> Val:
        """The value with that ONNX name; an input or constant is loaded when it is first used."""
        if name not in self.values:
            self.values[name] = self._leaf(name)
        return self.values[name]

    def array(self, name: str, what: str) -> np.ndarray:
        """An input whose numbers must be known at build time, such as axes."""
        if name not in self.arrays:
            raise RefusedError(f"{what} is not known before the run")
        return self.arrays[name]

    def scalar(self, val: Val) -> float | None:
        """The number of a literal; None for any other value."""
        return float(val.term.value) if isinstance(val.term, Number) else None

    def constant(self, number: float | int | bool, dtype: str) -> Val:
        dtype = compute_dtype(dtype)
        return Val(Number(number, dtype), dtype)

    def declare(self, term: Term, spec: TensorSpec) -> Val:
        """A value on fresh axes."""
        axes = tuple(ONE if size == 1 else self.axes.fresh(size) for size in spec.shape)
        return Val(term, compute_dtype(spec.dtype), spec.shape, axes)

    def _leaf(self, name: str) -> Val:
        array = self.arrays.get(name)
        spec = self.site.specs.get(name)
        if spec is None:
            if array is None:
                raise RefusedError(f"value {name} has no spec")
            spec = TensorSpec(str(array.dtype), array.shape)
        if array is not None and array.shape != spec.shape:
            raise RefusedError(f"value {name} has shape {list(array.shape)}, its spec is {spec}")
        if array is not None and array.size == 1:
            return replace(self.constant(array.reshape(-1)[0].item(), spec.dtype), shape=spec.shape,
                           axes=(ONE,) * len(spec.shape))  # fmt: skip
        val = self.declare("", spec)
        strides = TensorSpec(spec.dtype, spec.shape).strides
        if array is not None and array.size <= self.traits.baked_items:
            pointer, dtype = f"t{len(self._tables)}", val.dtype
            self._tables.append(tuple(Number(item, dtype) for item in array.reshape(-1).tolist()))
        elif name in self.site.body.inputs:
            pointer, dtype, strides = f"p{len(self._inputs)}", spec.dtype, spec.strides
            self._inputs.append(self.site.body.inputs.index(name))
        else:
            pointer, dtype = f"x{len(self._extras)}", spec.dtype
            assert array is not None, f"{name} is neither an input nor a constant"
            self._extras.append(np.ascontiguousarray(array))
        by_axis = {axis: step for axis, step in zip(val.axes, strides, strict=True) if axis != ONE}
        return self._load(Memory("", pointer, dtype, by_axis), val)

    def _load(self, memory: Memory, val: Val) -> Val:
        name = f"v{len(self._loads)}"
        val = replace(val, term=name)
        self._loads[name] = replace(memory, value=name), val
        return val

    # steps

    def map(self, template: str, *args: Val, dtype: str = "") -> Val:
        """An elementwise step with broadcasting; `{0}` in the template is the first operand."""
        shape, axes = self.broadcast(args)
        made = compute_dtype(dtype) if dtype else args[0].dtype
        return self._step(Step("", made, template, tuple(a.term for a in args)), shape, axes)

    def cast(self, val: Val, dtype: str) -> Val:
        """Converts to a dtype, and rounds to it if values of that dtype are computed in a wider one."""
        made = compute_dtype(dtype)
        if made == dtype == val.dtype:
            return val
        if made != dtype and val.dtype not in ("float32", "float64"):
            val = self.cast(val, made)
        return self._step(Step("", made, "{0}", (val.term,), cast=dtype), val.shape, val.axes)

    def coordinate(self, axis: int, shape: tuple[int, ...], axes: tuple[int, ...]) -> Val:
        """The index along an axis, as an int32 value of that shape."""
        return self._step(Step("", "int32", "", (), coordinate=((axis, 1),)), shape, axes)

    def fold(self, kind: str, val: Val, dims: Iterable[int], *, keepdims: bool) -> Val:
        """A reduction over dims, by `kind`."""
        gone = {d % len(val.shape) for d in dims} if val.shape else set()
        kept = [d for d in range(len(val.shape)) if keepdims or d not in gone]
        shape = tuple(1 if d in gone else val.shape[d] for d in kept)
        axes = tuple(ONE if d in gone else val.axes[d] for d in kept)
        over = frozenset(val.axes[d] for d in gone if val.axes[d] != ONE)
        if not over:
            return replace(val, shape=shape, axes=axes)
        return self._step(Step("", val.dtype, "{0}", (val.term,), fold=kind, over=over), shape, axes)

    def broadcast(self, args: Sequence[Val]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The common shape; axes that meet become one."""
        rank = max((len(a.shape) for a in args), default=0)
        shape, axes = [1] * rank, [ONE] * rank
        for arg in args:
            for back in range(1, len(arg.shape) + 1):
                if arg.axes[-back] == ONE:
                    continue
                if axes[-back] != ONE:
                    self.axes.unite(axes[-back], arg.axes[-back])
                axes[-back], shape[-back] = arg.axes[-back], arg.shape[-back]
        return tuple(shape), tuple(axes)

    def _step(self, step: Step, shape: tuple[int, ...], axes: tuple[int, ...]) -> Val:
        # the key is a repr, since a NaN does not equal itself
        key = repr(replace(step, over=frozenset())), tuple(sorted(step.over))
        if key in self._seen:
            return replace(self._seen[key], shape=shape, axes=axes)
        val = Val(f"s{len(self._steps)}", step.dtype, shape, axes)
        self._steps[str(val.term)] = replace(step, name=str(val.term)), val
        self._seen[key] = val
        return val

    # values at moved indices

    def moved(self, val: Val, move: Move) -> Val:
        """The value with one axis replaced; its operands are loaded and computed at the new indices."""
        # a move replaces an axis wherever it is: behind it nobody would see that it was there twice
        self._require_distinct(val)
        return replace(val, term=self._moved(val.term, move, {}))

    def _moved(self, term: Term, move: Move, done: dict[Term, Term]) -> Term:
        if isinstance(term, Number):
            return term
        if term not in done:
            is_load = term in self._loads
            done[term] = self._moved_load(term, move) if is_load else self._moved_step(term, move, done)
        return done[term]

    def _moved_step(self, term: str, move: Move, done: dict[Term, Term]) -> Term:
        if term not in self._steps:
            raise RefusedError("items of a product are moved")
        step, val = self._steps[term]
        if step.coordinate:
            return self._moved_coordinate(step, val, move)
        leaves, over = frozenset(self.axes.leaves(move.axis)), self.axes.all_leaves(step.over)
        if leaves & over:
            if not leaves <= over:
                raise RefusedError("items are taken along an axis of which a part is reduced")
            return term
        args = tuple(self._moved(arg, move, done) for arg in step.args)
        if args == step.args and not leaves & self.axes.all_leaves(val.axes):
            return term
        axes = self._replaced(val.axes, move)
        return self._step(replace(step, name="", args=args), self.axes.sizes_of(axes), axes).term

    def _moved_coordinate(self, step: Step, val: Val, move: Move) -> Term:
        """The index of a joined axis, where only some of its items are taken."""
        coordinate, shift = self._at(step.coordinate, move)
        if coordinate == step.coordinate:
            return step.name
        if not coordinate:
            return Number(shift, step.dtype)
        axes = self._replaced(val.axes, move)
        made = self._step(replace(step, name="", coordinate=coordinate), self.axes.sizes_of(axes), axes)
        return self.map("{0} + {1}", made, self.constant(shift, step.dtype)).term if shift else made.term

    def _at(self, coordinate: Coordinate, move: Move) -> tuple[Coordinate, int]:
        """A coordinate in the axes that a move leaves, and what it is where those are zero."""
        made: list[tuple[int, int]] = []
        shift, root, leaves = 0, self.axes.root(move.axis), self.axes.leaves(move.axis)
        for axis, factor in coordinate:
            if self._is(axis, root):
                if move.value is not None:
                    raise RefusedError("items of joined parts are gathered")
                shift += factor * move.start
                made += [(by, factor * move.step) for by in move.by]
            elif not self.axes.all_leaves((axis,)) & set(leaves):
                made.append((axis, factor))
            elif len(leaves) == 1:
                inner, inner_shift = self._at(self.axes.coordinate(((axis, factor),)), move)
                made += inner
                shift += inner_shift
            else:
                raise RefusedError("an axis is cut after it was split")
        return tuple(made), shift

    def _replaced(self, axes: Iterable[int], move: Move) -> tuple[int, ...]:
        """The axes along which a value varies after the move, of which it may have replaced all or a part."""
        leaves, before = set(self.axes.leaves(move.axis)), self.axes.all_leaves(axes)
        after = [axis for axis in axes if axis == ONE or not leaves & set(self.axes.leaves(axis))]
        after += sorted(before - leaves - self.axes.all_leaves(after))
        return (*after, *(move.by if before & leaves else ()))

    def _is(self, axis: int, root: int) -> bool:
        return axis != ONE and self.axes.root(axis) == root

    def _moved_load(self, term: str, move: Move) -> Term:
        load, val = self._loads[term]
        strides = self.axes.spread(load.strides)
        leaves = self.axes.leaves(move.axis)
        gathers = tuple((self._moved(value, move, {}), stride) for value, stride in load.gathers)
        if strides.keys().isdisjoint(leaves) and gathers == load.gathers:
            return term
        guards, offset = [self._moved_guard(guard, move) for guard in load.guards], load.offset
        if not strides.keys().isdisjoint(leaves):
            size = self.axes.size(move.axis)
            taken = [(leaf, strides.pop(leaf, 0)) for leaf in leaves]
            if len(taken) > 1:
                more, added = self._split_places(move, taken)
            else:
                more, added = self._places(move, taken[0][1], strides)
            gathers, offset = (*gathers, *more), offset + added
            room = self.axes.size(move.by[0]) if move.by else 1
            is_past = move.start < 0 or move.start + room > size
            if move.by and move.value is None and move.step == 1 and is_past:
                guards.append(Guard(((move.by[0], 1),), -move.start, size - move.start))
        if any(guard.is_never for guard in guards):
            return Number(0, val.dtype)
        guards = [guard for guard in guards if guard.coordinate]
        axes = self._replaced(val.axes, move)
        key = ("load", load.pointer, tuple(sorted(strides.items())), offset, tuple(guards), repr(gathers))
        if key not in self._seen:
            made = replace(load, strides=strides, offset=offset, guards=tuple(guards), gathers=gathers)
            self._seen[key] = self._load(made, replace(val, shape=self.axes.sizes_of(axes), axes=axes))
        return self._seen[key].term

    def _places(self, move: Move, stride: int, strides: dict[int, int]) -> tuple[Gathers, int]:
        """Where the items lie that a move leaves of an axis: by stride or by an index; and the first."""
        if move.value is not None:
            return ((move.value, stride),), 0
        if move.by:
            strides[move.by[0]] = stride * move.step
        return (), move.start * stride

    def _split_places(self, move: Move, taken: Sequence[tuple[int, int]]) -> tuple[Gathers, int]:
        """As `_places`, of an axis of several parts: the index in each follows from that in the whole."""
        if move.value is not None:
            raise RefusedError("items of joined axes are gathered")
        whole: Val | None = None
        if move.by:
            index = Step("", "int32", "", (), coordinate=((move.by[0], move.step),))
            whole = self._step(index, self.axes.sizes_of(move.by), move.by)
            whole = self.map("{0} + {1}", whole, self.constant(move.start, "int32")) if move.start else whole
        found: list[tuple[Term, int]] = []
        offset, inner = 0, 1
        for leaf, stride in reversed(taken):
            size = self.axes.size(leaf)
            if whole is None:
                offset += move.start // inner % size * stride
            else:
                sizes = self.constant(inner, "int32"), self.constant(size, "int32")
                place = self.map("rl_part({0}, {1}, {2})", whole, *sizes)
                found.append((place.term, stride))
            inner *= size
        return tuple(found), offset

    def _moved_guard(self, guard: Guard, move: Move) -> Guard:
        coordinate, shift = self._at(guard.coordinate, move)
        return Guard(coordinate, guard.low - shift, guard.high - shift)

    # the whole body

    def run(self, op: Op) -> None:
        handler = self.handlers.get(op.key)
        if handler is None:
            raise RefusedError(f"op {op.key} is neither pointwise nor a reduction known here")
        made = handler(self, op)
        for name, val in zip(op.outputs, made, strict=False):
            if name:
                self.values[name] = val

    def finish(self) -> Program:
        """Resolves the axes, drops unused steps and orders the pointers."""
        body = self.site.body
        outputs = [self.value(name) for name in body.outputs]
        self._align(outputs)
        stored = [self._before_rounding(val, body.outputs[i]) for i, val in enumerate(outputs)]
        alive: set[Term] = set()
        for term in stored:
            self._mark(term, alive)
        kept = [self._resolve(step, val) for name, (step, val) in self._steps.items() if name in alive]
        loads = [self._memory(load, val) for name, (load, val) in self._loads.items() if name in alive]
        stores = []
        for place, (name, val) in enumerate(zip(body.outputs, outputs, strict=True)):
            spec = self.site.specs[name]
            if val.shape != spec.shape:
                raise RefusedError(f"output {place} comes out as {list(val.shape)}, its spec is {spec}")
            self._require_distinct(val)
            strides = {a: s for a, s in zip(val.axes, spec.strides, strict=True) if a != ONE}
            stores.append(Memory(stored[place], f"q{place}", spec.dtype, self.axes.spread(strides)))
        dtypes = {*(m.dtype for m in (*loads, *stores)), *(step.cast for step in kept)}
        if not self.traits.has_float8 and dtypes & FLOAT8_LARGEST.keys():
            raise RefusedError(f"{self.traits.name} kernels have no {min(dtypes & FLOAT8_LARGEST.keys())}")
        used = {axis for m in (*loads, *stores) for axis in m.strides}
        used |= {axis for step in kept for axis in step.over}
        return Program(
            sizes={axis: self.axes.size(axis) for axis in sorted(used)},
            loads=tuple(loads), steps=tuple(kept), stores=tuple(stores),
            inputs=tuple(self._inputs), tables=tuple(self._tables), extras=tuple(self._extras),
        )  # fmt: skip

    def _align(self, outputs: Sequence[Val]) -> None:
        """Let outputs of one shape run over the same axes, as the parts of a Split do."""
        for val in outputs[1:]:
            first = next(other for other in outputs if other.shape == val.shape)
            mine, theirs = ({self.axes.root(a) for a in each.axes if a != ONE} for each in (val, first))
            for axis, other in zip(val.axes, first.axes, strict=True):
                if axis != ONE and self.axes.root(axis) not in theirs and self.axes.root(other) not in mine:
                    self.axes.unite(axis, other)

    def _before_rounding(self, val: Val, name: str) -> Term:
        """What is stored for an output: storing rounds to the output's type, so no cast to it is needed."""
        step, _ = self._steps.get(str(val.term), (None, None))
        dtype = self.site.specs[name].dtype
        is_rounded = step is not None and step.cast == dtype and dtype in NARROW_FLOATS
        return step.args[0] if step is not None and is_rounded else val.term

    def _mark(self, term: Term, alive: set[Term]) -> None:
        """Adds everything that a value is computed from to `alive`."""
        waiting = [term]
        while waiting:
            term = waiting.pop()
            if isinstance(term, Number) or term in alive:
                continue
            alive.add(term)
            if term in self._loads:
                waiting += [t for t, _ in self._loads[term][0].gathers]
            elif term in self._steps:
                waiting += self._steps[term][0].args

    def _resolve(self, step: Step, val: Val) -> Step:
        self._require_distinct(val)
        return replace(
            step,
            axes=self.axes.all_leaves(val.axes),
            over=self.axes.all_leaves(step.over),
            coordinate=self.axes.coordinate(step.coordinate),
        )

    def _memory(self, load: Memory, val: Val) -> Memory:
        self._require_distinct(val)
        guards = (replace(guard, coordinate=self.axes.coordinate(guard.coordinate)) for guard in load.guards)
        return replace(load, strides=self.axes.spread(load.strides), guards=tuple(guards))

    def _require_distinct(self, val: Val) -> None:
        leaves = [leaf for axis in val.axes if axis != ONE for leaf in self.axes.leaves(axis)]
        if len(set(leaves)) != len(leaves):
            raise RefusedError("a value meets its own transpose")


def reshaped(low: Lowering, x: Val, shape: Sequence[int]) -> Val:
    """The same items in the same order, as another shape."""
    axes = [axis for axis in x.axes if axis != ONE]
    sizes = [size for size in shape if size != 1]
    if list(low.axes.sizes_of(axes)) != sizes:
        axes = low.axes.reshaped(axes, sizes)
    rest = iter(axes)
    return replace(x, shape=tuple(shape), axes=tuple(ONE if s == 1 else next(rest) for s in shape))
