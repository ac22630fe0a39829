"""Which nodes go back to float32 when the whole is over the budget: by error against time saved.

The error of each node alone is measured once. Nodes are raised in that order until an emulated run is inside
the budget, and those that turn out not to be needed are lowered again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# runs that are spent on lowering nodes again
TRIES = 24


@dataclass(frozen=True)
class Found:
    """Nodes to keep in float32, the error that is left, and what each node does alone."""

    raised: frozenset[str]
    error: float
    alone: Mapping[str, float]

    @property
    def worst(self) -> list[tuple[str, float]]:
        return sorted(self.alone.items(), key=lambda item: -item[1])


def raise_nodes(
    nodes: Sequence[str],
    error_of: Callable[[frozenset[str]], float],
    budget: float,
    saved_us: Mapping[str, float] | None = None,
    tell: Callable[[int, int, str], None] = lambda done, total, detail: None,
) -> Found:
    """`error_of` gives the error when these nodes, and no others, are lowered."""
    alone = {}
    for i, node in enumerate(nodes):
        tell(i, len(nodes), node)
        alone[node] = error_of(frozenset([node]))
    saved = saved_us or {}
    smallest = min((us for us in saved.values() if us > 0), default=1.0)

    def cost(node: str) -> float:
        """Errors of many nodes add up as squares do; a node that saves nothing is the first to go."""
        error = alone[node] if math.isfinite(alone[node]) else 1e30
        return error**2 / max(saved.get(node, smallest), smallest * 1e-3)

    order = sorted(nodes, key=cost, reverse=True)
    everything = frozenset(nodes)
    known: dict[int, float] = {}

    def error_after(count: int) -> float:
        if count not in known:
            known[count] = error_of(everything - frozenset(order[:count]))
        return known[count]

    low, high = 0, 1  # the error with `low` nodes raised is over the budget
    while high < len(order) and error_after(high) > budget:
        low, high = high, 2 * high
    high = min(high, len(order))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if error_after(middle) <= budget else (middle, high)
    raised = set(order[:high])
    error = error_after(high)
    for node in sorted(raised, key=lambda node: -saved.get(node, 0.0) or cost(node))[:TRIES]:
        if error > budget:
            break
        tried = error_of(everything - frozenset(raised - {node}))
        if tried <= budget:
            raised.discard(node)
            error = tried
    return Found(frozenset(raised), error, alone)
