"""Modules whose code depends on the sizes of their inputs, and the calls they are asked with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EXAMPLE = (4, 3)
# the example's own size, one more, one less, 0 and 1 are among them
ROWS = (4, 3, 6, 5, 1, 0, 2, 8, 7)
PAIRS = ((4, 3), (3, 3), (5, 3), (4, 4), (4, 2), (1, 3), (4, 1), (1, 1), (0, 3), (6, 2), (7, 5))


@dataclass(frozen=True)
class Case:
    """A module, its number of inputs, the axes that may change, and sizes to call it with."""

    name: str
    make: Callable[[], nn.Module]
    inputs: int = 1
    is_square: bool = False  # both axes of one input may change
    is_index: bool = False
    example: tuple[int, int] = EXAMPLE

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        return PAIRS if self.is_square or self.inputs == 2 else tuple((rows, 3) for rows in ROWS)

    @property
    def axes(self) -> tuple[dict[int, str], ...]:
        """As dynamic_shapes."""
        if self.inputs == 2:
            return ({0: "rows"}, {0: "others"})
        return ({0: "rows", 1: "columns"},) if self.is_square else ({0: "rows"},)

    def call(self, size: tuple[int, int]) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(sum(size))
        if self.is_index:
            return (torch.randint(0, 20, size, generator=generator),)
        x = torch.randn(size if self.is_square else (size[0], 3), generator=generator)
        return (x, torch.randn(size[1], 3, generator=generator)) if self.inputs == 2 else (x,)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return self.function(x) if y is None else self.function(x, y)


class Tagger(nn.Module):
    """Embedding, TransformerEncoder, LSTM: sizes are met in torch's own code."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.words, self.encoder = nn.Embedding(20, 8), nn.TransformerEncoder(layer, 1)
        self.tags = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.tags(self.encoder(self.words(x)))[0]
        return made


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.words(x) + self.places(torch.arange(x.shape[1]))
        return made


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.cell(x[:, None])[0]
        return made


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.into = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)[None]
        mask = torch.triu(torch.ones(x.shape[0], x.shape[0], dtype=torch.bool), 1)
        made: Tensor = self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return made


def _either(question: Callable[[int], object]) -> Callable[[Tensor], Tensor]:
    return lambda x: x * 2 if question(x.shape[0]) else x + 100


def _both(question: Callable[[int, int], object]) -> Callable[[Tensor], Tensor]:
    return lambda x: x * 2 if question(x.shape[0], x.shape[1]) else x + 100


QUESTIONS: dict[str, Callable[[int], object]] = {
    "n % 2 == 0": lambda n: n % 2 == 0,
    "n % 3 == 1": lambda n: n % 3 == 1,
    "n < 5": lambda n: n < 5,
    "n >= 7": lambda n: n >= 7,
    "n == 4": lambda n: n == 4,
    "n != 6": lambda n: n != 6,
    "n // 2 == 2": lambda n: n // 2 == 2,
    "n // 3 > 1": lambda n: n // 3 > 1,
    "n * n < 20": lambda n: n * n < 20,
    "(n - 1) % 4": lambda n: (n - 1) % 4,
    "n > 1": lambda n: n > 1,
    "n == 1": lambda n: n == 1,
    "n == 0": lambda n: n == 0,
    "n": lambda n: n,
    "n in (2, 4, 8)": lambda n: n in (2, 4, 8),
    "min(n, 6) == 6": lambda n: min(n, 6) == 6,
    "max(n, 3) == n": lambda n: max(n, 3) == n,
    "n / 2 < 3": lambda n: n / 2 < 3,
    "float(n) > 3.5": lambda n: float(n) > 3.5,
    "n * 0.5 < 2.5": lambda n: n * 0.5 < 2.5,
    "2 < n < 6": lambda n: 2 < n < 6,
    "n < 3 or n > 6": lambda n: n < 3 or n > 6,
}
TWO: dict[str, Callable[[int, int], object]] = {
    "n == m": lambda n, m: n == m,
    "n < m": lambda n, m: n < m,
    "n % m == 0": lambda n, m: m and n % m == 0,
    "n + m > 8": lambda n, m: n + m > 8,
    "n * m < 13": lambda n, m: n * m < 13,
    "n - m == 1": lambda n, m: n - m == 1,
    "max(n, m) < 5": lambda n, m: max(n, m) < 5,
    "n > 1 and m > 1": lambda n, m: n > 1 and m > 1,
}


def _nested(x: Tensor) -> Tensor:
    n = x.shape[0]
    if n % 2 == 0:
        return x * 2 if n < 5 else x * 3
    return x + 100 if n > 4 else x - 100


def _looped(x: Tensor) -> Tensor:
    total = torch.zeros(3)
    for i in range(x.shape[0]):
        total = total + x[i] * i
    return total


def _counted(x: Tensor) -> Tensor:
    for _ in range(x.shape[0] // 2):
        x = x + 1
    return x


def _pairs(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] // 2, -1) * 2


def _causal(x: Tensor) -> Tensor:
    mask = torch.full((x.shape[0], x.shape[0]), -math.inf).triu(1)
    return torch.softmax(x @ x.T + mask, -1) @ x


SIZED: dict[str, Callable[[Tensor], Any]] = {
    "x / n": lambda x: x / x.shape[0],
    "x * float(n)": lambda x: x * float(x.shape[0]),
    "x / n ** 0.5": lambda x: x / x.shape[0] ** 0.5,
    "x / sqrt(n)": lambda x: x / math.sqrt(x.shape[0]),
    "x * int(n / 2)": lambda x: x * int(x.shape[0] / 2),
    "x * round(n / 3)": lambda x: x * round(x.shape[0] / 3),
    "x * ceil(n / 4)": lambda x: x * math.ceil(x.shape[0] / 4),
    "x * len(x)": lambda x: x * len(x),
    "x * len(str(n))": lambda x: x * len(str(x.shape[0])),
    "x * {4: 2}.get(n, 9)": lambda x: x * {4: 2}.get(x.shape[0], 9),
    "x * tensor([n, n, 1])": lambda x: x * torch.tensor([x.shape[0], x.shape[0], 1]),
    "loop over n": _looped,
    "loop over n // 2": _counted,
    "stack of rows": lambda x: torch.stack([row * 2 for row in x]),
    "arange(n)": lambda x: x * torch.arange(x.shape[0])[:, None],
    "full((n, n))": lambda x: torch.full((x.shape[0], x.shape[0]), 0.5) @ x,
    "eye(n)": lambda x: torch.eye(x.shape[0]) @ x,
    "causal mask": _causal,
    "reshape(n // 2, -1)": _pairs,
    "view(-1, 2, 3)": lambda x: x.view(-1, 2, 3) + 1,
    "view(-1, 2, 3).squeeze(0)": lambda x: x.view(-1, 2, 3).squeeze(0) + 1,
    "squeeze": lambda x: x.squeeze() + 1,
    "x[: n // 2]": lambda x: x[: x.shape[0] // 2] + 1,
    "x[n // 2 :]": lambda x: x[x.shape[0] // 2 :] + 1,
    "x[1:3]": lambda x: x[1:3] + 1,
    "x[-2]": lambda x: x[-2] + 1,
    "chunk(2)": lambda x: x.chunk(2)[-1] + 1,
    "split(2)": lambda x: x.split(2)[0] + 1,
    "repeat(n, 1)": lambda x: x.repeat(x.shape[0], 1) + 1,
    "pad to 8": lambda x: functional.pad(x, (0, 0, 0, 8 - x.shape[0])) + 1,
    "roll(n // 2)": lambda x: x.roll(x.shape[0] // 2, 0) + 1,
    "adaptive pool": lambda x: functional.adaptive_avg_pool1d(x.T, 2),
    "max pool": lambda x: functional.max_pool1d(x.T, 2),
    "convolution of 3": lambda x: functional.conv1d(x.T[None], torch.ones(2, 3, 3)),
    "interpolate to 2 n": lambda x: functional.interpolate(x.T[None], scale_factor=2.0),
    "unfold(0, 2, 1)": lambda x: x.unfold(0, 2, 1).sum(-1),
    "mean": lambda x: x.mean(0),
    "x, n and x.shape": lambda x: {"x": x + 1, "n": x.shape[0], "double": 2 * x.shape[0]},
    "x + x[:1]": lambda x: x + x[:1],
    "numel > 10": lambda x: x * 2 if x.numel() > 10 else x + 100,
    "nested branches": _nested,
}
SQUARE: dict[str, Callable[[Tensor], Any]] = {
    "reshape(n * m)": lambda x: x.reshape(x.shape[0] * x.shape[1]) + 1,
    "x.T @ x / m": lambda x: x.T @ x / x.shape[1],
}
JOINED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "x[: min(n, m)]": lambda x, y: x[: min(x.shape[0], y.shape[0])] + 1,
    "cat, halved": lambda x, y: torch.cat([x, y])[: (x.shape[0] + y.shape[0]) // 2] + 1,
    "x + y if they fit": lambda x, y: x + y if x.shape[0] == y.shape[0] else x - y.sum(0),
}
CASES = [
    *(Case(name, lambda q=q: Calls(_either(q))) for name, q in QUESTIONS.items()),
    *(Case(name, lambda q=q: Calls(_both(q)), is_square=True) for name, q in TWO.items()),
    *(Case(name, lambda f=f: Calls(f)) for name, f in SIZED.items()),
    *(Case(name, lambda f=f: Calls(f), is_square=True) for name, f in SQUARE.items()),
    *(Case(name, lambda f=f: Calls(f), inputs=2) for name, f in JOINED.items()),
    Case("x + y", lambda: Calls(lambda x, y: x + y), inputs=2, example=(4, 4)),
    Case("tagger", Tagger, is_square=True, is_index=True),
    Case("table of 6 positions", Positions, is_square=True, is_index=True),
    Case("lstm", lambda: Recurrent(nn.LSTM)),
    Case("gru", lambda: Recurrent(nn.GRU)),
    Case("attention", Attends),
]


def made(case: Case) -> nn.Module:
    """With weights, the same in every run."""
    torch.manual_seed(3)
    return case.make().requires_grad_(False).eval()
