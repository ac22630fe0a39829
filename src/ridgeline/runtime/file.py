"""The engine file: a zip of plan, weights, fused graph, report and compiled kernels, each with its hash.

No pickle, ever. Kernels are code: they are read here and used only where the file is trusted.
Members are stored, not compressed, and weights start on 64 bytes, so loading maps them instead of reading.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import platform
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from ridgeline.errors import OptionError, PlanError
from ridgeline.frontend.types import ONNX_TYPES, to_ir, to_proto
from ridgeline.kernels.elements import BIT_WIDTHS, TORCH_DTYPES, bits, dtype_name, packed, unpacked
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Report
from ridgeline.runtime.seal import is_sealed_here, make_seal

FORMAT = 1
WEIGHTS = "weights.safetensors"
MEMBERS = ("plan.json", "report.json", "fused.onnx", WEIGHTS)
EXPECTED = "expected.safetensors"  # inputs and outputs to check the first run with
KERNEL = re.compile(r"kernels/([0-9a-f]{40})\.kernel")
# what zipfile, json, protobuf and our own readers raise on a damaged file
DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, DecodeError, OSError, EOFError, KeyError, IndexError,
    ValueError, TypeError, AttributeError, RuntimeError, NotImplementedError, RecursionError,
)  # fmt: skip
ALIGNMENT = 64
INLINE_BYTES = 1024
SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
FROM_SAFETENSORS = {short: getattr(torch, name) for name, short in SAFETENSORS.items()}
# safetensors has no name for the other types: their bytes are stored, and what they are is said beside them
OTHER_TYPES = "__metadata__"


@dataclass(frozen=True)
class Stored:
    """What an engine file holds."""

    plan: Plan
    report: Report
    model: ir.Model
    weights: Mapping[str, Tensor]
    kernels: Mapping[str, Compiled] = field(default_factory=dict)  # by digest
    expected: Mapping[str, Tensor] = field(default_factory=dict)
    is_sealed: bool = False  # its kernels were written by this user on this machine


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


def _weight_chunks(weights: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    header, places = weights_header(weights)
    yield header
    at = len(header)
    for name, tensor in weights.items():
        begin, end = places[name]
        yield b"\0" * (begin - at)
        yield raw_bytes(tensor)
        at = end


def fused_proto(model: ir.Model, weights: Mapping[str, Tensor]) -> onnx.ModelProto:
    """The fused graph as ONNX, its weights pointing into the safetensors file beside it."""
    _, places = weights_header(weights)
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    for value in model.graph.initializers.values():
        value.const_value = None
    try:
        kept = dict(model.graph.initializers)
        for name in kept:
            del model.graph.initializers[name]
        proto = to_proto(model)
    finally:
        for name, value in kept.items():
            value.const_value = tensors[name]
            model.graph.initializers[name] = value
    for name, tensor in weights.items():
        entry = proto.graph.initializer.add(
            name=name, data_type=ONNX_TYPES[dtype_name(tensor)], dims=list(tensor.shape)
        )
        if stored_bytes(tensor) <= INLINE_BYTES:
            # shape inference reads axes and shapes, and does not follow them into another file
            entry.raw_data = raw_bytes(tensor).tobytes()
            continue
        entry.data_location = onnx.TensorProto.EXTERNAL
        begin, end = places[name]
        for key, text in (("location", WEIGHTS), ("offset", str(begin)), ("length", str(end - begin))):
            entry.external_data.add(key=key, value=text)
    return proto


def write_inside(entry: onnx.TensorProto, tensor: Tensor) -> None:
    """Put a weight's bytes into the graph itself instead of beside it."""
    entry.ClearField("external_data")
    entry.data_location = onnx.TensorProto.DEFAULT
    entry.raw_data = raw_bytes(tensor).tobytes()


def write_engine(path: Path, stored: Stored) -> Path:
    """Write beside the final place, then move there in one step."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                _write_members(file, stored)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OptionError(
            f"the engine cannot be written to {str(path)!r}",
            got=str(error),
            help="ridge build MODEL -o OTHER.ridge",
        ) from error
    return path


def _small_members(stored: Stored) -> dict[str, bytes]:
    members = {
        "plan.json": stored.plan.to_json().encode(),
        "report.json": stored.report.to_json().encode(),
        "fused.onnx": fused_proto(stored.model, stored.weights).SerializeToString(deterministic=True),
    }
    if stored.expected:
        members[EXPECTED] = b"".join(_weight_chunks(stored.expected))
    kernels = sorted(stored.kernels.items())
    return members | {f"kernels/{digest}.kernel": made.to_bytes() for digest, made in kernels}


def _write_members(file: Any, stored: Stored) -> None:
    hashes = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _small_members(stored).items():
            hashes[name] = hashlib.sha256(content).hexdigest()
            archive.writestr(_member(name), content)
        digest = hashlib.sha256()
        info = _member(WEIGHTS)
        # a zip member's data starts after its header; fill that up so the weights begin aligned
        start = archive.fp.tell() + 30 + len(WEIGHTS) + 20  # type: ignore[union-attr]
        info.extra = struct.pack("<HH", 0xFFFF, pad := -(start + 4) % ALIGNMENT) + b"\0" * pad
        with archive.open(info, "w", force_zip64=True) as member:
            for chunk in _weight_chunks(stored.weights):
                digest.update(chunk)
                member.write(chunk)
        hashes[WEIGHTS] = digest.hexdigest()
        manifest = {
            "format": FORMAT,
            "target": str(stored.plan.target),
            "sha256": hashes,
            "versions": stored.report.versions,
            "seal": make_seal(_code(hashes)) if stored.kernels else "",
        }
        archive.writestr(_member("manifest.json"), json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0))  # a fixed date: equal engines, equal files


def _code(hashes: Mapping[str, str]) -> dict[str, str]:
    """The hashes of those members that are machine code."""
    return {name: digest for name, digest in hashes.items() if KERNEL.fullmatch(name)}


def read_engine(path: Path) -> Stored:
    """Read and check an engine file. Nothing in it is executed."""
    if not path.exists():
        raise PlanError(f"there is no engine file {str(path)!r}", help="ridge build MODEL.onnx makes one")
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            _check_manifest(manifest, path)
            content = {name: archive.read(name) for name in manifest["sha256"] if name != WEIGHTS}
            start, size = _member_place(archive, path)
    except PlanError:
        raise
    except DAMAGE as error:
        raise PlanError(
            f"{str(path)!r} is not a whole engine file",
            got=str(error),
            help="build it again: ridge build MODEL.onnx",
        ) from error
    view = _map(path, start, size)
    wrong = [n for n, data in content.items() if hashlib.sha256(data).hexdigest() != manifest["sha256"][n]]
    if hashlib.sha256(view).hexdigest() != manifest["sha256"][WEIGHTS]:
        wrong.append(WEIGHTS)
    if wrong:
        raise PlanError(
            f"{str(path)!r} was changed after it was made",
            rows=[f"{name} does not match its hash" for name in wrong],
            help="build it again: ridge build MODEL.onnx",
        )
    try:
        plan = Plan.from_json(content["plan.json"].decode())
        report = Report.from_json(content["report.json"].decode())
        proto = onnx.ModelProto.FromString(content["fused.onnx"])
        model = to_ir(proto)
        weights = _read_weights(view)
        expected = (
            _read_weights(memoryview(bytearray(content.get(EXPECTED, b"")))) if EXPECTED in content else {}
        )
        kernels = {
            m[1]: Compiled.from_bytes(data) for n, data in content.items() if (m := KERNEL.fullmatch(n))
        }
    except DAMAGE as error:
        raise PlanError(f"{str(path)!r} does not read as an engine", got=str(error)) from error
    _check_weights(model, weights, path)
    if str(plan.target) != manifest["target"]:
        raise PlanError(
            f"{str(path)!r} holds a plan for another target", got=str(plan.target), want=manifest["target"]
        )
    is_sealed = is_sealed_here(manifest.get("seal"), _code(manifest["sha256"]))
    return Stored(plan, report, model, weights, kernels, expected, is_sealed)


def _check_weights(model: ir.Model, weights: Mapping[str, Tensor], path: Path) -> None:
    """Every initializer of the graph has its weight, of the same shape."""
    wrong = []
    for name, value in model.graph.initializers.items():
        declared = tuple(value.const_value.shape.numpy())
        found = tuple(weights[name].shape) if name in weights else None
        if found != declared:
            wrong.append(f"{name}: graph {list(declared)}, weights {found and list(found)}")
    if wrong:
        raise PlanError(f"graph and weights of {str(path)!r} do not belong together", rows=wrong)


def _check_manifest(manifest: Any, path: Path) -> None:
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if version != FORMAT:
        raise PlanError(
            f"{str(path)!r} is of another format version",
            got=str(version),
            want=str(FORMAT),
            help="build it again with this version of ridgeline: ridge build MODEL.onnx",
        )
    hashes = manifest.get("sha256")
    named = (
        {n for n in hashes if n != EXPECTED and not KERNEL.fullmatch(n)} if isinstance(hashes, dict) else ()
    )
    if named != set(MEMBERS):
        raise PlanError(f"{str(path)!r} has a manifest that names other members", want=", ".join(MEMBERS))
    target = str(manifest.get("target"))
    here = f"cpu:{platform.machine()}"
    # an engine for a GPU may be looked at anywhere; whether it fits the one here is asked when it runs
    if target != here and not target.startswith("cuda:"):
        raise PlanError(
            f"{str(path)!r} was made for another target",
            got=target,
            want=here,
            help="build it again for this machine: ridge build MODEL.onnx --target cpu",
        )


def _member_place(archive: zipfile.ZipFile, path: Path) -> tuple[int, int]:
    """Where a stored member's bytes lie in the file."""
    info = archive.getinfo(WEIGHTS)
    if info.compress_type != zipfile.ZIP_STORED:
        raise PlanError(f"{str(path)!r} holds compressed weights", want="stored ones, as ridge build writes")
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", file.read(4))
    return info.header_offset + 30 + name_length + extra_length, info.file_size


def _map(path: Path, start: int, size: int) -> memoryview:
    with path.open("rb") as file:
        # copy-on-write: tensors over it may be written without touching the file
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return memoryview(whole)[start : start + size]


def _read_weights(view: memoryview) -> dict[str, Tensor]:
    (length,) = struct.unpack("<Q", view[:8])
    entries = json.loads(bytes(view[8 : 8 + length]))
    data = view[8 + length :]
    others = entries.pop(OTHER_TYPES, {})
    weights = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        dtype = FROM_SAFETENSORS[entry["dtype"]]
        if end - begin != math.prod(entry["shape"]) * dtype.itemsize or not 0 <= begin <= end <= len(data):
            raise ValueError(f"weight {name!r} does not fill its place")
        if begin == end:
            weights[name] = torch.empty(entry["shape"], dtype=dtype)
        else:
            flat = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=begin).view(dtype)
            weights[name] = flat.view(entry["shape"])
    return weights | {name: _of_type(weights[name], *json.loads(text)) for name, text in others.items()}


def _of_type(stored: Tensor, name: str, shape: list[int]) -> Tensor:
    """Bytes under the type that safetensors cannot say."""
    width, dtype = BIT_WIDTHS.get(name, 8), TORCH_DTYPES[name]
    if width == 8:
        return stored.view(dtype).view(shape)
    flat = unpacked(stored.numpy(), width, math.prod(shape))
    return torch.from_numpy(flat).view(dtype).view(shape)
