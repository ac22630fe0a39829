"""acme.rbf::SquaredDistance: d[m, n] = the sum over k of (x[m, k] - w[n, k])², with what follows it fused."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

import ridgeline
from ridgeline.plugins import OpSite, Schema, Spec, TritonTactic

OP = "acme.rbf::SquaredDistance"


@triton.jit
def distance_kernel(
    x_ptr, w_ptr, pointers, rows, columns, depth, BM: tl.constexpr, BN: tl.constexpr, EPILOGUE: tl.constexpr
):  # fmt: skip
    """epilogue(sum over k of (x[m, k] - w[n, k])²); one program per tile."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]  # [BM, 1]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]  # [1, BN]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(depth):
        x = tl.load(x_ptr + m * depth + k, mask=m < rows, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + n * depth + k, mask=n < columns, other=0.0).to(tl.float32)
        acc += (x - w) * (x - w)
    EPILOGUE(acc, m, n, (m < rows) & (n < columns), pointers)


def shapes(x: Spec, w: Spec) -> Spec:
    return x.resized(x.shape[0], w.shape[0])


def reference(x: Tensor, w: Tensor) -> Tensor:
    return (x[:, None, :] - w[None, :, :]).square().sum(-1)


def sizes(at: OpSite) -> tuple[int, int, int]:
    return (*at.outputs[0].shape, at.inputs[0].shape[1])


def grid(at: OpSite, config: dict[str, int]) -> tuple[int, int]:
    rows, columns = at.outputs[0].shape
    return triton.cdiv(rows, config["BM"]), triton.cdiv(columns, config["BN"])


def register() -> None:
    """What the entry point names."""
    ridgeline.register_op(
        Schema(OP, inputs={"x": "T", "w": "T"}, outputs={"d": "T"}, types={"T": ("float32", "float16")}),
        shapes=shapes,
        reference=reference,
        tactics=[
            TritonTactic(
                "acme.distance.triton",
                op=OP,
                kernel=distance_kernel,
                grid=grid,
                scalars=sizes,
                configs=lambda at: [
                    {"BM": bm, "BN": bn, "num_warps": 4} for bm, bn in ((32, 64), (64, 64), (16, 128))
                ],
                epilogue_axis=-1,
            )
        ],
    )


def radial_basis(x: Tensor, w: Tensor, gamma: float) -> Tensor:
    """What the model of the README computes."""
    return torch.exp(reference(x, w) * -gamma)
