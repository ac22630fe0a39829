"""What a library call takes of a region's epilogue, and the rest of the region as a site of its own.

The rest is one generated pointwise kernel over the library's result; both are timed together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.tactics.read.epilogue import AnchorSite, Bias, Binary

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
    """The first steps after the anchor, as far as the library does them."""
    found, epilogue = Taken(product.anchor.outputs[0], product.biases), product.epilogue
    for step, value in zip(epilogue.steps, epilogue.made, strict=True):
        if isinstance(step, Bias) and not found.residual:
            found = replace(found, biases=(*found.biases, step.name), value=value)
        elif isinstance(step, Binary) and step.name == "add" and takes_residual and not found.residual:
            # the library reads both tensors in one layout
            if step.is_full and site.specs[step.other] == site.specs[value]:
                found = replace(found, residual=step.other, value=value)
            elif value == product.anchor.outputs[0]:
                raise RefusedError(f"C {step.other!r} is neither a constant row nor of the result's shape")
            else:
                break
        elif (kind := _activation(site.body.producer(value))) in activations:
            return replace(found, activation=kind, value=value)
        else:
            break
    return found


def _activation(op: Op | None) -> str:
    if op is not None and op.op_type == "Gelu":
        return "gelu_tanh" if op.attrs.get("approximate", "none") in ("tanh", b"tanh") else "gelu"
    return "relu" if op is not None and op.op_type == "Relu" else ""


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
        power_scales=site.power_scales & set(inputs),
    )
