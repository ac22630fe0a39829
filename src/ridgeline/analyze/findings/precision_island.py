"""Nodes that compute in float32 between half ones, with casts in and out: products miss the tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ridgeline.analyze.findings.changes import retyped, without_ops
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.elements import numpy_dtype

WIDE, HALVES = "float32", ("float16", "bfloat16")


@dataclass(frozen=True)
class Island:
    """Connected float32 values that come from half ones through casts, and go back through casts."""

    half: str
    values: frozenset[str]
    ops: tuple[Op, ...]  # without the casts at its edges
    places: tuple[Place, ...]
    casts: int


def find(subject: Subject) -> Iterator[Finding]:
    seen: set[str] = set()
    for op, _ in subject.ops:
        if _is_entry(subject, op) and op.outputs[0] not in seen:
            island = _flood(subject, op)
            seen.add(op.outputs[0])
            if island is not None:
                seen |= island.values
                yield from _told(subject, island)


def _told(subject: Subject, island: Island) -> Iterator[Finding]:
    new = [_lowered(subject, place, island) for place in island.places]
    if any(site is None for site in new):
        return
    gain = subject.gain_us(island.places, [site for site in new if isinstance(site, Site)])
    if gain is None or gain <= 0:
        return
    kinds = list(dict.fromkeys(op.op_type for op in island.ops))
    moved = sum(spec.nbytes for name in island.values if (spec := subject.spec(name)) is not None)
    yield subject.finding(
        "precision_island", island.places,
        f"{', '.join(kinds[:4])} {'computes' if len(kinds) == 1 else 'compute'} in float32 between "
        f"{island.half} nodes",
        f"export these in {island.half}: drop the {island.casts} casts around them (in PyTorch the "
        f".float() calls; norms and softmax keep float32 sums inside our kernels anyway)",
        gain_us=gain,
        evidence={
            "nodes": len(island.ops), "casts": island.casts, "float32_bytes": moved,
            "us": sum(place.us or 0.0 for place in island.places),
        },
    )  # fmt: skip


def _is_entry(subject: Subject, op: Op) -> bool:
    return op.op_type == "Cast" and _types(subject, op) == (True, WIDE)


def _types(subject: Subject, op: Op) -> tuple[bool, str]:
    """Whether an op reads a half type, and what it makes."""
    source, made = subject.spec(op.inputs[0]), subject.spec(op.outputs[0])
    return source is not None and source.dtype in HALVES, "" if made is None else made.dtype


def _flood(subject: Subject, entry: Op) -> Island | None:
    """From one cast along float32 values both ways; None if it reaches an input or output of the model."""
    source = subject.spec(entry.inputs[0])
    assert source is not None, "an entry reads a half type"
    values: set[str] = set()
    ops: dict[int, tuple[Op, Place]] = {}
    places: dict[Place, None] = {subject.op_maker[entry.outputs[0]][1]: None}
    casts, waiting = 0, [entry.outputs[0]]
    while waiting:
        name = waiting.pop()
        if name in values:
            continue
        values.add(name)
        maker = subject.op_maker.get(name)
        if maker is None or name in subject.program.outputs:
            return None
        for op, place in (maker, *subject.op_readers.get(name, [])):
            places[place] = None
            is_edge = op.op_type == "Cast" and (
                _is_entry(subject, op) or (op.inputs[0] == name and _types(subject, op)[1] in HALVES)
            )
            casts += is_edge
            if is_edge or id(op) in ops:
                continue
            ops[id(op)] = (op, place)
            waiting += [n for n in (*op.inputs, *op.outputs) if n and _is_wide(subject, n)]
    inner = tuple(op for op, _ in ops.values())
    return Island(source.dtype, frozenset(values), inner, tuple(places), casts) if inner else None


def _is_wide(subject: Subject, name: str) -> bool:
    spec = subject.spec(name)
    is_given = name in subject.program.weights or name in subject.inferred.values
    return spec is not None and spec.dtype == WIDE and not is_given


def _lowered(subject: Subject, place: Place, island: Island) -> Site | bool | None:
    """The region in half precision without casts; True if nothing is left of it, None if it does not fit."""

    def is_edge(op: Op) -> bool:
        inside = [place.outer(name) in island.values for name in (op.inputs[0], op.outputs[0])]
        return op.op_type == "Cast" and any(inside)

    body = without_ops(place.site.body, is_edge)
    if body is None:
        return True
    touched = [op for op in place.site.body.ops if _touches(place, op, island)]
    read = {name for op in touched for name in op.inputs}
    half = numpy_dtype(island.half)
    constants = {
        n: a.astype(half) if n in read and str(a.dtype) == WIDE else a for n, a in body.constants.items()
    }
    wide = [n for n in body.inputs if n in read and _has_type(place.site, n, WIDE)]
    return subject.changed(
        place, body=replace(body, constants=constants), inputs=retyped(place.site.specs, wide, island.half)
    )


def _touches(place: Place, op: Op, island: Island) -> bool:
    names: Sequence[str] = (*op.inputs, *op.outputs)
    return any(place.outer(name) in island.values for name in names if name)


def _has_type(site: Site, name: str, dtype: str) -> bool:
    return name in site.specs and site.specs[name].dtype == dtype


KIND = Kind("precision_island", "float32 nodes between half ones, with casts around them", find)
