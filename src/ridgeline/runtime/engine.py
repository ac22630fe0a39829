"""The engine: runs exactly one plan. Owns weights and launches; contexts own the memory of a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakSet

import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.errors import BuildError, first_line
from ridgeline.gpu_timing import times_in_turn
from ridgeline.kernels.scalar.axes import Refusal
from ridgeline.kernels.triton.compiler import Compiled, CompileError
from ridgeline.passes.body import Program, Region, read_program
from ridgeline.passes.settle import Settled
from ridgeline.passes.sites import make_site, merge
from ridgeline.plan.plan import Plan, Step
from ridgeline.plan.report import Report
from ridgeline.runtime.context import KEPT_INSTANCES, Context, Feeds
from ridgeline.runtime.cuda_context import CudaContext
from ridgeline.runtime.cuda_instance import CudaBorder, CudaInstance, gpu_memory
from ridgeline.runtime.device import foreseen_parts, gpu_errors, require_device, require_memory
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.file import Stored, fused_proto, raw_bytes, write_engine
from ridgeline.runtime.instance import Instance, settle_program
from ridgeline.runtime.io import Border
from ridgeline.runtime.on_board import OTHER_VERSION, collect, require_kernels
from ridgeline.runtime.weights import DeviceWeights
from ridgeline.spec import Port, Site, TensorSpec
from ridgeline.tactics.base import Compiles, Launch, Tactic
from ridgeline.timing import wall_times_in_turn

# makes the choices that were only predicted; handed in by the build, which knows how to measure
Settle: TypeAlias = Callable[["Engine"], tuple[Plan, Report]]


class Engine:
    """A built model. `run` is safe from any thread: each gets a context of its own."""

    def __init__(
        self,
        plan: Plan,
        report: Report,
        model: ir.Model,
        weights: Mapping[str, Tensor],
        tactics: Sequence[Tactic],
        *,
        brought: Mapping[str, Compiled] | None = None,
        left_out: str = "",
        expected: Mapping[str, Tensor] | None = None,
        settle: Settle | None = None,
    ) -> None:
        self.plan = plan
        self.report = report
        self.model = model  # the fused graph; its weights are `weights`
        self.weights = dict(weights)  # on the host, as they are saved
        self.brought = dict(brought or {})  # compiled kernels of its file, by digest
        self.left_out = left_out  # why those are not used
        self.expected = dict(expected or {})  # inputs and outputs to check the first run on its GPU with
        self._settle = settle
        self._settling = threading.RLock()
        self._is_cuda = plan.target.kind == "cuda"
        self._placed: Mapping[str, Tensor] = DeviceWeights(self.weights) if self._is_cuda else self.weights
        self.program: Program = read_program(model)
        self.notes = [left_out] if left_out else []  # what did not go as planned on this machine
        by_name = {region.name: region for region in self.program.regions}
        self._regions = [merge(self.program, [by_name[n] for n in step.regions]) for step in plan.steps]
        self._tactics = {tactic.name: tactic for tactic in tactics}
        self._launches: dict[tuple[int, str], Launch] = {}
        self._instances: WeakSet[CudaInstance] = WeakSet()
        self._lock = threading.Lock()
        self._local = threading.local()
        uses_pool = not self._is_cuda and any(step.tactic != "ort" for step in plan.steps)
        if uses_pool and torch.get_num_threads() != plan.target.threads:
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
        if self._is_cuda:
            require_device(self.plan.target)
            self.settle()
            return CudaContext(self.plan.inputs, self.plan.profile, self._cuda_border, self.cuda_instance)
        return Context(
            self.plan.inputs, self.plan.profile, lambda specs, dtypes: Border(self.instance(specs), dtypes)
        )

    def settle(self) -> None:
        """Make the choices that a build without this GPU could only predict: once, before the first run."""
        with self._settling:
            settle, self._settle = self._settle, None
            if settle is None or not self.plan.is_predicted:
                return
            self._require_kernels()
            predicted = self.plan
            try:
                self.plan, self.report = settle(self)
            except BaseException:
                # the next run must meet the same error, and not an engine that failed its checks
                self.choose(predicted)
                self._settle = settle
                raise
            self.expected = {}

    def choose(self, plan: Plan) -> None:
        """Run another plan over the same regions: launches of the one before are let go."""
        self.plan = plan
        self._launches.clear()

    def sites(self, settled: Settled) -> list[tuple[int, Region, Site]]:
        """The steps that do work at these shapes: index in the plan, region, site."""
        return [
            (index, region, make_site(self.program, region, settled, self.plan.target))
            for index, region in enumerate(self._regions)
            if not settled.is_host(region)
        ]

    def planned_sites(self) -> list[tuple[Step, Site]]:
        """Every step with its site at the planned shapes."""
        settled = settle_program(self.program, self.plan.planned_shapes, self.weights)
        return [(self.plan.steps[index], site) for index, _, site in self.sites(settled)]

    def instance(self, inputs: dict[str, TensorSpec]) -> Instance:
        """The engine at these shapes, in new memory."""
        if self._is_cuda:
            return self.cuda_instance(inputs)
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

    def cuda_instance(
        self, inputs: Mapping[str, TensorSpec], given: Mapping[str, Tensor] | None = None
    ) -> CudaInstance:
        """The engine at these shapes on the GPU, over the caller's own inputs if they are given."""
        require_device(self.plan.target)
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
                self._launch,
                self._compile_ahead,
                settled=settle_program(self.program, inputs, self.weights),
                given=given,
            )
        instance.notes = self.notes
        self._instances.add(instance)
        return instance

    def _require_kernels(self) -> None:
        why = self.left_out or (OTHER_VERSION if self.brought else "")
        require_kernels(self.planned_sites, self._tactics, left_out=why)

    def _cuda_border(self, specs: dict[str, TensorSpec], dtypes: Sequence[Any]) -> CudaBorder:
        return CudaBorder(self.cuda_instance(specs), dtypes)

    def save(self, path: str | Path) -> Path:
        """Write the engine file: whole, or not at all."""
        kernels = collect(self.planned_sites(), self._tactics) if self._is_cuda else {}
        stored = Stored(self.plan, self.report, self.model, self.weights, kernels, self.expected)
        return write_engine(Path(path), stored)

    def example_inputs(self, seed: int = 0, shapes: Mapping[str, TensorSpec] | None = None) -> dict[str, Any]:
        """Random inputs of the right types, at the planned shapes: indices stay inside their tables."""
        return example_feeds(self.program, shapes or self.plan.planned_shapes, self.weights, seed=seed)

    def profile(self, feeds: Feeds, rounds: int = 20) -> list[tuple[str, float]]:
        """Median time of each step that runs, in µs, in order; on a GPU its time there."""
        instance = self.context().instance(feeds)
        with torch.inference_mode():
            instance.execute()
            time = times_in_turn if self._is_cuda else wall_times_in_turn
            medians = time(instance.calls, rounds)
        totals: dict[int, float] = {}
        for index, us in zip(instance.call_steps, medians, strict=True):
            totals[index] = totals.get(index, 0.0) + us
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
        weights = {name: self._placed[region.outer(name)] for name in site.weights}
        losers = [(c.tactic, c.config) for c in step.losers if c.refused is None]
        for name, config in [(step.tactic, step.config), *losers]:
            tactic = self._tactics.get(name)
            reason = "is not in this build" if tactic is None else tactic.why_not(site)
            if tactic is not None and reason is None:
                try:
                    return tactic.bind(site, config, weights)
                except (CompileError, Refusal) as error:
                    reason = f"its kernel cannot be had: {first_line(error)}"
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

    def memory(self) -> dict[str, int]:
        """Bytes the engine holds where it runs (weights, packed, kernels), and those of one context.

        On a GPU they are counted, of the latest context at the planned shapes; what the driver, PyTorch's
        allocator and libraries take besides is not in it.
        """
        if self._is_cuda:
            return gpu_memory(self._planned_instance(), self._launches.values(), self._placed)
        stated = self.plan.memory
        parts = {
            "weights": stated.weight_bytes,
            "packed": self.packed_bytes,
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
