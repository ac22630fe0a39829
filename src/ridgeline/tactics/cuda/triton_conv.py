"""Convolutions by our own Triton kernels: 1x1 as products, windows as implicit products, depthwise ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device
from ridgeline.base.spec import ITEM_BITS, Config, Site
from ridgeline.kernels.triton.depthwise_products import Block, Depthwise, block_us, rank_depthwise
from ridgeline.kernels.triton.products import Product, Window, pack_weight, row_stride
from ridgeline.tactics.cuda.triton_product import (
    GRID_LIMIT,
    Reading,
    TritonProduct,
    precision_of,
    require_dtype,
)
from ridgeline.tactics.read.conv import ConvSite, as_image, read_conv

AnyWindow = TypeVar("AnyWindow", bound=Window)


class TritonConv1x1(TritonProduct):
    """epilogue(x · W) over the channels of every position."""

    name = "triton.conv1x1"

    def read(self, site: Site) -> Reading:
        conv = _read(site)
        if conv.groups != 1:
            raise RefusedError(f"{conv.groups} groups, want one")
        if not conv.is_pointwise:
            raise RefusedError(f"kernel {list(conv.kernel)} stride {list(conv.stride)}, want 1x1 stride 1")
        images, depth, *size = conv.x.shape
        positions = math.prod(size)
        stride = row_stride(depth, ITEM_BITS[conv.x.dtype] // 8)
        sizes = (conv.channels, depth, conv.x.dtype)
        if conv.x.layout == "channels_last" or positions == 1:
            problem = Product(
                images * positions, *sizes, (0, depth, 1), (0, stride, 1), precision=precision_of(conv.anchor)
            )
        elif images <= GRID_LIMIT:  # image by image, rows along the positions
            problem = Product(
                positions, *sizes, (depth * positions, 1, positions), (0, stride, 1), batch=images,
                precision=precision_of(conv.anchor),
            )  # fmt: skip
        else:
            raise RefusedError(f"{images} contiguous images, a grid has {GRID_LIMIT}")
        return _reading(conv, problem, lambda stored: pack_weight(stored.reshape(conv.channels, depth)))


class TritonConv(TritonProduct):
    """epilogue(Σ x · w over the window) as a product whose rows are found on the way, or as several."""

    name = "triton.conv"

    def read(self, site: Site) -> Reading:
        conv = _read(site)
        if conv.is_pointwise:
            raise RefusedError("a plain product: triton.conv1x1 takes it")
        window = window_of(conv, Window, precision=precision_of(conv.anchor))
        if conv.is_depthwise:
            raise RefusedError("every channel is a group of its own: triton.depthwise takes it")
        if conv.groups > 1:
            window = window.in_groups(conv.groups)
        return _reading(conv, window.with_lines_joined(), lambda stored: window.pack(_as_image(stored)))


class TritonDepthwise(TritonProduct):
    """epilogue(Σ x · w over the window) channel by channel."""

    name = "triton.depthwise"

    def read(self, site: Site) -> Reading:
        conv = _read(site)
        channels = conv.x.shape[1]
        if not conv.is_depthwise:
            raise RefusedError(
                f"{conv.groups} groups of {channels} channels into {conv.channels}, want all alike"
            )
        if conv.x.layout != "channels_last":
            raise RefusedError("channels of x do not lie together")
        window = window_of(conv, Depthwise)
        return _reading(conv, window, lambda stored: window.pack(_as_image(stored)))

    def cuts(self, site: Site, problem: Any) -> Sequence[Block]:
        return rank_depthwise(problem, site.target.arch)

    def predict_us(self, site: Site, problem: Any, config: Config, device: Device) -> float:
        return block_us(problem, self.cut_of(problem, config), device)

    def cut_of(self, problem: Any, config: Config) -> Block:
        return Block(**{key: int(value) for key, value in config.items()})


def _read(site: Site) -> ConvSite:
    conv = read_conv(site)
    require_dtype(conv.x.dtype, site.specs[conv.weight].dtype)
    if conv.rank > 2:
        raise RefusedError(f"{conv.rank} spatial axes, want at most 2")
    return conv


def _reading(conv: ConvSite, problem: Any, pack: Any) -> Reading:
    return Reading(conv.anchor, problem, x=conv.slot, weight=conv.weight, pack=pack, columns_axis=1)


def window_of(conv: ConvSite, kind: type[AnyWindow], **more: Any) -> AnyWindow:
    """The geometry as (height, width); one spatial axis is an image one line high."""
    image, channel, *rest = conv.x.strides
    line, column = rest if conv.rank == 2 else (0, *rest)
    return kind(
        images=conv.x.shape[0], channels=conv.x.shape[1], columns=conv.channels,
        size=as_image(conv.x.shape[2:]), made=as_image(conv.y.shape[2:]), kernel=as_image(conv.kernel),
        stride=as_image(conv.stride), dilation=as_image(conv.dilation), pads=as_image(conv.pads_begin, 0),
        x_strides=(image, line, column, channel), dtype=conv.x.dtype, **more,
    )  # fmt: skip


def _as_image(weight: Tensor) -> Tensor:
    return weight if weight.dim() == 4 else weight.unsqueeze(2)
