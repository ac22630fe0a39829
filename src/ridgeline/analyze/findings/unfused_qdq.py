"""Pairs of QuantizeLinear and DequantizeLinear that no product uses: numbers are rounded for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.analyze.findings.changes import without_ops
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import Op, Site, TensorSpec
from ridgeline.ir.op_row import Kind as OpKind
from ridgeline.ir.ops import is_a
from ridgeline.ir.quant import dequantizes, quantizes


def find(subject: Subject) -> Iterator[Finding]:
    for op, place in subject.ops:
        if quantizes(op):
            yield from _of_pair(subject, op, place)


def _of_pair(subject: Subject, quantizer: Op, place: Place) -> Iterator[Finding]:
    levels, numbers = quantizer.outputs[0], subject.spec(quantizer.inputs[0])
    readers = subject.op_readers.get(levels, [])
    is_pair = bool(readers) and all(dequantizes(op) for op, _ in readers)
    if not is_pair or numbers is None or levels in subject.program.outputs:
        return
    users = [user for op, _ in readers for user in subject.op_readers.get(op.outputs[0], [])]
    if not users or any(_computes_with_levels(subject, op) for op, _ in users):
        return
    places = tuple(dict.fromkeys((place, *(at for _, at in readers))))
    new = [_in_numbers(subject, each, levels, numbers) for each in places]
    if any(site is None for site in new):
        return
    gain = subject.gain_us(places, [site for site in new if isinstance(site, Site)])
    if gain is None or gain <= 0:
        return
    ops = list(dict.fromkeys(op.op_type for op, _ in users))
    products = [op for op, _ in users if is_a(op, OpKind.PRODUCT)]
    advice = (
        f"quantise the other operand of {products[0].op_type} too (ridge quantize does both), or drop"
        if products
        else "drop"
    )
    spec = subject.spec(levels)
    yield subject.finding(
        "unfused_qdq", places,
        f"{ops[0]} reads numbers that were quantised to {spec.dtype if spec else 'levels'} and back, and "
        f"does not compute with the levels",
        f"{advice} this QuantizeLinear and DequantizeLinear",
        gain_us=gain,
        evidence={
            "levels": str(spec), "read_by": ", ".join(ops[:4]),
            "us": sum(each.us or 0.0 for each in places),
        },
    )  # fmt: skip


def _computes_with_levels(subject: Subject, op: Op) -> bool:
    """A product whose two operands are both dequantised; others compute with numbers."""
    if not is_a(op, OpKind.PRODUCT):
        return False
    makers = [subject.op_maker.get(name) for name in op.inputs[:2]]
    return all(maker is not None and dequantizes(maker[0]) for maker in makers)


def _in_numbers(subject: Subject, place: Place, levels: str, numbers: TensorSpec) -> Site | bool | None:
    """The region without the pair; True if nothing is left of it, None if it does not fit."""

    def is_of_pair(op: Op) -> bool:
        return (quantizes(op) and place.outer(op.outputs[0]) == levels) or (
            dequantizes(op) and place.outer(op.inputs[0]) == levels
        )

    body = without_ops(place.site.body, is_of_pair)
    if body is None:
        return True
    inner = [name for name in body.inputs if place.outer(name) == levels]
    return subject.changed(place, body=body, inputs={name: replace(numbers) for name in inner})


KIND = Kind("unfused_qdq", "a quantise-dequantise pair that no product computes with", find)
