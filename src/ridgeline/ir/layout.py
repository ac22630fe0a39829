"""Layouts: which rank-4 values lie channels last. Decided from the graph alone, the same for every tactic.

Convolutions on the CPU run best on channels-last images, so what lies between them keeps that order;
the model's own inputs and outputs stay as users give and expect them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from ridgeline.base.spec import TensorSpec
from ridgeline.ir.body import Program, Region
from ridgeline.ir.infer import Inferred
from ridgeline.ir.op_row import Kind, Trait
from ridgeline.ir.ops import has, is_a
from ridgeline.ir.quant import LEVEL_TYPES, dequantizes

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
# what generated code computes, in any order of the elements
NORMS = frozenset({"GroupNormalization", "InstanceNormalization", "BatchNormalization"})
# fewer channels than this are read as well in any order
MANY_CHANNELS = 16


def assign_layouts(program: Program, inferred: Inferred) -> None:
    """Mark specs channels_last in place."""
    last: set[str] = set()
    images, others = _convolved(program)
    convolved = images - others
    readers = _readers(program)
    for region in program.regions:
        body = region.body.ops
        convolves = any(op.op_type in CONVOLUTIONS for op in body)
        keeps = _keeps(region) and any(n in last for n in region.inputs)
        computes = all(is_a(op, Kind.POINTWISE) or op.op_type in NORMS for op in body)
        turns = computes and all(_is_wide(inferred.specs.get(n)) for n in region.outputs)
        is_last = convolves or keeps or (turns and convolved.issuperset(region.outputs))
        is_turned = _turns_from_rows(region) and _is_image(region, images, readers, last)
        if not is_last and not is_turned and not _moves_image(region, inferred, last):
            continue
        ops, _ = program.flat_ops([region])
        for name in {n for op in ops for n in op.outputs} | set(region.outputs):
            spec = inferred.specs.get(name)
            if (
                spec is not None
                and len(spec.shape) == 4
                and _holds_images(spec)
                and name not in program.outputs
            ):
                last.add(name)
    for name in last:
        inferred.specs[name] = replace(inferred.specs[name], layout="channels_last")


def _keeps(region: Region) -> bool:
    return all(has(op, Trait.KEEPS_LAYOUT) for op in region.body.ops)


def _moves_image(region: Region, inferred: Inferred, last: set[str]) -> bool:
    """Whether it moves pixels or channels of an image that lies channels last, whatever is between."""
    ops = region.body.ops
    if len(ops) == 1 or not all(is_a(op, Kind.MOVEMENT) or has(op, Trait.KEEPS_LAYOUT) for op in ops):
        return False
    given = (inferred.specs.get(name) for name in region.inputs if name in last)
    made = [inferred.specs.get(name) for name in region.outputs]
    sizes = {_image_size(spec) for spec in made}
    return len(sizes) == 1 and None not in sizes and any(_image_size(spec) in sizes for spec in given)


def _image_size(spec: TensorSpec | None) -> tuple[int, ...] | None:
    """Of all but its channels."""
    return (spec.shape[0], *spec.shape[2:]) if spec is not None and len(spec.shape) == 4 else None


def _turns_from_rows(region: Region) -> bool:
    """Whether it is the transpose that makes an image of rows of channels: channels last it moves nothing."""
    ops = region.body.ops
    return len(ops) == 1 and ops[0].key == "Transpose" and tuple(ops[0].attrs.get("perm", ())) == (0, 3, 1, 2)


def _is_image(region: Region, images: set[str], readers: Mapping[str, list[Region]], last: set[str]) -> bool:
    """Whether a convolution reads the result, or what adds it to an image that lies channels last."""
    (name,) = region.outputs
    added = (reader for reader in readers.get(name, ()) if _keeps(reader))
    return name in images or any(not last.isdisjoint(reader.inputs) for reader in added)


def _readers(program: Program) -> Mapping[str, list[Region]]:
    found: dict[str, list[Region]] = defaultdict(list)
    for region in program.regions:
        for name in region.inputs:
            found[name].append(region)
    return found


def _convolved(program: Program) -> tuple[set[str], set[str]]:
    """Values that convolutions read as images, and those that anything else reads.

    Whoever computes one that convolutions alone read may as well write it as those want.
    """
    images: set[str] = set()
    others: set[str] = set(program.outputs)
    for region in program.regions:
        first = {op.inputs[0] for op in region.body.ops if op.op_type in CONVOLUTIONS}
        first |= {op.inputs[0] for op in region.body.ops if dequantizes(op) and op.outputs[0] in first}
        for inner, outer in zip(region.body.inputs, region.inputs, strict=True):
            uses = [op for op in region.body.ops if inner in op.inputs]
            keeps = sum(has(op, Trait.KEEPS_LAYOUT) for op in uses)  # the sum with it, behind the convolution
            (images if inner in first and len(uses) - keeps == 1 else others).add(outer)
    return images, others


def _holds_images(spec: TensorSpec) -> bool:
    return spec.is_float or spec.dtype in LEVEL_TYPES


def _is_wide(spec: TensorSpec | None) -> bool:
    return spec is not None and len(spec.shape) == 4 and spec.shape[1] >= MANY_CHANNELS
