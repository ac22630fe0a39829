"""Ops of a region whose operands never change between runs, evaluated once when the region is bound.

A region with quantised weights is then a region with float weights: every tactic for numbers can run it, and
competes with those that read the levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from ridgeline.base.spec import Body, Config, Op, Site
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.kernels.elements import to_torch
from ridgeline.kernels.floor import call_floor
from ridgeline.tactics.base import Footprint, Launch, Move, Offer


@dataclass(frozen=True)
class Evaluated:
    """A site without its constant ops, which `evaluate` runs; `places` are its inputs among the old ones."""

    whole: Site
    site: Site
    ops: tuple[Op, ...]
    places: tuple[int | str, ...]  # a name where the input is a result of these ops

    def evaluate(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of the smaller site."""
        device = self.whole.target.traits.device
        held = {n: to_torch(array).to(device) for n, array in self.whole.body.constants.items()}
        known: dict[str, Any] = {"": None, **held, **weights}
        for op in self.ops:
            made = call_floor(op, [known[name] for name in op.inputs])
            known.update(zip(op.outputs, made, strict=False))
        return {name: known[name] for name in self.site.weights}

    @property
    def nbytes(self) -> int:
        return sum(self.site.specs[p].nbytes for p in self.places if isinstance(p, str))


def without_constant_ops(site: Site) -> Evaluated | None:
    """The site as it is once its constant ops are evaluated; None if it has none."""
    fixed = {*site.weights, *site.body.constants, ""}
    ops: list[Op] = []
    for op in site.body.ops:
        is_inner = not any(name in site.body.outputs for name in op.outputs)
        is_plain = is_inner and is_a(op, Kind.POINTWISE | Kind.MOVEMENT)
        if is_plain and all(name in fixed for name in op.inputs):
            ops.append(op)
            fixed |= set(op.outputs)
    if not ops:
        return None
    rest = tuple(op for op in site.body.ops if not any(op is taken for taken in ops))
    read = {name for op in rest for name in op.inputs} | set(site.body.outputs)
    made = [name for op in ops for name in op.outputs if name in read]
    kept = [name for name in site.body.inputs if name in read]
    smaller = replace(
        site,
        body=Body(
            (*kept, *made), site.body.outputs, rest,
            {n: a for n, a in site.body.constants.items() if n in read},
        ),
        weights=frozenset(n for n in site.weights if n in read) | frozenset(made),
        values={n: v for n, v in site.values.items() if n in read},
    )  # fmt: skip
    return Evaluated(site, smaller, tuple(ops), (*(site.body.inputs.index(n) for n in kept), *made))


def offer_evaluated(offer: Offer, found: Evaluated) -> Offer:
    """An offer for the smaller site as one for the whole."""
    footprint, extents = offer.footprint, offer.extents

    def with_copies(config: Config) -> Footprint:
        assert footprint is not None, "asked only where the offer states one"
        stated = footprint(config)
        return replace(stated, packed_bytes=stated.packed_bytes + found.nbytes)

    return replace(
        offer,
        bind=partial(_bind, offer, found),
        footprint=None if footprint is None else with_copies,
        extents=None if extents is None else lambda config: _placed(extents(config), found),
    )


def _placed(extents: Mapping[int, int], found: Evaluated) -> dict[int, int]:
    """Extents by argument of the whole site; of results of the constant ops there are none."""
    after, before = len(found.places), len(found.whole.body.inputs)
    placed = {}
    for argument, nbytes in extents.items():
        place = found.places[argument] if argument < after else argument - after + before
        if isinstance(place, int):
            placed[place] = nbytes
    return placed


def _bind(offer: Offer, found: Evaluated, config: Config, weights: Mapping[str, Tensor]) -> Launch:
    held = found.evaluate(weights)
    launch = offer.bind(config, held)
    reads = launch.reads
    unread = set() if reads is None else {p for i, p in enumerate(found.places) if i not in reads}
    fixed = {p: held[p] for p in found.places if isinstance(p, str) and p not in unread}

    def given(inputs: Sequence[Any]) -> list[Any]:
        return [inputs[p] if isinstance(p, int) else fixed.get(p) for p in found.places]

    def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
        return launch.call(given(inputs), outputs)

    freeze = launch.freeze

    def freeze_given(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
        assert freeze is not None, "only set where the launch has one"
        return _Frozen.of(freeze(given(inputs), outputs), found)

    return replace(
        launch,
        call=call,
        freeze=None if freeze is None else freeze_given,
        packed_bytes=launch.packed_bytes + sum(t.nbytes for t in fixed.values()),
        reads=None if reads is None else frozenset(
            p for i, p in enumerate(found.places) if i in reads and isinstance(p, int)
        ),
        extents=None if launch.extents is None else _placed(launch.extents, found),
    )  # fmt: skip


class _Frozen(partial[object]):
    """A frozen call of the smaller site, whose arguments are counted as those of the whole."""

    arguments: dict[int, int]

    @staticmethod
    def of(call: Callable[[], object], found: Evaluated) -> _Frozen:
        made = _Frozen(call)
        made.arguments = {p: i for i, p in enumerate(found.places) if isinstance(p, int)}
        after, before = len(found.places), len(found.whole.body.inputs)
        made.arguments |= {before + i: after + i for i in range(len(found.whole.body.outputs))}
        return made

    def mover(self, argument: int) -> Move | None:
        place, mover = self.arguments.get(argument), getattr(self.func, "mover", None)
        return None if place is None or mover is None else mover(place)
