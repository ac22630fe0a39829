"""Requests that every instance answers before its model is ready: the configured ones, and full batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np

from ridgeline.serve.batching.admission import inward
from ridgeline.serve.config.warmup import warmup_file
from ridgeline.serve.datatypes import DATATYPES, LENGTH_BYTES, nbytes_of
from ridgeline.serve.hosts.hosting import (
    BatchError,
    BatchResult,
    Instance,
    Joined,
    LoadError,
    WorkerLostError,
)
from ridgeline.serve.spec import ModelSpec, WarmUp, WarmUpInput

SEED = 0


def warm_ups(
    spec: ModelSpec, folder: Path | None, planned: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, list[Joined], int]]:
    """Name, inputs and how often, of every request to warm up with. `LoadError` where one cannot be made."""
    for each in spec.warmups:
        yield each.name, [_configured(spec, each, tensor, folder) for tensor in each.inputs], each.count
    if not spec.warmups and not any(-1 in port.dims and not planned[port.name] for port in spec.inputs):
        for size in _batch_sizes(spec):
            yield f"batch of {size}", _zeros(spec, size, planned), 1


def _batch_sizes(spec: ModelSpec) -> list[int]:
    """1, 2, 4, … and the largest: the first call at a size plans for it, which no client should wait for."""
    if not spec.has_batch:
        return [1]
    doubling = [2**i for i in range(spec.max_batch_size.bit_length()) if 2**i < spec.max_batch_size]
    return [*doubling, spec.max_batch_size]


def _zeros(spec: ModelSpec, size: int, planned: Mapping[str, Sequence[int]]) -> list[Joined]:
    """Open dims as the engine was planned. Zeros are indices into every table, and empty strings."""
    first = 1 if spec.has_batch else 0
    joined = []
    for port in spec.inputs:
        if port.is_optional:
            continue
        dims = port.dims if port.reshape is None else port.reshape
        if -1 in dims:
            planned_dims = planned[port.name][first:]
            dims = tuple(got if want == -1 else want for want, got in zip(dims, planned_dims, strict=True))
        shape = (size, *dims) if spec.has_batch else dims
        nbytes = nbytes_of(DATATYPES[port.datatype], shape)
        data = bytes(LENGTH_BYTES * prod(shape) if nbytes is None else nbytes)
        joined.append(Joined(port.name, port.datatype, shape, [data]))
    return joined


def _configured(spec: ModelSpec, warm_up: WarmUp, tensor: WarmUpInput, folder: Path | None) -> Joined:
    """Every row of the batch has the same values, as every request of it would."""
    row = DATATYPES[tensor.datatype]
    elements = prod(tensor.dims)
    if tensor.source == "file":
        if folder is None:
            raise LoadError(f"warm-up {warm_up.name!r} reads a file, and the model has no folder")
        try:
            data = warmup_file(folder, tensor)
        except (OSError, ValueError) as error:
            raise LoadError(f"warm-up {warm_up.name!r}, input {tensor.name!r}: {error}") from error
    elif tensor.source == "random" and row.numpy is not None and row.numpy.kind == "f":
        data = np.random.default_rng(SEED).random(elements).astype(row.numpy).tobytes()
    else:
        data = bytes(elements * (row.itemsize or LENGTH_BYTES))
    port = spec.input(tensor.name)
    dims = tensor.dims if port is None else inward(port, tensor.dims)
    if not spec.has_batch:
        return Joined(tensor.name, tensor.datatype, dims, [data])
    size = warm_up.batch_size
    return Joined(tensor.name, tensor.datatype, (size, *dims), [data] * size)


async def run_on(
    instance: Instance, inputs: Sequence[Joined], outputs: Sequence[str], *, may_refuse: bool = False
) -> None:
    """One batch, straight on an instance; `LoadError` if it fails. `may_refuse`: but not for its values."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BatchResult | BatchError] = loop.create_future()
    instance.run(inputs, outputs, ended.set_result)
    result = await ended
    if isinstance(result, BatchError):
        if may_refuse and result.is_input:
            return
        kind = WorkerLostError if result.is_lost else LoadError
        raise kind(f"warm-up failed: {result}") from result
    result.release()
