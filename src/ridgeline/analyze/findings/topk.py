"""TopK that is asked for more than is used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.subject import MODELLED, SCALED, Place, Subject
from ridgeline.base.spec import Body, Op, TensorSpec


def find(subject: Subject) -> Iterator[Finding]:
    for op, place in subject.ops:
        if op.op_type != "TopK" or op.domain or not place.us or len(place.site.body.ops) != 1:
            continue
        count, data = subject.inferred.values.get(op.inputs[1]), subject.spec(op.inputs[0])
        if count is None or data is None:
            continue
        k, values_used, indices_used = int(count.reshape(-1)[0]), *(_is_used(subject, n) for n in op.outputs)
        if k == 1 and values_used and not indices_used:
            yield from _of_maximum(subject, place, op, data)


def _is_used(subject: Subject, name: str) -> bool:
    return bool(name) and (name in subject.program.outputs or bool(subject.readers.get(name)))


def _of_maximum(subject: Subject, place: Place, op: Op, data: TensorSpec) -> Iterator[Finding]:
    reduce = "ReduceMax" if op.attrs.get("largest", 1) else "ReduceMin"
    axis = op.attrs.get("axis", -1)
    inner = place.site.body.ops[0]
    body = Body(
        (inner.inputs[0],), (inner.outputs[0],),
        (Op(reduce, (inner.inputs[0], "axes"), (inner.outputs[0],), {"keepdims": 1}),),
        {"axes": np.array([axis])},
    )  # fmt: skip
    gain = subject.swap_gain_us(place, [subject.changed(place, body=body)])
    if gain is None or gain <= 0:
        return
    yield subject.finding(
        "topk", [place],
        f"TopK of one value along {data.shape[axis]} elements, of which only the value is used",
        f"replace TopK k=1 by {reduce} axes=[{axis}] keepdims=1",
        gain_us=gain,
        how=SCALED if subject.is_measured else MODELLED,
        evidence={"k": 1, "axis": axis, "data": str(data), "us": place.us or 0.0},
        nodes=place.named("TopK"),
    )  # fmt: skip


KIND = Kind("topk", "TopK that is asked for more than is used", find)
