"""Which ops over windows of an image a GPU's kernels take together with the ops that follow."""

from __future__ import annotations

import onnx_ir as ir

from ridgeline.passes.drafts import Partition
from ridgeline.passes.match import attribute, constant

POOLS = frozenset({"MaxPool", "AveragePool"})
FLOATS = frozenset({"float32", "float16", "bfloat16"})
MOST_AXES = 5  # of a pool: images of up to three
MOST_ITEMS = 2**31 - 2**16  # that 32 bits count, and the end of a tile past them
# attributes of a Resize that adds up at most four positions of an axis, by shares that are 1 together
PLAIN = {"antialias": 0, "exclude_outside": 0, "keep_aspect_ratio_policy": "stretch"}


def starts_window(part: Partition, node: ir.Node) -> bool:
    """Whether what follows a pool or a Resize may be part of its kernel."""
    if node.domain or (node.op_type not in POOLS and node.op_type != "Resize"):
        return False
    made = part.spec(node.outputs[0])
    if made is None or made.dtype not in FLOATS:
        return False
    if node.op_type == "Resize":
        return _is_resized_by_table(part, node)
    # a kernel of pools makes no indices
    return len(made.shape) <= MOST_AXES and not any(value.name for value in node.outputs[1:])


def _is_resized_by_table(part: Partition, node: ir.Node) -> bool:
    """Whether the kernel reads the Resize; where it does not, what follows is better off by itself."""
    x, made = (part.spec(value) if value is not None else None for value in (node.inputs[0], node.outputs[0]))
    if x is None or made is None or constant(node.inputs[0]) is not None:
        return False
    kept = max(1, len(x.shape) - 2)  # of the axes, those before the last two
    are_planes = len(x.shape) > 2 and x.shape[:kept] == made.shape[:kept]
    is_counted = min(x.numel, made.numel) > 0 and max(x.numel, made.numel) <= MOST_ITEMS
    is_plain = all(attribute(node, name) in (value, None) for name, value in PLAIN.items())
    is_crop = attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize"
    return (
        are_planes and is_counted and is_plain and not is_crop and _keeps_axes(part, node, len(x.shape), kept)
    )


def _keeps_axes(part: Partition, node: ir.Node, rank: int, kept: int) -> bool:
    """Whether scales and sizes are known, and no scale is given to the first axes."""
    factors = [part.inferred.values.get(str(value.name)) for value in node.inputs[2:4] if value is not None]
    axes = attribute(node, "axes") or range(rank)
    found = [
        scale
        for array in factors
        if array is not None and array.dtype.kind == "f"
        for axis, scale in zip(axes, array, strict=False)
        if axis % rank < kept
    ]
    return all(array is not None for array in factors) and all(scale == 1 for scale in found)
