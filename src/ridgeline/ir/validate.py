"""Is a site what it says? Checked by our own rules before any kernel is generated, timed or bound."""

from __future__ import annotations

import math

from ridgeline.base.spec import Op, Site
from ridgeline.errors import ModelError
from ridgeline.ir.op_given import MisfitError, NotKnownError, given_of
from ridgeline.ir.ops import row_of

# sizes beyond it do not fit the index arithmetic of any kernel, whatever memory there is
MOST_ITEMS = 2**48


def validate(site: Site) -> None:
    """Raise `ModelError` where operands and results of an op contradict one another, or a size is absurd."""
    for name, spec in site.specs.items():
        if any(size < 0 for size in spec.shape) or math.prod(spec.shape) > MOST_ITEMS:
            raise ModelError(
                f"value {name!r} has an impossible shape",
                got=str(list(spec.shape)),
                want=f"sizes from 0 on, of at most {MOST_ITEMS} items",
            )
    for name, array in {**site.body.constants, **site.values}.items():
        if name in site.specs and site.specs[name].shape != array.shape:
            raise ModelError(
                f"value {name!r} is not what its shape says",
                got=str(list(array.shape)),
                want=str(site.specs[name]),
            )
    for op in site.body.ops:
        _validate_op(site, op)


def _validate_op(site: Site, op: Op) -> None:
    rule = row_of(op).check
    if rule is None:
        return
    given = given_of(site, op)
    if any(name and shape is None for name, shape in zip(op.inputs, given.shapes, strict=True)):
        return  # it depends on data: a library runs such an op, and looks at what it is given
    try:
        wanted = rule(given)
    except NotKnownError:
        return
    except MisfitError as misfit:
        raise _contradiction(op, str(misfit)) from misfit
    for name, got, want in zip(op.outputs, given.made, wanted, strict=False):
        if got is not None and want is not None and got != want:
            raise _contradiction(op, f"{name!r} is said to be {list(got)}, it is {list(want)}")


def _contradiction(op: Op, what: str) -> ModelError:
    return ModelError(
        f"the operands of {op.op_type} do not fit at {op.name or op.outputs[0]!r}",
        got=what,
        help="the model contradicts itself there: export it again, or mend the node",
    )
