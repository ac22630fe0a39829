"""The engine file: a zip of plan, weights, fused graph, report and compiled kernels, each with its hash.

No pickle, ever. Kernels are code: they are read here and used only where the file is trusted.
Members are stored, not compressed, and weights start on 64 bytes, so loading maps them instead of reading.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from torch import Tensor

from ridgeline.base.files import whole_file
from ridgeline.base.spec import Needed
from ridgeline.errors import OptionError, PlanError, RidgelineError, first_line
from ridgeline.frontend.from_onnx import all_tensors
from ridgeline.frontend.types import ONNX_TYPES, outside, to_ir, to_proto
from ridgeline.kernels.elements import as_numpy, dtype_name
from ridgeline.plugins.catalog import CATALOG
from ridgeline.plugins.entry_points import require_plugins
from ridgeline.runtime.description import DAMAGE as DAMAGED_TEXT
from ridgeline.runtime.description import (
    EXPECTED,
    FORMAT,
    GRAPH,
    MANIFEST,
    PLAN,
    REPORT,
    WEIGHTS,
    Description,
    Manifest,
    check_hashes,
    describe,
    open_members,
)
from ridgeline.runtime.signing import is_signed_here, sign_hashes
from ridgeline.runtime.weights_file import (
    ALIGNMENT,
    raw_bytes,
    read_weights,
    stored_bytes,
    weight_chunks,
    weights_header,
)

# what protobuf raises on a damaged file besides
DAMAGE = (*DAMAGED_TEXT, DecodeError)
INLINE_BYTES = 1024


@dataclass(frozen=True)
class Stored(Description):
    """What an engine file holds: what it says of itself, and the graph with its weights."""

    model: ir.Model
    weights: Mapping[str, Tensor]
    expected: Mapping[str, Tensor] = field(default_factory=dict)
    are_foreign: bool = False  # some kernels were not compiled here, so that the file is not signed
    is_signed_here: bool = False  # its kernels were written by this user on this machine


def fused_proto(model: ir.Model, weights: Mapping[str, Tensor], *, is_whole: bool = False) -> onnx.ModelProto:
    """The fused graph as ONNX: with its weights inside, or pointing into the safetensors file beside it."""
    _, places = weights_header(weights)
    kept = dict(model.graph.initializers)
    tensors = {name: value.const_value for name, value in kept.items()}
    try:
        for name, value in kept.items():
            value.const_value = None
            del model.graph.initializers[name]
        proto = to_proto(model)
    finally:
        for name, value in kept.items():
            value.const_value = tensors[name]
            model.graph.initializers[name] = value
    proto.graph.initializer.extend(
        _initializer(n, tensor, None if is_whole else places[n]) for n, tensor in weights.items()
    )
    return proto


def _initializer(name: str, tensor: Tensor, place: tuple[int, int] | None) -> onnx.TensorProto:
    """A weight as the graph mentions it: by value if it is small, else by its place in the weights file."""
    entry = onnx.TensorProto(name=name, data_type=ONNX_TYPES[dtype_name(tensor)], dims=list(tensor.shape))
    if place is None or stored_bytes(tensor) <= INLINE_BYTES:
        # shape inference reads axes and shapes, and does not follow them into another file
        entry.raw_data = raw_bytes(tensor).tobytes()
        return entry
    begin, end = place
    return outside(entry, WEIGHTS, offset=begin, length=end - begin)


def write_inside(entry: onnx.TensorProto, tensor: Tensor) -> None:
    """Put a weight's bytes into the graph itself instead of beside it."""
    entry.ClearField("external_data")
    entry.data_location = onnx.TensorProto.DEFAULT
    entry.raw_data = raw_bytes(tensor).tobytes()


def write_engine(path: Path, stored: Stored) -> Path:
    """Write beside the final place, then move there in one step."""
    try:
        with whole_file(path) as file:
            _write_members(file, stored)
    except OSError as error:
        raise OptionError(
            f"the engine cannot be written to {str(path)!r}",
            got=str(error),
            help="ridge build MODEL -o OTHER.ridge",
        ) from error
    except (ir.serde.SerdeError, EncodeError) as error:  # a loaded graph may hold what ONNX cannot write
        raise PlanError("the engine's graph cannot be written", got=first_line(error)) from error
    return path


def _small_members(stored: Stored) -> dict[str, bytes]:
    members = {
        PLAN: stored.plan.to_json().encode(),
        REPORT: stored.report.to_json().encode(),
        GRAPH: fused_proto(stored.model, stored.weights).SerializeToString(deterministic=True),
    }
    if stored.expected:
        members[EXPECTED] = b"".join(weight_chunks(stored.expected))
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
            for chunk in weight_chunks(stored.weights):
                digest.update(chunk)
                member.write(chunk)
        hashes[WEIGHTS] = digest.hexdigest()
        versions, needed = stored.report.versions, _plugins(stored)
        manifest = Manifest(FORMAT, str(stored.plan.target), hashes, versions, plugins=needed)
        if stored.kernels and not stored.are_foreign:
            manifest = replace(manifest, seal=sign_hashes(manifest.code))
        archive.writestr(_member(MANIFEST), json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n")


def _plugins(stored: Stored) -> tuple[Needed, ...]:
    """What the file needs of plugins: whoever brought an op of the graph, or a tactic of a step."""
    graphs = [*stored.model.graphs(), *stored.model.functions.values()]
    ops = [f"{node.domain}::{node.op_type}" for graph in graphs for node in graph]
    plans = [*stored.plan.every_plan, *stored.plan.bodies.values()]
    return CATALOG.needed(ops, [step.tactic for plan in plans for step in plan.steps])


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0))  # a fixed date: equal engines, equal files


def read_engine(path: Path) -> Stored:
    """Read and check an engine file. Nothing in it is executed."""
    members, manifest = open_members(path)
    check_hashes(members, manifest, path)
    require_plugins(manifest.plugins)
    described = describe(members, manifest, path)
    try:
        weights = read_weights(members[WEIGHTS])
        return Stored(
            **vars(described),
            model=_read_graph(bytes(members[GRAPH]), weights),
            weights=weights,
            expected=read_weights(members[EXPECTED]) if EXPECTED in members else {},
            is_signed_here=is_signed_here(manifest.seal, manifest.code),
        )
    except (*DAMAGE, RidgelineError) as error:
        raise PlanError(f"{str(path)!r} does not read as an engine", got=first_line(error)) from error


def _read_graph(content: bytes, weights: Mapping[str, Tensor]) -> ir.Model:
    proto = onnx.ModelProto.FromString(content)
    _check_weights(proto, weights)
    model = to_ir(proto)
    for name, value in model.graph.initializers.items():
        # the file beside it that large weights are said to lie in is a member of this one
        value.const_value = ir.Tensor(as_numpy(weights[name]), name=name)
    return model


def _check_weights(proto: onnx.ModelProto, weights: Mapping[str, Tensor]) -> None:
    """The graph mentions each weight exactly as it is, and no other data outside itself.

    Were a shape one thing in the graph and another in the weights, inference would believe the one and
    kernels would read the other.
    """
    _, places = weights_header(weights)
    named = [entry.name for entry in proto.graph.initializer]
    if sorted(named) != sorted(weights):
        raise ValueError("graph and weights do not belong together: they name different tensors")
    for entry in proto.graph.initializer:
        own = _initializer(entry.name, weights[entry.name], places[entry.name])
        if entry.SerializeToString(deterministic=True) != own.SerializeToString(deterministic=True):
            dims = list(entry.dims), list(weights[entry.name].shape)
            raise ValueError(
                f"graph and weights do not belong together at {entry.name!r}: {dims[0]}, {dims[1]}"
            )
    outside = [t.name for t in all_tensors(proto) if t.data_location == onnx.TensorProto.EXTERNAL]
    if set(outside) - set(named) or len(outside) > len(named):
        raise ValueError(f"the graph refers to data in other files: {outside[:3]}")
