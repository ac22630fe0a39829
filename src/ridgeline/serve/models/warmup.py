"""Requests that every instance answers before its model is ready: the configured ones, and full batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import numpy as np

from ridgeline.serve.config.files import contained, read_bytes
from ridgeline.serve.datatypes import DATATYPES, nbytes_of
from ridgeline.serve.hosts.hosting import BatchError, BatchResult, Instance, Joined, LoadError
from ridgeline.serve.spec import ModelSpec, WarmUp, WarmUpInput

LARGEST_FILE = 1 << 30
SEED = 0


def warm_ups(spec: ModelSpec, folder: Path | None) -> Iterator[tuple[str, list[Joined], int]]:
    """Name, inputs and how often, of every request to warm up with. `LoadError` where one cannot be made."""
    for each in spec.warmups:
        yield each.name, [_configured(each, tensor, folder) for tensor in each.inputs], each.count
    if not spec.warmups and not any(-1 in port.dims for port in spec.inputs):
        for size in _batch_sizes(spec):
            yield f"batch of {size}", _zeros(spec, size), 1


def _batch_sizes(spec: ModelSpec) -> list[int]:
    """1, 2, 4, … and the largest: the first call at a size plans for it, which no client should wait for."""
    if not spec.has_batch:
        return [1]
    doubling = [2**i for i in range(spec.max_batch_size.bit_length()) if 2**i < spec.max_batch_size]
    return [*doubling, spec.max_batch_size]


def _zeros(spec: ModelSpec, size: int) -> list[Joined]:
    """Zeros are indices into every table, and empty strings."""
    joined = []
    for port in spec.inputs:
        if port.is_optional:
            continue
        dims = port.dims if port.reshape is None else port.reshape
        shape = (size, *dims) if spec.has_batch else dims
        nbytes = nbytes_of(DATATYPES[port.datatype], shape)
        joined.append(
            Joined(port.name, port.datatype, shape, [bytes(4 * prod(shape) if nbytes is None else nbytes)])
        )
    return joined


def _configured(warm_up: WarmUp, tensor: WarmUpInput, folder: Path | None) -> Joined:
    shape = (warm_up.batch_size, *tensor.dims) if warm_up.batch_size else tensor.dims
    row = DATATYPES[tensor.datatype]
    nbytes = nbytes_of(row, shape)
    if tensor.source == "file":
        if folder is None:
            raise LoadError(f"warm-up {warm_up.name!r} reads a file, and the model has no folder")
        try:
            data = read_bytes(contained(folder, f"warmup/{tensor.file}"), LARGEST_FILE)
        except (OSError, ValueError) as error:
            raise LoadError(f"warm-up {warm_up.name!r}, input {tensor.name!r}: {error}") from error
        if nbytes is not None and len(data) != nbytes:
            raise LoadError(
                f"warm-up {warm_up.name!r}, input {tensor.name!r}: {tensor.file!r} has {len(data)} bytes,"
                f" want {nbytes}"
            )
    elif nbytes is None:
        data = bytes(4 * prod(shape))
    elif tensor.source == "random" and row.numpy is not None and row.numpy.kind == "f":
        data = np.random.default_rng(SEED).random(shape).astype(row.numpy).tobytes()
    else:
        data = bytes(nbytes)
    return Joined(tensor.name, tensor.datatype, shape, [data])


async def run_on(instance: Instance, inputs: Sequence[Joined], outputs: Sequence[str]) -> None:
    """One batch, straight on an instance; `LoadError` if it fails."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BatchResult | BatchError] = loop.create_future()
    instance.run(inputs, outputs, ended.set_result)
    result = await ended
    if isinstance(result, BatchError):
        raise LoadError(f"warm-up failed: {result}") from result
    result.release()
