"""Products whose K or N does not fill the 16 bytes that one access of a GPU moves."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.padding import copies_for, padded, resized
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import ITEM_BITS, TF32, Op, Site, TensorSpec
from ridgeline.ir.quant import dequantizes

ACCESS_BITS = 128
TENSOR_CORE_BITS = 16  # types up to this wide are multiplied there; wider ones only if they may round to TF32


def wanted_multiple(op: Op, spec: TensorSpec) -> int:
    """Elements that one access moves; 1 where no tensor core multiplies such a type."""
    bits = ITEM_BITS[spec.dtype]
    return ACCESS_BITS // bits if bits <= TENSOR_CORE_BITS or op.math == TF32 else 1


def operand(site: Site, name: str) -> str:
    """The region's own input behind an operand: levels, where the region dequantises them first."""
    maker = site.body.producer(name)
    return maker.inputs[0] if maker is not None and dequantizes(maker) else name


def find(subject: Subject) -> Iterator[Finding]:
    for place in subject.places if subject.is_gpu else ():
        anchor = next((op for op in place.site.body.ops if op.op_type in ("MatMul", "Gemm")), None)
        if anchor is not None and place.us:
            yield from _of_product(subject, place, anchor)


def _of_product(subject: Subject, place: Place, anchor: Op) -> Iterator[Finding]:
    site = place.site
    names = [operand(site, name) for name in anchor.inputs[:2]]
    x, w = (site.specs.get(name) for name in names)
    if x is None or w is None or any(name not in site.body.inputs for name in names):
        return
    if anchor.attrs.get("transA", 0) or len(w.shape) < 2 or not x.shape:
        return
    multiple = wanted_multiple(anchor, x)
    k_axis, n_axis = (-1, -2) if anchor.attrs.get("transB", 0) else (-2, -1)
    depth, columns = w.shape[k_axis], w.shape[n_axis]
    odd = [name for name, size in (("K", depth), ("N", columns)) if size % multiple]
    if not odd:
        return
    inputs = {
        names[0]: resized(x, -1, padded(depth, multiple)),
        names[1]: resized(resized(w, k_axis, padded(depth, multiple)), n_axis, padded(columns, multiple)),
    }
    for name in site.body.inputs:
        spec = site.specs.get(name)
        if name not in inputs and spec is not None and spec.shape[-1:] == (columns,):
            inputs[name] = resized(spec, -1, padded(columns, multiple))
    more = (padded(depth, multiple), padded(columns, multiple))
    copies = copies_for(subject, place, names[0], axis=-1, sizes=more)
    gain = subject.gain_us([place], [subject.changed(place, inputs=inputs), *copies])
    if gain is None or gain <= 0:
        return
    sizes = {"K": depth, "N": columns}
    pads = " and ".join(f"{name} from {sizes[name]} to {padded(sizes[name], multiple)}" for name in odd)
    yield subject.finding(
        "alignment", [place],
        f"{' and '.join(f'{name} = {sizes[name]}' for name in odd)} of a {x.dtype} product "
        f"{'is' if len(odd) == 1 else 'are'} not a multiple of {multiple}",
        f"pad {pads}: zeros in the weight change no result"
        + ("; the layer before makes as many columns" if "K" in odd else "; cut the rest off behind it"),
        gain_us=gain,
        evidence={
            "rows": math.prod(x.shape[:-1]), "K": depth, "N": columns, "dtype": x.dtype,
            "multiple": multiple, "copies": len(copies), "us": place.us or 0.0,
        },
        nodes=place.named(anchor.op_type),
    )  # fmt: skip


KIND = Kind("alignment", "K or N of a product does not fill 16-byte accesses, so tensor cores wait", find)
