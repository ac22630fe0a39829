"""A comparison from what a user asks for: opens both sides, finds the inputs, compares, saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.analyze.compare import Allowed, Comparison, compare_sides, fitted, require_same_inputs
from ridgeline.analyze.compare_sides import Arrays, EngineSide, Feeds, GraphNode, Side
from ridgeline.analyze.open_sides import open_side, samples_for
from ridgeline.analyze.saved_outputs import SavedSide, require_suffix, save_outputs
from ridgeline.base.spec import Port
from ridgeline.errors import OptionError
from ridgeline.runtime.versions import versions


@dataclass(frozen=True)
class Request:
    """What `ridge compare` was asked."""

    a: str
    b: str | None  # None: A is only run, and its outputs are saved
    allowed: Allowed | None  # None: the budget of a lowered engine, or the default
    options: Mapping[str, Any] = field(default_factory=dict)  # keywords of `build`
    data: Path | None = None
    draws: int = 1
    with_layers: bool = False
    is_unfused: bool = False
    trust: bool = False
    save_to: Path | None = None


def run_comparison(request: Request) -> Comparison | None:
    """The comparison; None where there is no second side."""
    if request.b is None and request.save_to is None:
        raise OptionError(
            "there is nothing to compare with",
            want="B, --load-outputs FILE, or --save-outputs FILE to save A",
        )
    if request.save_to is not None:
        require_suffix(request.save_to)
    b = None if request.b is None else _open(request.b, request)  # first: it is most often the quicker
    a = _open(request.a, request)
    if b is not None:
        require_same_inputs(a, b)
    recorded = _Recorded(a, with_layers=request.with_layers)
    samples = _samples(request, a, b)
    if b is None:
        for name, feeds in samples:
            recorded.run(name, fitted(feeds, a.inputs))
            recorded.layers(name, fitted(feeds, a.inputs))
    report = b and compare_sides(
        recorded if request.save_to is not None else a, b, samples,
        allowed=request.allowed or _budget(a, b), with_layers=request.with_layers,
        progress=request.options.get("progress"),
    )  # fmt: skip
    if request.save_to is not None:
        save_outputs(request.save_to, recorded.made, label=a.label, who=a.who, versions=versions())
    is_drawn = request.data is None and not any(isinstance(side, SavedSide) for side in (a, b))
    return replace(report, is_drawn=is_drawn) if report else None


def _budget(*sides: Side) -> Allowed:
    """The largest budget that an engine was built with; those of the user's own metric are no L2 errors."""
    reports = [side.engine.report.precision for side in sides if isinstance(side, EngineSide)]
    budgets = [each.budget for each in reports if each is not None and each.is_lowered and not each.metric]
    if not budgets:
        return Allowed(whose="the default of --allow")
    return Allowed(max(budgets), whose="the budget that the engine was built with")


def _open(text: str, request: Request) -> Side:
    options = dict(request.options)
    if request.data is not None:
        options["data"] = request.data  # an engine in another precision is decided on with it
    return open_side(text, options, is_unfused=request.is_unfused, trust=request.trust)


def _samples(request: Request, a: Side, b: Side | None) -> Iterator[tuple[str, Feeds]]:
    sides = [side for side in (a, b) if side is not None]
    saved = next((side.samples for side in sides if isinstance(side, SavedSide)), None)
    for name, read in samples_for(sides, request.data, request.draws, saved):
        yield name, read()


class _Recorded:
    """A side whose inputs and results are kept to be saved."""

    def __init__(self, side: Side, *, with_layers: bool) -> None:
        self.side, self.label = side, side.label
        self.made: dict[str, tuple[Feeds, Arrays, Arrays]] = {}
        self._with_layers = with_layers

    @property
    def who(self) -> str:
        return self.side.who

    @property
    def inputs(self) -> tuple[Port, ...]:
        return tuple(self.side.inputs)

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        return tuple(self.side.nodes)

    def draw(self, seed: int) -> Feeds:
        return self.side.draw(seed)

    def run(self, name: str, feeds: Feeds) -> Arrays:
        outputs = self.side.run(name, feeds)
        self.made[name] = (feeds, outputs, {})
        return outputs

    def layers(self, name: str, feeds: Feeds) -> Arrays:
        made = self.side.layers(name, feeds) if self._with_layers else {}
        self.made[name] = (*self.made[name][:2], made)
        return made

    def absent(self, value: str, node: GraphNode) -> str:
        return self.side.absent(value, node)
