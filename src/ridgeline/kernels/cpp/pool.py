"""y = max over windows of 8-bit levels whose channels lie together: vectors along the channels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.kernels.cpp.dialect import C_TYPES
from ridgeline.kernels.cpp.loops import PARALLEL_ITEMS, parallel, whole
from ridgeline.kernels.cpp.operands import operands_of
from ridgeline.kernels.scalar.program import Program
from ridgeline.kernels.windows import Windows

LEAST = {"int8": -128, "uint8": 0}


@dataclass(frozen=True)
class Pool(Windows):
    """The windows of a MaxPool over images of this many channels."""

    batch: int
    channels: int


def find_pool(site: Site) -> Pool:
    """The one MaxPool of the body, or `RefusedError`."""
    (op, *others), outputs = site.body.ops, site.body.outputs
    if others or op.key != "MaxPool" or outputs != op.outputs[:1] or any(op.outputs[1:]):
        raise RefusedError("the region is not one MaxPool without indices")
    x, y = site.specs[op.inputs[0]], site.specs[op.outputs[0]]
    if x.dtype not in LEAST or len(x.shape) != 4:
        raise RefusedError(f"values are {x}, want images of 8-bit levels")
    for spec in (x, y):
        if spec.layout != "channels_last" and math.prod(spec.shape[2:]) != 1 and spec.shape[1] != 1:
            raise RefusedError("channels do not lie together")
    if op.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        raise RefusedError(f"pads are {op.attrs['auto_pad']}, want them written")
    pairs = {name: tuple(op.attrs.get(name) or (1, 1)) for name in ("kernel_shape", "strides", "dilations")}
    return Pool(
        size=x.shape[2:4], made=y.shape[2:4], kernel=pairs["kernel_shape"], stride=pairs["strides"],  # type: ignore[arg-type]
        dilation=pairs["dilations"], pads=tuple(op.attrs.get("pads") or (0, 0))[:2],
        batch=x.shape[0], channels=x.shape[1],
    )  # fmt: skip


def pool_source(site: Site, pool: Pool, *, threads: int) -> tuple[Program, str]:
    """The kernel's text, and what it touches."""
    x, y = site.body.ops[0].inputs[0], site.body.ops[0].outputs[0]
    operands = operands_of(site, [x])
    kind, least = C_TYPES[site.specs[x].dtype], LEAST[site.specs[x].dtype]
    (size_h, size_w), (made_h, made_w), channels = pool.size, pool.made, pool.channels
    outside = f"ih < 0 || ih >= {size_h} || iw < 0 || iw >= {size_w}"
    items = pool.batch * made_h * made_w * channels
    lines = [
        f"const {kind}* x = (const {kind}*)p[{operands.places[x]}];",
        f"{kind}* y = ({kind}*)p[{operands.places[y]}];",
        *([parallel(2, threads)] if threads > 1 and items >= PARALLEL_ITEMS else []),
        f"for (i64 n = 0; n < {pool.batch}; ++n)",
        f"for (i64 oh = 0; oh < {made_h}; ++oh)",
        f"for (i64 ow = 0; ow < {made_w}; ++ow) {{",
        f"{kind}* to = y + ((n * {made_h} + oh) * {made_w} + ow) * {channels}LL;",
        f"for (i64 c = 0; c < {channels}; ++c) to[c] = {least};",
        f"for (i64 i = 0; i < {pool.kernel[0]}; ++i)",
        f"for (i64 j = 0; j < {pool.kernel[1]}; ++j) {{",
        f"const i64 ih = oh * {pool.stride[0]} - {pool.pads[0]} + i * {pool.dilation[0]};",
        f"const i64 iw = ow * {pool.stride[1]} - {pool.pads[1]} + j * {pool.dilation[1]};",
        *([f"if ({outside}) continue;"] if pool.reads_outside else []),
        f"const {kind}* from = x + ((n * {size_h} + ih) * {size_w} + iw) * {channels}LL;",
        "#pragma omp simd",
        f"for (i64 c = 0; c < {channels}; ++c) to[c] = to[c] > from[c] ? to[c] : from[c];",
        "}",
        "}",
    ]
    touched = {operands.names[x]: pool.batch * size_h * size_w * channels, operands.names[y]: items}
    program = operands.program(touched)
    return program, whole(program, lines)
