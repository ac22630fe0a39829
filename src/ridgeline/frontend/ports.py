"""What a model's inputs and outputs may be, and which concrete shapes to plan and verify with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ridgeline.errors import ModelError, OptionError, UnsupportedError, did_you_mean
from ridgeline.options import DimRange, Profile
from ridgeline.spec import Port, TensorSpec

# guesses for a dim nobody gave a size for, in the order they are tried
GUESSES = (64, 32, 224, 320, 512, 16, 128, 1024, 16000, 1)
IMAGE_GUESSES = (224, 320, 64, 32, 48, 640, 1)


def ports(values: Sequence[ir.Value], *, what: str) -> tuple[Port, ...]:
    """Signature of graph inputs or outputs. A dim without a size or a usable name gets a name of its own."""
    made = []
    for value in values:
        if not isinstance(value.type, ir.TensorType):
            raise ModelError(
                f"{what} {value.name!r} is not a tensor",
                got=str(value.type),
                want="tensors only at the model's border",
            )
        if value.dtype in (None, ir.DataType.STRING, ir.DataType.UNDEFINED):
            raise UnsupportedError(
                f"{what} {value.name!r} holds {value.dtype}", want="numbers at the model's border"
            )
        dims = None
        if value.shape is not None:
            dims = tuple(_dim(d, f"{value.name}.{axis}") for axis, d in enumerate(value.shape))
        made.append(Port(str(value.name), _dtype(value.dtype), dims))
    return tuple(made)


def _dim(dim: int | ir.SymbolicDim, fallback: str) -> int | str:
    if isinstance(dim, int):
        return dim if dim >= 0 else fallback
    # Paddle writes "?" for every dim it does not know, whatever their sizes are
    return dim.value if dim.value and dim.value != "?" else fallback


def _dtype(dtype: ir.DataType) -> str:
    names = {"FLOAT": "float32", "DOUBLE": "float64"}
    return names.get(dtype.name) or str(dtype.numpy()) if dtype != ir.DataType.STRING else "string"


def check_profile(inputs: Sequence[Port], profile: Profile) -> None:
    """A profile names inputs that exist, with their rank and fixed sizes."""
    names = [port.name for port in inputs]
    for name, ranges in profile.items():
        if name not in names:
            raise OptionError(f"the model has no input {name!r}", help=did_you_mean(name, names))
        port = inputs[names.index(name)]
        if port.dims is None:
            continue
        fixed = [d if isinstance(d, int) else None for d in port.dims]
        fits = len(ranges) == len(fixed) and all(
            size is None or (r.min == size == r.max) for r, size in zip(ranges, fixed, strict=True)
        )
        if not fits:
            raise OptionError(
                f"the shape given for input {name!r} does not fit the model",
                got="x".join(map(str, ranges)),
                want=str(port),
            )


def profile_shapes(inputs: Sequence[Port], profile: Profile, which: str) -> dict[str, TensorSpec] | None:
    """The inputs at the profile's ``min``, ``opt`` or ``max``; None while a dim has no size."""
    symbols = _symbol_ranges(inputs, profile)
    made = {}
    for port in inputs:
        if port.dims is None and port.name not in profile:
            return None
        shape = []
        dims: Sequence[int | str] | None = port.dims
        if dims is None:
            dims = [f"{port.name}.{axis}" for axis in range(len(profile[port.name]))]
        for dim in dims:
            size = dim if isinstance(dim, int) else symbols.get(dim)
            if size is None:
                return None
            shape.append(size if isinstance(size, int) else int(getattr(size, which)))
        made[port.name] = TensorSpec(port.dtype, tuple(shape))
    return made


def _symbol_ranges(inputs: Sequence[Port], profile: Profile) -> dict[str, DimRange]:
    symbols: dict[str, DimRange] = {}
    for port in inputs:
        for axis, size in enumerate(profile.get(port.name, ())):
            dim = port.dims[axis] if port.dims is not None else f"{port.name}.{axis}"
            if isinstance(dim, str):
                symbols.setdefault(dim, size)
    return symbols


def guessed_shapes(inputs: Sequence[Port], profile: Profile) -> Iterator[dict[str, TensorSpec]]:
    """Shapes worth trying where no profile says: batch 1, then sizes models are usually made for.

    First every open dim gets the guess; then only those of the first input, since states and caches beside
    it often have a batch that the file forgot to name.
    """
    symbols = _symbol_ranges(inputs, profile)
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
