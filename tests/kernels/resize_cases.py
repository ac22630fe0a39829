"""Resizes as sites, and how far from the floor a kernel may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.spec import EPSILON, Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.elements import dtype_name
from ridgeline.kernels.floor import call_floor

UNIT32 = 2.0**-24
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resized(
    x: Tensor, size: tuple[int, ...] = (), *, scales: tuple[float, ...] = (), last: str = "",
    target: Target, **attrs: Any,
) -> Site:  # fmt: skip
    """A Resize of the last axes, by sizes or by scales; `last` names the values that lie channels last."""
    given = scales or size
    factors = np.array(given, np.float32 if scales else np.int64)
    attrs.setdefault("axes", tuple(range(x.ndim - len(given), x.ndim)))
    op = Op("Resize", ("x", "", "s") if scales else ("x", "", "", "s"), ("y",), attrs)
    specs = {
        name: TensorSpec(
            dtype_name(t), tuple(t.shape), "channels_last" if name in last.split() else "contiguous"
        )
        for name, t in (("x", x), ("y", by_floor(op, x, factors)))
    }
    specs["s"] = TensorSpec(str(factors.dtype), factors.shape)
    return Site(Body(("x", "s"), ("y",), (op,)), specs, frozenset(), {"s": factors}, target)


def by_floor(op: Op, x: Tensor, factors: np.ndarray) -> Tensor:
    known = {"x": x, "s": torch.from_numpy(factors)}
    (made,) = call_floor(op, [known.get(name) for name in op.inputs])
    assert isinstance(made, Tensor)
    return made


def require_as_floor(site: Site, x: Tensor, got: Tensor) -> None:
    """The same elements where they are copied, else what rounding explains."""
    (op,) = site.body.ops
    want = by_floor(op, x, site.values["s"])
    assert got.shape == want.shape
    if op.attrs.get("mode", "nearest") == "nearest":
        assert torch.equal(got, want)
        return
    assert not got.isnan().any(), "something was not written"
    # a cubic weight is at most 1 and changes by at most 1.5 per pixel; both sides find the coordinates, which
    # reach to the sizes, with a few roundings in float32
    taps = 16 if op.attrs["mode"] == "cubic" else 4
    reach = max(*x.shape[-2:], *want.shape[-2:])
    bound = (taps + 8 + 1.5 * 4 * reach) * UNIT32 * taps * float(x.abs().max())
    bound_of_each = bound + EPSILON[dtype_name(x)] * want.double().abs()
    off = (got.double() - want.double()).abs()
    assert (off <= bound_of_each).all(), f"off by {off.max():.3g}"
