"""What a calibration builds and measures: networks over a grid of sizes, for a GPU and for a processor.

Several small ones lie in one graph, side by side: then their kernels are compiled together. Graphs come in
the order of what they are worth to predictions, since a calibration may have no time for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ridgeline.analyze.calibration_graph import HALF, SINGLE, Graph
from ridgeline.analyze.calibration_networks import (
    Attentions,
    Blocks,
    Convolutions,
    Grouped,
    Joined,
    Maps,
    Network,
    Pools,
    Pyramid,
    Rows,
    Separable,
    Transformer,
)
from ridgeline.base.spec import Target

# what a graph takes besides its regions, in regions: measured builds (bench/results/calibration-worth-…) took
# 3.9 s and 0.34 s for each distinct region
START_REGIONS = 12


@dataclass(frozen=True)
class NetworkSet:
    """Networks that lie in one graph, and how many distinct regions a build of it times."""

    name: str
    regions: int
    networks: tuple[Network, ...]

    @property
    def cost(self) -> int:
        """What measuring it takes, in units that only compare sets."""
        return START_REGIONS + self.regions

    def model(self, dtype: str) -> onnx.ModelProto:
        graph = Graph(self.name.replace(" ", "_"), dtype)
        for network in self.networks:
            network.add_to(graph)
        return graph.model()


def _set(name: str, regions: int, *networks: Network) -> NetworkSet:
    return NetworkSet(name, regions, networks)


# the order is that of bench/calibration_worth.py. Weights of one graph together stay in L2 as those of a
# small model do, or come from memory
GPU_SETS = (
    _set("batches of bottlenecks", 27, Convolutions(24, (64, 128, 256, 512), size=192)),
    _set("inverted residuals", 25, Separable(1, (24, 40, 80, 128))),
    _set(
        "masked sequences", 14,
        Transformer(1024, 4096, 16, 1, 128, is_masked=True),
        Transformer(1024, 4096, 16, 8, 256, is_masked=True),
    ),
    _set("batches of patches", 22, Blocks(12, (80, 160, 320), 48)),
    _set("batches of gated residuals", 38, Separable(12, (16, 48, 96), kernel=5, size=192, is_gated=True)),
    _set("batches of inverted residuals", 25, Separable(24, (24, 40, 80, 128))),
    _set(
        "batches of sequences", 12,
        Transformer(640, 2560, 10, 24, 200),
        Transformer(512, 2048, 8, 6, 480, is_causal=True),
    ),
    _set(
        "sequences", 12,
        Transformer(640, 2560, 10, 1, 256, is_causal=True),
        Transformer(256, 512, 4, 1, 900),
    ),
    _set("short sequences", 6, Transformer(512, 2048, 8, 1, 64)),
    _set("patches", 29, Blocks(1, (80, 160, 320), 48), Pools(1, (64,), 96)),
    _set("enlarged maps", 17, Pyramid(4, (48, 96), 192)),
    _set(
        "large maps", 25,
        Maps(1, (48, 96, 160), 384, 512),
        Maps(6, (64,), 208, 208),
        Maps(12, (128,), 96, 96),
        Maps(6, (64, 128), 128, 128),
    ),
    _set(
        "attention", 6,
        Attentions((
            (16, 8, 80, 80, 32, ""), (1, 12, 1, 640, 64, ""),
            (6, 12, 640, 640, 64, "causal"), (2, 16, 1280, 1280, 128, "causal"),
            (1, 10, 640, 640, 64, "added"), (6, 10, 640, 640, 64, "added"),
        )),
    ),
    _set(
        "long sequences", 13,
        Transformer(1024, 2816, 16, 1, 640, is_gated=True, is_causal=True),
        Transformer(1280, 5120, 20, 4, 1024, is_causal=True),
    ),
    _set("bottlenecks", 27, Convolutions(1, (64, 128, 256, 512), size=192)),
    _set("single tokens", 7, Transformer(1536, 4096, 12, 1, 1, is_gated=True)),
    _set("gated residuals", 27, Separable(1, (16, 64), kernel=5, size=192, is_gated=True)),
    _set("batches of groups", 42, Grouped(12, (64, 208), 16, 192), Joined(12, 32, 40), Joined(6, 40, 14)),
    _set(
        "rows", 40,
        Rows(((96, 640), (640, 512), (3136, 80))),
        Rows(((2048, 640), (16384, 192), (60000, 80), (2048, 5120), (12288, 640))),
    ),
    _set(
        "wide maps", 32,
        Maps(12, (320,), 40, 40),
        Maps(6, (448,), 24, 24),
        Maps(2, (256, 384), 48, 48, has_norm=True),
        Pools(24, (64, 160), 96),
    ),
)  # fmt: skip
# what each is worth was not measured: the kinds that most models have come first
CPU_SETS = (
    _set(
        "transformers", 19,
        Transformer(256, 1024, 4, 1, 32, layers=1),
        Transformer(512, 2048, 8, 1, 96, layers=1),
        Transformer(320, 1280, 10, 1, 160, layers=1, is_masked=True),
    ),
    _set(
        "convolutions", 38,
        Convolutions(1, (48, 96, 192), size=160, blocks=1),
        Separable(1, (16, 24, 48), size=160),
    ),
    _set(
        "gated residuals", 55,
        Separable(1, (16, 40), kernel=5, size=160, is_gated=True, is_cheap=True),
        Separable(1, (16, 32), size=128, is_gated=True),
    ),
    _set("plain maps", 19, Maps(1, (24, 48), 96, 128), Maps(1, (96,), 48, 48), Pools(1, (32,), 64)),
    _set(
        "maps of several sizes", 50,
        Pyramid(1, (24, 48), 192),
        Pyramid(1, (16, 32, 64), 320),
        Joined(1, 24, 40, pieces=8),
    ),
    _set(
        "wide maps", 38,
        Pyramid(1, (32, 128), 96),
        Maps(1, (32,), 160, 160),
        Convolutions(1, (32, 64), size=224),
    ),
    _set(
        "small maps", 81,
        Separable(1, (16, 32), size=64, is_gated=True),
        Separable(1, (8, 24), kernel=5, size=96, is_gated=True, is_cheap=True),
        Convolutions(1, (16, 32), size=48, blocks=1),
        Pools(1, (16,), 24),
        Transformer(64, 128, 2, 1, 8, layers=1),
    ),
    _set("rows", 19, Rows(((1, 200), (32, 256), (96, 1024), (1024, 64)))),
)  # fmt: skip


def sets_of(target: Target) -> tuple[NetworkSet, ...]:
    """What a calibration measures, that of most worth first."""
    return GPU_SETS if target.traits.is_gpu else CPU_SETS


def dtype_of(target: Target) -> str:
    """The type that its networks compute in."""
    return HALF if target.traits.is_gpu else SINGLE
