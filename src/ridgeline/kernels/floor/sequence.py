"""Sequences and optionals: lists of tensors (or of strings), and values that may be absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.elements import cloned
from ridgeline.kernels.floor.registry import floor
from ridgeline.kernels.values import Items


def _kept(value: Any) -> Any:
    """What a sequence holds outlives the memory it was made in."""
    return cloned(value) if isinstance(value, Tensor) else value


def _place(sequence: Items, position: Tensor | None, *, last: int) -> int:
    """Where `position` points, counted from the end if negative; `last` is the largest place there is."""
    if position is None:
        return last
    place = int(position.reshape(-1)[0])
    if not -len(sequence) <= place <= last:
        raise InputError(f"position {place} lies outside a sequence of {len(sequence)}")
    return place


@floor("SequenceEmpty", takes_strings=True)
def sequence_empty(*, dtype: int = 1) -> Items:
    return Items()


@floor("SequenceConstruct", takes_strings=True)
def sequence_construct(*items: Any) -> Items:
    return Items(map(_kept, items))


@floor("SequenceInsert", takes_strings=True)
def sequence_insert(sequence: Items, item: Any, position: Tensor | None = None) -> Items:
    made = Items(sequence)
    made.insert(_place(sequence, position, last=len(sequence)), _kept(item))
    return made


@floor("SequenceErase", takes_strings=True)
def sequence_erase(sequence: Items, position: Tensor | None = None) -> Items:
    made = Items(sequence)
    del made[_place(sequence, position, last=len(sequence) - 1)]
    return made


@floor("SequenceAt", takes_strings=True)
def sequence_at(sequence: Items, position: Tensor) -> Any:
    # a copy: an item may be asked for twice, and each result is the caller's own
    return _kept(sequence[_place(sequence, position, last=len(sequence) - 1)])


@floor("SequenceLength", takes_strings=True)
def sequence_length(sequence: Items) -> Tensor:
    return torch.tensor(len(sequence))


@floor("SplitToSequence")
def split_to_sequence(x: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1) -> Items:
    if split is None:
        parts: Sequence[Tensor] = torch.split(x, 1, axis) if keepdims else x.unbind(axis)
    else:
        parts = torch.split(x, int(split) if split.ndim == 0 else split.tolist(), axis)
    return Items(map(cloned, parts))


@floor("ConcatFromSequence", takes_strings=True)
def concat_from_sequence(sequence: Items, *, axis: int, new_axis: int = 0) -> Any:
    if sequence and isinstance(sequence[0], np.ndarray):
        return np.stack(sequence, axis) if new_axis else np.concatenate(sequence, axis)
    return torch.stack(sequence, axis) if new_axis else torch.cat(sequence, axis)


@floor("Optional", takes_strings=True)
def optional(value: Any = None, *, type: Any = None) -> Any:
    return _kept(value)


@floor("OptionalGetElement", takes_strings=True)
def optional_get_element(value: Any) -> Any:
    if value is None:
        raise InputError("OptionalGetElement was given an optional that is empty")
    return value


@floor("OptionalHasElement", takes_strings=True)
def optional_has_element(value: Any = None) -> Tensor:
    return torch.tensor(value is not None)
