"""Convolutions whose channels do not fill the 16 bytes that one access of a GPU moves."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.analyze.findings.alignment import operand, wanted_multiple
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.padding import copies_for, padded, resized
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import Op, TensorSpec


def find(subject: Subject) -> Iterator[Finding]:
    for place in subject.places if subject.is_gpu else ():
        anchor = next((op for op in place.site.body.ops if op.op_type == "Conv"), None)
        if anchor is not None and place.us and anchor.attrs.get("group", 1) == 1:
            yield from _of_convolution(subject, place, anchor)


def _of_convolution(subject: Subject, place: Place, anchor: Op) -> Iterator[Finding]:
    site = place.site
    names = [operand(site, name) for name in anchor.inputs[:2]]
    x, w = (site.specs.get(name) for name in names)
    if x is None or w is None or any(name not in site.body.inputs for name in names):
        return
    multiple = wanted_multiple(anchor, x)
    channels, made = x.shape[1], w.shape[0]
    odd = {"input": channels, "output": made}
    odd = {name: size for name, size in odd.items() if size % multiple}
    if not odd:
        return
    more_in, more_out = padded(channels, multiple), padded(made, multiple)
    inputs = {
        names[0]: resized(x, 1, more_in),
        names[1]: resized(resized(w, 1, more_in), 0, more_out),
    }
    for name in site.body.inputs:
        spec = site.specs.get(name)
        if name not in inputs and spec is not None and (axis := _channel_axis(spec, made, len(x.shape))):
            inputs[name] = resized(spec, axis, more_out)
    copies = copies_for(subject, place, names[0], axis=1, sizes=(more_in, more_out))
    gain = subject.gain_us([place], [subject.changed(place, inputs=inputs), *copies])
    if gain is None or gain <= 0:
        return
    pads = [f"{name} channels from {size} to {padded(size, multiple)}" for name, size in odd.items()]
    yield subject.finding(
        "channels", [place],
        f"a {x.dtype} convolution has {' and '.join(f'{size} {name}' for name, size in odd.items())} "
        f"channels, not a multiple of {multiple}",
        f"pad {' and '.join(pads)}; zeros in the weight change no result",
        gain_us=gain,
        evidence={
            "input_channels": channels, "output_channels": made, "kernel": "×".join(map(str, w.shape[2:])),
            "dtype": x.dtype, "multiple": multiple, "copies": len(copies), "us": place.us or 0.0,
        },
        nodes=place.named("Conv"),
    )  # fmt: skip


def _channel_axis(spec: TensorSpec, channels: int, rank: int) -> int | None:
    """Of an operand of the epilogue: from the back, since leading ones may be left out."""
    if spec.shape == (channels,):
        return -1
    axis = 1 - rank
    return axis if len(spec.shape) >= rank - 1 and spec.shape[axis] == channels else None


KIND = Kind("channels", "channels of a convolution do not fill 16-byte accesses", find)
