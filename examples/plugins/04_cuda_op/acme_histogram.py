"""acme.image::Histogram: how often each byte occurs in each row, counted in shared memory on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

import ridgeline
from ridgeline.plugins import NvrtcTactic, OpSite, Schema, Spec

OP = "acme.image::Histogram"
BINS = 256
SOURCE = """
extern "C" __global__ void histogram(const unsigned char* x, int* counts, long long length) {
    __shared__ int bins[256];
    for (int i = threadIdx.x; i < 256; i += THREADS) bins[i] = 0;
    __syncthreads();
    const unsigned char* row = x + blockIdx.x * length;
    for (long long i = threadIdx.x; i < length; i += THREADS) atomicAdd(&bins[row[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += THREADS) counts[blockIdx.x * 256LL + i] = bins[i];
}
"""


def shapes(x: Spec) -> Spec:
    return Spec("int32", (*x.shape[:-1], BINS))


def reference(x: Tensor) -> Tensor:
    is_bin = x.unsqueeze(-1) == torch.arange(BINS, device=x.device)
    return is_bin.sum(-2, dtype=torch.int32)


def rows(at: OpSite) -> int:
    return at.outputs[0].numel // BINS


def register() -> None:
    """What the entry point names."""
    ridgeline.register_op(
        Schema(OP, inputs={"x": "uint8"}, outputs={"counts": "int32"}),
        shapes=shapes,
        reference=reference,
        tactics=[
            NvrtcTactic(
                "acme.histogram.cuda",
                op=OP,
                source=SOURCE,
                function="histogram",
                grid=lambda at, config: (rows(at),),
                threads=lambda at, config: int(config["THREADS"]),
                scalars=lambda at: (at.inputs[0].shape[-1],),
                configs=lambda at: [{"THREADS": 256}, {"THREADS": 1024}],
            )
        ],
    )
