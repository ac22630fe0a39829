"""Operands of kernels that are not made from a scalar program: their types, and the order of pointers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.kernels.scalar.program import Program


@dataclass(frozen=True)
class Operands:
    """Pointers of a kernel: inputs of the region, its outputs, then constants that it holds."""

    inputs: tuple[int, ...]  # positions among the region's inputs
    extras: tuple[np.ndarray, ...]
    names: Mapping[str, str]  # of pointers, by name of the value: p0…, q0…, x0…

    @property
    def places(self) -> dict[str, int]:
        """Positions among the pointers, by name of the value."""
        return {name: place for place, name in enumerate(self.names)}

    def program(self, touched: Mapping[str, int]) -> Program:
        """A program that has no steps; `touched` gives the bytes that the text reads and writes."""
        return Program({}, (), (), (), self.inputs, (), self.extras, touched)


def operands_of(site: Site, reads: Iterable[str]) -> Operands:
    """The operands of a kernel that reads these values and writes all outputs of the region."""
    wanted, body = dict.fromkeys(reads), site.body
    inputs = [name for name in wanted if name in body.inputs]
    held = [name for name in wanted if name not in body.inputs]
    kinds = (("p", inputs), ("q", body.outputs), ("x", held))
    names = {name: f"{letter}{i}" for letter, values in kinds for i, name in enumerate(values)}
    arrays = tuple(np.ascontiguousarray(body.constants[name]) for name in held)
    return Operands(tuple(body.inputs.index(name) for name in inputs), arrays, names)


def spec_of(site: Site, name: str) -> TensorSpec:
    """The type and shape of a value: a constant of the body, or a value whose shape is known."""
    held = site.body.constants.get(name)
    if held is not None:
        return TensorSpec(str(held.dtype), held.shape)
    if name not in site.specs:
        raise RefusedError(f"the shape of {name} depends on data")
    return site.specs[name]
