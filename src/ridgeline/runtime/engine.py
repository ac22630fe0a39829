"""The engine: runs exactly one plan. Its parts own weights and launches; contexts own a thread's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor

from ridgeline.base.files import path_given
from ridgeline.base.notebook import Notebook, View
from ridgeline.base.spec import Port, Site, TensorSpec
from ridgeline.errors import UnsupportedError, visible
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.plan.plan import Plan, Step
from ridgeline.plan.report import Report
from ridgeline.plan.trace import Trace
from ridgeline.plan.view import engine_view
from ridgeline.runtime.bindings import Bindings
from ridgeline.runtime.context import Context, CudaContext
from ridgeline.runtime.device import require_here
from ridgeline.runtime.embedded_kernels import collect
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.file import Stored, fused_proto, write_engine
from ridgeline.runtime.forking import PerProcess
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.memory_report import held_memory
from ridgeline.runtime.observation import Observation, Observer
from ridgeline.runtime.plan_again import plan_again, plan_for
from ridgeline.runtime.planner import Planner
from ridgeline.runtime.profiles import Profiles, Variant
from ridgeline.runtime.profiling import profile_run
from ridgeline.runtime.real_shapes import RealShapes
from ridgeline.runtime.seen_report import SeenReport
from ridgeline.runtime.signature import Feeds


class Engine(Notebook):
    """A built model. `run` is safe from any thread: each gets a context of its own."""

    report = SeenReport()

    def __init__(
        self,
        variants: Sequence[Variant],
        planner: Planner,
        *,
        report: Report | None = None,
        expected: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.fused: FusedModel = variants[0].executable.fused
        self.model, self.weights = self.fused.graph, self.fused.weights
        self.program, self.inference = self.fused.program, self.fused.inference
        self.notes = self.fused.notes  # what did not go as planned on this machine
        self.planner, self._observer = planner, Observer()
        self.report = report or Report()
        self.expected = dict(expected or {})  # inputs and outputs to check the first run on its GPU with
        self.profiles = Profiles(variants)
        self.signature = self.profiles.signature  # what `run` takes: inputs, and profiles
        self._own = PerProcess(self.fused.target)
        is_guess = len(variants) == 1 and self.plan.guess is not None
        self._real_shapes = RealShapes(self._own, partial(plan_again, self), is_guess=is_guess)
        self._bindings = Bindings(self.profiles, planner, self._own, self._real_shapes)
        pooled = any(not self.fused.tactics[step.tactic].spins_threads for step in self.plan.steps)
        if pooled and not self.fused.is_gpu and torch.get_num_threads() != self.plan.target.threads:
            torch.set_num_threads(self.plan.target.threads)

    def only(self, variant: Variant) -> Engine:
        """An engine of one of the profiles alone, or of a part of one, over the same launches."""
        return Engine([variant.alone], self.planner, report=self.report)

    def __repr__(self) -> str:
        ports = [", ".join(f"{p.name}: {p}" for p in side) for side in (self.inputs, self.outputs)]
        text = f"{self.plan.model}: {ports[0]} -> {ports[1]}; {len(self.plan.steps)} steps"
        return f"<ridgeline.Engine {visible(text)}>"

    def _view(self) -> View:
        return engine_view(self.plan, self.report)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Copies and pickles: a pickle runs code when it is read, and an engine file does not."""
        raise UnsupportedError(
            "an engine is neither copied nor pickled",
            help="engine.save(path) writes it, ridgeline.load(path) reads it, here or in another process",
        )

    @property
    def plan(self) -> Plan:
        """The plan of the first profile, with those of the others inside."""
        return self.profiles.plan

    @property
    def variants(self) -> tuple[Variant, ...]:
        return self.profiles.variants

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
            context: Context = self._own.local.context
        except AttributeError:
            context = self._own.local.context = self.context()
        return context.run(feeds)

    def context(self, *, wait: bool | None = None) -> Context:
        """Memory of its own for one more thread, over the same weights.

        With `wait` new shapes are planned before they run; without it nothing is compiled before they run.
        """
        require_here(self.plan.target)
        if self.fused.is_gpu:
            self.retune()
            return CudaContext(self.signature, self._bindings.gpu_instance)
        waits = self.plan.waits if wait is None else wait
        make = self._bindings.planned if waits else self._bindings.served
        return Context(self.signature, make, self._observer, may_pad=self.plan.pads)

    def uncompiled_context(self) -> Context:
        """Runs any shape as its first call is run: with no kernel compiled for it."""
        return Context(self.signature, self._bindings.uncompiled)

    @property
    def serves_new_shapes(self) -> bool:
        return not (self.fused.is_gpu or self.plan.waits or self.plan.pads)

    def wait(self) -> None:
        """Return when every plan is there that is made in the background, or will be for shapes that came."""
        self._own.wait()
        self._real_shapes.wait()

    def observe(self, path: str | Path) -> Observation:
        """Count the shapes of all runs from now on: until the block ends, or `stop()` writes the file."""
        return self._observer.observe(path, self.plan)

    def retune(self) -> None:
        """Make the choices that a build without this GPU could only predict: once, before the first run.

        A plan that fails its checks is not swapped in, so that the next run meets the same error.
        """
        with self._own.lock:
            for index, variant in enumerate(self.variants):
                if not variant.plan.is_predicted:
                    continue
                variant.executable.require_kernels()
                expected = self.expected if index == 0 else {}
                retuned, report = self.planner.retune(variant, self.report, expected)
                self.profiles.swap(index, retuned)
                if index == 0:
                    self.report, self.expected = report, {}

    def planned_sites(self) -> list[tuple[Step, Site]]:
        """Every step of the first profile with its site at the planned shapes."""
        return self.variants[0].executable.planned_sites()

    def save(self, path: str | Path) -> Path:
        """Write the engine file: whole, or not at all."""
        target, store = path_given(path, what="this"), self.fused.kernels.store
        kernels: dict[str, Compiled] = {}
        for variant in self.variants if self.fused.is_gpu else ():
            kernels |= collect(variant.sites_to_embed(), self.fused.tactics, store)
        stored = Stored(
            self.plan, self.report, kernels, self.model, self.weights, self.expected,
            are_foreign=store.are_foreign and not store.embedded.keys().isdisjoint(kernels),
        )  # fmt: skip
        return write_engine(target, stored)

    def example_inputs(self, seed: int = 0, shapes: Mapping[str, TensorSpec] | None = None) -> dict[str, Any]:
        """Random inputs of the right types, at the planned shapes: indices stay inside their tables."""
        return example_feeds(self.inference, shapes or self.plan.planned_shapes, seed=seed)

    def profile(self, feeds: Feeds | None = None, rounds: int = 20) -> Trace:
        """Every step timed in so many runs, beside the whole run; without inputs, with random ones."""
        given = self.example_inputs() if feeds is None else feeds
        plan_for(self, given)
        specs = self.signature.specs(self.signature.checked(self.signature.apart(given)[0]))
        return profile_run(self.profiles.at(specs), self.context(wait=True), given, rounds)

    def fused_onnx(self, *, weights: bool) -> onnx.ModelProto:
        """The fused graph as ONNX: with its weights inside, or pointing into the file beside it."""
        return fused_proto(self.model, self.weights, is_whole=weights)

    def memory(self) -> dict[str, int]:
        """Bytes the engine holds where it runs (weights, packed, kernels), and those of one context.

        On a GPU they are counted, of the latest context at the planned shapes, with what PyTorch's allocator
        rounds them up to; what the driver keeps for itself is not in it.
        """
        return held_memory(self.variants)
