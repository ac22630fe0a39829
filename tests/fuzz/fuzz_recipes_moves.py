"""Recipes of ops that move data or look at shapes: views, slices, gathers, scatters, padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from fuzz_draft import ELEMENT_TYPES, Draft, Node, NotDrawnError

Recipe = Callable[[Draft], Node]


def any_value(d: Draft, op: str, low: int = 0, high: int = 4) -> str:
    return d.some(d.allowed(op), low, high)


def factors(d: Draft, count: int) -> list[int]:
    """Some sizes that multiply to `count`."""
    made = []
    for _ in range(d.int(0, 3)):
        options = [f for f in range(1, count + 1) if count % f == 0][:8] if count else [1]
        made.append(d.pick(options))
        count //= made[-1]
    made.append(count)
    return [int(size) for size in d.rng.permutation(made)]


def reshape(d: Draft) -> Node:
    one = any_value(d, "Reshape")
    shape = factors(d, d.of(one).size)
    if d.chance(0.5):
        shape[d.int(0, len(shape) - 1)] = -1
    elif shape and d.of(one).ndim and d.chance(0.3) and shape[0] == d.of(one).shape[0]:
        shape[0] = 0
    return Node("Reshape", [one, d.const(shape)])


def transpose(d: Draft) -> Node:
    one = any_value(d, "Transpose", 1, 5)
    perm = [int(a) for a in d.rng.permutation(d.of(one).ndim)]
    return Node("Transpose", [one], {"perm": perm} if d.chance(0.9) else {})


def flatten(d: Draft) -> Node:
    one = any_value(d, "Flatten", 1)
    rank = d.of(one).ndim
    return Node("Flatten", [one], {"axis": d.int(-rank, rank)} if d.chance(0.8) else {})


def squeeze(d: Draft) -> Node:
    one = any_value(d, "Squeeze")
    ones = [a for a, size in enumerate(d.of(one).shape) if size == 1]
    if not ones or d.chance(0.1):
        return Node("Squeeze", [one])
    return Node("Squeeze", [one, d.const(ones[: d.int(1, len(ones))])])


def unsqueeze(d: Draft) -> Node:
    one = any_value(d, "Unsqueeze", 0, 3)
    rank = d.of(one).ndim + (extra := d.int(1, 2))
    axes = [int(a) - rank if d.chance(0.3) else int(a) for a in d.rng.permutation(rank)[:extra]]
    return Node("Unsqueeze", [one, d.const(axes)])


def expand(d: Draft) -> Node:
    one = any_value(d, "Expand", 0, 3)
    shape = [
        d.pick((2, 3)) if s == 1 and d.chance(0.6) else 1 if d.chance(0.1) else s for s in d.of(one).shape
    ]
    if d.chance(0.4):
        shape = [d.pick((1, 2, 3)), *shape]
    return Node("Expand", [one, d.const(np.asarray(shape, np.int64).reshape(-1))])


def tile(d: Draft) -> Node:
    one = any_value(d, "Tile", 1)
    return Node("Tile", [one, d.const([d.int(1, 3) for _ in d.of(one).shape])])


def slice_(d: Draft) -> Node:
    one = any_value(d, "Slice", 1)
    axes = d.axes(d.of(one).ndim)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = d.of(one).shape[axis]
        steps.append(step := d.pick((1, 1, 1, 2, 3, -1, -2)))
        low, high = sorted((d.int(-size, size), d.int(-size, size + 2)))
        starts.append(low if step > 0 else high)
        ends.append(
            (high if d.chance(0.7) else 2**31 - 1) if step > 0 else low if d.chance(0.6) else -(2**31)
        )
    inputs = [d.const(starts), d.const(ends)]
    if d.chance(0.8) or axes != list(range(len(axes))):
        inputs.append(d.const(axes))
        if d.chance(0.6):
            inputs.append(d.const(steps))
    return Node("Slice", [one, *inputs])


def concat(d: Draft) -> Node:
    one = any_value(d, "Concat", 1)
    axis = d.axis(d.of(one).ndim)
    others = []
    for _ in range(d.int(0, 2)):
        shape = list(d.of(one).shape)
        shape[axis] = d.int(1, 4)
        others.append(one if d.chance(0.2) else d.fresh(d.type_of(one), shape))
    inputs = [one, *others]
    return Node("Concat", [inputs[i] for i in d.rng.permutation(len(inputs))], {"axis": axis})


def split(d: Draft) -> Node:
    one = any_value(d, "Split", 1)
    axis = d.axis(d.of(one).ndim)
    size = d.of(one).shape[axis]
    parts = d.int(1, min(3, size))
    if d.chance(0.5) and (d.opset >= 18 or size % parts == 0):
        attrs = {"axis": axis} | ({"num_outputs": parts} if d.opset >= 18 else {})
        return Node("Split", [one], attrs, outputs=parts)
    cuts = sorted(d.int(0, size) for _ in range(parts - 1))
    sizes = [int(s) for s in np.diff([0, *cuts, size])]
    return Node("Split", [one, d.const(sizes)], {"axis": axis}, outputs=parts)


def shape_of(d: Draft) -> Node:
    one = any_value(d, "Shape")
    rank = d.of(one).ndim
    attrs = {}
    if d.opset >= 15 and d.chance(0.5):
        # the standard clamps these to the rank; the reference does not, and takes an end of 0 for none
        attrs = {"start": d.int(-rank, rank), "end": d.int(1, rank + 1)}
    return Node("Shape", [one], attrs)


def gather(d: Draft) -> Node:
    one = any_value(d, "Gather", 1)
    axis = d.axis(d.of(one).ndim)
    size = d.of(one).shape[axis]
    indices = d.rng.integers(-size, size, d.shape(0, 2)).astype(d.pick(("int64", "int32")))
    return Node("Gather", [one, d.add(indices)], {"axis": axis} if d.chance(0.8) or axis else {})


def gather_elements(d: Draft) -> Node:
    one = any_value(d, "GatherElements", 1)
    axis = d.axis(d.of(one).ndim)
    shape = [d.int(1, s) for s in d.of(one).shape]
    shape[axis] = d.int(1, 4)
    size = d.of(one).shape[axis]
    indices = d.rng.integers(-size, size, shape).astype(d.pick(("int64", "int32")))
    return Node("GatherElements", [one, d.add(indices)], {"axis": axis})


def gather_nd(d: Draft) -> Node:
    one = any_value(d, "GatherND", 1)
    shape = d.of(one).shape
    batch = d.int(0, min(2, len(shape) - 1)) if d.chance(0.4) else 0
    depth = d.int(1, len(shape) - batch)
    lead = [*shape[:batch], *d.shape(0, 2)]
    columns = [d.rng.integers(0, shape[batch + i], lead) for i in range(depth)]
    return Node("GatherND", [one, d.add(np.stack(columns, -1).astype(np.int64))], {"batch_dims": batch})


def scatter_elements(d: Draft) -> Node:
    one = any_value(d, "ScatterElements", 1, 3)
    axis = d.axis(d.of(one).ndim)
    shape = [d.int(1, s) for s in d.of(one).shape]
    size = d.of(one).shape[axis]
    reduction = d.pick(_reductions(d, "ScatterElements"))
    # without a reduction, the order of writes to one place means nothing
    order = np.argsort(d.rng.random([*shape[:axis], size, *shape[axis:][1:]]), axis=axis)
    indices = np.take(order, range(min(shape[axis], size)), axis=axis).astype(d.pick(("int64", "int32")))
    updates = d.fresh(d.type_of(one), indices.shape)
    attrs = {"axis": axis} | ({"reduction": reduction} if reduction != "none" else {})
    return Node("ScatterElements", [one, d.add(indices), updates], attrs)


def scatter_nd(d: Draft) -> Node:
    one = any_value(d, "ScatterND", 1, 3)
    shape = d.of(one).shape
    depth = d.int(1, len(shape))
    places = int(np.prod(shape[:depth]))
    chosen = d.rng.permutation(places)[: d.int(1, min(places, 4))]
    indices = np.stack(np.unravel_index(chosen, shape[:depth]), -1).astype(np.int64)
    reduction = d.pick(_reductions(d, "ScatterND"))
    updates = d.fresh(d.type_of(one), (*indices.shape[:-1], *shape[depth:]))
    attrs = {"reduction": reduction} if reduction != "none" else {}
    return Node("ScatterND", [one, d.add(indices), updates], attrs)


def _reductions(d: Draft, op: str) -> tuple[str, ...]:
    if "reduction" not in onnx.defs.get_schema(op, d.opset).attributes:
        return ("none",)
    return ("none", "add", "mul", "max", "min") if d.opset >= 18 else ("none", "add", "mul")


def pad(d: Draft) -> Node:
    one = any_value(d, "Pad", 1)
    array = d.of(one)
    modes = ("constant", "constant", "edge", "reflect") + (("wrap",) if d.opset >= 19 else ())
    mode = d.pick(modes)
    low = -1 if mode == "constant" and min(array.shape) > 2 and d.chance(0.2) else 0
    axes = d.axes(array.ndim) if d.opset >= 18 and d.chance(0.4) else list(range(array.ndim))
    reach = [min(2, array.shape[a] - 1) if mode in ("reflect", "wrap") else 2 for a in axes]
    pads = [d.int(low, r) for r in (*reach, *reach)]
    inputs = [one, d.const(pads)]
    has_value = mode == "constant" and d.chance(0.6) and str(array.dtype) != "bool"
    if has_value:
        inputs.append(d.const(d.int(0, 3), d.type_of(one)))
    if axes != list(range(array.ndim)):
        inputs += [*([] if has_value else [""]), d.const(axes)]
    return Node("Pad", inputs, {"mode": mode})


def trilu(d: Draft) -> Node:
    one = any_value(d, "Trilu", 2)
    inputs = [one, d.const(d.int(-3, 3))] if d.chance(0.6) else [one]
    return Node("Trilu", inputs, {"upper": d.int(0, 1)} if d.chance(0.7) else {})


def depth_to_space(d: Draft) -> Node:
    block = d.int(1, 2)
    shape = (d.int(1, 2), block * block * d.int(1, 3), d.int(1, 4), d.int(1, 4))
    one = d.fresh(d.dtype(d.allowed("DepthToSpace")), shape)
    return Node("DepthToSpace", [one], {"blocksize": block, "mode": d.pick(("DCR", "CRD"))})


def space_to_depth(d: Draft) -> Node:
    block = d.int(1, 2)
    shape = (d.int(1, 2), d.int(1, 3), block * d.int(1, 4), block * d.int(1, 4))
    return Node("SpaceToDepth", [d.fresh(d.dtype(d.allowed("SpaceToDepth")), shape)], {"blocksize": block})


def one_hot(d: Draft) -> Node:
    depth = d.int(1, 6)
    indices = d.add(d.rng.integers(-depth, depth, d.shape(0, 3)).astype(d.pick(("int64", "int32"))))
    kind = d.dtype(d.allowed("OneHot", 2))
    rank = d.of(indices).ndim
    values = d.add(np.asarray([0, 1] if d.chance(0.6) else [2, 5]).astype(d.array(kind, ()).dtype))
    return Node("OneHot", [indices, d.const(depth), values], {"axis": d.int(-rank - 1, rank)})


def reverse_sequence(d: Draft) -> Node:
    one = any_value(d, "ReverseSequence", 2)
    time = d.int(0, 1)
    shape = d.of(one).shape
    lengths = d.rng.integers(1, shape[time] + 1, shape[1 - time]).astype(np.int64)
    return Node("ReverseSequence", [one, d.add(lengths)], {"time_axis": time, "batch_axis": 1 - time})


def top_k(d: Draft) -> Node:
    one = d.ordered(d.allowed("TopK"), 1)
    axis = d.axis(d.of(one).ndim)
    k = d.int(1, d.of(one).shape[axis])
    attrs = {"axis": axis, "largest": d.int(0, 1)}
    return Node("TopK", [one, d.const([k])], attrs, outputs=2)


def compress(d: Draft) -> Node:
    one = any_value(d, "Compress", 1)
    axis = d.axis(d.of(one).ndim) if d.chance(0.7) else None
    size = d.of(one).size if axis is None else d.of(one).shape[axis]
    condition = d.fresh("bool", (d.int(1, size),))
    return Node("Compress", [one, condition], {} if axis is None else {"axis": axis})


def unique(d: Draft) -> Node:
    one = d.ordered(d.allowed("Unique"), 1, 3)
    attrs = {"axis": d.axis(d.of(one).ndim)} if d.chance(0.4) else {}
    # sorted only: the reference sorts whatever it is told
    return Node("Unique", [one], attrs, outputs=d.int(1, 4))


def constant_of_shape(d: Draft) -> Node:
    kind = d.dtype(d.allowed("Identity"))
    attrs = {}
    if d.chance(0.7):
        array = d.array(kind, (1,))
        attrs["value"] = onnx.TensorProto(
            data_type=ELEMENT_TYPES[kind], dims=[1], raw_data=array.tobytes(), name="value"
        )
    return Node("ConstantOfShape", [d.const(list(d.shape(0, 3)))], attrs)


def range_(d: Draft) -> Node:
    kind = d.pick(("int64", "int32", "float32"))
    start, delta = d.int(-3, 3), d.pick((1, 1, 2, 3, -1))
    limit = start + delta * d.int(1, 6)
    return Node("Range", [d.const(start, kind), d.const(limit, kind), d.const(delta, kind)])


def center_crop_pad(d: Draft) -> Node:
    one = any_value(d, "CenterCropPad", 1)
    axes = d.axes(d.of(one).ndim)
    target = [d.int(1, 7) for _ in axes]
    return Node("CenterCropPad", [one, d.const(target)], {"axes": axes})


def eye_like(d: Draft) -> Node:
    one = any_value(d, "EyeLike", 2, 2)
    attrs = {"k": d.int(-2, 2)} if d.chance(0.5) else {}
    return Node("EyeLike", [one], attrs | ({"dtype": d.pick((1, 6, 7, 11))} if d.chance(0.5) else {}))


def scatter_cache(d: Draft) -> Node:
    if d.opset < 24:
        raise NotDrawnError
    batch, length, width = d.int(1, 3), d.int(2, 6), d.int(1, 4)
    steps = d.int(1, length)
    kind = d.dtype(d.allowed("TensorScatter"))
    past, update = d.fresh(kind, (batch, 2, length, width)), d.fresh(kind, (batch, 2, steps, width))
    at = d.add(d.rng.integers(0, length - steps + 1, batch).astype(np.int64))
    return Node("TensorScatter", [past, update, at], {"mode": d.pick(("linear", "circular"))})


MOVES: dict[str, Recipe] = {
    "Reshape": reshape, "Transpose": transpose, "Flatten": flatten, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Expand": expand, "Tile": tile, "Slice": slice_, "Concat": concat,
    "Split": split, "Shape": shape_of, "Gather": gather, "GatherElements": gather_elements,
    "GatherND": gather_nd, "ScatterElements": scatter_elements, "ScatterND": scatter_nd, "Pad": pad,
    "Trilu": trilu, "DepthToSpace": depth_to_space, "SpaceToDepth": space_to_depth, "OneHot": one_hot,
    "ReverseSequence": reverse_sequence, "TopK": top_k, "Compress": compress, "Unique": unique,
    "ConstantOfShape": constant_of_shape, "Range": range_, "CenterCropPad": center_crop_pad,
    "EyeLike": eye_like, "TensorScatter": scatter_cache,
    "Size": lambda d: Node("Size", [any_value(d, "Size")]),
    "NonZero": lambda d: Node("NonZero", [any_value(d, "NonZero", 1)]),
}  # fmt: skip
