"""Which nodes of a model compute in a half type: all that bear it, as far as the budget goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

from ridgeline.ir.body import node_sources
from ridgeline.precision.budget import Metric
from ridgeline.precision.emulate import Emulator, Rounding, is_mask, rounded_to
from ridgeline.precision.guards import guard
from ridgeline.precision.lower import follow_neighbours, lowerable, value_key
from ridgeline.precision.patterns import named_nodes, names_of
from ridgeline.precision.ranges import HALVES, Statistics, observe
from ridgeline.precision.samples import Feeds, Samples, row_digest
from ridgeline.precision.search import ErrorOf, Found, raise_nodes
from ridgeline.precision.traced_runs import TracedRuns

Tell = Callable[[str, int, int, str], None]


@dataclass(frozen=True)
class Decision:
    """What is lowered to what, what is not and why. Nodes are named by their first result."""

    half: str
    lowered: frozenset[str]
    kept: Mapping[str, str]  # by node, the reason
    names: Mapping[str, tuple[str, ...]]  # by node, those of the model's own nodes
    error: float = 0.0  # as emulated
    masks: frozenset[str] = frozenset()  # values to clip to the range of the half type
    alone: Mapping[str, float] = field(default_factory=dict)  # by node, its error alone; empty if not needed

    def named(self, node: str) -> str:
        return ", ".join(self.names[node])


@dataclass(frozen=True)
class Asked:
    """What the user wants of a lowered model."""

    budget: float
    metric: Metric | None = None
    keep: tuple[str, ...] = ()  # patterns of node names


class Lowering:
    """One model on its way to a lower precision: statistics are taken once, decisions as often as needed."""

    def __init__(self, model: ir.Model, emulator: Emulator, asked: Asked, tell: Tell) -> None:
        self.model, self.emulator, self.asked, self.tell = model, emulator, asked, tell
        self.names = {value_key(node): node_sources(node) for node in model.graph}
        self._runs: dict[tuple[str, tuple[str, ...]], TracedRuns] = {}
        called = {value_key(node): names_of(node) for node in model.graph}
        # patterns were checked before: what a later rewrite took away has no type to keep
        self.user_kept = set(named_nodes(asked.keep, called)[0])

    def statistics(self, samples: Samples) -> Statistics:
        def counted() -> Any:
            for i, feeds in enumerate(samples):
                self.tell("ranges", i, 0, "")
                yield feeds

        return observe(self.emulator, counted())

    def decide(
        self,
        half: str,
        seen: Statistics,
        rows: Sequence[Feeds],
        *,
        keep: Mapping[str, str] | None = None,
        saved_us: Mapping[str, float] | None = None,
    ) -> Decision:
        """Guards, then emulation, then the search if that is over the budget; without rows, guards alone."""
        version = self.model.opset_imports.get("", 1)
        able = [value_key(n) for n in self.model.graph if lowerable(n, half, version) is not None]
        kept = {
            node: reason for node, reason in guard(self.emulator, seen, half).items() if node in set(able)
        }
        kept |= dict.fromkeys(self.user_kept, "asked for") | dict(keep or {})
        free = [node for node in able if node not in kept]
        error_of = self.error_of(half, rounded_to(HALVES[half]), rows)
        error = error_of(frozenset(free))
        found = Found(frozenset(), error, {})
        if error > self.asked.budget:
            found = raise_nodes(free, error_of, self.asked.budget, saved_us, self.tell_node)
            kept |= found.reasons
        lowered = {node: half for node in free if node not in found.raised}
        followed = follow_neighbours(self.model, lowered, half)
        masks = self._clipped_masks(half, seen)
        return Decision(half, frozenset(followed), kept, self.names, found.error, masks, found.alone)

    def _clipped_masks(self, half: str, seen: Statistics) -> frozenset[str]:
        """Masks, and what they are chosen from, with numbers beyond the half type's range."""
        largest = torch.finfo(HALVES[half]).max
        ops, masks = self.emulator.ops, self.emulator.masks
        read = {name for op in ops for name in op.inputs if is_mask(op, name) or masks.issuperset(op.outputs)}
        return frozenset(n for n in read if n in seen.ranges and seen.ranges[n].largest > largest)

    def tell_node(self, done: int, total: int, node: str) -> None:
        self.tell("sensitivity", done, total, ", ".join(self.names[node]))

    def error_of(self, kind: str, rounding: Rounding, rows: Sequence[Feeds]) -> ErrorOf:
        """The error when some nodes round so; runs of a kind are remembered for the next decision."""
        key = kind, tuple(map(row_digest, rows))
        if key not in self._runs:
            every = dict.fromkeys(self.names, rounding)
            self._runs[key] = TracedRuns(self.emulator, rows, every, self.asked.metric)
        runs = self._runs[key]
        for other in self._runs.values():
            if other is not runs:
                other.forget_values()

        def error_of(coarse: frozenset[str]) -> float:
            # one sample ranks single nodes well enough
            return runs.judge(coarse, samples=1 if len(coarse) == 1 else None).error

        return error_of
