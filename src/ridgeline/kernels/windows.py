"""Where the windows of a convolution lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Windows:
    """Windows over an image; pairs are (lines, positions in a line)."""

    size: tuple[int, int]
    made: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int]  # before the first line and position

    @property
    def reads_outside(self) -> bool:
        """Whether some window reaches over an edge."""
        axes = zip(self.size, self.made, self.kernel, self.stride, self.dilation, self.pads, strict=True)
        return any(pad > 0 or (o - 1) * s - pad + (k - 1) * d >= i for i, o, k, s, d, pad in axes)
