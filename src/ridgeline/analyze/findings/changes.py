"""Sites as a changed model would have them: other operands, fewer ops, other types. Nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.errors import RidgelineError
from ridgeline.ir.infer import settle_body
from ridgeline.ir.validate import validate
from ridgeline.options import DEFAULT_LIMITS

Opsets = Mapping[str, int]


def changed_site(
    site: Site, opsets: Opsets, *, body: Body | None = None, inputs: Mapping[str, TensorSpec] | None = None
) -> Site | None:
    """The site with another body or other operands, its shapes inferred anew; None if they do not fit."""
    made = body or site.body
    given = {name: site.specs[name] for name in made.inputs if name in site.specs} | dict(inputs or {})
    known = {n: site.values[n] for n in made.inputs if n in site.values and given.get(n) == site.specs.get(n)}
    try:
        inferred = settle_body(made, given, opsets, DEFAULT_LIMITS, known=known)
        specs = {name: _laid_out(spec, site.specs.get(name)) for name, spec in inferred.specs.items()}
        specs |= given
        new = replace(
            site, body=made, specs=specs, values=known, weights=site.weights & set(made.inputs),
            power_scales=site.power_scales & set(made.inputs),
        )  # fmt: skip
        validate(new)
    except RidgelineError:
        return None
    return new if new.is_inferred else None


def _laid_out(spec: TensorSpec, before: TensorSpec | None) -> TensorSpec:
    is_image = before is not None and before.layout != "contiguous" and len(spec.shape) == 4
    return replace(spec, layout=before.layout) if is_image and before is not None else spec


def without_ops(body: Body, is_dropped: Callable[[Op], bool]) -> Body | None:
    """The body with some ops left out, whose readers read their first operand; None if nothing is left."""
    instead: dict[str, str] = {}
    ops: list[Op] = []
    for op in body.ops:
        reads = tuple(instead.get(name, name) for name in op.inputs)
        if is_dropped(op):
            instead[op.outputs[0]] = reads[0]
        else:
            ops.append(replace(op, inputs=reads))
    made = {name for op in ops for name in op.outputs}
    outputs = tuple(dict.fromkeys(instead.get(name, name) for name in body.outputs))
    return with_ops(body, ops, tuple(name for name in outputs if name in made))


def with_ops(body: Body, ops: Sequence[Op], outputs: Sequence[str]) -> Body | None:
    """The body with these ops, of which only those stay that its outputs need."""
    needed, kept = set(outputs), []
    for op in reversed(ops):
        if needed & set(op.outputs):
            kept.append(op)
            needed.update(name for name in op.inputs if name)
    if not kept:
        return None
    constants = {name: array for name, array in body.constants.items() if name in needed}
    free = Body((), tuple(outputs), tuple(reversed(kept)), constants).free_names()
    known = [name for name in body.inputs if name in free]
    inputs = (*known, *(name for name in free if name not in known))
    return Body(inputs, tuple(outputs), tuple(reversed(kept)), constants)


def retyped(specs: Mapping[str, TensorSpec], names: Sequence[str], dtype: str) -> dict[str, TensorSpec]:
    """These values in another type."""
    return {name: replace(specs[name], dtype=dtype) for name in names if name in specs}
