"""Networks whose runs data decides about: two detectors with NonMaxSuppression, and a greedy decoder.

Each is a module in plain PyTorch, which peers run with a loop or a suppression of their own around it, and an
ONNX model with NonMaxSuppression or Loop. Weights are random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# B batch, C classes, N boxes, H heads, T positions, E width


def conv(inside: int, outside: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    made = nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(outside), nn.ReLU())


class Block(nn.Module):
    """A residual block of two 3x3 convolutions."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv(inside, outside, 3, stride), nn.Conv2d(outside, outside, 3, padding=1)
        self.short = (
            nn.Conv2d(inside, outside, 1, stride) if stride > 1 or inside != outside else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.short(x))


class Heads(nn.Module):
    """Scores and boxes of one level, as rows: [B, N, C] and [B, N, 4]."""

    def __init__(self, make: Callable[[int], nn.Module], width: int, anchors: int, classes: int) -> None:
        super().__init__()
        self.scores, self.boxes = make(anchors * classes), make(anchors * 4)
        self.classes = classes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = [head(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, n)
                for head, n in ((self.scores, self.classes), (self.boxes, 4))]  # fmt: skip
        return made[0], made[1]


def anchor_boxes(size: int, strides: Sequence[int], shapes: Sequence[tuple[float, float]]) -> Tensor:
    """[N, 4]: centres and sizes over the cells of every level, in the order of the heads' rows."""
    every = []
    for stride in strides:
        cells = -(-size // stride)
        at = (torch.arange(cells) + 0.5) * stride
        ys, xs = torch.meshgrid(at, at, indexing="ij")
        centres = torch.stack((ys, xs), -1)[:, :, None].expand(-1, -1, len(shapes), -1)
        sides = (torch.tensor(shapes) * stride * 4).expand(cells, cells, -1, -1)
        every.append(torch.cat((centres, sides), -1).reshape(-1, 4))
    return torch.cat(every)


class Detector(nn.Module):
    """Corners of boxes [B, N, 4] and scores [B, C, N] in float32, for a NonMaxSuppression to pick from."""

    def __init__(self, levels: nn.Module, heads: Sequence[Heads], anchors: Tensor, keep: int) -> None:
        super().__init__()
        self.levels, self.heads, self.keep = levels, nn.ModuleList(heads), keep
        self.register_buffer("anchors", anchors, persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        rows = [head(x) for head, x in zip(self.heads, self.levels(image), strict=True)]
        scores = torch.cat([score for score, _ in rows], 1).float().sigmoid()
        boxes = torch.cat([box for _, box in rows], 1).float()
        anchors: Tensor = self.anchors.float()  # type: ignore[operator, union-attr]
        centre = anchors[:, :2] + boxes[..., :2] * anchors[:, 2:] * 0.1
        half = anchors[:, 2:] * (boxes[..., 2:] * 0.2).clamp(max=4.0).exp() / 2
        corners = torch.cat((centre - half, centre + half), -1)
        if self.keep:  # the boxes that may be picked at all: those of the best scores
            places = scores.amax(-1).topk(self.keep).indices
            scores = scores.gather(1, places[..., None].expand(-1, -1, scores.shape[-1]))
            corners = corners.gather(1, places[..., None].expand(-1, -1, 4))
        return corners, scores.transpose(1, 2)


class Pyramid(nn.Module):
    """A residual network of 18 layers and its feature pyramid: levels of strides 8 to 128."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), Block(64, 64, 1), Block(64, 64, 1)
        )
        sizes = (64, 128, 256, 512)
        pairs = list(pairwise(sizes))
        self.stages = nn.ModuleList([nn.Sequential(Block(a, b, 2), Block(b, b, 1)) for a, b in pairs])
        self.sides = nn.ModuleList([nn.Conv2d(b, width, 1) for _, b in pairs])
        self.smooth = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in pairs])
        self.down = nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1) for _ in range(2)])

    def forward(self, image: Tensor) -> list[Tensor]:
        x, found = self.stem(image), []
        for stage, side in zip(self.stages, self.sides, strict=True):
            x = stage(x)
            found.append(side(x))
        for place in (1, 0):
            found[place] = found[place] + F.interpolate(found[place + 1], scale_factor=2.0, mode="nearest")
        found = [smooth(level) for smooth, level in zip(self.smooth, found, strict=True)]
        for down in self.down:
            found.append(down(found[-1]))
        return found


class Mobile(nn.Module):
    """Inverted residuals with depthwise convolutions: levels of strides 16 to 128."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((16, 1), (24, 2), (40, 2), (80, 2), (112, 1), (160, 2), (256, 2), (256, 2))
        self.stem, inside, stages = conv(3, 16, 3, 2), 16, []
        for outside, stride in widths:
            deep = 4 * inside
            stages.append(nn.Sequential(conv(inside, deep, 1), conv(deep, deep, 3, stride, deep),
                                        nn.Conv2d(deep, outside, 1, bias=False)))  # fmt: skip
            inside = outside
        self.stages = nn.ModuleList(stages)

    def forward(self, image: Tensor) -> list[Tensor]:
        x, found = self.stem(image), []
        for place, stage in enumerate(self.stages):
            x = stage(x)
            if place in (4, 5, 6, 7):
                found.append(x)
        return found


def retinanet(size: int = 512, classes: int = 80, width: int = 256) -> Detector:
    shapes = [(2.0**s * r, 2.0**s / r) for s in (0.0, 1 / 3, 2 / 3) for r in (0.7, 1.0, 1.4)]

    def head(outside: int) -> nn.Module:
        return nn.Sequential(*(conv(width, width) for _ in range(4)), nn.Conv2d(width, outside, 3, padding=1))

    heads = Heads(head, width, len(shapes), classes)
    return Detector(Pyramid(width), [heads] * 5, anchor_boxes(size, (8, 16, 32, 64, 128), shapes), keep=1000)


def ssdlite(size: int = 320, classes: int = 90) -> Detector:
    shapes = [(1.0, 1.0), (0.7, 1.4), (1.4, 0.7), (1.3, 1.3)]
    heads = []
    for width in (112, 160, 256, 256):

        def head(outside: int, width: int = width) -> nn.Module:
            return nn.Sequential(conv(width, width, 3, 1, width), nn.Conv2d(width, outside, 1))

        heads.append(Heads(head, width, len(shapes), classes))
    return Detector(Mobile(), heads, anchor_boxes(size, (16, 32, 64, 128), shapes), keep=0)


@dataclass(frozen=True)
class Suppression:
    """What NonMaxSuppression is asked for."""

    most: int
    overlap: float
    least: float


class Step(nn.Module):
    """One token of a decoder: from a token, its position and the cached keys and values to the next ones."""

    def __init__(self, width: int, heads: int, layers: int, words: int, length: int) -> None:
        super().__init__()
        self.heads, self.length = heads, length
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * layers + 1)])
        self.qkv = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(layers)])
        self.out = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.up = nn.ModuleList([nn.Linear(width, 4 * width) for _ in range(layers)])
        self.down = nn.ModuleList([nn.Linear(4 * width, width) for _ in range(layers)])
        self.last = nn.Linear(width, words, bias=False)

    def forward(
        self, token: Tensor, place: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """token and place [], keys and values [layers, H, T, E / H]."""
        x = (self.words(token) + self.places(place))[None]  # [1, E]
        is_here = torch.arange(self.length, device=x.device)[None, :, None] == place
        is_past = (torch.arange(self.length, device=x.device) <= place)[None, None]
        kept_keys, kept_values = [], []
        for layer, qkv in enumerate(self.qkv):
            q, k, v = qkv(self.norms[2 * layer](x)).view(3, self.heads, 1, -1).unbind(0)
            k, v = torch.where(is_here, k, keys[layer]), torch.where(is_here, v, values[layer])
            kept_keys.append(k)
            kept_values.append(v)
            attended = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=is_past[None])
            x = x + self.out[layer](attended.reshape(1, -1))
            x = x + self.down[layer](F.gelu(self.up[layer](self.norms[2 * layer + 1](x))))
        following = self.last(self.norms[-1](x)).argmax(-1)[0]
        return following, torch.stack(kept_keys), torch.stack(kept_values)


def step(layers: int = 6, width: int = 512, words: int = 8000, length: int = 128) -> Step:
    return Step(width, 8, layers, words, length)
