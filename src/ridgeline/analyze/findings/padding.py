"""What padding a size costs beside the region: copies, where neighbours cannot make or take that size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.ir.op_row import Kind as OpKind
from ridgeline.ir.ops import is_a


def padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def resized(spec: TensorSpec, axis: int, size: int) -> TensorSpec:
    shape = list(spec.shape)
    shape[axis] = size
    return replace(spec, shape=tuple(shape))


def copies_for(subject: Subject, place: Place, data: str, *, axis: int, sizes: tuple[int, int]) -> list[Site]:
    """A copy before the region if nobody makes its data padded, one behind it if nobody reads its result so.

    `sizes` are those of data and result as they would be. Another product makes or reads zeros for nothing.
    """
    made: list[Site] = []
    source = place.outer(data)
    before, spec = subject.maker.get(source), subject.spec(source)
    is_padded = spec is not None and spec.shape[axis] != sizes[0]
    # an input of the model is fed in the padded size
    if is_padded and spec is not None and before is not None and not _multiplies(before):
        made.append(_copy(place, resized(spec, axis, sizes[0]), spec, axis))
    result = place.region.outputs[0]
    spec, readers = subject.spec(result), subject.readers.get(result, [])
    is_cut = result in subject.program.outputs or not all(map(_multiplies, readers))
    if is_cut and spec is not None and spec.shape[axis] != sizes[1]:
        made.append(_copy(place, resized(spec, axis, sizes[1]), spec, axis))
    return made


def _multiplies(place: Place) -> bool:
    return any(is_a(op, OpKind.PRODUCT) for op in place.site.body.ops)


def _copy(place: Place, whole: TensorSpec, part: TensorSpec, axis: int) -> Site:
    """The part of a padded value that is meant; filling one up moves as many bytes."""
    op = Op("Slice", ("whole", "starts", "ends", "axes"), ("part",))
    constants = {"starts": np.array([0]), "ends": np.array([part.shape[axis]]), "axes": np.array([axis])}
    body = Body(("whole",), ("part",), (op,), constants)
    specs = {"whole": whole, "part": part} | {n: TensorSpec("int64", (1,)) for n in constants}
    return replace(
        place.site, body=body, specs=specs, weights=frozenset(), values={}, power_scales=frozenset()
    )
