"""Inputs that fit no profile, run at the shapes of a larger one: last rows repeated, results cut again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.spec import TensorSpec
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.io import AnyBinding
from ridgeline.runtime.profiles import Profiles

Cut: TypeAlias = tuple[int, int]  # axis, real size
Specs: TypeAlias = Mapping[str, TensorSpec]
# real and padded inputs -> where each output is cut; raises `NotPaddable`
FindCuts: TypeAlias = Callable[[Inference, Specs, Specs], dict[str, Cut | None]]


class NotPaddable(Exception):
    """Padding would change results; the message names the op that mixes rows."""


def pad_to_profile(
    profiles: Profiles, find_cuts: FindCuts, specs: Mapping[str, TensorSpec]
) -> tuple[dict[str, TensorSpec], dict[str, Cut | None]]:
    """The smallest larger shapes that some profile takes, and where each output is cut; or the refusal."""
    signature = profiles.signature
    larger = [made for bounds in signature.bounds if (made := bounds.padded(specs)) is not None]
    larger = [made for made in larger if signature.find(made) is not None and not signature.broken(made)]
    if not larger:
        raise signature.misfit(specs, "no profile has room for them")
    chosen = min(larger, key=lambda made: sum(math.prod(spec.shape) for spec in made.values()))
    try:
        return chosen, find_cuts(profiles.inference, specs, chosen)
    except NotPaddable as error:
        raise signature.misfit(specs, str(error)) from error


class PaddedBinding:
    """Between a caller with small inputs and an instance at the shapes of a profile."""

    def __init__(
        self,
        inner: AnyBinding,
        specs: Mapping[str, TensorSpec],
        larger: Mapping[str, TensorSpec],
        cuts: Mapping[str, Cut | None],
    ) -> None:
        self._inner, self._cuts = inner, dict(cuts)
        self._specs = dict(specs)
        self._pads = {name: _pad_of(specs[name].shape, larger[name].shape) for name in specs}

    @property
    def instance(self) -> Instance:
        return self._inner.instance

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        if feeds.__class__ is not dict or len(feeds) != len(self._specs):
            return None
        for name, spec in self._specs.items():
            array = feeds.get(name)
            if array.__class__ not in (np.ndarray, Tensor) or array.shape != spec.shape:
                return None
        padded = {name: _repeated(feeds[name], pad) for name, pad in self._pads.items()}
        made = self._inner.run(padded)
        return None if made is None else {name: _cut(made[name], self._cuts[name]) for name in made}

    def load(self, arrays: Sequence[Any]) -> None:
        padded = [_repeated(array, pad) for array, pad in zip(arrays, self._pads.values(), strict=True)]
        self._inner.load(padded)


def _pad_of(real: Sequence[int], padded: Sequence[int]) -> Cut | None:
    """The axis to pad, and by how many rows."""
    changed = [(axis, b - a) for axis, (a, b) in enumerate(zip(real, padded, strict=True)) if a != b]
    return changed[0] if changed else None


def _repeated(array: Any, pad: Cut | None) -> Any:
    """With its last row repeated: a padded row is then a real one, and goes wherever that goes."""
    if pad is None:
        return array
    axis, more = pad
    if isinstance(array, Tensor):
        last = array.narrow(axis, array.shape[axis] - 1, 1)
        return torch.cat([array, last.expand(*array.shape[:axis], more, *array.shape[axis + 1 :])], axis)
    last = array[(slice(None),) * axis + (slice(-1, None),)]
    return np.concatenate([array, np.repeat(last, more, axis)], axis)


def _cut(result: Any, cut: Cut | None) -> Any:
    if cut is None:
        return result
    axis, size = cut
    kept = result[(slice(None),) * axis + (slice(0, size),)]
    return kept.contiguous() if isinstance(kept, Tensor) else np.ascontiguousarray(kept)
