"""Registers and predicates of one warp, as far as they are known: what `sass_lanes` computes with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

WARP = 32
MASK = 0xFFFFFFFF
CONSTANT = re.compile(r"^c\[0x0\]\[0x([0-9a-f]+)\]$")

Lanes = np.ndarray  # int64[32], each a 32-bit word


@dataclass(frozen=True)
class Word:
    """A register of all lanes. `from_size` says that it depends on a size that is an argument."""

    lanes: Lanes
    from_size: bool = False


@dataclass
class Warp:
    """Registers, uniform registers and predicates by name; what is not there is not known."""

    words: dict[str, Word] = field(default_factory=dict)
    predicates: dict[str, np.ndarray] = field(default_factory=dict)
    arguments: dict[int, Word] = field(default_factory=dict)

    def read(self, operand: str) -> Word | None:
        """The value of an operand, or None."""
        name = operand.replace(".reuse", "")
        if name.startswith("-"):
            inner = self.read(name[1:])
            return None if inner is None else Word(-inner.lanes & MASK, inner.from_size)
        if name.startswith("~"):
            inner = self.read(name[1:])
            return None if inner is None else Word(~inner.lanes & MASK, inner.from_size)
        if name in ("RZ", "URZ", "SRZ"):
            return same(0)
        if re.fullmatch(r"-?0x[0-9a-f]+", name):
            return same(int(name, 16))
        if constant := CONSTANT.match(name):
            # other places hold what the driver puts there, such as the size of a block
            return self.arguments.get(int(constant[1], 16))
        return self.words.get(name)

    def predicate(self, name: str) -> np.ndarray | None:
        """Lanes for which it holds."""
        if name.startswith("!"):
            inner = self.predicate(name[1:])
            return None if inner is None else ~inner
        return np.ones(WARP, bool) if name in ("PT", "UPT") else self.predicates.get(name)

    def write(self, name: str, value: Word | None, active: np.ndarray | None = None) -> None:
        """Lanes that are not active keep what they had."""
        if not re.fullmatch(r"U?R\d+", name):
            return
        old = self.words.get(name)
        if value is None or (active is not None and not active.all() and old is None):
            self.words.pop(name, None)
        elif active is None or active.all() or old is None:
            self.words[name] = value
        else:
            lanes = np.where(active, value.lanes, old.lanes)
            self.words[name] = Word(lanes, value.from_size or old.from_size)

    def forget(self, name: str, count: int) -> None:
        """A run of registers that now holds data."""
        kind, number = re.fullmatch(r"(U?R)(\d+)", name).groups()  # type: ignore[union-attr]
        for offset in range(count):
            self.words.pop(f"{kind}{int(number) + offset}", None)


def same(value: int) -> Word:
    return Word(np.full(WARP, value & MASK, np.int64))


def signed(lanes: Lanes) -> Lanes:
    return (lanes ^ 0x80000000) - 0x80000000
