"""Calls and results of PyTorch modules taken apart into tensors, and put together again.

PyTorch's own trees know tuples, dicts and the types a library registered (Hugging Face's outputs). An object
that merely holds tensors in its attributes, such as a key-value cache, is opened here as well.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

# attributes of objects in attributes of objects: deeper than that, it is not a container of tensors
MAX_DEPTH = 4


@dataclass(frozen=True)
class Tree:
    """How leaves make a value. `opened` says for each leaf of `spec` which object it really is, if any."""

    spec: Any
    opened: tuple[tuple[type, Tree] | None, ...]


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """The leaves of a value in order, and how they make it."""
    found, spec = pytree.tree_flatten(value)
    leaves: list[Any] = []
    opened: list[tuple[type, Tree] | None] = []
    for leaf in found:
        if not holds_tensors(leaf):
            leaves.append(leaf)
            opened.append(None)
            continue
        inner, tree = flatten(dict(vars(leaf)))
        leaves += inner
        opened.append((type(leaf), tree))
    return leaves, Tree(spec, tuple(opened))


def unflatten(leaves: Iterable[Any], tree: Tree) -> Any:
    """The value that these leaves make."""
    left, made = iter(leaves), []
    for entry in tree.opened:
        if entry is None:
            made.append(next(left))
            continue
        kind, inner = entry
        whole: Any = object.__new__(kind)
        vars(whole).update(unflatten(left, inner))
        made.append(whole)
    return pytree.tree_unflatten(made, tree.spec)


def holds_tensors(value: Any, depth: int = 0) -> bool:
    """Is this an object that PyTorch's trees do not know, with tensors somewhere in its attributes?"""
    plain = (Tensor, nn.Module, type, str, int, float, complex, bytes, enum.Enum, torch.dtype, torch.device)
    if value is None or isinstance(value, plain) or depth > MAX_DEPTH:
        return False
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict) or callable(value):
        return False
    inside, _ = pytree.tree_flatten(attributes)
    return any(isinstance(leaf, Tensor) or holds_tensors(leaf, depth + 1) for leaf in inside)


def leaf_names(value: Any, prefix: str) -> list[str]:
    """A name for each leaf: keys, fields and positions, joined by underscores."""
    leaves, _ = flatten(value)
    names = list(_names(value, prefix))
    if len(names) != len(leaves):  # a registered type whose parts have no keys
        names = [f"{prefix}_{i}" if prefix else str(i) for i in range(len(leaves))]
    return names


def _names(value: Any, prefix: str) -> Iterator[str]:
    children = _children(value)
    if children is None:
        yield prefix
        return
    for key, child in children:
        yield from _names(child, f"{prefix}_{key}" if prefix else key)


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """Named parts of a container; None for a leaf."""
    if isinstance(value, Mapping):
        return [(str(key), child) for key, child in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (tuple, list)):
        return [(str(i), child) for i, child in enumerate(value)]
    if is_dataclass(value) and type(value) in pytree.SUPPORTED_NODES:
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return list(vars(value).items()) if holds_tensors(value) else None
