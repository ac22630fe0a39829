"""Checks of a whole `ModelSpec`, when inputs, outputs and batch are known."""

from __future__ import annotations

import numpy as np

from ridgeline.serve.config.text import Problems
from ridgeline.serve.config.warmup import check_warmups
from ridgeline.serve.spec import ModelSpec, TensorSpec


def check_sizes(spec: ModelSpec, problems: Problems) -> None:
    largest = spec.batching.max_batch
    too_large = [size for size in spec.batching.preferred if size > largest]
    if too_large:
        problems.add("dynamic_batching.preferred_batch_size", too_large, f"at most max_batch_size, {largest}")
    check_warmups(spec, problems)
    _check_padding(spec, problems)


def _check_padding(spec: ModelSpec, problems: Problems) -> None:
    named = {name for port in spec.inputs for name in port.names if name}
    for dim in spec.pad_dims:
        if dim not in named:
            known = ", ".join(sorted(named)) or "none has a name"
            problems.add("parameters 'pad_dims'", repr(dim), f"a dim of the inputs: {known}")
    for port in spec.inputs:
        if spec.padded_axes(port) and port.datatype == "BYTES":
            problems.add("parameters 'pad_dims'", f"input {port.name!r} of BYTES", "an input of numbers")
    for name, value in spec.pad_values.items():
        padded = spec.input(name)
        place = "parameters 'pad_values'"
        if padded is None or not spec.padded_axes(padded):
            problems.add(place, repr(name), "an input with a dim of pad_dims")
        elif not _holds(padded, value):
            problems.add(place, f"{name}={value:g}", f"a value of {padded.datatype}")


def _holds(port: TensorSpec, value: float) -> bool:
    """BF16 has the range of FP32."""
    if port.datatype == "BOOL":
        return value in (0, 1)
    if "INT" in port.datatype:
        limits = np.iinfo(port.datatype.lower())
        return value == int(value) and limits.min <= value <= limits.max
    kind = {"FP16": "float16", "FP64": "float64"}.get(port.datatype, "float32")
    return abs(value) <= float(np.finfo(kind).max)
