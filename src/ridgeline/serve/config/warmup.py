"""Warm-ups of a configuration, and the files in `warmup/` that they read."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from ridgeline.serve.config.files import contained, read_bytes
from ridgeline.serve.config.tensors import check_dims, datatype_of
from ridgeline.serve.config.text import Problems
from ridgeline.serve.datatypes import DATATYPES, LENGTH_BYTES, nbytes_of, split_bytes
from ridgeline.serve.spec import ModelSpec, TensorSpec, WarmUp, WarmUpInput

FOLDER = "warmup"
MOST_RUNS = 1000
LARGEST_WARMUP = 2**30  # bytes of one input, whole
_SOURCES = {"zero_data": "zero", "random_data": "random", "input_data_file": "file"}


def read_warmups(given: Sequence[Any], folder: Path | None, problems: Problems) -> tuple[WarmUp, ...]:
    problems.twice("model_warmup", [each.name for each in given if each.name])
    warmups = []
    for at, each in enumerate(given):
        place = f"model_warmup {each.name!r}" if each.name else f"model_warmup[{at}]"
        if each.batch_size < 1:
            problems.add(f"{place}.batch_size", each.batch_size, "1 or more")
        if each.count > MOST_RUNS:
            problems.add(f"{place}.count", each.count, f"at most {MOST_RUNS}")
        inputs = tuple(
            _read_input(f"{place} input {name!r}", name, each.inputs[name], each.batch_size, folder, problems)
            for name in sorted(each.inputs)
        )
        warmups.append(WarmUp(each.name, each.batch_size, each.count or 1, inputs))
    return tuple(warmups)


def _read_input(
    place: str, name: str, given: Any, batch_size: int, folder: Path | None, problems: Problems
) -> WarmUpInput:
    dims = check_dims(f"{place}.dims", given.dims, problems, least=0)
    datatype = datatype_of(given.data_type)
    if not datatype:
        problems.add(f"{place}.data_type", "none", "the type of the model's input")
    source = _SOURCES.get(given.WhichOneof("input_data_type"), "")
    if not source:
        problems.add(place, "no data", " or ".join(_SOURCES))
    made = WarmUpInput(name, datatype, dims, source or "zero", given.input_data_file)  # type: ignore[arg-type]
    if not datatype or any(dim < 0 for dim in dims):
        return made  # told above; no file has so many bytes
    itemsize = DATATYPES[datatype].itemsize or LENGTH_BYTES
    if prod(dims) * itemsize * max(1, batch_size) > LARGEST_WARMUP:
        problems.add(f"{place}.dims", list(dims), f"at most {LARGEST_WARMUP:,} bytes with the whole batch")
    elif source == "file":
        _check_file(place, made, folder, problems)
    return made


def warmup_file(folder: Path, tensor: WarmUpInput) -> bytes:
    """One row's bytes of an input whose source is a file; `ValueError` where they are not that."""
    kind = DATATYPES[tensor.datatype]
    want = nbytes_of(kind, tensor.dims)
    data = read_bytes(contained(folder, f"{FOLDER}/{tensor.file}"), LARGEST_WARMUP if want is None else want)
    if want is None:
        split_bytes(memoryview(data), prod(tensor.dims))
    elif len(data) != want:
        raise ValueError(f"{tensor.file!r} has {len(data):,} bytes, not {want:,}")
    return data


def _check_file(place: str, tensor: WarmUpInput, folder: Path | None, problems: Problems) -> None:
    if folder is None:
        problems.add(f"{place}.input_data_file", tensor.file, "a model with a folder")
        return
    try:
        warmup_file(folder, tensor)
    except ValueError as error:
        problems.add(
            f"{place}.input_data_file",
            str(error),
            f"a file in {FOLDER}/ with the bytes of {tensor.datatype} {list(tensor.dims)}",
        )


def check_warmups(spec: ModelSpec, problems: Problems) -> None:
    """Against the model's own inputs and batch, once they are known."""
    largest = max(1, spec.max_batch_size)
    for warmup in spec.warmups:
        place = f"model_warmup {warmup.name!r}"
        if warmup.batch_size > largest:
            problems.add(f"{place}.batch_size", warmup.batch_size, f"at most {largest}")
        given = {each.name for each in warmup.inputs}
        for port in spec.inputs:
            if port.name not in given and not port.is_optional:
                problems.add(f"{place}.inputs", f"none for {port.name!r}", "every input of the model")
        for each in warmup.inputs:
            wanted = spec.input(each.name)
            if wanted is None:
                names = ", ".join(port.name for port in spec.inputs)
                problems.add(f"{place}.inputs", repr(each.name), f"an input of the model: {names}")
            elif each.datatype != wanted.datatype or not _fits(each.dims, wanted):
                problems.add(
                    f"{place} input {each.name!r}",
                    f"{each.datatype} {list(each.dims)}",
                    f"{wanted.datatype} {list(wanted.dims)}",
                )


def _fits(dims: tuple[int, ...], port: TensorSpec) -> bool:
    return len(dims) == len(port.dims) and all(
        want in (-1, got) for got, want in zip(dims, port.dims, strict=True)
    )
