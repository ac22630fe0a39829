"""The same thing computed twice from the same values, where operands stand in another order."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import Body, Op
from ridgeline.ir.op_row import Kind as OpKind
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has, is_a


def find(subject: Subject) -> Iterator[Finding]:
    number: dict[str, int] = {}  # of a value: equal numbers mean equal values
    known: dict[Hashable, int] = {}
    first: dict[int, Place] = {}
    again: dict[Place, list[Op]] = {}
    for op, place in subject.ops:
        said = _said(subject, op, number, known)
        for slot, name in enumerate(op.outputs):
            if not name:
                continue
            number[name] = known.setdefault((said, slot), len(known))
        earlier = first.setdefault(number[op.outputs[0]], place)
        if earlier is not place:
            again.setdefault(place, []).append(op)
    for place, ops in again.items():
        if place.us and len(ops) == len(place.site.body.ops):
            yield _of_place(subject, place, first[number[ops[-1].outputs[0]]])


def _said(subject: Subject, op: Op, number: dict[str, int], known: dict[Hashable, int]) -> Hashable:
    """What an op computes, whatever its values are called."""

    def given(name: str) -> str:
        return _plain(subject.constants[name]) if name in subject.constants else name

    reads = [
        number.setdefault(name, known.setdefault(("given", given(name)), len(known))) for name in op.inputs
    ]
    if has(op, Trait.COMMUTATIVE):
        reads.sort()
    is_own = is_a(op, OpKind.RANDOM | OpKind.CONTROL)
    return op.key, tuple(reads), tuple(sorted((k, _plain(v)) for k, v in op.attrs.items())), id(op) * is_own


def _plain(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    return str(id(value)) if isinstance(value, Body) else repr(value)


def _of_place(subject: Subject, place: Place, earlier: Place) -> Finding:
    ops = " ".join(place.region.op_types)
    return subject.finding(
        "duplicate", [place],
        f"{ops} computes what {earlier.region.sources[0]} has computed from the same values",
        f"let its readers read {earlier.region.outputs[0]!r}, and leave it out",
        gain_us=place.us,
        how="the time of the region that is left out",
        evidence={"made": str(place.site.outputs[0]), "us": place.us or 0.0},
    )  # fmt: skip


KIND = Kind("duplicate", "a region that computes what another one has computed", find)
