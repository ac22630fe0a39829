"""Where the windows of a convolution lie; every sequence has one number per spatial axis."""

from __future__ import annotations

from collections.abc import Sequence


def reads_outside(
    size: Sequence[int],
    made: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
) -> bool:
    """Whether some window reaches over an edge; `pads` are those before the first position."""
    axes = zip(size, made, kernel, stride, dilation, pads, strict=True)
    return any(pad > 0 or (o - 1) * s - pad + (k - 1) * d >= i for i, o, k, s, d, pad in axes)
