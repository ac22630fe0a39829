"""Who computes one side of a comparison: a runtime of a model, an engine, or outputs that were saved.

A side runs inputs and, for `--layers`, gives every tensor that it has, by its name in the model. What it does
not have, it explains: most often the tensor is inside a fused region and never exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor

from ridgeline.base.spec import Port
from ridgeline.errors import BuildError, ModelError, first_line
from ridgeline.frontend.evaluator import Evaluator
from ridgeline.frontend.from_onnx import Loaded, folder_of
from ridgeline.frontend.functions import copy_of
from ridgeline.frontend.group_norm import with_exact_group_norms
from ridgeline.frontend.other_runtimes import (
    WEIGHTS_FOLDER,
    open_session,
    session_options,
    session_or_evaluator,
)
from ridgeline.frontend.ports import ports
from ridgeline.kernels.elements import cloned, to_numpy
from ridgeline.options import Options
from ridgeline.plan.plan import Step
from ridgeline.precision.emulate import Emulator
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.non_tensor import flattened
from ridgeline.select.shapes import choose_every_shapes
from ridgeline.verify.reference import Reference

Feeds = Mapping[str, Any]
Arrays = dict[str, np.ndarray]
# tensors of a model that the optimised ONNX Runtime does not show
NOT_SHOWN = "inside ONNX Runtime's optimised graph (--unfused shows it)"
NOT_SAVED = "not in the file of saved outputs"


@dataclass(frozen=True)
class GraphNode:
    """A node of the model, or a step of an engine whose model is not given."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Side(Protocol):
    """One side of a comparison."""

    label: str

    @property
    def who(self) -> str:
        """The runtime and its version, known after the first run."""

    @property
    def inputs(self) -> Sequence[Port]:
        """What it takes; empty for saved outputs."""

    @property
    def nodes(self) -> Sequence[GraphNode]:
        """The nodes of its model in order; empty if the model is not known."""

    def draw(self, seed: int) -> Feeds:
        """Random inputs that fit."""

    def run(self, name: str, feeds: Feeds) -> Arrays:
        """The outputs for a named sample."""

    def layers(self, name: str, feeds: Feeds) -> Arrays:
        """Every tensor that exists here."""

    def absent(self, value: str, node: GraphNode) -> str:
        """Why a tensor of the model does not exist here."""


@dataclass
class ModelSide:
    """What a model's runtimes share: its ports, its nodes, its inputs."""

    label: str
    loaded: Loaded
    options: Options
    who: str = ""

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        return tuple(ports(self.loaded.model.graph.inputs, what="input"))

    @cached_property
    def nodes(self) -> tuple[GraphNode, ...]:
        return graph_nodes(self.loaded.original.graph)

    @cached_property
    def _inference(self) -> Inference:
        return Inference.of(self.loaded.model, self.options.limits)

    @cached_property
    def _reference(self) -> Reference:
        return Reference(self.loaded, threads=self.options.cores)

    def draw(self, seed: int) -> Feeds:
        """At the shapes that a build would plan for."""
        shapes = choose_every_shapes(self.loaded, self._inference, self._reference, self.options)[0]
        return example_feeds(self._inference, shapes.opt, seed=seed)

    def absent(self, value: str, node: GraphNode) -> str:
        return "no node of this model makes it"


@dataclass
class RuntimeSide(ModelSide):
    """The model as ONNX Runtime runs it, else the onnx evaluator. Unless optimised, every tensor exists."""

    is_optimised: bool = False

    def run(self, name: str, feeds: Feeds) -> Arrays:
        return self._run_named([port.name for port in self.loaded.original.graph.output], feeds)

    def layers(self, name: str, feeds: Feeds) -> Arrays:
        if self.is_optimised:
            return {}
        return self._run_named([name for node in self.nodes for name in node.outputs], feeds)

    def absent(self, value: str, node: GraphNode) -> str:
        return NOT_SHOWN if self.is_optimised else super().absent(value, node)

    def _run_named(self, names: Sequence[str], feeds: Feeds) -> Arrays:
        run = self._session(tuple(names))
        try:
            made = run(list(names), dict(feeds))
        except Exception as error:  # of ONNX Runtime's exceptions none has a base class of its own
            raise ModelError(
                f"{self.label} does not run with these inputs",
                got=first_line(error),
                help="look at the data, or at the shapes (--shapes)",
            ) from error
        return {
            name: np.asarray(array)
            for name, array in flattened(dict(zip(names, made, strict=True))).items()
            if name
        }

    def _session(self, names: tuple[str, ...]) -> Any:
        if names not in self._sessions:
            self._sessions[names] = self._open(names)
        return self._sessions[names]

    @cached_property
    def _sessions(self) -> dict[tuple[str, ...], Any]:
        return {}

    def _open(self, names: Sequence[str]) -> Any:
        proto = self.loaded.original
        shown = {port.name for port in proto.graph.output}
        if not shown.issuperset(names):
            proto = copy_of(proto)
            proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in shown)
        folder = folder_of(self.loaded)
        settings = {WEIGHTS_FOLDER: str(folder)} if folder else {}
        options = session_options(
            threads=self.options.cores, is_optimised=self.is_optimised, settings=settings
        )
        whole = proto if self.loaded.path is None or proto is not self.loaded.original else None
        run, is_session = session_or_evaluator(
            lambda: _crossing(names, open_session(with_exact_group_norms(proto), options)).run,
            lambda: Evaluator(str(self.loaded.path) if whole is None else whole).run,
            lambda rows: BuildError(f"nobody can run {self.label}", rows=rows),
        )
        how = "its own optimisations" if self.is_optimised else "all optimisations off"
        self.who = (
            f"onnxruntime {ort.__version__}, {how}"
            if is_session
            else f"onnx {onnx.__version__} reference evaluator"
        )
        return run


@dataclass
class FloorSide(ModelSide):
    """The model as it was read, each ONNX op by PyTorch: nothing is fused, so every tensor exists."""

    who: str = f"one op at a time by torch {torch.__version__}"

    @cached_property
    def _emulator(self) -> Emulator:
        return Emulator(self.loaded.model, self.options.limits)

    def run(self, name: str, feeds: Feeds) -> Arrays:
        return _as_arrays(self._emulator.run(feeds))

    def layers(self, name: str, feeds: Feeds) -> Arrays:
        made: Arrays = {}
        self._emulator.run(feeds, observe=lambda name, tensor: made.update({name: to_numpy(cloned(tensor))}))
        return made

    def absent(self, value: str, node: GraphNode) -> str:
        return "rewritten when the model was brought to the current opset"


@dataclass
class EngineSide:
    """An engine. The tensors that exist are the results of its steps."""

    label: str
    engine: Engine
    loaded: Loaded | None = None  # the model that it was built from just now
    who: str = field(init=False)

    def __post_init__(self) -> None:
        plan = self.engine.plan
        self.who = f"engine for {plan.target}, {len(plan.steps)} steps"

    @property
    def inputs(self) -> Sequence[Port]:
        return self.engine.inputs

    @cached_property
    def nodes(self) -> tuple[GraphNode, ...]:
        if self.loaded is not None:
            return graph_nodes(self.loaded.original.graph)
        steps = self.engine.plan.steps
        return tuple(GraphNode(_nodes_text(s), " ".join(s.op_types), s.inputs, s.outputs) for s in steps)

    def draw(self, seed: int) -> Feeds:
        return self.engine.example_inputs(seed)

    def run(self, name: str, feeds: Feeds) -> Arrays:
        return {n: np.asarray(a) for n, a in flattened(self.engine.run(feeds)).items()}

    def layers(self, name: str, feeds: Feeds) -> Arrays:
        """Each step's results, read before their memory is used again; fusion stays as it is."""
        return step_results(self.engine.context(wait=True).instance(feeds))

    def absent(self, value: str, node: GraphNode) -> str:
        step = self._steps_of.get(node.name)
        if step is None:
            return "no step computes its node: it was folded, or rewritten by a pass"
        return f"inside {step.name} ({' '.join(step.op_types[:6])}{' …' if len(step.op_types) > 6 else ''})"

    @cached_property
    def _steps_of(self) -> dict[str, Step]:
        return {source: step for step in self.engine.plan.steps for source in step.sources}


def step_results(instance: Instance) -> Arrays:
    """Run an instance that is loaded with inputs, and copy what each step makes as soon as it is made."""
    calls: dict[int, list[Any]] = {}
    for index, call in zip(instance.call_steps, instance.calls, strict=True):
        calls.setdefault(index, []).append(call)
    made: Arrays = {}
    with torch.inference_mode():
        for step in instance.steps:
            for call in calls.get(step.index, ()):
                call()
            for name in step.region.outputs:
                value = instance.result(name)
                if isinstance(value, Tensor):
                    made[name] = to_numpy(cloned(value))
    return made


def graph_nodes(graph: onnx.GraphProto) -> tuple[GraphNode, ...]:
    """The nodes that compute, in the order of the file, with names as reports have them."""
    return tuple(
        GraphNode(
            node.name or next(filter(None, node.output), node.op_type),
            node.op_type,
            tuple(filter(None, node.input)),
            tuple(filter(None, node.output)),
        )
        for node in graph.node
        if node.op_type != "Constant"
    )


def _crossing(names: Sequence[str], session: ort.InferenceSession) -> ort.InferenceSession:
    """The session, if its inputs and these outputs can be arrays: those of bfloat16 cannot."""
    kinds = {port.type for port in session.get_inputs()}
    kinds |= {port.type for port in session.get_outputs() if port.name in set(names)}
    plain = {kind.removeprefix("tensor(").removesuffix(")") for kind in kinds if kind.startswith("tensor(")}
    refused = sorted(kind for kind in plain if "bfloat" in kind or "float8" in kind or "int4" in kind)
    if refused:
        raise BuildError(f"arrays of {', '.join(refused)} do not cross into ONNX Runtime")
    return session


def _nodes_text(step: Step) -> str:
    more = len(step.sources) - 1
    return (step.sources[-1] if step.sources else step.name) + (f" (+{more})" if more > 0 else "")


def _as_arrays(values: Mapping[str, Any]) -> Arrays:
    return {
        name: to_numpy(value) if isinstance(value, Tensor) else np.asarray(value)
        for name, value in flattened(values).items()
    }
