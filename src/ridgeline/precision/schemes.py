"""What a user may ask to quantise to: formats of weights and activations, and where they can pay."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ridgeline.base.formats import BLOCKS_OPSET, E8M0_OPSET, FORMATS, INT4_OPSET, PER_CHANNEL_OPSET, Format
from ridgeline.base.scales import PER_TENSOR, Granularity, blocks, per_channel
from ridgeline.errors import OptionError, did_you_mean

DEFAULT_BLOCK = 64
BLOCKS = (16, 32, 64, 128, 256)
# tensor cores and vector units multiply tiles of 16 or more; what is narrower is padded to it
LEAST = 16
# weights that are not worth a scale
SMALL_NUMEL = 1024
LARGEST_FP8_KERNEL = 32


@dataclass(frozen=True)
class Scheme:
    """Formats of weights and, unless only weights are quantised, of activations."""

    name: str
    weight: Format
    activation: Format | None = None
    symmetric: bool = True  # of the activations
    block: int = 0  # elements along K that share a weight scale; 0: one scale per output channel
    # of one int8 weight: halved for processors that add pairs of u8·s8 products in 16 bits
    reduced_range: bool = False

    @property
    def is_weight_only(self) -> bool:
        return self.activation is None

    @property
    def opset(self) -> int:
        """The first opset whose QuantizeLinear and DequantizeLinear say all of this."""
        needed = [PER_CHANNEL_OPSET, self.weight.opset]
        if self.activation is not None:
            needed.append(self.activation.opset)
        if self.block:
            needed.append(BLOCKS_OPSET)
        return max(needed)

    def weight_granularity(self, node: ir.Node) -> Granularity:
        """Per output channel, or blocks along the axis that is summed over; float8 products have one scale.

        Steps of float8 grow with the number, so that channels need none of their own, and one number is what
        libraries multiply a product by.
        """
        channels, summed = weight_axes(node)
        if self.activation is not None and not self.weight.is_integer:
            return PER_TENSOR
        return blocks(summed, self.block) if self.block else per_channel(channels)

    def describe_activation(self) -> str:
        return f"{self.activation} per tensor, {'symmetric' if self.symmetric else 'with zero point'}"


_INT8, _FP8 = FORMATS["int8"], FORMATS["fp8"]
SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("int8", _INT8, _INT8),
        Scheme("uint8", _INT8, FORMATS["uint8"], symmetric=False),
        Scheme("fp8", _FP8, _FP8),
        Scheme("w8", _INT8),
        Scheme("wfp8", _FP8),
        Scheme("w4", FORMATS["int4"], block=DEFAULT_BLOCK),
        Scheme("int4", FORMATS["int4"], block=DEFAULT_BLOCK),
        Scheme("nvfp4", FORMATS["nvfp4"], block=FORMATS["nvfp4"].block),
        Scheme("mxfp8", FORMATS["mxfp8"], block=FORMATS["mxfp8"].block),
    )
}
assert max(scheme.opset for scheme in SCHEMES.values()) == E8M0_OPSET > INT4_OPSET


def scheme_named(name: str, *, block: int = 0, reduced_range: bool = False) -> Scheme:
    """The scheme with a user's block size and range, if it has such a choice."""
    if not isinstance(name, str) or name not in SCHEMES:
        raise OptionError(
            f"there is no format {name!r} to quantise to", help=did_you_mean(str(name), list(SCHEMES))
        )
    if not isinstance(block, int) or isinstance(block, bool):
        raise OptionError("the block size is not a whole number", got=repr(block))
    scheme = SCHEMES[name]
    if block and (not scheme.block or scheme.weight.block or block not in BLOCKS):
        want = f"no block size: {name} has its own scales"
        if scheme.block and not scheme.weight.block:
            want = ", ".join(map(str, BLOCKS))
        raise OptionError(f"{name} takes no blocks of {block}", want=want)
    if reduced_range and (scheme.activation is None or scheme.weight is not _INT8):
        raise OptionError(f"{name} has no reduced range", want="int8 or uint8 activations")
    weight = scheme.weight
    if reduced_range:
        weight = Format(**{**vars(weight), "largest": 64.0, "lowest": -64.0})
    return Scheme(name, weight, scheme.activation, scheme.symmetric, block or scheme.block, reduced_range)


def weight_axes(node: ir.Node) -> tuple[int, int]:
    """The axes of a product's weights: of the output channels, and of what is summed over."""
    if node.op_type == "Conv":
        return 0, 1
    if node.op_type == "ConvTranspose":
        return 1, 0
    if node.op_type == "Gemm" and node.attributes.get_int("transB", 0):
        return 0, 1
    return -1, -2


def why_not(node: ir.Node, scheme: Scheme, shapes: tuple[tuple[int | None, ...] | None, ...]) -> str:
    """Why quantising this product cannot pay, by the shapes of its two operands; empty if it may."""
    x, w = shapes[:2]
    if w is None or x is None:
        return "the rank of an operand is not known"
    if node.op_type in ("Conv", "ConvTranspose"):
        return _why_not_conv(node, scheme, w)
    return _why_not_matmul(node, scheme, x, w)


def _why_not_matmul(
    node: ir.Node, scheme: Scheme, x: tuple[int | None, ...], w: tuple[int | None, ...]
) -> str:
    if len(w) < 2 or len(x) < 2:
        return "a product with a vector is bound by reading, not by multiplying"
    channels, summed = weight_axes(node)
    k, n = w[summed], w[channels]
    for letter, size in (("K", k), ("N", n)):
        if size is not None and size < LEAST:
            return f"{letter} = {size}: fewer than {LEAST}, so most of a tile would be padding"
    rows = x[:-1] if n is not None and len(w) == 2 else x[-2:-1]
    if node.op_type == "Gemm" and node.attributes.get_int("transA", 0):
        rows = x[-1:]
    if not scheme.is_weight_only and None not in rows and prod(rows) == 1:  # type: ignore[arg-type]
        return "one row: bound by reading the weights, which a weight-only format makes smaller"
    if scheme.is_weight_only and k is not None and n is not None and k * n < SMALL_NUMEL:
        return f"{k * n} weights: fewer than {SMALL_NUMEL}, nothing to gain"
    return ""


def _why_not_conv(node: ir.Node, scheme: Scheme, w: tuple[int | None, ...]) -> str:
    if None in w:
        return "the size of the kernel is not known"
    sizes = [int(size) for size in w if size is not None]
    group = int(node.attributes.get_int("group", 1))
    if node.op_type == "Conv":
        made, read = sizes[0], sizes[1] * group
    else:
        made, read = sizes[1] * group, sizes[0]
    kernel = sizes[2:]
    if scheme.block:
        return "a convolution reads its weights once for many pixels: blocks of scales would not pay"
    if scheme.is_weight_only:
        few = prod(sizes) < SMALL_NUMEL
        return f"{prod(sizes)} weights: fewer than {SMALL_NUMEL}, nothing to gain" if few else ""
    assert scheme.activation is not None
    if not scheme.activation.is_integer:
        return _why_not_float_conv(group, read, made, prod(kernel))
    if group > 1:
        if made % 8 or max(kernel, default=1) < 3:
            return f"{group} groups with {made} channels and kernel {kernel}: no integer kernel is faster"
        return ""
    if min(read, made) < LEAST and (max(read, made) < LEAST or (read % 8 and made % 8)):
        return f"{read} to {made} channels: fewer than {LEAST}, so most of a tile would be padding"
    return ""


def _why_not_float_conv(group: int, read: int, made: int, volume: int) -> str:
    if group > 1:
        return f"{group} groups: float8 tensor cores multiply across all channels"
    if min(read, made) <= LEAST:
        return f"{read} to {made} channels: float8 convolutions want more than {LEAST}"
    if volume > LARGEST_FP8_KERNEL:
        return f"a kernel of {volume} places: float8 convolutions take up to {LARGEST_FP8_KERNEL}"
    return ""
