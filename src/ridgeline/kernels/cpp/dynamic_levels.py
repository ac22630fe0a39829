"""DynamicQuantizeLinear: the ends of x in one pass, its levels in a second.

scale = (max(x, 0) - min(x, 0)) / 255, zero = round(-min / scale), y = clamp(round(x / scale) + zero, 0, 255)
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.kernels.cpp.loops import PARALLEL_ITEMS, whole
from ridgeline.kernels.cpp.operands import operands_of
from ridgeline.kernels.scalar.program import Program


@dataclass(frozen=True)
class DynamicLevels:
    """The operands' names, and how many numbers there are."""

    x: str
    levels: str
    scale: str
    zero: str
    items: int


def find_dynamic(site: Site) -> DynamicLevels:
    """The one DynamicQuantizeLinear of the body, or `RefusedError`."""
    op, *others = site.body.ops
    if others or op.key != "DynamicQuantizeLinear":
        raise RefusedError("the region is not one DynamicQuantizeLinear")
    if tuple(site.body.outputs) != tuple(op.outputs) or len(op.outputs) != 3:
        raise RefusedError("levels, scale and zero point do not all leave the region")
    x, y = site.specs[op.inputs[0]], site.specs[op.outputs[0]]
    if x.layout != y.layout:
        raise RefusedError(f"levels are {y.layout} in memory, numbers {x.layout}")
    if x.dtype != "float32" or not x.numel:
        raise RefusedError(f"numbers are {x}, want some of float32")
    return DynamicLevels(op.inputs[0], *op.outputs, x.numel)


def dynamic_source(site: Site, found: DynamicLevels, *, threads: int) -> tuple[Program, str]:
    """The kernel's text, and what it touches."""
    operands = operands_of(site, [found.x])
    place, count = operands.places, found.items
    many = f"parallel for simd num_threads({threads})" if threads > 1 and count >= PARALLEL_ITEMS else "simd"
    lines = [
        f"const float* x = (const float*)p[{place[found.x]}];",
        f"unsigned char* y = (unsigned char*)p[{place[found.levels]}];",
        "float low = 0, high = 0;",
        "int strange = 0;",
        f"#pragma omp {many} reduction(min : low) reduction(max : high) reduction(| : strange)",
        f"for (i64 i = 0; i < {count}LL; ++i) {{",
        "low = x[i] < low ? x[i] : low;",
        "high = x[i] > high ? x[i] : high;",
        "strange |= x[i] != x[i];",
        "}",
        # a NaN among the numbers makes all of them NaN again when they are dequantised
        'const float scale = strange ? __builtin_nanf("") : high == low ? 1.0f : (high - low) / 255.0f;',
        "const float at = -low / scale;",
        "const float zero = __builtin_rintf(at > 0 ? (at < 255 ? at : 255.0f) : 0.0f);",
        f"*(float*)p[{place[found.scale]}] = scale;",
        f"*(unsigned char*)p[{place[found.zero]}] = (unsigned char)zero;",
        f"#pragma omp {many}",
        f"for (i64 i = 0; i < {count}LL; ++i) {{",
        "const float level = __builtin_rintf(x[i] / scale) + zero;",
        "y[i] = (unsigned char)(int)(level > 0 ? (level < 255 ? level : 255.0f) : 0.0f);",
        "}",
    ]
    touched = {
        operands.names[found.x]: 4 * count, operands.names[found.levels]: count,
        operands.names[found.scale]: 4, operands.names[found.zero]: 1,
    }  # fmt: skip
    program = operands.program(touched)
    return program, whole(program, lines)
