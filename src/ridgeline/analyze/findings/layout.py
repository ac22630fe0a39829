"""Transposes that copy: pairs that undo each other around pointwise ops, and those of inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.neighbours import only_reader
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import Op
from ridgeline.ir.op_row import Kind as OpKind
from ridgeline.ir.ops import is_a

MAX_BETWEEN = 4  # regions between two transposes
SAVED = "the time of the copies, which the change leaves out"
SPELLED: dict[tuple[int, ...], str] = {(0, 3, 1, 2): "NCHW", (0, 2, 3, 1): "NHWC"}


def find(subject: Subject) -> Iterator[Finding]:
    taken: set[Place] = set()
    for place in subject.places:
        if _turns(place) is None or not place.us or place in taken:
            continue
        partner = _partner(subject, place)
        if partner is not None:
            taken |= {place, partner}
            yield _of_pair(subject, place, partner)
        else:
            yield from _of_port(subject, place)


def _turns(place: Place) -> tuple[int, ...] | None:
    """The permutation of a region that only transposes."""
    ops = place.site.body.ops
    return tuple(ops[0].attrs.get("perm", ())) or None if len(ops) == 1 and _is_turn(ops[0]) else None


def _is_turn(op: Op) -> bool:
    return op.op_type == "Transpose" and not op.domain


def _partner(subject: Subject, place: Place) -> Place | None:
    """The transpose that undoes this one, with only pointwise regions between them."""
    perm, at = _turns(place), place
    for _ in range(MAX_BETWEEN):
        reader = only_reader(subject, at)
        if reader is None:
            return None
        back = _turns(reader)
        if back is not None:
            is_undone = perm is not None and _undoes(perm, back) and at is not place
            return reader if is_undone else None
        if not all(is_a(op, OpKind.POINTWISE) for op in reader.site.body.ops) or _reads_others(
            subject, reader, at
        ):
            return None
        at = reader
    return None


def _undoes(perm: Sequence[int], back: Sequence[int]) -> bool:
    return len(perm) == len(back) and [perm[axis] for axis in back] == sorted(perm)


def _reads_others(subject: Subject, reader: Place, at: Place) -> bool:
    """Whether it reads further activations of full size, which then would have to be turned instead."""
    made = subject.spec(reader.region.outputs[0])
    others = [
        n for n in reader.region.inputs if n not in at.region.outputs and n not in subject.program.weights
    ]
    specs = [subject.spec(name) for name in others]
    return any(spec is not None and made is not None and spec.numel == made.numel for spec in specs)


def _of_pair(subject: Subject, first: Place, second: Place) -> Finding:
    spec = subject.spec(first.region.outputs[0])
    return subject.finding(
        "layout", [first, second],
        "two transposes undo each other around ops that work in any order",
        f"leave out both: compute what lies between in the order of {first.region.inputs[0]!r}, and turn the "
        f"constants that it reads",
        gain_us=(first.us or 0.0) + (second.us or 0.0),
        how=SAVED,
        evidence={
            "perm": str(list(_turns(first) or ())), "value": str(spec),
            "bytes": 4 * (spec.nbytes if spec is not None else 0), "us": (first.us or 0) + (second.us or 0),
        },
    )  # fmt: skip


def _of_port(subject: Subject, place: Place) -> Iterator[Finding]:
    """The first or the last thing that the model does to an input or output."""
    source, made = place.region.inputs[0], place.region.outputs[0]
    # whoever else reads the input, for its sizes say, would have to read it in the other order
    readers = [region for region in subject.program.regions if source in region.inputs]
    is_first = source in subject.program.inputs and len(readers) == 1
    is_last = made in subject.program.outputs and not subject.readers.get(made)
    spec = subject.spec(made)
    if not (is_first or is_last) or spec is None:
        return
    perm = _turns(place) or ()
    port, wanted = (source, spec) if is_first else (made, subject.spec(source) or spec)
    name = f" ({SPELLED[perm]})" if is_first and perm in SPELLED else ""
    yield subject.finding(
        "layout", [place],
        f"{'input' if is_first else 'output'} {port!r} is turned by a copy of {2 * spec.nbytes:,} bytes",
        f"export the model with {port!r} as {list(wanted.shape)}{name}, and leave the Transpose out",
        gain_us=place.us,
        how=SAVED,
        evidence={
            "perm": str(list(perm)), "value": str(spec), "bytes": 2 * spec.nbytes, "us": place.us or 0.0,
        },
    )  # fmt: skip


KIND = Kind("layout", "copies that only change the order of the axes, and need not be made", find)
