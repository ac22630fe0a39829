"""Small copies of the GPU table's networks: the regions they become, and the same results."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from half_exports import export_half, fused, half_feeds, regions
from text_graphs import assert_same, run
from torch import Tensor, nn

from ridgeline.frontend.from_onnx import load

pytest.importorskip("onnxscript")

WIDTH, HEADS, GROUPS, SIZE = 32, 4, 2, 8
WORDS = 12


class Encoder(nn.Module):
    """Two layers around nn.MultiheadAttention, as torchvision's ViT has them."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for i, (attention, mlp) in enumerate(zip(self.attention, self.mlps, strict=True)):
            h = self.norms[2 * i](x)
            x = x + attention(h, h, h, need_weights=False)[0]
            x = x + mlp(self.norms[2 * i + 1](x))
        return x


class Llama(nn.Module):
    """A decoder layer with rotary positions and grouped keys, on a sequence or behind a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.v = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.o = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48, bias=False)
        self.down = nn.Linear(48, WIDTH, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.cat((-x[..., SIZE // 2 :], x[..., : SIZE // 2]), -1) * sin

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor | None = None, values: Tensor | None = None
    ) -> Tensor:
        h = self.norm1(x)
        q, k, v = (layer(h).unflatten(-1, (-1, SIZE)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = self._turn(q, cos, sin), self._turn(k, cos, sin)
        if keys is not None and values is not None:
            k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        made = F.scaled_dot_product_attention(q, k, v, is_causal=keys is None, enable_gqa=True)
        x = x + self.o(made.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class CrossAttention(nn.Module):
    """Two sets of features that attend to each other, and a Sinkhorn step on their scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mlp = nn.Linear(2 * WIDTH, WIDTH)

    def _attend(self, x: Tensor, source: Tensor) -> Tensor:
        q, k, v = (
            layer(t).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer, t in zip(self.qkv, (x, source, source), strict=True)
        )
        message = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.mlp(torch.cat((x, message), -1))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self._attend(a, b), self._attend(b, a)
        scores = (a @ b.transpose(1, 2)).float()
        scores = scores - torch.logsumexp(scores, 2, keepdim=True)
        return (scores - torch.logsumexp(scores, 1, keepdim=True)).exp()


class Images(nn.Module):
    """Group norm before a convolution with a time embedding, a softmax and an L2 norm over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, 16)
        self.conv, self.head = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 24, 1)
        self.time = nn.Linear(8, 16)

    def forward(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.conv(F.silu(self.norm(x))) + self.time(F.silu(time))[:, :, None, None]
        made = self.head(h)
        return torch.softmax(made, 1), h / torch.linalg.vector_norm(h, dim=1, keepdim=True), F.normalize(made)


@cache
def encoder(*, batch_first: bool, opset: int, batch: int | None) -> onnx.ModelProto:
    torch.manual_seed(3)
    shape = (batch or 3, WORDS) if batch_first else (WORDS, batch or 3)
    dims = {0 if batch_first else 1: torch.export.Dim("batch")}
    return export_half(
        Encoder(batch_first=batch_first),
        {"x": torch.randn(*shape, WIDTH)},
        opset,
        dynamic_shapes=None if batch else (dims,),
    )


@cache
def llama(*, cached: int) -> onnx.ModelProto:
    torch.manual_seed(3)
    length = 1 if cached else WORDS
    angle = torch.randn(length, SIZE)
    inputs = {"x": torch.randn(2, length, WIDTH), "cos": angle.cos(), "sin": angle.sin()}
    if cached:
        inputs |= {name: torch.randn(2, GROUPS, cached, SIZE) for name in ("keys", "values")}
    return export_half(Llama(), inputs, 18)


@cache
def exported(name: str) -> onnx.ModelProto:
    torch.manual_seed(3)
    if name == "llama":
        return llama(cached=0)
    if name == "decode":
        return llama(cached=11)
    if name == "cross":
        features = {"a": torch.randn(2, 10, WIDTH), "b": torch.randn(2, 14, WIDTH)}
        return export_half(CrossAttention(), features, 18)
    return export_half(Images(), {"x": torch.randn(2, 16, 6, 6), "time": torch.randn(2, 8)}, 18)


AROUND = ["LayerNormalization", "MatMul Add", "ATTENTION", "MatMul Add Add"]
LAYER = [*AROUND, "LayerNormalization", "MatMul Add Gelu", "MatMul Add Add"]
HEAD = "Slice Reshape Transpose"
TURN = f"{HEAD} Mul Slice Neg Slice Concat Mul Add"
AFTER = ["MatMul Add", "RMSNormalization", "MatMul", "Split Sigmoid Mul Mul", "MatMul Add"]
BEFORE = ["RMSNormalization", "MatMul", TURN]
SIDE = ["Slice Slice Slice Attention", "Concat", "MatMul Add Add"]
SINKHORN = ["Transpose", "MatMul Cast", "ReduceLogSumExp", "Sub ReduceLogSumExp", "Sub Exp"]
NETWORKS = {
    "llama": [*BEFORE, TURN, f"{HEAD} Attention Transpose Reshape", *AFTER],
    "decode": [*BEFORE, f"{TURN} Concat", f"{HEAD} Concat", "Attention Transpose Reshape", *AFTER],
    "cross": ["MatMul Add", "MatMul Add", *SIDE, *SIDE, *SINKHORN],
    "images": [
        *("GroupNormalization Sigmoid Mul", "Sigmoid Mul", "Gemm", "Conv Add", "Conv", "Softmax"),
        *("ReduceL2 Div", "ReduceL2 Clip Div"),
    ],
}  # fmt: skip
# an export takes seconds, so only what differs most
ENCODERS = [
    (True, 18, 1),
    (True, 18, 3),
    (True, 18, None),
    (False, 18, None),
    (True, 23, None),
    (False, 23, 1),
]


@pytest.mark.parametrize(("batch_first", "opset", "batch"), ENCODERS)
def test_a_layer_of_multihead_attention_is_seven_regions(
    batch_first: bool, opset: int, batch: int | None
) -> None:
    proto = encoder(batch_first=batch_first, opset=opset, batch=batch)
    model, inferred = fused(proto, batch=batch or 4)
    turned = f"{HEAD} {HEAD} {HEAD} Attention Transpose Reshape"
    attention = "Slice Slice Slice Attention" if batch_first else turned
    layer = [attention if ops == "ATTENTION" else ops for ops in LAYER]
    assert regions(model, inferred) == [*layer, *layer]
    feeds = half_feeds(model, batch or 4)
    assert_same(run(load(proto).model, feeds), run(model, feeds), roundings=8)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_network_becomes_these_regions(name: str) -> None:
    model, inferred = fused(exported(name))
    assert regions(model, inferred) == NETWORKS[name]
    feeds = half_feeds(model)
    before, after = run(load(exported(name)).model, feeds), run(model, feeds)
    # what is wide at the end was computed from halves
    assert_same([a.astype(np.float16) for a in before], [a.astype(np.float16) for a in after], roundings=8)


def test_grouped_keys_are_not_repeated() -> None:
    model, inferred = fused(exported("llama"))
    assert not [n for f in model.functions.values() for n in f if n.op_type == "Expand"]
    (call,) = [n for n in model.graph if "Attention" in n.op_type]
    assert inferred.specs[str(call.inputs[2].name)].shape == (2, GROUPS, WORDS, SIZE)


def test_what_convolutions_read_is_written_channels_last() -> None:
    model, inferred = fused(exported("images"))
    norm = next(n for n in model.graph if "GroupNormalization" in n.op_type)
    assert inferred.specs[str(norm.outputs[0].name)].layout == "channels_last"
