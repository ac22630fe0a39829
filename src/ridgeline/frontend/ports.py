"""What a model's inputs and outputs may be, and which concrete shapes to plan and verify with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from ridgeline.errors import ModelError
from ridgeline.frontend.types import type_of, type_text
from ridgeline.options import DimRange
from ridgeline.spec import Port, TensorSpec

# guesses for a dim nobody gave a size for, in the order they are tried
GUESSES = (64, 32, 224, 320, 512, 16, 128, 1024, 16000, 1)
IMAGE_GUESSES = (224, 320, 64, 32, 48, 640, 1)


def ports(values: Sequence[ir.Value], *, what: str) -> tuple[Port, ...]:
    """Signature of graph inputs or outputs. A dim without a size or a usable name gets a name of its own."""
    made = []
    for value in values:
        kind = type_text(type_of(value))
        if "undefined" in kind:
            raise ModelError(f"{what} {value.name!r} has no type", got=str(value.type), want="a type for it")
        dims = None
        if isinstance(value.type, ir.TensorType) and value.shape is not None:
            dims = tuple(_dim(d, f"{value.name}.{axis}") for axis, d in enumerate(value.shape))
        made.append(Port(str(value.name), kind, dims))
    return tuple(made)


def _dim(dim: int | ir.SymbolicDim, fallback: str) -> int | str:
    if isinstance(dim, int):
        return dim if dim >= 0 else fallback
    # Paddle writes "?" for every dim it does not know, whatever their sizes are
    return dim.value if dim.value and dim.value != "?" else fallback


def guessed_shapes(
    inputs: Sequence[Port], symbols: Mapping[str, DimRange]
) -> Iterator[dict[str, TensorSpec]]:
    """Shapes worth trying where no profile says: batch 1, then sizes models are usually made for.

    First every open dim gets the guess; then only those of the first input, since states and caches beside
    it often have a batch that the file forgot to name.
    """
    for only_first in (False, True):
        for round_ in range(len(GUESSES)):
            image = IMAGE_GUESSES[min(round_, len(IMAGE_GUESSES) - 1)]
            made = {}
            for i, port in enumerate(inputs):
                dims: Sequence[int | str] = port.dims if port.dims is not None else (1,)
                shape = []
                for axis, dim in enumerate(dims):
                    if isinstance(dim, int):
                        shape.append(dim)
                    elif dim in symbols:
                        shape.append(symbols[dim].opt)
                    elif axis == 0 or "batch" in dim.lower() or (only_first and i):
                        shape.append(1)
                    else:
                        shape.append(image if len(dims) == 4 else GUESSES[round_])
                made[port.name] = TensorSpec(port.dtype, tuple(shape))
            yield made
