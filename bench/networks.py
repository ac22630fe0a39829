"""Well-known networks in plain torch with random weights, and their export to ONNX, with batch 1 or any.

Weights are seeded and scaled so that activations stay finite and outputs do not saturate; trained models
are in `bench/zoo.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.feeds import Feed, draw

# B batch, S sequence, E embedding, H heads


class ConvNorm(nn.Sequential):
    """Conv without bias, BatchNorm, and an activation if there is one."""

    def __init__(
        self,
        c_in: int,
        c_out: int,
        *,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        act: nn.Module | None = None,
    ) -> None:
        conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(c_out), *([act] if act is not None else []))


class Bottleneck(nn.Module):
    """relu(x + 1x1(3x3(1x1(x)))), with a projection where the shape changes."""

    def __init__(self, c_in: int, width: int, *, stride: int) -> None:
        super().__init__()
        c_out = 4 * width
        self.body = nn.Sequential(
            ConvNorm(c_in, width, kernel=1, act=nn.ReLU()),
            ConvNorm(width, width, kernel=3, stride=stride, act=nn.ReLU()),
            ConvNorm(width, c_out, kernel=1),
        )
        changes = stride != 1 or c_in != c_out
        self.skip = ConvNorm(c_in, c_out, kernel=1, stride=stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        ConvNorm(3, 64, kernel=7, stride=2, act=nn.ReLU()),
        nn.MaxPool2d(3, 2, 1),
    ]
    c_in = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(depth):
            layers.append(Bottleneck(c_in, width, stride=stride if block == 0 else 1))
            c_in = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise 3x3, project 1x1; added to the input where the shape stays."""

    def __init__(self, c_in: int, c_out: int, *, stride: int, expand: int) -> None:
        super().__init__()
        width = c_in * expand
        widen = [ConvNorm(c_in, width, kernel=1, act=nn.ReLU6())] if expand != 1 else []
        self.body = nn.Sequential(
            *widen,
            ConvNorm(width, width, kernel=3, stride=stride, groups=width, act=nn.ReLU6()),
            ConvNorm(width, c_out, kernel=1),
        )
        self.adds = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [ConvNorm(3, 32, kernel=3, stride=2, act=nn.ReLU6())]
    c_in = 32
    settings = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expand, c_out, depth, stride in settings:
        for block in range(depth):
            layers.append(InvertedResidual(c_in, c_out, stride=stride if block == 0 else 1, expand=expand))
            c_in = c_out
    layers.append(ConvNorm(c_in, 1280, kernel=1, act=nn.ReLU6()))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class SelfAttention(nn.Module):
    """One projection to q, k and v, `scaled_dot_product_attention`, one projection back."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, s, e = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(e, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)  # [B, H, S, E/H]
        merged: Tensor = self.out(y.transpose(1, 2).reshape(b, s, e))
        return merged


class BertAttention(nn.Module):
    """As `SelfAttention`, with three separate projections, as BERT is written everywhere."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, s, e = x.shape
        q, k, v = (p(x).view(b, s, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [B, H, S, E/H]
        merged: Tensor = self.out(y.transpose(1, 2).reshape(b, s, e))
        return merged


class BertLayer(nn.Module):
    """Post-norm: the sum is normalised after attention and again after the feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = BertAttention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, mask))
        y: Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return y


class Bert(nn.Module):
    """Token ids and attention mask to the last hidden state."""

    def __init__(self, *, layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 30522) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(vocab, width), nn.Embedding(2, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(places) + self.kinds(torch.zeros_like(input_ids))
        y: Tensor = self.norm(x)
        b, s = input_ids.shape
        # onnxruntime's Attention takes no mask that broadcasts over the queries
        mask = attention_mask[:, None, None, :].bool().expand(b, 1, s, s)
        for layer in self.layers:
            y = layer(y, mask)
        return y


class GptLayer(nn.Module):
    """Pre-norm, causal, GELU by tanh."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, causal=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), None)
        y: Tensor = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + y


class Gpt2(nn.Module):
    """Token ids to logits; the head is the token table again."""

    def __init__(self, *, layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 50257) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(1024, width)
        self.layers = nn.ModuleList(GptLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.tokens.weight)


class VitLayer(nn.Module):
    """Pre-norm, three projections as every checkpoint has them, GELU by erf."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.attention = BertAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), None)
        y: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + y


class Vit(nn.Module):
    """Patches of 16 by 16 pixels behind a class token; logits of that token."""

    def __init__(self, *, layers: int = 12, width: int = 768, heads: int = 12, pixels: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.05)
        self.positions = nn.Parameter(torch.randn(1, 1 + (pixels // 16) ** 2, width) * 0.05)
        self.layers = nn.ModuleList(VitLayer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-12), nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)  # [B, S, E]
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


def mlp() -> nn.Module:
    sizes = (256, 512, 512, 256, 10)
    layers: list[nn.Module] = []
    for c_in, c_out in pairwise(sizes):
        layers += [nn.Linear(c_in, c_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True)
class Network:
    """A way to make the module, what it eats, and what it hands out."""

    name: str
    make: Callable[[], nn.Module]
    feeds: Mapping[str, Feed]
    output: str
    opsets: tuple[int, ...] = (18,)  # 23 where it changes the graph: Attention and Gelu become one node


_IMAGE = {"image": Feed("float32", (1, 3, 224, 224), -2.0, 2.0)}

NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        Network("resnet50", resnet50, _IMAGE, "logits"),
        Network("mobilenet_v2", mobilenet_v2, _IMAGE, "logits"),
        Network(
            "bert_base_s128",
            Bert,
            {
                "input_ids": Feed("int64", (1, 128), 0, 30521),
                "attention_mask": Feed("int64", (1, 128), 1, 1, padded=16),
            },
            "last_hidden_state",
            opsets=(18, 23),
        ),
        Network("gpt2_s64", Gpt2, {"input_ids": Feed("int64", (1, 64), 0, 50256)}, "logits", opsets=(18, 23)),
        Network("vit_b16", Vit, _IMAGE, "logits", opsets=(18, 23)),
        Network("mlp", mlp, {"x": Feed("float32", (1, 256))}, "logits"),
    )
}


def module(name: str, *, seed: int = 0) -> nn.Module:
    """The network with its random weights, ready for inference. The caller's generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = NETWORKS[name].make()
        for part in made.modules():
            _initialise(part)
        for part in made.modules():
            if isinstance(part, Bottleneck) or (isinstance(part, InvertedResidual) and part.adds):
                # every residual sum adds variance; a weak last norm keeps fifty layers near one
                last = cast(ConvNorm, part.body[-1])
                nn.init.uniform_(cast(nn.BatchNorm2d, last[1]).weight, 0.2, 0.3)
    return made.eval()


def _initialise(part: nn.Module) -> None:
    if isinstance(part, nn.Conv2d):
        nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
    elif isinstance(part, nn.BatchNorm2d):
        assert part.running_mean is not None, "the norms here keep running statistics"
        assert part.running_var is not None, "the norms here keep running statistics"
        nn.init.uniform_(part.weight, 0.8, 1.2)
        nn.init.normal_(part.bias, std=0.1)
        nn.init.normal_(part.running_mean, std=0.1)
        nn.init.uniform_(part.running_var, 0.8, 1.2)
    elif isinstance(part, nn.Linear):
        nn.init.normal_(part.weight, std=1 / math.sqrt(part.in_features))
        nn.init.normal_(part.bias, std=0.02)
    elif isinstance(part, nn.Embedding):
        # with GPT-2's tied head, logits of a normalised state have std 0.05 * sqrt(768) = 1.4
        nn.init.normal_(part.weight, std=0.05)
    elif isinstance(part, nn.LayerNorm):
        nn.init.uniform_(part.weight, 0.8, 1.2)
        nn.init.normal_(part.bias, std=0.02)


def export(name: str, folder: Path, *, opset: int = 18, half: bool = False, any_batch: bool = False) -> Path:
    """`folder/name_opset.onnx`, exported unless it is there already; `half` in float16, with its own name."""
    path = folder / f"{name}_{opset}{'_fp16' if half else ''}{'_batch' if any_batch else ''}.onnx"
    if not path.exists():
        network = NETWORKS[name]
        inputs = [torch.from_numpy(array) for array in draw(network.feeds, seed=0).values()]
        made = module(name)
        export_module(
            made, inputs, path, names=(list(network.feeds), network.output), opset=opset, half=half,
            any_batch=any_batch,
        )  # fmt: skip
    return path


def export_module(
    made: nn.Module,
    inputs: Sequence[Tensor],
    path: Path,
    *,
    names: tuple[list[str], str],
    opset: int,
    half: bool,
    any_batch: bool,
) -> None:
    """Write a module as ONNX; a file of that name is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if half:
        made, inputs = made.half(), [x.half() if x.is_floating_point() else x for x in inputs]
    if any_batch:
        # a batch above one, or the exporter takes it for a constant
        inputs = [torch.cat([x, x]) for x in inputs]
    batch = {0: torch.export.Dim("batch")}
    half_done = path.with_suffix(".part")
    torch.onnx.export(
        made,
        tuple(inputs),
        half_done,
        input_names=names[0],
        output_names=[names[1]],
        dynamic_shapes=tuple(batch for _ in inputs) if any_batch else None,
        opset_version=opset,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    half_done.rename(path)
