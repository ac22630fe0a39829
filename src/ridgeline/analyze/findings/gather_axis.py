"""Gathers along the last axis: they pick single elements, where rows could be picked before the product."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.padding import resized
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import Op, Site, TensorSpec


def find(subject: Subject) -> Iterator[Finding]:
    for op, place in subject.ops:
        data = subject.spec(op.inputs[0]) if op.op_type == "Gather" and not op.domain else None
        if data is None or len(data.shape) < 2 or not place.us:
            continue
        axis = op.attrs.get("axis", 0)
        places = subject.spec(op.inputs[1]) if _is_constant(subject, op.inputs[1]) else None
        if axis in (-1, len(data.shape) - 1) and places is not None and len(places.shape) == 1:
            yield from _of_gather(subject, place, op, data, places.numel)


def _is_constant(subject: Subject, name: str) -> bool:
    return name in subject.program.weights or name in subject.constants


def _of_gather(subject: Subject, place: Place, op: Op, data: TensorSpec, picked: int) -> Iterator[Finding]:
    """The places are constants: picked out of the weight once, they cost nothing at run time."""
    maker = subject.maker.get(op.inputs[0])
    if maker is None or len(subject.readers.get(op.inputs[0], [])) != 1 or len(place.site.body.ops) != 1:
        return
    product = _narrowed(subject, maker, op.inputs[0], data.shape[-1], picked)
    if product is None or op.inputs[0] in subject.program.outputs:
        return
    site, weight = product
    gain = subject.gain_us([maker, place], [site])
    if gain is None or gain <= 0:
        return
    yield subject.finding(
        "gather_axis", [maker, place],
        f"Gather axis={op.attrs['axis']} picks {picked} of {data.shape[-1]} columns one element at a time, "
        f"behind the product that makes them all",
        f"replace Gather axis={op.attrs['axis']} by picking the same columns of {weight!r} (and of the bias) "
        f"before export, so that the product makes {picked} columns",
        gain_us=gain,
        evidence={
            "data": str(data), "picked": picked, "bytes": 2 * data.nbytes,
            "us": (maker.us or 0.0) + (place.us or 0.0),
        },
        nodes=[*place.named("Gather"), *maker.named("MatMul", "Gemm")],
    )  # fmt: skip


def _narrowed(
    subject: Subject, maker: Place, value: str, columns: int, picked: int
) -> tuple[Site, str] | None:
    """The product with only the columns that are picked, and its weight's name."""
    site = maker.site
    anchor = next((op for op in site.body.ops if op.op_type in ("MatMul", "Gemm")), None)
    if anchor is None or anchor.inputs[1] not in site.weights or maker.region.outputs != (value,):
        return None
    axis = -2 if anchor.attrs.get("transB", 0) else -1
    if site.specs[anchor.inputs[1]].shape[axis] != columns:
        return None
    inputs = {anchor.inputs[1]: resized(site.specs[anchor.inputs[1]], axis, picked)}
    for name in site.body.inputs:
        spec = site.specs.get(name)
        if name not in (*inputs, anchor.inputs[0]) and spec is not None and spec.shape[-1:] == (columns,):
            if name not in site.weights:
                return None
            inputs[name] = resized(spec, -1, picked)
    new = subject.changed(maker, inputs=inputs)
    return None if new is None else (new, maker.outer(anchor.inputs[1]))


KIND = Kind("gather_axis", "a Gather along the last axis behind the product that makes it", find)
