"""Inputs to time and verify with: seeded, typed per input, integers kept where the model can take them.

One way to draw for a whole model and for the site of one region. A site's integers use more of their type:
whatever a region computes of them is compared with the floor, and nothing after it reads the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.errors import LimitError
from ridgeline.ir.infer import Inferred, settled_value
from ridgeline.kernels.elements import fill, numpy_dtype, on_device, to_torch
from ridgeline.runtime.example_integers import Known, draw_integers
from ridgeline.runtime.example_numbers import numbers_for
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.instance import empty
from ridgeline.runtime.non_tensor import draw_non_tensor
from ridgeline.runtime.weights import default_of

# draws floats of a shape
Floats: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
# what torch draws on the device itself; the rest is drawn by numpy and copied
_DRAWN_IN_PLACE = frozenset({"float64", "float32", "float16", "bfloat16"})


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def _tones(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A few sines with some noise along the last axis, as sound is."""
    places = np.arange(shape[-1] if shape else 1)
    tones = np.sin(2 * np.pi * places / np.array([[160], [73], [17]])).sum(0) / 6
    return np.broadcast_to(tones if shape else tones[0], shape) + 0.01 * rng.standard_normal(shape)


# floats for models that make nothing but NaN of normal ones: a root, a logarithm, a search for a pitch
OTHER_FLOATS: dict[str, Floats] = {
    "positive values": lambda rng, shape: np.abs(rng.standard_normal(shape)) + 0.01,
    "values from 0 to 1": lambda rng, shape: rng.uniform(0, 1, shape),
    "small values": lambda rng, shape: 0.01 * rng.standard_normal(shape),
    "sound": _tones,
    "values above 1": lambda rng, shape: 1 + 10 * rng.uniform(0, 1, shape),
}


def example_feeds(
    inference: Inference,
    shapes: Mapping[str, TensorSpec],
    *,
    seed: int,
    floats: Floats = normal,
) -> dict[str, Any]:
    """Random inputs at these shapes."""
    program, rng = inference.program, np.random.default_rng(seed)
    _require_memory(shapes, program.limits.planned_bytes)
    flat, _ = program.flat_ops(program.regions)
    ops = list(_all_ops(flat))
    has_integers = any(spec.dtype.startswith(("int", "uint")) for spec in shapes.values())
    inferred = inference.at(shapes) if has_integers else Inferred(dict(shapes))
    known = Known(ops, inferred.specs, inferred.values, list(shapes.values()))
    made: dict[str, Any] = {}
    for name in program.inputs:
        default = default_of(inference.weights, name)
        if name in program.loose_inputs:
            made[name] = draw_non_tensor(rng, program.loose_inputs[name])
        elif (
            default is not None
            and default.shape == shapes[name].shape
            and (seed == 0 or default.dtype.kind != "f")
        ):
            made[name] = default
        else:
            try:
                made[name] = _draw(rng, name, shapes[name], known, floats)
            except MemoryError as error:
                raise LimitError(
                    f"there is no memory for input {name!r} of {shapes[name]}",
                    limit="planned_bytes", allowed=program.limits.planned_bytes, got=shapes[name].nbytes,
                ) from error  # fmt: skip
    return made


def _require_memory(shapes: Mapping[str, TensorSpec], allowed: int) -> None:
    """Before they are drawn: an engine would refuse them, but they would fill the machine first."""
    total = sum(spec.nbytes for spec in shapes.values())
    if total > allowed:
        raise LimitError(
            f"inputs of {', '.join(f'{name}: {spec}' for name, spec in shapes.items())} need more memory than"
            " an engine may have",
            limit="planned_bytes", got=total, allowed=allowed,
        )  # fmt: skip


def site_inputs(site: Site, weights: Mapping[str, Tensor], *, device: str = "cpu") -> list[Tensor | None]:
    """What candidates of a site are timed and checked with: its weights, known values, and drawn ones."""
    rng = np.random.default_rng(0)
    generator = torch.Generator(device).manual_seed(0)
    known = Known(list(_all_ops(site.body.ops)), site.specs, {**site.body.constants, **site.values})
    made: list[Tensor | None] = []
    for name, spec in zip(site.body.inputs, site.inputs, strict=True):
        if spec is None:
            made.append(None)
        elif name in weights:
            made.append(weights[name])
        elif name in site.values:
            made.append(on_device(to_torch(site.values[name]), device))
        else:
            tensor = empty(spec, device)
            if spec.dtype in _DRAWN_IN_PLACE and numbers_for(name, spec, known.ops, site.specs) is None:
                tensor.normal_(generator=generator)
            else:
                drawn = _draw(rng, name, spec, known)
                fill(tensor, on_device(to_torch(drawn), device))
            made.append(tensor)
    return made


def _all_ops(ops: Iterable[Op]) -> Iterable[Op]:
    for op in ops:
        yield op
        for attr in op.attrs.values():
            if isinstance(attr, Body):
                yield from _all_ops(attr.ops)


def _draw(
    rng: np.random.Generator, name: str, spec: TensorSpec, known: Known, floats: Floats = normal
) -> Any:
    shape = spec.shape
    if spec.value is not None:
        return settled_value(spec)
    numbers = numbers_for(name, spec, known.ops, known.specs)
    if numbers is not None:
        return numbers
    if spec.dtype.startswith(("float", "bfloat")):
        return np.asarray(floats(rng, shape)).astype(numpy_dtype(spec.dtype))
    if spec.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if spec.dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(spec.dtype)
    drawn = draw_integers(rng, name, spec, known)
    return drawn.astype(numpy_dtype(spec.dtype))
