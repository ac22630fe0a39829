"""Shapes of a program with its weights, inferred once for each set of input shapes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from torch import Tensor

from ridgeline.base.spec import TensorSpec
from ridgeline.ir.body import Program, read_program
from ridgeline.ir.infer import Inferred, infer
from ridgeline.ir.layout import assign_layouts
from ridgeline.kernels.elements import dtype_name, is_plain, numpy_dtype
from ridgeline.options import Limits
from ridgeline.runtime.weights import weights_of

# sets of shapes that are kept, as many as a context keeps instances, and the bytes of the values inside them
KEPT_SHAPES, KEPT_BYTES = 8, 1 << 28
# a weight with no more elements than this may hold a shape
SHAPE_NUMEL = 64


class Inference:
    """A program, its weights on the host, and what is known of both at the shapes used last."""

    def __init__(self, program: Program, weights: Mapping[str, Tensor]) -> None:
        self.program, self.weights = program, dict(weights)
        self._specs = {n: TensorSpec(dtype_name(t), tuple(t.shape)) for n, t in weights.items()}
        # shape arithmetic is done in plain numbers
        self._known = {
            n: t.numpy()
            for n, t in weights.items()
            if t.numel() <= SHAPE_NUMEL and is_plain(numpy_dtype(self._specs[n].dtype))
        }
        self._made: dict[frozenset[tuple[str, TensorSpec]], Inferred] = {}

    @staticmethod
    def of(model: ir.Model, limits: Limits, weights: Mapping[str, Tensor] | None = None) -> Inference:
        """Read a model in the state it is in now, with its own weights if no others are given."""
        return Inference(read_program(model, limits), weights_of(model) if weights is None else weights)

    def at(self, inputs: Mapping[str, TensorSpec], into: Inferred | None = None) -> Inferred:
        """Every shape and layout at these inputs; nobody may change the result.

        `into` is filled as far as inference gets before it raises. Two threads may infer the same shapes at
        once: no lock is held, since a forked child could wait for one forever.
        """
        key = frozenset(inputs.items())
        found = self._made.get(key)
        if found is None:
            found = infer(self.program, inputs, self._specs, self._known, into)
            assign_layouts(self.program, found)
            self._made[key] = found
            self._forget_old()
        return found

    def _forget_old(self) -> None:
        held = list(self._made.items())
        n_bytes = 0
        for count, (key, inferred) in enumerate(reversed(held)):
            n_bytes += inferred.folded_bytes
            if count and (count >= KEPT_SHAPES or n_bytes > KEPT_BYTES):
                self._made.pop(key, None)
