"""Read a region around one Resize, in any mode, as tables of positions and shares."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import ITEM_BITS, Op, Site, TensorSpec
from ridgeline.kernels.elements import to_torch
from ridgeline.kernels.floor.resize import Attributes, Axis, changed_axes, taps_of
from ridgeline.kernels.resize import ResizeSite, Taps

MOST_TAPS = 4  # of one axis; antialiasing may take more
SUMMED = ("float32", "float16", "bfloat16")
MOST_ITEMS = 2**31 - 2**16  # of what is addressed with 32 bits, and the end of a tile past it


def read_resize(site: Site) -> ResizeSite:
    """The one Resize of the region, or `RefusedError`."""
    found = [op for op in site.body.ops if op.key == "Resize"]
    if len(found) != 1:
        raise RefusedError(f"region has {len(found) or 'no'} Resize, want one")
    (op,) = found
    if op.inputs[0] not in site.body.inputs:
        raise RefusedError("what is resized is a constant, or a value of the region")
    x, y = site.specs[op.inputs[0]], site.specs[op.outputs[0]]
    if not x.numel or not y.numel:
        raise RefusedError("nothing is resized")
    how = Attributes(**op.attrs)
    if how.coordinate_transformation_mode == "tf_crop_and_resize":
        raise RefusedError("coordinates are those of a crop")
    changed = changed_axes(x.shape, None, *_factors(site, op), how)
    _require_planes(x, y, changed)
    has_lines = len(x.shape) == 4 or len(x.shape) - 2 in changed
    in_size, out_size = ((s.shape[-2] if has_lines else 1, s.shape[-1]) for s in (x, y))
    first = len(x.shape) - 2
    lines = _taps(changed.get(first), in_size[0], how)
    columns = _taps(changed.get(first + 1), in_size[1], how)
    resized = ResizeSite(
        op, x, site.outputs[0], site.body.inputs.index(op.inputs[0]), (in_size[0], in_size[1]),
        (out_size[0], out_size[1]), lines, columns,
    )  # fmt: skip
    most = max(lines.count, columns.count)
    if most > MOST_TAPS:
        raise RefusedError(f"{most} positions of an axis are added up, want at most {MOST_TAPS}")
    if not resized.is_copy and x.dtype not in SUMMED:
        raise RefusedError(f"numbers of type {x.dtype} are added up, want {', '.join(SUMMED)}")
    if ITEM_BITS[x.dtype] > 64 or x.dtype == "string":
        raise RefusedError(f"elements are {x.dtype}")
    return resized


def _factors(site: Site, op: Op) -> tuple[Tensor | None, Tensor | None]:
    """Scales and sizes; one of the two is None, or empty."""
    known: Mapping[str, np.ndarray] = {**site.body.constants, **site.values}
    given = [*op.inputs, "", "", ""][2:4]
    for name in given:
        spec = site.specs.get(name)
        if name and name not in known and not (spec is not None and not spec.numel):
            raise RefusedError("scales or sizes are not known before the run")
    scales, sizes = (to_torch(known[name]) if name in known else None for name in given)
    if (scales is None or not scales.numel()) and sizes is None:
        raise RefusedError("neither scales nor sizes are given")
    return scales, sizes


def _require_planes(x: TensorSpec, y: TensorSpec, changed: Mapping[int, Axis]) -> None:
    rank = len(x.shape)
    made = tuple(changed[d].out_size if d in changed else size for d, size in enumerate(x.shape))
    if made != y.shape or x.dtype != y.dtype:
        raise RefusedError(f"the result is {y}, want {x.dtype}{list(made)}")
    if rank < 3 or any(axis < max(1, rank - 2) for axis in changed):
        raise RefusedError(f"axes {sorted(changed)} of {rank} are resized, want the last or the last two")
    image = max(math.prod(spec.shape[1:]) for spec in (x, y))
    if image >= MOST_ITEMS:
        raise RefusedError(f"an image has {image} elements, want fewer than {MOST_ITEMS}")


def _taps(axis: Axis | None, size: int, how: Attributes) -> Taps:
    if axis is None:
        return Taps(np.arange(size, dtype=np.int32)[:, None], np.ones((size, 1), np.float32))
    places, shares = taps_of(axis, how)
    is_used = shares.any(axis=0)
    if is_used.sum() <= 1 and not np.array_equal(shares[:, is_used], np.ones((len(shares), 1))):
        raise RefusedError("shares of an output do not add up to one")
    return Taps(places[:, is_used].astype(np.int32), shares[:, is_used].astype(np.float32))
