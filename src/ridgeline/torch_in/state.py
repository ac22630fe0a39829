"""Records what engines were built from, so that a call notices changed weights, parts or settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

MODULES, HOOKS = "_modules", ("_forward_hooks", "_forward_pre_hooks")
# where a module keeps what its forward uses besides its attributes
PLACES = ("_parameters", "_buffers", MODULES, *HOOKS)
# attributes that every module has; others are its own
INNER = vars(nn.Module()).keys()
# attributes that are the same if they are equal; of others, a new object is a change
PLAIN = (int, float, complex, str, bytes, tuple, frozenset, torch.dtype, torch.device, torch.Size)


class Weights:
    """Tensors as they were when engines were built from them: a write to one, or a swap, is noticed."""

    def __init__(self, places: Iterable[tuple[Mapping[str, Any], str]]) -> None:
        self._kept = [
            (place, name, t, *_state(t)) for place, name in places if isinstance(t := place[name], Tensor)
        ]

    def are_unchanged(self) -> bool:
        for place, name, tensor, address, version in self._kept:
            if place.get(name) is not tensor or _state(tensor) != (address, version):
                return False
        return True

    @staticmethod
    def of(module: nn.Module) -> Weights:
        """All parameters, buffers and tensors in attributes of a module, where its parts keep them."""
        places: list[Mapping[str, Any]] = []
        for part in module.modules():
            places += [part._parameters, part._buffers, vars(part)]
        return Weights((place, name) for place in places for name in place)


def _state(tensor: Tensor) -> tuple[int, int]:
    """Address and version of a tensor. Inference tensors have no version."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


class Structure:
    """A module's parts, hooks and attributes: which objects they were, not what is in them."""

    def __init__(self, module: nn.Module) -> None:
        parts = [vars(part) for part in module.modules()]
        self._places = [*parts, *(part[name] for part in parts for name in PLACES)]
        self._size = sum(map(len, self._places))
        self._filled = [part[name] for part in parts for name in (MODULES, *HOOKS) if part[name]]
        self._looks = [(part, itemgetter("training", MODULES, *(part.keys() - INNER))) for part in parts]
        self._kept = list(self._now())

    def is_unchanged(self) -> bool:
        """Called at every run, so the usual case is one comparison in C."""
        try:
            if sum(map(len, self._places)) != self._size:
                return False
            return all(map(is_, self._now(), self._kept)) or all(map(_is_same, self._now(), self._kept))
        except KeyError:
            return False

    def _now(self) -> Iterable[Any]:
        attributes = (look(part) for part, look in self._looks)
        return chain(chain.from_iterable(map(dict.values, self._filled)), chain.from_iterable(attributes))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, PLAIN) and telling(one) == telling(other))


def telling(value: Any) -> Any:
    """A key of a plain value: 1, 1.0 and True are three, 0.0 and -0.0 are two, and nan is one."""
    return type(value), repr(value) if isinstance(value, (float, complex, tuple)) else value


def surroundings() -> tuple[Any, ...]:
    """What PyTorch computes by besides the call itself: autocast, and the type of new tensors."""
    cast = tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    )
    return (*cast, torch.get_default_dtype())
