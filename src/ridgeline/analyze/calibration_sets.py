"""What a calibration builds and measures: networks over a grid of sizes, for a GPU and for a processor.

Several small ones lie in one graph, side by side: then their kernels are compiled together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

# weights of one graph together stay in L2 as those of a small model do, or come from memory
TRANSFORMERS: dict[str, Sequence[Network]] = {
    "short sequences": (Transformer(512, 2048, 8, 1, 64),),
    "masked sequences": (
        Transformer(1024, 4096, 16, 1, 128, is_masked=True),
        Transformer(1024, 4096, 16, 8, 256, is_masked=True),
    ),
    "sequences": (Transformer(640, 2560, 10, 1, 256, is_causal=True), Transformer(256, 512, 4, 1, 900)),
    "long sequences": (
        Transformer(1024, 2816, 16, 1, 640, is_gated=True, is_causal=True),
        Transformer(1280, 5120, 20, 4, 1024, is_causal=True),
    ),
    "batches of sequences": (
        Transformer(640, 2560, 10, 24, 200),
        Transformer(512, 2048, 8, 6, 480, is_causal=True),
    ),
    "single tokens": (Transformer(1536, 4096, 12, 1, 1, is_gated=True),),
}
CONVOLUTIONS: dict[str, Sequence[Network]] = {
    "bottlenecks": (Convolutions(1, (64, 128, 256, 512), size=192),),
    "inverted residuals": (Separable(1, (24, 40, 80, 128)),),
    "gated residuals": (Separable(1, (16, 64), kernel=5, size=192, is_gated=True),),
    "patches": (Blocks(1, (80, 160, 320), 48), Pools(1, (64,), 96), Pyramid(4, (48, 96), 192)),
    "batches of bottlenecks": (Convolutions(24, (64, 128, 256, 512), size=192),),
    "batches of inverted residuals": (Separable(24, (24, 40, 80, 128)),),
    "batches of gated residuals": (Separable(12, (16, 48, 96), kernel=5, size=192, is_gated=True),),
    "batches of groups": (Grouped(12, (64, 208), 16, 192), Joined(12, 32, 40), Joined(6, 40, 14)),
    "batches of patches": (Blocks(12, (80, 160, 320), 48),),
    "large maps": (
        Maps(1, (48, 96, 160), 384, 512),
        Maps(6, (64,), 208, 208),
        Maps(12, (128,), 96, 96),
        Maps(6, (64, 128), 128, 128),
    ),
    "wide maps": (
        Maps(12, (320,), 40, 40),
        Maps(6, (448,), 24, 24),
        Maps(2, (256, 384), 48, 48, has_norm=True),
        Pools(24, (64, 160), 96),
    ),
}
ROWS: dict[str, Sequence[Network]] = {
    "rows": (
        Rows(((96, 640), (640, 512), (3136, 80))),
        Rows(((2048, 640), (16384, 192), (60000, 80), (2048, 5120), (12288, 640))),
    ),
    "attention": (Attentions((
        (16, 8, 80, 80, 32, ""), (1, 12, 1, 640, 64, ""),
        (6, 12, 640, 640, 64, "causal"), (2, 16, 1280, 1280, 128, "causal"),
        (1, 10, 640, 640, 64, "added"), (6, 10, 640, 640, 64, "added"),
    )),),
}  # fmt: skip
GPU_GRAPHS: dict[str, Sequence[Network]] = {**TRANSFORMERS, **CONVOLUTIONS, **ROWS}
CPU_GRAPHS: dict[str, Sequence[Network]] = {
    "transformers": (
        Transformer(256, 1024, 4, 1, 32, layers=1),
        Transformer(512, 2048, 8, 1, 96, layers=1),
        Transformer(320, 1280, 10, 1, 160, layers=1, is_masked=True),
    ),
    "convolutions": (
        Convolutions(1, (48, 96, 192), size=160, blocks=1),
        Separable(1, (16, 24, 48), size=160),
        Separable(1, (16, 40), kernel=5, size=160, is_gated=True, is_cheap=True),
        Separable(1, (16, 32), size=128, is_gated=True),
        Maps(1, (24, 48), 96, 128),
        Maps(1, (96,), 48, 48),
        Pools(1, (32,), 64),
    ),
    "maps of several sizes": (
        Pyramid(1, (24, 48), 192),
        Pyramid(1, (16, 32, 64), 320),
        Joined(1, 24, 40, pieces=8),
    ),
    "wide maps": (Pyramid(1, (32, 128), 96), Maps(1, (32,), 160, 160), Convolutions(1, (32, 64), size=224)),
    "small maps": (
        Separable(1, (16, 32), size=64, is_gated=True),
        Separable(1, (8, 24), kernel=5, size=96, is_gated=True, is_cheap=True),
        Convolutions(1, (16, 32), size=48, blocks=1),
        Pools(1, (16,), 24),
        Transformer(64, 128, 2, 1, 8, layers=1),
    ),
    "rows": (Rows(((1, 200), (32, 256), (96, 1024), (1024, 64))),),
}


def graphs(target: Target) -> Iterator[tuple[str, onnx.ModelProto]]:
    """What a calibration measures, one graph after the other."""
    is_gpu = target.traits.is_gpu
    for name, networks in (GPU_GRAPHS if is_gpu else CPU_GRAPHS).items():
        graph = Graph(name.replace(" ", "_"), HALF if is_gpu else SINGLE)
        for network in networks:
            network.add_to(graph)
        yield name, graph.model()
