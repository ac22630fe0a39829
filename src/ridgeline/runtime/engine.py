"""The engine: runs exactly one plan. Owns weights and launches; contexts own the memory of a thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.errors import BuildError
from ridgeline.passes.body import Program, read_program
from ridgeline.passes.sites import merge
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Report
from ridgeline.runtime.context import KEPT_INSTANCES, Context, Feeds
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.file import fused_proto, raw_bytes, write_engine
from ridgeline.runtime.instance import Instance
from ridgeline.spec import Port, Site, TensorSpec
from ridgeline.tactics.base import Compiles, Launch, Tactic
from ridgeline.timing import interleave


class Engine:
    """A built model. `run` is safe from any thread: each gets a context of its own."""

    def __init__(
        self,
        plan: Plan,
        report: Report,
        model: ir.Model,
        weights: Mapping[str, Tensor],
        tactics: Sequence[Tactic],
    ) -> None:
        self.plan = plan
        self.report = report
        self.model = model  # the fused graph; its weights are `weights`
        self.weights = dict(weights)
        self.program: Program = read_program(model)
        self.notes: list[str] = []  # what did not go as planned on this machine
        by_name = {region.name: region for region in self.program.regions}
        self._regions = [merge(self.program, [by_name[n] for n in step.regions]) for step in plan.steps]
        self._tactics = {tactic.name: tactic for tactic in tactics}
        self._launches: dict[tuple[int, str], Launch] = {}
        self._lock = threading.Lock()
        self._local = threading.local()
        if (
            any(step.tactic != "ort" for step in plan.steps)
            and torch.get_num_threads() != plan.target.threads
        ):
            torch.set_num_threads(plan.target.threads)

    def __repr__(self) -> str:
        ports = [", ".join(f"{p.name}: {p}" for p in side) for side in (self.inputs, self.outputs)]
        return f"<ridgeline.Engine {self.plan.model}: {ports[0]} -> {ports[1]}; {len(self.plan.steps)} steps>"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names, types and dims that `run` wants."""
        return self.plan.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.plan.outputs

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Outputs by name: numpy in, numpy out; torch in, torch out."""
        try:
            context: Context = self._local.context
        except AttributeError:
            context = self._local.context = self.context()
        return context.run(feeds)

    def context(self) -> Context:
        """Memory of its own for one more thread, over the same weights."""
        return Context(self.plan.inputs, self.plan.profile, self.instance)

    def instance(self, inputs: dict[str, TensorSpec]) -> Instance:
        """The engine at these shapes, in new memory."""
        with torch.inference_mode():
            return Instance(
                self.program,
                self._regions,
                inputs,
                self.weights,
                self.plan.target,
                self._launch,
                self._compile_ahead,
            )

    def save(self, path: str | Path) -> Path:
        """Write the engine file: whole, or not at all."""
        return write_engine(Path(path), self.plan, self.report, self.model, self.weights)

    def example_inputs(self, seed: int = 0, shapes: Mapping[str, TensorSpec] | None = None) -> dict[str, Any]:
        """Random inputs of the right types, at the planned shapes: indices stay inside their tables."""
        return example_feeds(self.program, shapes or self.plan.planned_shapes, self.weights, seed=seed)

    def profile(self, feeds: Feeds, rounds: int = 20) -> list[tuple[str, float]]:
        """Median time of each step that runs, in µs, in order."""
        instance = self.context().instance(feeds)
        with torch.inference_mode():
            instance.execute()
            totals: dict[int, float] = {}
            samples: list[list[float]] = [[] for _ in instance.calls]
            for _ in range(rounds):
                for call, kept in zip(instance.calls, samples, strict=True):
                    kept += interleave([call], rounds=1, min_sample_us=0)[0].samples_us[:1]
        for index, kept in zip(instance.call_steps, samples, strict=True):
            totals[index] = totals.get(index, 0.0) + sorted(kept)[len(kept) // 2]
        return [(self.plan.steps[index].name, us) for index, us in totals.items()]

    def _compile_ahead(self, sites: Sequence[tuple[int, Site]]) -> None:
        """What these sites will compile, several at a time instead of one by one."""
        for name, tactic in self._tactics.items():
            steps = [(site, self.plan.steps[i]) for i, site in sites if self.plan.steps[i].tactic == name]
            if steps and isinstance(tactic, Compiles):
                tactic.precompile([(s, step.config) for s, step in steps if tactic.why_not(s) is None])

    def _launch(self, index: int, site: Site) -> Launch:
        with self._lock:
            launch = self._launches.get((index, "")) or self._launches.get((index, site.key))
            if launch is None:
                launch = self._bind(index, site)
                self._launches[index, "" if launch.shape_free else site.key] = launch
                self._forget_old(index)
            return launch

    def _forget_old(self, index: int) -> None:
        """Launches of shapes long gone keep packed weights; instances that still run hold their own."""
        shapes = [key for key in self._launches if key[0] == index]
        for key in shapes[:-KEPT_INSTANCES]:
            del self._launches[key]

    def _bind(self, index: int, site: Site) -> Launch:
        """The plan's tactic, or its first loser that still fits where the plan's own does not."""
        step = self.plan.steps[index]
        region = self._regions[index]
        weights = {name: self.weights[region.outer(name)] for name in site.weights}
        losers = [(c.tactic, c.config) for c in step.losers if c.refused is None]
        for name, config in [(step.tactic, step.config), *losers]:
            tactic = self._tactics.get(name)
            reason = "is not in this build" if tactic is None else tactic.why_not(site)
            if tactic is not None and reason is None:
                try:
                    return tactic.bind(site, config, weights)
                except (KeyError, TypeError, ValueError, AssertionError) as error:
                    raise BuildError(
                        f"{step.name}: {name} cannot be bound with the config it was given",
                        got=f"{dict(config)}: {error!r}",
                        help="was a lock or a cache edited by hand? delete it and build again",
                    ) from error
            self.notes.append(f"{step.name}: {name} was planned but {reason}")
        return self._tactics["aten"].bind(site, {}, weights)

    @property
    def tactics(self) -> tuple[Tactic, ...]:
        return tuple(self._tactics.values())

    def fused_onnx(self, *, weights: bool) -> onnx.ModelProto:
        """The fused graph as ONNX: with its weights inside, or pointing into the file beside it."""
        proto = fused_proto(self.model, self.weights)
        if weights:
            for entry in proto.graph.initializer:
                entry.ClearField("external_data")
                entry.data_location = onnx.TensorProto.DEFAULT
                entry.raw_data = raw_bytes(self.weights[entry.name]).tobytes()
        return proto

    @property
    def packed_bytes(self) -> int:
        return sum(launch.packed_bytes for launch in self._launches.values())
