"""Results inside a chain that are outputs of the model as well: what follows cannot be an epilogue."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.neighbours import joined
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.ir.op_row import Kind as OpKind
from ridgeline.ir.ops import is_a


def find(subject: Subject) -> Iterator[Finding]:
    for place in subject.places:
        starts_region = any(is_a(op, OpKind.PRODUCT | OpKind.ROW) for op in place.site.body.ops)
        outputs = [name for name in place.region.outputs if name in subject.program.outputs]
        if starts_region and len(place.region.outputs) == 1 and outputs:
            yield from _of_output(subject, place, outputs[0])


def _of_output(subject: Subject, place: Place, output: str) -> Iterator[Finding]:
    readers = subject.readers.get(output, [])
    spec = subject.spec(output)
    if len(readers) != 1 or spec is None:
        return
    reader = readers[0]
    made = [subject.spec(name) for name in reader.region.outputs]
    if not all(is_a(op, OpKind.POINTWISE) for op in reader.site.body.ops):
        return
    if any(other is None or other.shape != spec.shape for other in made):
        return
    merged = joined(subject, [place, reader], keep=reader.region.outputs)
    gain = None if merged is None else subject.gain_us([place, reader], [merged.site])
    if gain is None or gain <= 0:
        return
    ops = " ".join(reader.region.op_types)
    yield subject.finding(
        "kept_output", [place, reader],
        f"{output!r} is an output of the model, so {ops} behind it is a step of its own",
        f"leave {output!r} out of the model's outputs if nobody needs it "
        f"(torch.onnx.export: do not return it; ridge extract --to cuts it off)",
        gain_us=gain,
        evidence={"output": str(spec), "bytes": 2 * spec.nbytes, "us": (place.us or 0) + (reader.us or 0)},
        nodes=[*place.region.sources, *reader.region.sources],
    )  # fmt: skip


KIND = Kind("kept_output", "a fusion refused because the value between is an output of the model", find)
