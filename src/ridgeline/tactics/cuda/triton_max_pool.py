"""Max pooling by our own Triton kernel: channels-last images of halves, floats and codes of 8 bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Site, TensorSpec
from ridgeline.kernels.scalar.program import FLOAT8_LARGEST
from ridgeline.kernels.triton.compiler import compile_kernel
from ridgeline.kernels.triton.driver import Launcher
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.text import TYPES
from ridgeline.tactics.base import Footprint, Launch, Offer
from ridgeline.tactics.cuda.own_kernels import KernelTactic, require_fit
from ridgeline.tactics.predict import pointwise_us
from ridgeline.tactics.staging import staged_launch

# the least number of every type that is pooled: what a window outside of the image makes
LEAST = {
    "float32": -math.inf, "float16": -math.inf, "bfloat16": -math.inf, "int8": -128.0, "uint8": 0.0,
    **{name: -largest for name, largest in FLOAT8_LARGEST.items()},
}  # fmt: skip
MOST_TAPS = 64  # of a window: all are unrolled
WIDE_BYTES = 16  # of one load


@dataclass(frozen=True)
class Pool:
    """A pooling at known sizes, as (height, width)."""

    x: TensorSpec
    y: TensorSpec
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[int, ...]  # before the image

    @property
    def positions(self) -> int:
        return self.y.numel // self.y.shape[1]

    def describe(self, config: Config, *, pdl: bool) -> Kernel:
        pairs = {
            "IN": self.x.shape[2:], "OUT": self.y.shape[2:], "KERNEL": self.kernel, "STRIDE": self.stride,
            "DILATION": self.dilation, "PAD": self.pads,
        }  # fmt: skip
        sizes = {f"{name}_{axis}": pair[i] for name, pair in pairs.items() for i, axis in enumerate("HW")}
        constants: dict[str, Any] = {"C": self.x.shape[1], **sizes, "LEAST": LEAST[self.x.dtype]}
        constants |= {"BP": int(config["positions"]), "BC": int(config["channels"]), "PDL": pdl}
        kind = f"*{TYPES[self.x.dtype][0]}"
        signature = (("x_ptr", kind), ("y_ptr", kind), ("positions", "i32"))
        return Kernel(
            "max_pool", "ridgeline.kernels.triton.max_pool",
            (*signature, *((name, "constexpr") for name in constants)), tuple(constants.items()),
            num_warps=int(config["warps"]), num_stages=1, pdl=pdl,
        )  # fmt: skip

    def grid(self, config: Config) -> tuple[int, int]:
        return -(-self.positions // int(config["positions"])), -(-self.x.shape[1] // int(config["channels"]))

    def configs(self) -> list[Config]:
        """Blocks of channels that a warp loads wide, and positions for one or two loads of every thread."""
        item = self.x.nbytes // self.x.numel
        channels = min(128, max(16, 1 << (self.x.shape[1] - 1).bit_length()))
        found: list[Config] = []
        for warps, loads in ((4, 1), (4, 2), (2, 1), (8, 1)):
            positions = max(1, 32 * warps * WIDE_BYTES // item * loads // channels)
            found.append({"positions": positions, "channels": channels, "warps": warps})
        return found


class TritonMaxPool(KernelTactic):
    """y = max over the window of x, channels last."""

    name = "triton.max_pool"

    def offer(self, site: Site) -> Offer:
        self.require_kernels(site)
        pool, pdl = read_pool(site), site.target.has_dependent_launch
        return Offer(
            pool.configs(),
            bind=lambda config, weights: self._bind(site, pool, config, weights),
            kernels=lambda config: [pool.describe(config, pdl=pdl)],
            footprint=lambda config: Footprint(writes_out=True),
            extents=lambda config: {0: pool.x.nbytes, len(site.body.inputs): pool.y.nbytes},
            predict_us=lambda config, device: pointwise_us(site, device),
            compiles=True,
        )

    def _bind(self, site: Site, pool: Pool, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        kernel = pool.describe(config, pdl=site.target.has_dependent_launch)
        launcher = Launcher(require_fit(compile_kernel(kernel, site.target.arch, store=self.store)))

        def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
            return launcher.freeze(pool.grid(config), [inputs[0], outputs[0], pool.positions])

        return staged_launch(freeze, site, {0}, reads=frozenset({0}))


def read_pool(site: Site) -> Pool:
    """The one MaxPool of the region, or `RefusedError`."""
    keys = [op.key for op in site.body.ops]
    if keys != ["MaxPool"]:
        raise RefusedError(f"the region is {' '.join(keys[:3])}, want MaxPool alone")
    (op,) = site.body.ops
    x, y = site.specs[op.inputs[0]], site.specs[op.outputs[0]]
    if site.body.inputs != op.inputs or site.body.outputs != op.outputs[:1] or any(op.outputs[1:]):
        raise RefusedError("indices are made too")
    if x.dtype not in LEAST or len(x.shape) != 4:
        raise RefusedError(f"{x} is pooled, want images of {', '.join(LEAST)}")
    if {x.layout, y.layout} != {"channels_last"}:
        raise RefusedError("images are not channels last")
    if op.attrs.get("auto_pad", "NOTSET") != "NOTSET" or not y.numel:
        raise RefusedError("padding is automatic, or nothing is made")
    kernel = tuple(op.attrs["kernel_shape"])
    if math.prod(kernel) > MOST_TAPS:
        raise RefusedError(f"a window of {math.prod(kernel)}, want at most {MOST_TAPS}")
    pads = tuple(op.attrs.get("pads") or (0, 0, 0, 0))
    return Pool(
        x, y, kernel, tuple(op.attrs.get("strides") or (1, 1)), tuple(op.attrs.get("dilations") or (1, 1)),
        pads[:2],
    )  # fmt: skip
