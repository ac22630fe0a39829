"""How operands that are dequantised inside a region are read: their codes, scales and zero points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site, TensorSpec
from ridgeline.kernels.floor import call_floor
from ridgeline.tactics.read.epilogue import constant_tensors, is_constant, spec_of


@dataclass(frozen=True)
class Codes:
    """One operand of a product: DequantizeLinear of `name`, perhaps transposed after it."""

    name: str
    spec: TensorSpec
    scale: str
    zero: str  # "": none
    axis: int | None  # of the codes, along which scales vary; None: one scale for all
    block: int  # codes along `axis` that share a scale; 0: scales are per slice
    values: frozenset[str]  # made on the way from the codes to the product
    is_transposed: bool

    @property
    def dtype(self) -> str:
        return self.spec.dtype


def find_codes(site: Site, anchor: Op, place: int) -> Codes | None:
    """The operand at that place of the anchor; None if it is not dequantised inside the region."""
    value, values, is_transposed = anchor.inputs[place], [], False
    op, reader = site.body.producer(value), anchor
    while op is not None:
        if site.body.consumers(value) != (reader,) or value in site.body.outputs:
            raise RefusedError(f"{value!r} is read by more than the {anchor.op_type}")
        values.append(value)
        if op.key == "DequantizeLinear":
            break
        perm = tuple(op.attrs.get("perm", (1, 0))) if op.key == "Transpose" else ()
        if perm != (1, 0):
            raise RefusedError(f"{op.op_type} comes before the {anchor.op_type}")
        is_transposed = not is_transposed
        value, reader = op.inputs[0], op
        op = site.body.producer(value)
    if op is None:
        return None
    name, scale, zero = (*op.inputs, "")[:3]
    if name not in site.body.inputs and name not in site.body.constants:
        raise RefusedError(f"the codes {name!r} are made inside the region")
    spec, scales = spec_of(site, name), spec_of(site, scale)
    block = int(op.attrs.get("block_size", 0))
    axis: int | None = int(op.attrs.get("axis", 1))
    if scales.numel == 1:
        axis, block = None, 0
    else:
        assert axis is not None, "read from the op"
        axis %= len(spec.shape)
    return Codes(name, spec, scale, zero, axis, block, frozenset(values), is_transposed)


def require_codes(site: Site, anchor: Op, place: int) -> Codes:
    found = find_codes(site, anchor, place)
    if found is None:
        raise RefusedError(f"{anchor.inputs[place]!r} is not dequantised inside the region")
    return found


def is_settled(site: Site, name: str) -> bool:
    """Whether a value never changes between runs: a constant, or computed from constants alone."""
    if is_constant(site, name):
        return True
    op = site.body.producer(name)
    return op is not None and all(is_settled(site, given) for given in op.inputs if given)


def settled_value(site: Site, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """What such a value is."""
    known = constant_tensors(site, weights)

    def find(value: str) -> Tensor:
        if value not in known:
            op = site.body.producer(value)
            assert op is not None, f"{value} is computed from constants"
            made = call_floor(op, [find(given) if given else None for given in op.inputs])
            known.update(zip(op.outputs, made, strict=True))
        return known[value]

    return find(name)


def known_number(site: Site, name: str) -> float | None:
    """A scalar that is known before binding; None for any other value."""
    array = site.body.constants.get(name, site.values.get(name))
    return float(np.asarray(array).reshape(-1)[0]) if array is not None and np.size(array) == 1 else None
