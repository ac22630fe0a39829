"""Sums in which the result of a product is repeated: they cannot be that product's epilogue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.neighbours import joined, only_reader
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import Op, TensorSpec
from ridgeline.ir.op_row import Kind as OpKind
from ridgeline.ir.ops import is_a


def find(subject: Subject) -> Iterator[Finding]:
    for place in subject.places:
        anchor = next((op for op in place.site.body.ops if is_a(op, OpKind.PRODUCT)), None)
        reader = only_reader(subject, place)
        if anchor is not None and reader is not None and anchor.op_type != "Attention":
            yield from _of_pair(subject, place, reader, anchor)


def _of_pair(subject: Subject, place: Place, reader: Place, anchor: Op) -> Iterator[Finding]:
    result = place.region.outputs[0]
    small = subject.spec(result)
    op = next((op for op, at in subject.op_readers.get(result, []) if at is reader), None)
    large = None if op is None else subject.spec(op.outputs[0])
    if op is None or small is None or large is None or large.shape == small.shape:
        return
    if not all(is_a(each, OpKind.POINTWISE) for each in reader.site.body.ops):
        return
    wide = _repeated(place, anchor, large)
    merged = joined(subject, [place, reader], keep=reader.region.outputs)
    if wide is None or merged is None:
        return
    data = place.outer(anchor.inputs[0])
    gain = subject.gain_us([place, reader], [subject.changed(merged, inputs={data: wide})])
    if gain is None or gain <= 0:
        return
    other = next((name for name in op.inputs if name != result), "")
    yield subject.finding(
        "broadcast_residual", [place, reader],
        f"{op.op_type} repeats the product's {list(small.shape)} to {list(large.shape)}, so it is a step of "
        f"its own",
        f"give both operands one shape: run {place.named(anchor.op_type)[0]} on {list(wide.shape)} "
        f"(Expand {data!r} before it), then {op.op_type} with {other!r} is its epilogue",
        gain_us=gain,
        evidence={
            "product": str(small), "result": str(large), "bytes_between": 2 * small.nbytes,
            "us": (place.us or 0.0) + (reader.us or 0.0),
        },
        nodes=[*place.named(anchor.op_type), *reader.named(op.op_type)],
    )  # fmt: skip


def _repeated(place: Place, anchor: Op, large: TensorSpec) -> TensorSpec | None:
    """The product's data operand, as many times as its result is repeated."""
    x, y = place.site.specs.get(anchor.inputs[0]), place.site.specs.get(anchor.outputs[0])
    if x is None or y is None or anchor.inputs[0] not in place.site.body.inputs:
        return None
    if anchor.op_type == "Conv":
        fits = large.shape[1:] == y.shape[1:]
        return replace(x, shape=(large.shape[0], *x.shape[1:])) if fits else None
    if anchor.op_type == "Gemm" or large.shape[-1] != y.shape[-1]:
        return None
    return replace(x, shape=(*large.shape[:-1], x.shape[-1]))


KIND = Kind("broadcast_residual", "a sum repeats a product's result, so it cannot be its epilogue", find)
