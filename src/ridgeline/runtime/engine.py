"""The engine: runs exactly one plan. Owns weights and launches; contexts own the memory of a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakSet

import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.base.files import path_given, require_place
from ridgeline.base.gpu_timing import times_in_turn
from ridgeline.base.spec import Body, Port, Site, TensorSpec
from ridgeline.base.timing import wall_times_in_turn
from ridgeline.errors import OptionError, PlanError, UnsupportedError
from ridgeline.ir.body import Program, Region
from ridgeline.ir.infer import Inferred
from ridgeline.ir.sites import make_site, merge
from ridgeline.kernels.triton.compiler import COMPILED_HERE, Compiled, KernelStore
from ridgeline.plan.check import check_steps
from ridgeline.plan.plan import Plan, Step
from ridgeline.plan.report import Report
from ridgeline.runtime.context import Context
from ridgeline.runtime.cuda_context import CudaContext
from ridgeline.runtime.cuda_instance import CudaBorder, CudaInstance, gpu_memory
from ridgeline.runtime.device import foreseen_parts, gpu_errors, require_device, require_memory, require_runs
from ridgeline.runtime.embedded_kernels import OTHER_VERSION, collect, require_kernels
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.file import Stored, fused_proto, write_engine, write_inside
from ridgeline.runtime.forking import PerProcess
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.io import AnyBinding, IoBinding
from ridgeline.runtime.islands import Islands, fused_body, subgraphs
from ridgeline.runtime.launches import Launches
from ridgeline.runtime.observe import Observation, Watch
from ridgeline.runtime.padded import PaddedBorder, pad_to_profile
from ridgeline.runtime.pending_shape import PendingShape
from ridgeline.runtime.signature import Bounds, Feeds, Signature
from ridgeline.runtime.weights import DeviceWeights, default_of
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cpu.ort import inside_bodies

# makes the choices that were only predicted; handed in by the build, which knows how to measure
Retune: TypeAlias = Callable[["Engine"], tuple[Plan, Report]]


class Engine:
    """A built model. `run` is safe from any thread: each gets a context of its own."""

    def __init__(
        self,
        plan: Plan,
        report: Report,
        model: ir.Model,
        inference: Inference,
        tactics: Sequence[Tactic],
        *,
        brought: Mapping[str, Compiled] | None = None,
        store: KernelStore = COMPILED_HERE,
        left_out: str = "",
        expected: Mapping[str, Tensor] | None = None,
        retune: Retune | None = None,
        islands: Islands | None = None,
        shared: Engine | None = None,  # the same model planned for another profile
    ) -> None:
        self._own = PerProcess(plan.target)
        self.plan = plan
        self.report = report
        self.model = model  # the fused graph; its weights are `weights`
        self.inference = inference  # of its shapes
        self.weights = inference.weights  # on the host, as they are saved
        self.program: Program = inference.program
        self.brought = dict(brought or {})  # compiled kernels of its file, by digest
        self.store: KernelStore = shared.store if shared is not None else store  # those it may use
        self.left_out = left_out  # why those are not used
        self.expected = dict(expected or {})  # inputs and outputs to check the first run on its GPU with
        self._retune = retune
        self._is_cuda = plan.target.kind == "cuda"
        self.waits = plan.waits  # until new shapes are planned, instead of running them without compiling
        self._placed: Mapping[str, Tensor] = DeviceWeights(self.weights) if self._is_cuda else self.weights
        if shared is not None:
            self._placed = shared._placed
        # what did not go as planned on this machine
        self.notes: list[str] = shared.notes if shared is not None else [left_out] if left_out else []
        by_name = {region.name: region for region in self.program.regions}
        self._regions = [merge(self.program, [by_name[n] for n in step.regions]) for step in plan.steps]
        self._tactics = {tactic.name: tactic for tactic in tactics}
        check_steps(plan, self.program, self._regions, self._tactics)
        self._instances: WeakSet[CudaInstance] = WeakSet()
        self._watch = Watch()
        self._islands = islands
        self._launches = Launches(
            self._regions, self._tactics, self._placed, self.notes,
            own=self._own, planned=self.planned_sites,
            steps=lambda: self.plan.steps, islands=lambda: self.islands,
        )  # fmt: skip
        self.variants: tuple[Engine, ...] = (self,)  # one for every profile, this one's first
        for other in plan.others:
            self.add_profile(other)
        uses_pool = not self._is_cuda and any(step.tactic != "ort" for step in plan.steps)
        if uses_pool and torch.get_num_threads() != plan.target.threads:
            torch.set_num_threads(plan.target.threads)

    def __repr__(self) -> str:
        ports = [", ".join(f"{p.name}: {p}" for p in side) for side in (self.inputs, self.outputs)]
        return f"<ridgeline.Engine {self.plan.model}: {ports[0]} -> {ports[1]}; {len(self.plan.steps)} steps>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Copies and pickles: a pickle runs code when it is read, and an engine file does not."""
        raise UnsupportedError(
            "an engine is neither copied nor pickled",
            help="engine.save(path) writes it, ridgeline.load(path) reads it, here or in another process",
        )

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names, types and dims that `run` wants."""
        return self.plan.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.plan.outputs

    @property
    def signature(self) -> Signature:
        """What `run` takes: inputs by name and type, and the profiles."""
        bounds = [Bounds.of(variant.plan) for variant in self.variants]
        found = {port.name: default_of(self.weights, port.name) for port in self.plan.inputs}
        defaults = {name: array for name, array in found.items() if array is not None}
        return Signature(self.plan.inputs, bounds, self.plan.guards, defaults)

    def add_profile(self, plan: Plan, islands: Islands | None = None) -> Engine:
        """The same model planned for one more profile; inputs that it holds are run by it."""
        variant = Engine(
            replace(plan, others=()), self.report, self.model, self.inference, self.tactics,
            retune=self._retune, islands=islands, shared=self,
        )  # fmt: skip
        self.variants = (*self.variants, variant)
        return variant

    def at(self, specs: Mapping[str, TensorSpec]) -> Engine:
        """The engine of the profile that holds these inputs; this one where none does."""
        return self.variants[self.signature.find(specs) or 0]

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
        require_runs(self.plan.target)
        if self._is_cuda:
            require_device(self.plan.target)
            for variant in self.variants:
                variant.retune()
            return CudaContext(self.signature, self._cuda_border, self.cuda_instance)
        waits = self.waits if wait is None else wait
        make = self._border_now if waits else self._border
        return Context(self.signature, make, self._watch, may_pad=self.plan.pads)

    def lean_context(self) -> Context:
        """Runs any shape as its first call is run: with no kernel compiled for it."""
        return Context(self.signature, self._lean_border)

    @property
    def serves_new_shapes(self) -> bool:
        return not (self._is_cuda or self.waits or self.plan.pads)

    def _lean_border(self, specs: dict[str, TensorSpec], dtypes: Sequence[Any]) -> AnyBinding:
        return IoBinding(self.at(specs).instance(specs, compiles=False), dtypes)

    def _border_now(self, specs: dict[str, TensorSpec], dtypes: Sequence[Any]) -> AnyBinding:
        if self.plan.pads and self.signature.find(specs) is None:
            larger, axes = pad_to_profile(self.inference, self.signature, specs)
            return PaddedBorder(self._border_now(larger, dtypes), specs, larger, axes)
        return IoBinding(self.at(specs).instance(specs), dtypes)

    def _border(self, specs: dict[str, TensorSpec], dtypes: Sequence[Any]) -> AnyBinding:
        """At once where the plan was made for these shapes; others run on standby until theirs is."""
        require_runs(self.plan.target)
        is_padded = self.plan.pads and self.signature.find(specs) is None
        if is_padded or specs == self.at(specs).plan.planned_shapes:
            return self._border_now(specs, dtypes)
        plan_later = partial(self._own.submit, self._border_now, specs, dtypes)
        return PendingShape(partial(self._lean_border, specs, dtypes), plan_later)

    def wait(self) -> None:
        """Return when every plan that is being made in the background is there."""
        self._own.wait()

    def observe(self, path: str | Path) -> Observation:
        """Count the shapes of all runs from now on: until the block ends, or `stop()` writes the file."""
        target = require_place(path_given(path, what="this"))
        if not target.parent.is_dir():
            raise OptionError(f"there is no folder {str(target.parent)!r}", want="a file that can be written")
        observation = Observation(target, self.plan.model, self.plan.inputs, self._watch)
        self._watch.observation = observation
        return observation

    def retune(self) -> None:
        """Make the choices that a build without this GPU could only predict: once, before the first run."""
        with self._own.retuning:
            retune, self._retune = self._retune, None
            if retune is None or not self.plan.is_predicted:
                return
            self._require_kernels()
            predicted = self.plan
            try:
                self.plan, self.report = retune(self)
            except BaseException:
                # the next run must meet the same error, and not an engine that failed its checks
                self.choose(predicted)
                self._retune = retune
                raise
            self.expected = {}

    def choose(self, plan: Plan) -> None:
        """Run another plan over the same regions: launches of the one before are let go."""
        self.plan = plan
        self._launches.clear()

    def sites(self, inferred: Inferred) -> list[tuple[int, Region, Site]]:
        """The steps that do work at these shapes: index in the plan, region, site."""
        return [
            (index, region, make_site(self.program, region, inferred, self.plan.target))
            for index, region in enumerate(self._regions)
            if not inferred.is_host(region)
        ]

    def planned_sites(self) -> list[tuple[Step, Site]]:
        """Every step with its site at the planned shapes."""
        inferred = self.inference.at(self.plan.planned_shapes)
        return [(self.plan.steps[index], site) for index, _, site in self.sites(inferred)]

    def instance(self, inputs: dict[str, TensorSpec], *, compiles: bool = True) -> Instance:
        """The engine at these shapes, in new memory. Without compiling, steps that would run on the floor."""
        require_runs(self.plan.target)
        if self._is_cuda:
            return self.cuda_instance(inputs)
        with torch.inference_mode():
            return Instance(
                self.program,
                self._regions,
                inputs,
                self.weights,
                self.plan.target,
                self._launches.launch if compiles else self._launches.lean,
                self._launches.compile_ahead if compiles else None,
                inferred=self.inference.at(inputs),
            )

    def cuda_instance(
        self, inputs: Mapping[str, TensorSpec], given: Mapping[str, Tensor] | None = None
    ) -> CudaInstance:
        """The engine at these shapes on the GPU, over the caller's own inputs if they are given."""
        require_runs(self.plan.target)
        require_device(self.plan.target)
        variant = self.at(inputs)
        if variant is not self:
            return variant.cuda_instance(inputs, given)
        if dict(inputs) == self.plan.planned_shapes:
            self._require_kernels()
        with gpu_errors(), torch.inference_mode():
            if not self._launches:
                require_memory(foreseen_parts(self.plan.memory))
            instance = CudaInstance(
                self.program,
                self._regions,
                inputs,
                self._placed,
                self.plan.target,
                self._launches.launch,
                self._launches.compile_ahead,
                inferred=self.inference.at(inputs),
                given=given,
            )
        instance.notes = self.notes
        self._instances.add(instance)
        return instance

    def _require_kernels(self) -> None:
        why = self.left_out or (OTHER_VERSION if self.brought else "")
        require_kernels(self.planned_sites, self._tactics, self.store, left_out=why)

    def _cuda_border(self, specs: dict[str, TensorSpec], dtypes: Sequence[Any]) -> CudaBorder:
        return CudaBorder(self.cuda_instance(specs), dtypes)

    def save(self, path: str | Path) -> Path:
        """Write the engine file: whole, or not at all."""
        target = path_given(path, what="this")
        kernels: dict[str, Compiled] = {}
        for variant in self.variants if self._is_cuda else ():
            kernels |= collect(variant.planned_sites(), self._tactics, self.store)
        stored = Stored(
            self.whole_plan, self.report, self.model, self.weights, kernels, self.expected,
            are_foreign=self.store.are_foreign and not self.store.brought.keys().isdisjoint(kernels),
        )  # fmt: skip
        return write_engine(target, stored)

    def example_inputs(self, seed: int = 0, shapes: Mapping[str, TensorSpec] | None = None) -> dict[str, Any]:
        """Random inputs of the right types, at the planned shapes: indices stay inside their tables."""
        return example_feeds(self.inference, shapes or self.plan.planned_shapes, seed=seed)

    def profile(self, feeds: Feeds, rounds: int = 20) -> list[tuple[str, float]]:
        """Median time of each step that runs, in µs, in order; on a GPU its time there."""
        context = self.context(wait=True)
        instance = context.instance(feeds)
        steps = self.at(self.signature.specs(self.signature.checked(feeds))).plan.steps
        with torch.inference_mode():
            instance.execute()
            time = times_in_turn if self._is_cuda else wall_times_in_turn
            medians = time(instance.calls, rounds)
        totals: dict[int, float] = {}
        for index, us in zip(instance.call_steps, medians, strict=True):
            totals[index] = totals.get(index, 0.0) + us
        return [(steps[index].name, us) for index, us in totals.items()]

    @property
    def islands(self) -> Islands:
        """The planned bodies of control flow: made with the plan, or again from the graph."""
        if self._islands is None:
            engines = {}
            for key, body in (pair for region in self._regions for pair in subgraphs(region)):
                plan = self.plan.bodies.get(key)
                engine = self._body_engine(body, plan) if plan is not None else None
                if engine is not None:
                    engines[key] = engine
            self._islands = Islands(self.program, engines)
        return self._islands

    def _body_engine(self, body: Body, plan: Plan) -> Engine | None:
        """A body fused as its plan says; None, and a note, where this version fuses it in another way."""
        model, _ = fused_body(body, plan.planned_shapes, self.weights, self.program, plan.target)
        try:
            return Engine(
                plan, Report(), model, Inference.of(model, self.program.limits), inside_bodies(self.tactics)
            )
        except (KeyError, PlanError):
            self.notes.append(f"{plan.model}: fused otherwise by this version, so it runs op by op")
            return None

    @property
    def whole_plan(self) -> Plan:
        """The plan with those of the further profiles, as they are now."""
        return replace(self.plan, others=tuple(variant.plan for variant in self.variants[1:]))

    @property
    def tactics(self) -> tuple[Tactic, ...]:
        return tuple(self._tactics.values())

    def fused_onnx(self, *, weights: bool) -> onnx.ModelProto:
        """The fused graph as ONNX: with its weights inside, or pointing into the file beside it."""
        proto = fused_proto(self.model, self.weights)
        if weights:
            for entry in proto.graph.initializer:
                write_inside(entry, self.weights[entry.name])
        return proto

    def memory(self) -> dict[str, int]:
        """Bytes the engine holds where it runs (weights, packed, kernels), and those of one context.

        On a GPU they are counted, of the latest context at the planned shapes, with what PyTorch's allocator
        rounds them up to; what the driver keeps for itself is not in it.
        """
        if self._is_cuda:
            return gpu_memory(self._planned_instance(), self._launches.values(), self._placed)
        stated = self.plan.memory
        parts = {
            "weights": stated.weight_bytes,
            "packed": sum(variant.packed_bytes for variant in self.variants),
            "arena": stated.arena_bytes,
            "inputs": stated.io_bytes,
            "libraries": stated.library_bytes,
        }
        return {**parts, "total": sum(parts.values())}

    def _planned_instance(self) -> CudaInstance:
        """One that is there already, at the planned shapes if possible; else a new one."""
        alive = sorted(self._instances, key=lambda i: i.is_at(self.plan.planned_shapes))
        return alive[-1] if alive else self.cuda_instance(self.plan.planned_shapes)

    @property
    def packed_bytes(self) -> int:
        return sum(launch.packed_bytes for launch in self._launches.values())
