"""Equal small products side by side: each costs a launch, and one batch of them would cost one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.grouping import grouped
from ridgeline.base.spec import Site, TensorSpec

FEWEST = 4


def find(subject: Subject) -> Iterator[Finding]:
    # a call on a processor costs next to nothing, and a batch is no faster there
    small = [place for place in subject.places if place.us and _is_product(place) and subject.is_gpu]
    for equal in grouped((place.site.key, place) for place in small).values():
        apart = _independent(subject, equal) if len(equal) >= FEWEST else []
        if len(apart) >= FEWEST:
            yield from _of_group(subject, apart)


def _is_product(place: Place) -> bool:
    """What a batched MatMul does at once: one product of matrices, nothing but a row behind it."""
    ops = [op.op_type for op in place.site.body.ops]
    return ops in (["MatMul"], ["MatMul", "Add"]) and len(place.site.outputs[0].shape) == 2


def _independent(subject: Subject, places: list[Place]) -> list[Place]:
    """Those that need none of the others first, and read inputs of their own."""
    behind: dict[str, bool] = {}
    found: list[Place] = []
    mine = set(places)
    for place in subject.places:
        is_behind = any(behind.get(name, False) for name in place.region.inputs)
        if place in mine and not is_behind:
            found.append(place)
            is_behind = True
        behind.update((name, is_behind) for name in place.region.outputs)
    return found


def _of_group(subject: Subject, places: list[Place]) -> Iterator[Finding]:
    count, first = len(places), places[0]
    gain = subject.gain_us(places, [_stacked(subject, first, count)])
    if gain is None or gain <= 0:
        return
    spec = first.site.outputs[0]
    yield subject.finding(
        "tiny_kernels", places,
        f"{count} equal products that make {spec} each run one after the other, and are little more than "
        f"their launches",
        f"stack their inputs and their weights along a new first axis, and run one MatMul that makes "
        f"{[count, *spec.shape]}",
        gain_us=gain,
        evidence={"regions": count, "us_each": first.us or 0.0, "made": str(spec)},
    )  # fmt: skip


def _stacked(subject: Subject, place: Place, count: int) -> Site | None:
    """All of them as one batch: the weights are then an operand like the others."""
    site = place.site

    def one_more(spec: TensorSpec) -> TensorSpec:
        inner = spec.shape if len(spec.shape) > 1 else (1, *spec.shape)
        return replace(spec, shape=(count, *inner))

    inputs = {name: one_more(spec) for name, spec in zip(site.body.inputs, site.inputs, strict=True) if spec}
    return subject.changed(place, inputs=inputs)


KIND = Kind("tiny_kernels", "equal small products that could be one batch", find)
