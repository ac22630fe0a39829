"""Small transformers in plain PyTorch, and how far an answer may be from theirs."""

from __future__ import annotations

import copy
import math
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.frontend.torch_tree import flatten

WIDTH, HEADS, WORDS = 32, 4, 50
QUICK: dict[str, Any] = {"level": 0, "verify": "fast"}
Encoded = namedtuple("Encoded", ["states", "pooled"])


class Block(nn.Module):
    """Attention and a feed-forward part, each with its norm and residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Encoder(nn.Module):
    """As BERT: words, an optional mask, a pooled output beside the states."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.pool = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor, mask: Tensor | None = None, *, pooled: bool = True) -> Any:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        wide = None if mask is None else mask[:, None, None, :].bool()
        for block in self.blocks:
            x = block(x, wide)
        return Encoded(x, torch.tanh(self.pool(x[:, 0])) if pooled else None)


class Cache:
    """Tensors in the attributes of an object that PyTorch's trees do not know."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []
        self.name = "cache"


class Decoder(nn.Module):
    """As GPT-2: causal, with every block's states handed out in an object, and the input among results."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, ids: Tensor, scale: float = 1.0) -> dict[str, Any]:
        x, cache = self.words(ids), Cache()
        for block in self.blocks:
            x = block(x, causal=True)
            cache.states.append(x)
        logits = x @ self.words.weight.T * scale
        return {"logits": logits, "best": logits.argmax(-1), "cache": cache, "ids": ids, "n": ids.shape[1]}


class Vision(nn.Module):
    """As ViT: patches by convolution, one tensor out; a graph break before the head if wanted."""

    def __init__(self, is_broken: bool = False) -> None:
        super().__init__()
        self.is_broken = is_broken
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.block, self.head = Block(), nn.Linear(WIDTH, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.block(self.norm(self.patches(image)).flatten(2).transpose(1, 2))
        if self.is_broken:
            torch._dynamo.graph_break()
        return self.head(x.mean(1))


def seeded(module: nn.Module) -> nn.Module:
    """Random weights, the same in every run."""
    torch.manual_seed(7)
    for tensor in module.parameters():
        nn.init.normal_(tensor, std=0.3)
    return module.requires_grad_(False).eval()


def ids(batch: int, length: int, words: int = WORDS) -> Tensor:
    return torch.randint(0, words, (batch, length), generator=torch.Generator().manual_seed(batch + length))


def assert_agrees(
    got: Any, module: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> None:
    """The same structure, the same values where no rounding is, and floats as near float64 as the module is.

    Twice the module's own distance from float64, and the type's step grown by the root of the longest sum.
    """
    kwargs = kwargs or {}
    wide = copy.deepcopy(module).double()
    with torch.no_grad():
        want = module(*args, **kwargs)
        exact = wide(*map(_double, args), **{name: _double(value) for name, value in kwargs.items()})
    leaves, tree = flatten(got)
    assert tree == flatten(want)[1]
    longest = max(max(p.shape) for p in module.parameters())
    for one, other, truth in zip(leaves, flatten(want)[0], flatten(exact)[0], strict=True):
        if not isinstance(other, Tensor) or not other.is_floating_point():
            assert torch.equal(one, other) if isinstance(other, Tensor) else one == other
            continue
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        step = 2 * torch.finfo(other.dtype).eps * math.sqrt(longest) * truth.abs().max()
        assert (one - truth).abs().max() <= 2 * (other - truth).abs().max() + step


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
