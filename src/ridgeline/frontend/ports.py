"""What a model's inputs and outputs may be, and which concrete shapes to plan and verify with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

import onnx_ir as ir

from ridgeline.base.spec import Port, TensorSpec
from ridgeline.errors import ModelError
from ridgeline.frontend.types import type_of, type_text
from ridgeline.options import DimRange

# guesses for a dim without a size, in the order they are tried
GUESSES = (64, 32, 224, 320, 512, 16, 128, 1024, 16000, 1)
IMAGE_GUESSES = (224, 320, 64, 32, 48, 640, 1)
ALIKE_GUESSES = (64, 32, 16)


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
    """Shapes to try if there is no profile: batch 1, then the usual sizes of models.

    First every open dim gets the guess, then all the same; then only those of the first input, since states
    and caches beside it often have a batch that the file forgot to name. Dims of one name have one size.
    """
    every_dims = [port.dims if port.dims is not None else (1,) for port in inputs]
    places: dict[str, list[tuple[int, int, int]]] = {}  # the input, the axis, the rank
    for i, dims in enumerate(every_dims):
        for axis, dim in enumerate(dims):
            if isinstance(dim, str):
                places.setdefault(dim, []).append((i, axis, len(dims)))
    pairs = list(zip_longest(GUESSES, IMAGE_GUESSES, fillvalue=1))
    n_images = len(IMAGE_GUESSES) - 1
    ways = [(*pair, "each") for pair in pairs[:n_images]]
    # masks and tables beside an image or heads have its sizes, on their first axis too
    ways += [(size, size, "alike") for size in ALIKE_GUESSES]
    ways += [*((*pair, "each") for pair in pairs[n_images:]), *((*pair, "first") for pair in pairs)]
    for guess, image, way in ways:
        sizes = {}
        for dim, found in places.items():
            is_one = "batch" in dim.lower() or (way != "alike" and all(axis == 0 for _, axis, _ in found))
            if dim in symbols:
                sizes[dim] = symbols[dim].opt
            elif is_one or (way == "first" and all(i for i, _, _ in found)):
                sizes[dim] = 1
            else:
                sizes[dim] = image if any(rank == 4 for _, _, rank in found) else guess
        yield {
            port.name: TensorSpec(port.dtype, tuple(d if isinstance(d, int) else sizes[d] for d in dims))
            for port, dims in zip(inputs, every_dims, strict=True)
        }
