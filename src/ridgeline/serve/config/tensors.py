"""Inputs and outputs of a configuration, with the labels of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from ridgeline.serve.config.files import contained, read_text
from ridgeline.serve.config.text import Problems
from ridgeline.serve.datatypes import BY_CONFIG
from ridgeline.serve.protocol.messages import DataType
from ridgeline.serve.spec import TensorSpec

LARGEST_LABELS = 2**20
MOST_DIMS = 64


def datatype_of(number: int) -> str:
    """The protocol's name; "" where none is told, or where no such type exists."""
    value = DataType.values_by_number.get(number)
    row = BY_CONFIG.get(value.name) if value is not None else None
    return row.name if row is not None else ""


def read_tensors(
    kind: str, given: Sequence[Any], folder: Path | None, problems: Problems
) -> list[TensorSpec]:
    """`kind` is input or output. Types and dims that are not told are "" and ()."""
    problems.twice(kind, [each.name for each in given if each.name])
    tensors = []
    for at, each in enumerate(given):
        place = f"{kind} {each.name!r}" if each.name else f"{kind}[{at}]"
        if not each.name:
            problems.add(f"{place}.name", "none", "the name of a tensor")
        dims = check_dims(f"{place}.dims", each.dims, problems, least=1)
        reshape = None
        if each.HasField("reshape"):
            reshape = check_dims(f"{place}.reshape", each.reshape.shape, problems, least=1)
            _check_reshape(place, dims, reshape, problems)
        is_output = kind == "output"
        label_file = each.label_filename if is_output else ""
        tensors.append(
            TensorSpec(
                each.name, datatype_of(each.data_type), dims, reshape=reshape,
                is_optional=not is_output and each.optional,
                labels=_labels(place, label_file, folder, problems), label_file=label_file,
            )
        )  # fmt: skip
    return tensors


def check_dims(place: str, given: Sequence[int], problems: Problems, *, least: int) -> tuple[int, ...]:
    """Sizes of `least` and more; -1 too, unless `least` is 0."""
    dims = tuple(given)
    wrong = [dim for dim in dims if dim < least and not (dim == -1 and least == 1)]
    if wrong:
        problems.add(
            place, list(dims), f"sizes of {least} or more" + (", or -1 for any" if least == 1 else "")
        )
    if len(dims) > MOST_DIMS:
        problems.add(place, f"{len(dims)} dims", f"at most {MOST_DIMS}")
    return dims


def _check_reshape(place: str, dims: tuple[int, ...], reshape: tuple[int, ...], problems: Problems) -> None:
    """Elements stay as many: products are equal between dims of any size, and as many such dims there are."""
    if _products(dims) != _products(reshape):
        problems.add(f"{place}.reshape", list(reshape), f"as many elements as dims {list(dims)}")


def _products(dims: tuple[int, ...]) -> list[int]:
    parts: list[list[int]] = [[]]
    for dim in dims:
        if dim == -1:
            parts.append([])
        else:
            parts[-1].append(dim)
    return [prod(part) for part in parts]


def _labels(place: str, name: str, folder: Path | None, problems: Problems) -> tuple[str, ...]:
    if not name:
        return ()
    if folder is None:
        problems.add(f"{place}.label_filename", name, "a model with a folder")
        return ()
    try:
        return tuple(read_text(contained(folder, name), LARGEST_LABELS).splitlines())
    except ValueError as error:
        problems.add(f"{place}.label_filename", str(error), "a text file in the model's folder")
        return ()
