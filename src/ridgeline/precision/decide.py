"""Which nodes of a model compute in a half type: all that bear it, as far as the budget goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ridgeline.errors import BuildError, OptionError, did_you_mean
from ridgeline.ir.body import node_sources
from ridgeline.kernels.values import outside
from ridgeline.precision.budget import Judgement, Metric
from ridgeline.precision.emulate import Emulator, Rounding, is_mask, rounded_to
from ridgeline.precision.guards import guard
from ridgeline.precision.lower import follow_neighbours, lowerable, value_key
from ridgeline.precision.ranges import HALVES, Statistics, observe
from ridgeline.precision.samples import Feeds, Samples
from ridgeline.precision.search import Found, raise_nodes

WORST_SHOWN = 3
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

    def worst(self) -> list[str]:
        """The nodes that cost most, in words."""
        ranked = sorted(self.alone.items(), key=lambda item: -item[1])[:WORST_SHOWN]
        return [f"{self.named(node)}: {error:.3g} alone" for node, error in ranked]


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
        self.user_kept = match_nodes(asked.keep, self.names)

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
        """Guards, then emulation, then the search if that is over the budget."""
        version = self.model.opset_imports.get("", 1)
        able = [value_key(n) for n in self.model.graph if lowerable(n, half, version) is not None]
        kept = {
            node: reason for node, reason in guard(self.emulator, seen, half).items() if node in set(able)
        }
        kept |= dict.fromkeys(self.user_kept, "asked for") | dict(keep or {})
        free = [node for node in able if node not in kept]
        error_of = self.error_of(rounded_to(HALVES[half]), rows)
        error = error_of(frozenset(free))
        found = Found(frozenset(), error, {})
        if error > self.asked.budget:
            found = raise_nodes(free, error_of, self.asked.budget, saved_us, self.tell_node)
            kept |= {
                node: f"off by {found.alone[node]:.3g} alone, over budget with the rest"
                for node in found.raised
            }
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

    def error_of(self, rounding: Rounding, rows: Sequence[Feeds]) -> Callable[[frozenset[str]], float]:
        """The worst error when some nodes round, from runs that begin where the first of them stands."""
        traces = [self.emulator.trace(feeds) for feeds in rows]
        wanted = [self._arrays(trace) for trace in traces]

        def error_of(lowered: frozenset[str]) -> float:
            made = Judgement(self.asked.metric)
            # one sample ranks single nodes well enough
            count = 1 if len(lowered) == 1 else len(traces)
            for feeds, trace, want in list(zip(rows, traces, wanted, strict=True))[:count]:
                got = self.emulator.again(trace, dict.fromkeys(lowered, rounding))
                made.add(self._arrays(got), want, feeds)
            return made.error

        return error_of

    def _arrays(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {name: outside(values[name]) for name in self.emulator.outputs}


def match_nodes(patterns: Sequence[str], names: Mapping[str, tuple[str, ...]]) -> set[str]:
    """The nodes that patterns name; an error with near matches for one that names none."""
    found: set[str] = set()
    known = [name for each in names.values() for name in each]
    for pattern in patterns:
        matched = {node for node, each in names.items() if any(fnmatchcase(name, pattern) for name in each)}
        if not matched:
            raise OptionError(
                f"no node is called {pattern!r}", want="an ONNX node name, * and ? allowed",
                help=did_you_mean(pattern.strip("*"), list(dict.fromkeys(known))),
            )  # fmt: skip
        found |= matched
    return found


def over_budget(decision: Decision, error: float, budget: float) -> BuildError:
    """The error of a build that cannot keep its budget."""
    worst = decision.worst()
    return BuildError(
        "no mixture of precisions keeps the budget",
        rows=[f"costs most: {row}" for row in worst],
        got=f"an error of {error:.3g} with nodes in {decision.half}, the best found",
        want=f"at most {budget:.3g}",
        help="raise --budget, keep more nodes with --keep fp32:NAME, or look at `ridge debug precision`",
    )
