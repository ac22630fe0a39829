"""Weights as a safetensors file: written aligned, and read back as tensors over the bytes themselves."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.typed_json import parse_json, read_as
from ridgeline.kernels.elements import BIT_WIDTHS, TORCH_DTYPES, bits, dtype_name, packed, unpacked

ALIGNMENT = 64
SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
FROM_SAFETENSORS = {short: getattr(torch, name) for name, short in SAFETENSORS.items()}
# safetensors has no name for the other types: their bytes are stored, and what they are is said beside them
OTHER_TYPES = "__metadata__"


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes as ONNX stores them: several values to a byte where they are that narrow."""
    if not tensor.nbytes:
        return memoryview(b"")
    flat = bits(tensor).contiguous().reshape(-1).view(torch.uint8).numpy()
    return packed(flat, BIT_WIDTHS.get(dtype_name(tensor), 8)).data


def stored_bytes(tensor: Tensor) -> int:
    return math.ceil(tensor.nbytes * BIT_WIDTHS.get(dtype_name(tensor), 8) / 8)


def weights_header(weights: Mapping[str, Tensor]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The safetensors header, padded so that data starts aligned, and each tensor's place in the file."""
    entries: dict[str, Any] = {}
    others = {}
    end = 0
    for name, tensor in weights.items():
        begin = math.ceil(end / ALIGNMENT) * ALIGNMENT
        end = begin + stored_bytes(tensor)
        short, shape = SAFETENSORS.get(dtype_name(tensor)), list(tensor.shape)
        if short is None:
            others[name] = json.dumps([dtype_name(tensor), shape])
            short, shape = "U8", [end - begin]
        entries[name] = {"dtype": short, "shape": shape, "data_offsets": [begin, end]}
    header = {OTHER_TYPES: others, **entries} if others else entries
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    start = 8 + len(text)
    places = {n: (start + e["data_offsets"][0], start + e["data_offsets"][1]) for n, e in entries.items()}
    return struct.pack("<Q", len(text)) + text, places


def weight_chunks(weights: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    header, places = weights_header(weights)
    yield header
    at = len(header)
    for name, tensor in weights.items():
        begin, end = places[name]
        yield b"\0" * (begin - at)
        yield raw_bytes(tensor)
        at = end


def read_weights(view: memoryview) -> dict[str, Tensor]:
    """Tensors over the member's own bytes. The header must be the one that writing these tensors makes."""
    (length,) = struct.unpack_from("<Q", view)
    if length > len(view) - 8:
        raise ValueError(f"a header of {length:,} bytes in {len(view):,}")
    entries = parse_json(view[8 : 8 + length])
    others = read_as(dict[str, str], entries.pop(OTHER_TYPES, {}))
    data = torch.frombuffer(view, dtype=torch.uint8)[8 + length :]
    if data.data_ptr() % ALIGNMENT:
        data = data.clone()
    weights: dict[str, Tensor] = {}
    for name, raw in entries.items():
        entry = read_as(_Entry, raw)
        begin, end = entry.data_offsets
        dtype = FROM_SAFETENSORS[entry.dtype]
        if end - begin != math.prod(entry.shape) * dtype.itemsize or not 0 <= begin <= end <= len(data):
            raise ValueError(f"weight {name!r} does not fill its place")
        weights[name] = data[begin:end].view(dtype).view(entry.shape)
        if dtype is torch.bool and bool((data[begin:end] > 1).any()):
            raise ValueError(f"weight {name!r} holds booleans that are neither 0 nor 1")
    weights |= {name: _of_type(weights[name], *parse_json(t)) for name, t in others.items()}
    if weights_header(weights)[0] != bytes(view[: 8 + length]):
        raise ValueError("weights that overlap, or do not lie one after the other")
    return weights


@dataclass(frozen=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _of_type(stored: Tensor, name: str, shape: Sequence[int]) -> Tensor:
    """Bytes under the type that safetensors cannot say."""
    width, dtype = BIT_WIDTHS.get(name, 8), TORCH_DTYPES[name]
    if stored.nbytes != math.ceil(math.prod(shape) * dtype.itemsize * width / 8):
        raise ValueError(f"{stored.nbytes:,} bytes for {name}{list(shape)}")
    if width == 8:
        return stored.view(dtype).view(shape)
    flat = unpacked(stored.numpy(), width, math.prod(shape))
    return torch.from_numpy(flat).view(dtype).view(shape)
