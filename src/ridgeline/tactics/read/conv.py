"""How a region around a convolution is read: geometry, operands and epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.tactics.read.epilogue import AnchorSite, is_constant, read_operands, split_epilogue


@dataclass(frozen=True, kw_only=True)
class ConvSite(AnchorSite):
    """A Conv or ConvTranspose with constant weights; per spatial axis: kernel, stride, dilation, pads."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int

    channel_axis = 1

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def is_symmetric(self) -> bool:
        return self.pads_begin == self.pads_end

    @property
    def is_pointwise(self) -> bool:
        """One position in, one position out: a matrix product over the channels."""
        ones = (1,) * self.rank
        return (
            self.groups == 1
            and self.kernel == self.stride == ones
            and not any(self.pads_begin + self.pads_end)
        )

    @property
    def is_depthwise(self) -> bool:
        """Every channel has a window of its own."""
        return self.groups == self.x.shape[1] == self.channels and self.groups > 1

    @property
    def depth(self) -> int:
        """Of the product that a pointwise convolution is."""
        return self.x.shape[1]

    def weight_kn(self, stored: Tensor) -> Tensor:
        """The weight of that product as [K, N]; a view."""
        return stored.reshape(self.channels, -1).t()


def read_conv(site: Site, op_type: str = "Conv") -> ConvSite:
    """The convolution of the region; `RefusedError` where it is none with constant weights."""
    anchor, data, weight, bias = read_operands(site, (op_type,))
    if bias and not is_constant(site, bias):
        raise RefusedError(f"bias {bias!r} changes between runs")
    x, w, y = site.specs[data], site.specs[weight], site.specs[anchor.outputs[0]]
    if len(x.shape) not in (3, 4, 5):
        raise RefusedError(f"activations have {len(x.shape)} axes, want 3 to 5")
    if x.numel == 0 or y.numel == 0:
        raise RefusedError("a tensor is empty")
    ones = (1,) * (len(x.shape) - 2)
    attrs = anchor.attrs
    stride = tuple(attrs.get("strides") or ones)
    dilation = tuple(attrs.get("dilations") or ones)
    extra = tuple(attrs.get("output_padding") or (0,) * len(ones))
    spans = ((k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True))
    axes = zip(x.shape[2:], y.shape[2:], spans, stride, extra, strict=True)
    if op_type == "Conv":
        totals = [max((o - 1) * s + span - i, 0) for i, o, span, s, _ in axes]
    else:
        totals = [(i - 1) * s + span + e - o for i, o, span, s, e in axes]
    begin, end = _pads(anchor, totals)
    epilogue = split_epilogue(site, anchor, channel_axis=ConvSite.channel_axis)
    return ConvSite(
        anchor=anchor, x=x, y=y, slot=site.body.inputs.index(data), weight=weight,
        biases=(bias,) if bias else (), kernel=w.shape[2:], stride=stride, dilation=dilation,
        pads_begin=begin, pads_end=end, output_padding=extra, groups=int(attrs.get("group", 1)),
        epilogue=epilogue,
    )  # fmt: skip


def read_float_conv(site: Site, op_type: str = "Conv") -> ConvSite:
    """As `read_conv`, of float32 alone."""
    conv = read_conv(site, op_type)
    if conv.x.dtype != "float32":
        raise RefusedError(f"activations are {conv.x.dtype}, want float32")
    return conv


def as_image(sizes: Sequence[int], missing: int = 1) -> tuple[int, int]:
    """Per spatial axis as (lines, positions): one axis is an image a single line high."""
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (missing, sizes[0])


def _pads(op: Op, totals: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """As the op gives them, else halves of the totals that its output shape implies.

    An odd total has its larger half at the end only for SAME_UPPER.
    """
    mode, rank = op.attrs.get("auto_pad", "NOTSET"), len(totals)
    if mode == "NOTSET" and not op.attrs.get("output_shape"):
        pads = tuple(op.attrs.get("pads") or (0,) * 2 * rank)
        return pads[:rank], pads[rank:]
    small = tuple(total // 2 for total in totals)
    large = tuple(total - total // 2 for total in totals)
    return (small, large) if mode == "SAME_UPPER" else (large, small)
