"""Which nodes go back to float32 when the whole is over the budget: by error against time saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.precision.minimal import Questions, shortest_prefix, without_spare

FEW = 12

ErrorOf = Callable[[frozenset[str]], float]  # the error when these nodes, and no others, are lowered
Tell = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Found:
    """Nodes to keep in float32, the error that is left, and what each node does alone."""

    raised: frozenset[str]
    error: float
    alone: Mapping[str, float]

    @property
    def reasons(self) -> dict[str, str]:
        """Why each of the nodes is kept."""
        said = "off by {:.3g} alone, over budget with the rest"
        return {node: said.format(self.alone[node]) for node in sorted(self.raised)}


def raise_nodes(
    nodes: Sequence[str],
    error_of: ErrorOf,
    budget: float,
    saved_us: Mapping[str, float] | None = None,
    tell: Tell = lambda done, total, detail: None,
) -> Found:
    """Measure each node alone, then raise the fewest, those with the most error per microsecond first.

    Where float32 everywhere is not enough either, everything is raised, and the error says so.
    """
    alone: dict[str, float] = {}
    for i, node in enumerate(nodes):
        tell(i, len(nodes), node)
        alone[node] = error_of(frozenset([node]))
        tell(i + 1, len(nodes), node)
    saved = saved_us or {}
    least = min((us for us in saved.values() if us > 0), default=1.0)

    def cost(node: str) -> float:
        """Errors of many nodes add up as squares do; a node that saves nothing is the first to go."""
        error = alone[node] if math.isfinite(alone[node]) else 1e30
        return error**2 / max(saved.get(node, least), least * 1e-3)

    everything = frozenset(nodes)
    errors: dict[frozenset[str], float] = {}

    def is_inside(raised: frozenset[str]) -> bool:
        errors[raised] = error_of(everything - raised)
        return errors[raised] <= budget

    asked = Questions(is_inside)
    prefix = shortest_prefix(sorted(nodes, key=cost, reverse=True), asked)
    # a few nodes are worth the runs that show which of them can be spared; of many, a few more do no harm
    few = None if prefix is None or len(prefix) > FEW else without_spare(prefix, asked)
    raised = everything if prefix is None else frozenset(few or prefix)
    return Found(raised, errors[raised] if raised in errors else error_of(everything - raised), alone)
