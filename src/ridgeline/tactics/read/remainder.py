"""What a library call takes of a region's epilogue, and the rest of the region as a site of its own.

The rest is one generated pointwise kernel over the library's result; both are timed together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.tactics.read.epilogue import AnchorSite, is_constant, is_per_channel, spec_of

RAW = "library.result"  # the name of the library's result inside the rest
BIAS = "library.bias"


@dataclass(frozen=True)
class Taken:
    """epilogue(x · w) as far as a library goes: + biases, + residual, then an activation."""

    value: str  # what has been computed then
    biases: tuple[str, ...] = ()
    residual: str = ""
    activation: str = ""


def take_epilogue(
    site: Site, product: AnchorSite, *, activations: tuple[str, ...] = (), takes_residual: bool = False
) -> Taken:
    """Follow the anchor's result through what the library can do, while each value has one reader."""
    anchor, channel_axis = product.anchor, product.channel_axis
    found = Taken(anchor.outputs[0], product.biases)
    addend = (*anchor.inputs, "")[2]
    if addend and addend not in product.biases:
        if not _is_full(site, addend, anchor):
            raise RefusedError(f"C {addend!r} is neither a constant row nor of the result's shape")
        found = replace(found, residual=addend)
    while (op := _only_reader(site, found.value)) is not None:
        other = next((n for n in op.inputs if n != found.value), "")
        if op.op_type == "Add" and _is_row(site, other, op, channel_axis) and not found.residual:
            found = replace(found, biases=(*found.biases, other), value=op.outputs[0])
        elif op.op_type == "Add" and takes_residual and not found.residual and _is_full(site, other, op):
            found = replace(found, residual=other, value=op.outputs[0])
        elif (kind := activation_of(op)) in activations:
            return replace(found, activation=kind, value=op.outputs[0])
        else:
            break
    return found


def activation_of(op: Op) -> str:
    if op.op_type == "Gelu":
        return "gelu_tanh" if op.attrs.get("approximate", "none") in ("tanh", b"tanh") else "gelu"
    return "relu" if op.op_type == "Relu" else ""


def _only_reader(site: Site, value: str) -> Op | None:
    readers = site.body.consumers(value)
    if len(readers) != 1 or value in site.body.outputs or readers[0].domain:
        return None
    return readers[0] if readers[0].inputs.count(value) == 1 else None


def _is_row(site: Site, name: str, op: Op, channel_axis: int) -> bool:
    """A constant that varies along the channels only."""
    if not name or not is_constant(site, name):
        return False
    return is_per_channel(spec_of(site, name), site.specs[op.outputs[0]], channel_axis)


def _is_full(site: Site, name: str, op: Op) -> bool:
    return name in site.body.inputs and site.specs.get(name) == site.specs[op.outputs[0]]


def rest_of(site: Site, value: str, *, bias_shape: tuple[int, ...] | None = None) -> Site | None:
    """The ops after `value`, reading it as their first input; None when nothing is left to do.

    With `bias_shape` a second input is added first: for a library whose result lacks the bias.
    """
    body = site.body
    needed = {value}
    for op in reversed(body.ops):
        if needed & set(op.outputs):
            needed |= set(op.inputs)
    ops = [op for op in body.ops if not needed & set(op.outputs)]
    if not ops and bias_shape is None:
        return None
    specs = dict(site.specs)
    leading = [value]
    if bias_shape is not None:
        leading = [RAW, BIAS]
        specs[RAW] = site.specs[value]
        specs[BIAS] = TensorSpec(site.specs[value].dtype, bias_shape)
        ops.insert(0, Op("Add", (RAW, BIAS), (value,)))
    made = {name for op in ops for name in op.outputs}
    free = dict.fromkeys(n for op in ops for n in op.inputs if n and n not in made and n not in leading)
    inputs = [n for n in free if n in body.inputs]
    inside = [n for n in free if n not in body.inputs and n not in body.constants]
    missing = [n for n in body.outputs if n not in made]
    if inside or missing:
        raise RefusedError(f"{(inside or missing)[0]!r} is made before {value!r} and needed after it")
    return Site(
        body=Body(
            (*leading, *inputs),
            body.outputs,
            tuple(ops),
            {n: a for n, a in body.constants.items() if n in free},
        ),
        specs=specs,
        weights=frozenset(n for n in (*leading[1:], *inputs) if n == BIAS or n in site.weights),
        values={n: v for n, v in site.values.items() if n in inputs},
        target=site.target,
        name=site.name,
    )
