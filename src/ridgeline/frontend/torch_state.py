"""Python values that a module keeps between calls. A module whose calls change them is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ridgeline.errors import UnsupportedError

Values = Mapping[str, Any]  # attribute -> what it holds, in a form that compares by content
# attributes that every module has; others are its own
INNER = vars(nn.Module()).keys()
SCALARS = (
    int, float, complex, str, bytes, bytearray, type(None), torch.dtype, torch.device,
    torch.SymInt, torch.SymFloat, torch.SymBool, np.generic,
)  # fmt: skip
# of a module that holds more objects than this, the others are compared by identity
MANY_OBJECTS = 100_000


def own_values(module: nn.Module, *, is_traced: bool = False) -> Values:
    """What the attributes of a module and of its parts hold, down to the fields of objects in them.

    Weights and buffers are left out: the export itself tells which of them a call changes. While a module is
    traced its tensors have no values, and another tensor is a change.
    """
    seen: dict[int, int] = {}
    return {
        f"{name}.{key}" if name else key: _content(value, seen, is_traced)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if key not in INNER
    }


def changed(before: Values, after: Values) -> list[str]:
    """The attributes that are new, gone, or hold something else."""
    names = dict.fromkeys((*before, *after))
    return [name for name in names if name not in before or before[name] != after.get(name)]


def lasting(module: nn.Module, call: Callable[[], Any]) -> Any:
    """The result of a call that may change attributes of the module once, as caches are filled.

    Refused where a second call gives another result, or changes attributes again: a third one could differ.
    """
    first = own_values(module)
    result = call()
    second = own_values(module)
    names = changed(first, second)
    if not names:
        return result
    made = _content(result, {}, False)
    is_same = made == _content(call(), {}, False)
    moving = changed(second, own_values(module))
    if moving or not is_same:
        raise UnsupportedError(
            "the module's forward changes attributes of the module, and an engine changes nothing",
            rows=moving or names,
            got="another result when it is called again" if not is_same else "another value at each call",
            help="take such state as inputs and return it as outputs; of a counter, count outside forward",
        )
    return result


@dataclass(frozen=True, eq=False)
class _Held:
    """A tensor, the same if it was neither replaced nor written, or if its values are equal."""

    tensor: Tensor
    version: int
    is_traced: bool

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Held):
            return False
        one, two = self.tensor, other.tensor
        if one is two:
            return self.version == other.version
        if self.is_traced or (one.dtype, one.shape, one.device) != (two.dtype, two.shape, two.device):
            return False
        try:
            return torch.equal(one, two) or torch.allclose(one, two, rtol=0, atol=0, equal_nan=True)
        except RuntimeError:  # of a kind that PyTorch does not compare
            return False


def _content(value: Any, seen: dict[int, int], is_traced: bool) -> Any:
    if isinstance(value, Tensor):
        return _Held(value, 0 if value.is_inference() else value._version, is_traced)
    if isinstance(value, SCALARS):
        return type(value), repr(value)
    if id(value) in seen:
        return "as before", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        parts = [*value]
    elif isinstance(value, np.ndarray):
        return type(value), value.dtype, value.shape, value.tobytes()
    else:
        fields = getattr(value, "__dict__", None)
        if not isinstance(fields, dict) or isinstance(value, (type, ModuleType)) or len(seen) > MANY_OBJECTS:
            return id(value), value  # kept: an id is one object's only while that lives
        parts = [*fields.keys(), *fields.values()]
    return type(value), tuple([_content(part, seen, is_traced) for part in parts])
