"""Reductions to a few results: most of the machine waits, where two steps would keep it busy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.subject import SCALED, Place, Subject
from ridgeline.base.spec import Op, Site, TensorSpec

# a reduction by parts of the same kind gives the same result
BY_PARTS = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd")
FEW_RESULTS, LONG_ROW = 64, 1 << 16


def find(subject: Subject) -> Iterator[Finding]:
    for place in subject.places:
        ops = place.site.body.ops
        if len(ops) == 1 and ops[0].op_type in BY_PARTS and place.us and place.site.is_inferred:
            yield from _of_reduction(subject, place, ops[0])


def _of_reduction(subject: Subject, place: Place, op: Op) -> Iterator[Finding]:
    data, made = place.site.specs[op.inputs[0]], place.site.outputs[0]
    row = data.numel // max(made.numel, 1)
    is_whole = data.shape[-1:] == (row,)  # the last axis alone is reduced
    if made.numel > FEW_RESULTS or row < LONG_ROW or not is_whole:
        return
    parts = 1 << (int(math.log2(row)) // 2)
    while row % parts:
        parts //= 2
    if parts < 2:
        return
    stages = [
        _part(place, op, data, parts),
        _part(place, op, replace(data, shape=(*data.shape[:-1], parts)), 1),
    ]
    # the model knows nothing of processors that wait: only a measured time tells
    gain = subject.swap_gain_us(place, stages) if subject.is_measured else None
    if gain is None:
        return
    yield subject.finding(
        "tail_reduction", [place],
        f"{op.op_type} of {row:,} elements to {made.numel} keeps few processors busy",
        f"reduce in two steps: Reshape to {[*data.shape[:-1], parts, row // parts]}, {op.op_type} over the "
        f"last axis, then over the {parts} parts",
        gain_us=gain,
        how=SCALED,
        evidence={"data": str(data), "results": made.numel, "parts": parts, "us": place.us or 0.0},
        nodes=place.named(op.op_type),
    )  # fmt: skip


def _part(place: Place, op: Op, data: TensorSpec, parts: int) -> Site:
    shape = (*data.shape[:-1], parts, data.shape[-1] // parts) if parts > 1 else data.shape
    made = replace(place.site.outputs[0], shape=shape[:-1])
    specs = {**place.site.specs, op.inputs[0]: replace(data, shape=shape), op.outputs[0]: made}
    body = replace(place.site.body, ops=(replace(op, attrs={**op.attrs, "keepdims": 0}),))
    return replace(place.site, body=body, specs=specs)


KIND = Kind("tail_reduction", "a reduction to few results that leaves most of the machine idle", find)
