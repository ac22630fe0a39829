"""The models of the GPU table: what they are in torch, their inputs, their export in half precision.

Weights are random. The vision models are torchvision's and the language models transformers', so that every
peer runs the very code its users would run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# B batch, S sequence, E width, H heads


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    is_image: bool = False  # peers get channels-last weights and inputs, as they run best


class First(nn.Module):
    """A model's first output, positionally called: what both exporter and compiler like best."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        made: Any = self.model(*args)
        return made if isinstance(made, Tensor) else made[0]


def _vision(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        model: nn.Module = getattr(torchvision.models, name)(weights=None)
        for module in model.modules():  # untrained running statistics make activations explode
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
        return model

    return make


def _image(batch: int, size: int = 224) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"x": torch.randn(batch, 3, size, size)}


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.model = BertModel(BertConfig(), add_pooling_layer=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        made = self.model(input_ids=input_ids, attention_mask=attention_mask)
        hidden: Tensor = made.last_hidden_state
        return hidden


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2Model

        self.model = GPT2Model(GPT2Config(use_cache=False))

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden: Tensor = self.model(input_ids=input_ids, use_cache=False).last_hidden_state
        return hidden


def _words(batch: int, length: int, vocabulary: int, *, mask: bool) -> Callable[[], dict[str, Tensor]]:
    def inputs() -> dict[str, Tensor]:
        made = {"input_ids": torch.randint(0, vocabulary, (batch, length))}
        if mask:
            made["attention_mask"] = torch.ones(batch, length, dtype=torch.int64)
        return made

    return inputs


class LlamaBlock(nn.Module):
    """One decoder layer of Llama-3.2-1B's sizes, with rotary embedding, on a sequence or with a cache."""

    def __init__(self, width: int = 2048, heads: int = 32, groups: int = 8, hidden: int = 8192) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = self.size // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def _qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        h = self.norm1(x)
        q = self.q(h).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k(h).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.v(h).view(batch, length, self.groups, self.size).transpose(1, 2)
        return self._turn(q, cos, sin), self._turn(k, cos, sin), v

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        batch, length, width = x.shape
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self._qkv(x, cos, sin)
        return self._finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


class LlamaDecode(LlamaBlock):
    """The same layer for one new token over cached keys and values."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = self._qkv(x, cos, sin)
        k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        return self._finish(x, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def _llama(length: int, cached: int = 0) -> Callable[[], dict[str, Tensor]]:
    def inputs() -> dict[str, Tensor]:
        angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, 64, 2) / 64)
        angle = torch.cat((angle, angle), -1)
        made = {"x": torch.randn(1, length, 2048), "cos": angle.cos(), "sin": angle.sin()}
        if cached:
            made |= {name: torch.randn(1, 8, cached, 64) for name in ("keys", "values")}
        return made

    return inputs


class SuperPointLike(nn.Module):
    """A VGG encoder with a detector head and L2-normalised descriptors."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        last = 1
        for i, width in enumerate((64, 64, 128, 128)):
            layers += [nn.Conv2d(last, width, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if i < 3 else []
            last = width
        self.encoder = nn.Sequential(*layers)
        self.detector = nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 65, 1))
        self.descriptor = nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 256, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.encoder(x)
        scores = torch.softmax(self.detector(h), 1)
        descriptors = self.descriptor(h)
        return scores, descriptors / torch.linalg.vector_norm(descriptors, dim=1, keepdim=True)


class SuperGlueLike(nn.Module):
    """Self and cross attention between two sets of features, then Sinkhorn normalisation of their scores."""

    def __init__(self, width: int = 256, heads: int = 4, layers: int = 4, steps: int = 10) -> None:
        super().__init__()
        self.heads, self.steps = heads, steps
        self.qkv = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for _ in range(3)) for _ in range(layers)
        )
        self.join = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )

    def _attend(self, i: int, x: Tensor, source: Tensor) -> Tensor:
        q, k, v = (
            layer(t).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, t in zip(self.qkv[i], (x, source, source), strict=True)  # type: ignore[arg-type]
        )
        message = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.mlp[i](torch.cat((x, self.join[i](message)), -1))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        for i in range(len(self.join)):
            if i % 2:
                a, b = self._attend(i, a, b), self._attend(i, b, a)
            else:
                a, b = self._attend(i, a, a), self._attend(i, b, b)
        scores = (a @ b.transpose(1, 2)).float() / a.shape[-1] ** 0.5
        for _ in range(self.steps):
            scores = scores - torch.logsumexp(scores, 2, keepdim=True)
            scores = scores - torch.logsumexp(scores, 1, keepdim=True)
        return scores.exp()


class UNetBlock(nn.Module):
    """A residual block of a diffusion U-Net: GroupNorm, SiLU, convolution, twice, and the time embedding."""

    def __init__(self, width: int = 320) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, width), nn.GroupNorm(32, width)
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(1280, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


CASES = {
    case.name: case
    for case in (
        *(Case(f"resnet50_b{b}", _vision("resnet50"), _image(b), is_image=True) for b in (1, 32)),
        *(Case(f"bert_base_s128_b{b}", Bert, _words(b, 128, 30522, mask=True)) for b in (1, 32)),
        *(Case(f"vit_b16_b{b}", _vision("vit_b_16"), _image(b)) for b in (1, 32)),
        *(Case(f"mobilenet_v2_b{b}", _vision("mobilenet_v2"), _image(b), is_image=True) for b in (1, 32)),
        *(Case(f"gpt2_s512_b{b}", Gpt2, _words(b, 512, 50257, mask=False)) for b in (1, 8)),
        Case("llama_block_s512", LlamaBlock, _llama(512)),
        Case("llama_block_decode", LlamaDecode, _llama(1, cached=511)),
        Case("superpoint_like", SuperPointLike, lambda: {"x": torch.randn(1, 1, 480, 640)}, is_image=True),
        Case(
            "superglue_like",
            SuperGlueLike,
            lambda: {"a": torch.randn(1, 1024, 256), "b": torch.randn(1, 777, 256)},
        ),
        Case(
            "unet_block",
            UNetBlock,
            lambda: {"x": torch.randn(2, 320, 64, 64), "time": torch.randn(2, 1280)},
            is_image=True,
        ),
    )
}


def randomise(model: nn.Module) -> nn.Module:
    """Biases, scales and heads as training leaves them: initial zeros and ones would fold away."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(0, 0.05).add_(0.0 if name.endswith("bias") else 1.0)
            elif not parameter.any():
                parameter.normal_(0, 0.02)
    return model


def half(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.half() if t.is_floating_point() else t for n, t in inputs.items()}


def export(model: nn.Module, inputs: dict[str, Tensor], path: Path, opset: int = 20) -> Path:
    """The model in half precision, at just these shapes, on the CPU."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        model.cpu(), tuple(half(inputs).values()), str(path), input_names=list(inputs),
        opset_version=opset, dynamo=True, external_data=True, verbose=False,
    )  # fmt: skip
    return path
