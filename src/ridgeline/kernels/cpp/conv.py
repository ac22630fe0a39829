"""Convolutions over images whose channels lie together: depthwise, and those of a few input channels.

One thread makes one output line at a time into a buffer of its own; the epilogue then runs over the line.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.cpp import anchor
from ridgeline.kernels.cpp.loops import Loop, parallel, whole
from ridgeline.kernels.scalar.axes import ONE
from ridgeline.kernels.scalar.program import Program
from ridgeline.kernels.windows import Windows

LINE_BYTES = 32 * 1024  # of a thread's output line: it stays in L1 until the epilogue has read it
WINDOW_BYTES = 128 * 1024  # of the input lines under one output line
STACK_BYTES = 512 * 1024  # of one thread's buffer; threads may have stacks of 2 MB
PARALLEL_MACS = 128 * 1024  # as in linear.py, where a multiplication costs a quarter

# N batch, C channels in, O channels out; pairs are (lines, positions in a line)


@dataclass(frozen=True)
class Conv2d(Windows):
    """A 2-D convolution with a constant weight."""

    op: Op
    x: int  # position among the body's inputs
    weight: str
    batch: int
    channels_in: int
    channels: int

    @property
    def lines(self) -> int:
        return self.batch * self.made[0]

    @property
    def items(self) -> int:
        """Of the input."""
        return self.batch * self.channels_in * self.size[0] * self.size[1]

    @property
    def macs(self) -> int:
        """Of one input channel."""
        return self.lines * self.made[1] * self.channels * self.kernel[0] * self.kernel[1]

    @property
    def inside(self) -> tuple[int, int]:
        """Positions of an output line, first and past the last, whose taps all lie on the image."""
        pad, stride, made = self.pads[1], self.stride[1], self.made[1]
        first = min(max(-(-pad // stride), 0), made)
        reach = (self.kernel[1] - 1) * self.dilation[1]
        past = (self.size[1] - 1 - reach + pad) // stride + 1
        return first, max(first, min(past, made))


_DEPTHWISE = """
// a template argument forgets that vec is unaligned; a copy of fixed size is one unaligned load
template <class V> FN V rl_read(const float* at) {
  V got;
  __builtin_memcpy(&got, at, sizeof(V));
  return got;
}
// acc[R][width] = the sum over taps of x * w, for R outputs side by side; V is a vector of channels
template <class V, int R> FN void rl_taps(const float* x, const float* w, i64 first_line, i64 past_line,
                                          i64 first_tap, i64 past_tap, float* acc, i64 width, i64 pitch) {
  enum { STEP = sizeof(V) / 4 };
  for (i64 c = 0; c < width; c += STEP) {
    // the last vector overlaps the one before it
    if (c + STEP > width) c = width - STEP;
    V sum[R] = {};
    for (i64 i = first_line; i < past_line; ++i)
#pragma GCC unroll 5
      for (i64 j = first_tap; j < past_tap; ++j) {
        const V tap = rl_read<V>(w + i * W_LINE + j * W_TAP + c);
        const float* at = x + i * X_LINE + j * X_TAP + c;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r] += tap * rl_read<V>(at + r * X_NEXT);
      }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) __builtin_memcpy(acc + r * pitch + c, &sum[r], sizeof(V));
  }
}
"""


def pack_depthwise(weight: Tensor) -> Tensor:
    """[C, 1, KH, KW] as [KH, KW, C]."""
    return weight.detach().float().squeeze(1).permute(1, 2, 0).contiguous()


def depthwise_source(
    site: Site, conv: Conv2d, *, outputs: int, threads: int, lanes: int
) -> tuple[Program, str]:
    """The kernel's text for `outputs` neighbouring positions at a time, and the program it came from."""
    program, rows, column = _lower(site, conv)
    (size_h, size_w), (made_h, made_w), (kernel_h, kernel_w) = conv.size, conv.made, conv.kernel
    (step_h, step_w), (far_h, far_w), pad_h = conv.stride, conv.dilation, conv.pads[0]
    channels = conv.channels
    part = _part_of_channels(conv, threads, lanes)
    parts = -(-channels // part)
    kind = "vec" if (channels % part or part) >= lanes else "float"
    body = _depthwise_line(conv, outputs, part, kind)
    lines = [
        *anchor.operands_text(program, conv.x),
        *([parallel(2, threads)] if _is_parallel(conv, threads) else []),
        f"for (i64 part = 0; part < {parts}; ++part)",
        f"for (i64 line = 0; line < {conv.lines}; ++line) {{",
        f"alignas(64) float acc_[{made_w * part}];",
        *_place(made_h),
        f"const i64 start = part * {part};",
        f"const i64 stop = {anchor.past('start', part, channels)};",
        "const i64 width = stop - start;",
        "const float* w = packed + start;",
        f"const i64 top = oh * {step_h} - {pad_h};",
        f"const i64 base = (n * {size_h} + top) * {size_w * channels}LL + start;",
        f"const i64 first_line = top < 0 ? (-top + {far_h - 1}) / {far_h} : 0;",
        f"const i64 below = ({size_h} - top + {far_h - 1}) / {far_h};",
        f"const i64 past_line = below < {kernel_h} ? below : {kernel_h};",
        "{", *body, "}",
        *_line_epilogue(program, rows, column, made_w, part),
        "}",
    ]  # fmt: skip
    sizes = {
        "X_LINE": far_h * size_w * channels, "X_TAP": far_w * channels, "X_NEXT": step_w * channels,
        "W_LINE": kernel_w * channels, "W_TAP": channels,
    }  # fmt: skip
    program = anchor.touching(program, conv.x, items=conv.items, weight_items=kernel_h * kernel_w * channels)
    return program, whole(program, lines, helpers=anchor.VECTORS + _constants(sizes) + _DEPTHWISE)


def _depthwise_line(conv: Conv2d, outputs: int, part: int, kind: str) -> list[str]:
    """The positions of one line: those at its borders one by one, the others in blocks."""
    size_w, made_w, kernel_w = conv.size[1], conv.made[1], conv.kernel[1]
    step_w, far_w, pad_w = conv.stride[1], conv.dilation[1], conv.pads[1]
    first, past = conv.inside
    block = min(outputs, max(past - first, 1))
    rest = (past - first) % block

    def taps(count: int, taps_from: str, taps_to: str) -> str:
        at = f"x + base + (ow * {step_w} - {pad_w}) * {conv.channels}LL"
        span = f"first_line, past_line, {taps_from}, {taps_to}"
        return f"rl_taps<{kind}, {count}>({at}, w, {span}, acc_ + ow * {part}, width, {part});"

    border = [
        f"const i64 left = ow * {step_w} - {pad_w};",
        f"const i64 first_tap = left < 0 ? (-left + {far_w - 1}) / {far_w} : 0;",
        f"const i64 room = ({size_w} - left + {far_w - 1}) / {far_w};",
        f"const i64 past_tap = room < {kernel_w} ? room : {kernel_w};",
        taps(1, "first_tap", "past_tap"),
        "}",
    ]
    body = ["i64 ow = 0;"]
    if first > 0:
        body += [f"for (; ow < {first}; ++ow) {{", *border]
    if past - first >= block:
        body.append(f"for (; ow + {block} <= {past}; ow += {block}) {taps(block, '0', str(kernel_w))}")
    if rest:
        body += [taps(rest, "0", str(kernel_w)), f"ow += {rest};"]
    if past < made_w:
        body += [f"for (; ow < {made_w}; ++ow) {{", *border]
    return body


def _part_of_channels(conv: Conv2d, threads: int, lanes: int) -> int:
    """Channels of one turn: a line of them fits L1, and an uneven number of lines is cut for the threads."""
    fits = max(LINE_BYTES // 4 // conv.made[1] // lanes, 1) * lanes
    parts = -(-conv.channels // fits)
    if _is_parallel(conv, threads) and conv.lines % threads and conv.lines < 8 * threads:
        parts = -(-parts // threads) * threads
    part = -(-conv.channels // parts // lanes) * lanes
    # a last part narrower than a vector would run item by item
    if part > conv.channels or 0 < conv.channels % part < lanes:
        part = conv.channels
    _require_stack(conv.made[1] * part)
    return part


def _require_stack(items: int) -> None:
    if 4 * items > STACK_BYTES:
        raise RefusedError(f"an output line of {4 * items} bytes at a time, want at most {STACK_BYTES}")


_SMALL = """
// acc[R][NB] = the sum over lines and taps of x * w; x is the window's padded lines, R outputs side by side
template <int R, int NB> FN void rl_window(const float* x, const float* w, float* acc) {
  enum { NV = NB / LANES };
  vec sum[R][NV] = {};
  for (i64 i = 0; i < LINES; ++i)
#pragma GCC unroll 8
    for (i64 j = 0; j < TAPS; ++j) {
      const float* row = w + (i * TAPS + j) * NB;
      const float* at = x + i * X_LINE + j * X_TAP;
#pragma GCC unroll 64
      for (int r = 0; r < R; ++r) {
        const float a = at[r * X_NEXT];
#pragma GCC unroll 64
        for (int v = 0; v < NV; ++v) sum[r][v] += a * *(const vec*)(row + v * LANES);
      }
    }
#pragma GCC unroll 64
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 64
    for (int v = 0; v < NV; ++v) *(vec*)(acc + r * NB + v * LANES) = sum[r][v];
}
"""


def window_weight(weight: Tensor) -> Tensor:
    """[O, C, KH, KW] as [C * KH * KW, O]."""
    return weight.detach().reshape(weight.shape[0], -1).t()


def small_source(site: Site, conv: Conv2d, *, panel: int, rows: int, threads: int) -> tuple[Program, str]:
    """The kernel's text for a contiguous x of few channels, and the program it came from."""
    program, outer, column = _lower(site, conv)
    (size_h, size_w), (made_h, made_w), (kernel_h, kernel_w) = conv.size, conv.made, conv.kernel
    (step_h, step_w), (far_h, far_w), (pad_h, pad_w) = conv.stride, conv.dilation, conv.pads
    reach = (made_w - 1) * step_w + (kernel_w - 1) * far_w + 1
    count = conv.channels_in * kernel_h
    if 4 * count * reach > WINDOW_BYTES:
        raise RefusedError(
            f"{count} lines of {reach} items under one output line, want at most {WINDOW_BYTES} bytes"
        )
    _require_stack(made_w * panel)
    skipped, begin = max(-pad_w, 0), max(pad_w, 0)
    copied = max(min(size_w - skipped, reach - begin), 0)
    panels = -(-conv.channels // panel)
    block = min(rows, made_w)
    rest = made_w % block
    call = f"rl_window<{{}}, {panel}>(lines + ow * {step_w}, w, acc_ + ow * {panel});"
    lines = [
        *anchor.operands_text(program, conv.x),
        *([parallel(1, threads)] if _is_parallel(conv, threads) and conv.lines > 1 else []),
        f"for (i64 line = 0; line < {conv.lines}; ++line) {{",
        f"alignas(64) float lines[{count * reach}] = {{}};",
        f"alignas(64) float acc_[{made_w * panel}];",
        *_place(made_h),
        f"for (i64 i = 0; i < {count}; ++i) {{",
        f"const i64 ih = oh * {step_h} - {pad_h} + i % {kernel_h} * {far_h};",
        f"const i64 from = ((n * {conv.channels_in} + i / {kernel_h}) * {size_h} + ih) * {size_w}LL;",
        f"if (ih >= 0 && ih < {size_h})",
        f"__builtin_memcpy(lines + i * {reach} + {begin}, x + from + {skipped}, {4 * copied});",
        "}",
        f"for (i64 part = 0; part < {panels}; ++part) {{",
        f"const float* w = packed + part * {count * kernel_w * panel}LL;",
        "{", "i64 ow = 0;",
        f"for (; ow + {block} <= {made_w}; ow += {block}) {call.format(block)}",
        *([call.format(rest)] if rest else []),
        "}",
        f"const i64 start = part * {panel};",
        f"const i64 stop = {anchor.past('start', panel, conv.channels)};",
        *_line_epilogue(program, outer, column, made_w, panel),
        "}",
        "}",
    ]  # fmt: skip
    sizes = {"LINES": count, "TAPS": kernel_w, "X_LINE": reach, "X_TAP": far_w, "X_NEXT": step_w}
    program = anchor.touching(
        program, conv.x, items=conv.items, weight_items=panels * count * kernel_w * panel
    )
    return program, whole(program, lines, helpers=anchor.VECTORS + _constants(sizes) + _SMALL)


def _lower(site: Site, conv: Conv2d) -> tuple[Program, list[Loop], Loop]:
    program, axes = anchor.lower_around(site, conv.op, conv.x)
    anchor.require_columns(program, axes, axes[1])
    sizes = (conv.batch, *conv.made)
    named = zip(("n", "oh", "ow"), (axes[0], *axes[2:]), sizes, strict=True)
    rows = [Loop(var, axis, size, frozenset([axis])) for var, axis, size in named if axis != ONE]
    anchor.require_sizes(program, axes, (conv.batch, conv.channels, *conv.made))
    return program, rows, Loop("c", axes[1], conv.channels, frozenset([axes[1]]))


def _line_epilogue(program: Program, rows: list[Loop], column: Loop, made_w: int, pitch: int) -> list[str]:
    acc = f"acc_[ow * {pitch} + c - start]"
    inner = anchor.epilogue(program, rows=rows, column=column, start="start", stop="stop", acc=acc)
    return [f"for (i64 ow = 0; ow < {made_w}; ++ow) {{", *inner, "}"]


def _place(made_h: int) -> list[str]:
    return [f"[[maybe_unused]] const i64 n = line / {made_h}, oh = line % {made_h};"]


def _is_parallel(conv: Conv2d, threads: int) -> bool:
    return threads > 1 and conv.macs >= PARALLEL_MACS


def _constants(sizes: dict[str, int]) -> str:
    return "".join(f"static const i64 {name} = {size};\n" for name, size in sizes.items())
