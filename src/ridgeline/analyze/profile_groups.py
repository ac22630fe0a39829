"""The steps of a trace put together: by layer, op type, precision or tactic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.base.grouping import grouped
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.plan.trace import StepTime, Trace

BY = ("layer", "op", "precision", "tactic")
NO_LAYER = "(no layer name)"
# names are cut at the depth at which there are at least so many groups
FEWEST_LAYERS = 6


@dataclass(frozen=True)
class GroupRow:
    """Steps with something in common; a step of several op types counts for each by its part."""

    name: str
    steps: int
    total_us: float
    share: float  # of the time of all steps
    bytes: int
    flops: int


def group_steps(trace: Trace, by: str) -> tuple[GroupRow, ...]:
    """The groups, the one that takes longest first."""
    if by not in BY:
        raise OptionError(f"steps are not grouped by {by!r}", want=" or ".join(BY), help=did_you_mean(by, BY))
    parts_of: dict[str, Callable[[StepTime], Iterator[tuple[str, float]]]] = {
        "layer": lambda step: layer_parts(step, depth, trace.layers),
        "op": op_parts,
        "precision": lambda step: iter([(step.precision, 1.0)]),
        "tactic": lambda step: iter([(step.tactic, 1.0)]),
    }
    depth = layer_depth(trace.steps, trace.layers)
    parts = [(name, (step, part)) for step in trace.steps for name, part in parts_of[by](step)]
    total = trace.steps_us or 1.0
    rows = []
    for name, members in grouped(parts).items():
        us = sum(step.median_us * part for step, part in members)
        work = [sum(round(count(step) * part) for step, part in members) for count in (_bytes, _flops)]
        rows.append(GroupRow(name, len(members), us, us / total, *work))
    return tuple(sorted(rows, key=lambda row: (-row.total_us, row.name)))


def _bytes(step: StepTime) -> int:
    return step.bytes


def _flops(step: StepTime) -> int:
    return step.flops


def op_parts(step: StepTime) -> Iterator[tuple[str, float]]:
    """The op types of a step and their parts of its time.

    A library's own profiler says it for the nodes inside; a fused step counts for the op with most work.
    """
    inside = sum(node.us for node in step.inside)
    if inside:
        times: Counter[str] = Counter()
        for node in step.inside:
            times[node.op_type] += node.us / inside  # type: ignore[assignment]
        yield from times.items()
        return
    heaviest = max(step.work, key=lambda op: (op.flops, op.bytes), default=None)
    yield (heaviest.op_type if heaviest else step.op_types[0]), 1.0


def layer_parts(step: StepTime, depth: int, layers: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """The layer of a step; of a library's span, those of its nodes by their parts of its time."""
    inside = sum(node.us for node in step.inside)
    if not inside:
        yield layer_of(step.sources, depth, layers), 1.0
        return
    times: Counter[str] = Counter()
    for node in step.inside:
        times[layer_of(node.sources, depth, layers)] += node.us / inside  # type: ignore[assignment]
    yield from times.items()


def layer_depth(steps: Sequence[StepTime], layers: Mapping[str, str]) -> int:
    """How many parts of a name make a layer: the fewest that tell some layers apart."""
    sources = {source for step in steps for source in step.sources}
    deepest = max((len(_parts(source, layers)) for source in sources), default=0)
    for depth in range(1, deepest):
        if len({layer_of((source,), depth, layers) for source in sources}) >= FEWEST_LAYERS:
            return depth
    return max(deepest, 1)


def layer_of(sources: Sequence[str], depth: int, layers: Mapping[str, str]) -> str:
    """The layer that most of these nodes are in, by the first parts of its path."""
    found = Counter("/".join(_parts(source, layers)[:depth]) or NO_LAYER for source in sources)
    return found.most_common(1)[0][0] if found else NO_LAYER


def _parts(source: str, layers: Mapping[str, str]) -> list[str]:
    """What the exporter says of the node; else ``/encoder/layer.0/Add_1`` without the node's own name.

    Names without layers have no parts.
    """
    if source in layers:
        return layers[source].split("/")
    parts = [part for part in re.split(r"[/:]", source) if part]
    return parts[:-1]
