"""The smallest set of nodes to keep in high precision, by name, and how much each node costs alone.

Nothing is built: the graph is run op by op in float32, and nodes that are coarse read and make rounded values
(`precision/emulate.py`). Rows only; nothing here prints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.analyze.ranges import QUANTISED, all_samples
from ridgeline.base.formats import FORMATS, Format, from_codes, to_codes
from ridgeline.base.spec import TF32
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.frontend.from_onnx import Source, load
from ridgeline.ir.body import node_sources
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.kernels.values import outside
from ridgeline.options import DEFAULT_BUDGET, QUANTISED_BUDGET, Options
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.tf32 import is_float32_product
from ridgeline.precision.emulate import Emulator, OperandsOnly, Rounding, Tf32Operands, Values, rounded_to
from ridgeline.precision.lower import lowerable, value_key
from ridgeline.precision.minimal import minimal_set
from ridgeline.precision.original import Original
from ridgeline.precision.samples import Feeds
from ridgeline.precision.schemes import weight_axes
from ridgeline.verify.metrics import worst_relative_l2

SENSITIVITY, SEARCH = "sensitivity", "minimal set"
HALVES = {"fp16": ("float16", torch.float16), "bf16": ("bfloat16", torch.bfloat16)}
# products that are quantised; attention has a mask among its operands
WEIGHTED = ("MatMul", "Gemm", "Conv", "ConvTranspose")
SPECIAL = re.compile(r"[*?\[]")
PRECISION_NAMES = (*HALVES, TF32, *QUANTISED)


@dataclass(frozen=True)
class NodeRow:
    """One node: its error alone, the others being exact. `error` is null where it is infinite."""

    index: int  # its place in the graph
    node: str
    op_type: str
    sources: tuple[str, ...]  # nodes of the model that it stands for
    error: float
    output: str  # the one that is worst
    is_kept: bool


@dataclass(frozen=True)
class SensitivityReport:
    """The smallest set that was found: without any one of it, the error is over the budget."""

    model: str
    precision: str
    budget: float
    samples: int
    is_drawn: bool  # no data was given: inputs are random
    error_all_low: float  # with every candidate in low precision
    error_kept: float  # with the set kept high
    runs: int  # emulated
    nodes: tuple[NodeRow, ...]  # every candidate, in the order of the graph

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(row.node for row in self.nodes if row.is_kept)

    @property
    def keep_options(self) -> tuple[str, ...]:
        """What `ridge build --keep` is to be told; the characters of patterns in names are written out."""
        names = (row.node for row in self.nodes if row.is_kept)
        return tuple("fp32:" + SPECIAL.sub(r"[\g<0>]", name) for name in names)


def find_minimal_set(
    source: Source, precision: str, options: Options, *, budget: float | None = None, samples: int = 4
) -> SensitivityReport:
    """Each node alone, then the smallest set whose keeping brings the rest inside the budget."""
    if precision not in PRECISION_NAMES:
        raise OptionError(
            f"precision {precision!r} cannot be emulated",
            want=", ".join(PRECISION_NAMES),
            help=did_you_mean(precision, PRECISION_NAMES),
        )
    if budget is None:
        budget = QUANTISED_BUDGET if precision in QUANTISED else DEFAULT_BUDGET
    if not (math.isfinite(budget) and budget >= 0):
        raise OptionError("budget is no error", got=str(budget), want="a number from 0 on")
    loaded = load(source, options.limits)
    canonicalise(loaded.model, limits=options.limits)
    original = Original(loaded, options, None)
    rows = list(islice(all_samples(original), samples))
    nodes = candidates(loaded.model, precision)
    emulator = Emulator(loaded.model, options.limits)
    runs = EmulatedRuns(emulator, rows, rounding_of(precision, nodes, loaded.model, emulator.given))
    alone = {}
    for i, node in enumerate(nodes):
        options.tell(SENSITIVITY, i, len(nodes), node)
        alone[node] = runs.worst(frozenset([node]))
    every = frozenset(nodes)

    def is_inside(kept: frozenset[str]) -> bool:
        options.tell(SEARCH, runs.count - len(nodes), 0, f"{len(kept)} kept")
        return runs.worst(every - kept, budget)[0] <= budget

    order = sorted(nodes, key=lambda node: -alone[node][0])
    kept = minimal_set(nodes, is_inside, order)
    # with every candidate kept nothing is rounded, and the error is 0
    assert kept is not None, "keeping everything is inside any budget"
    by_name = {value_key(node): node for node in loaded.model.graph}
    places = {name: i for i, name in enumerate(by_name)}
    table = [
        NodeRow(
            places[name], _shown(by_name[name]), by_name[name].op_type, node_sources(by_name[name]),
            alone[name][0], alone[name][1], name in kept,
        )
        for name in nodes
    ]  # fmt: skip
    return SensitivityReport(
        loaded.name, precision, budget, len(rows), original.samples[0].drawn,
        runs.worst(every)[0], runs.worst(every - kept)[0], runs.count, tuple(table),
    )  # fmt: skip


def _shown(node: ir.Node) -> str:
    """The model's own name of a node: the last of those it stands for makes its result."""
    return node_sources(node)[-1]


def candidates(model: ir.Model, precision: str) -> list[str]:
    """Nodes that could compute in this precision, by their first result.

    Movement is none of them: it rounds nothing that its neighbours do not. Quantisation is for products with
    weights.
    """
    version = model.opset_imports.get("", 1)
    half = HALVES.get(precision, HALVES["fp16"])[0]
    able = [node for node in model.graph if lowerable(node, half, version) is not None]
    if precision in HALVES:
        return [value_key(node) for node in able if not is_a(node, Kind.MOVEMENT)]
    if precision == TF32:
        return [value_key(node) for node in model.graph if is_float32_product(node)]
    return [value_key(node) for node in able if node.op_type in WEIGHTED]


class EmulatedRuns:
    """Runs with some nodes coarse, each begun from a run that was exact."""

    def __init__(self, emulator: Emulator, rows: Sequence[Feeds], rounding: Mapping[str, Rounding]) -> None:
        self._emulator, self._rounding = emulator, rounding
        self._traces: list[Values] = [emulator.trace(feeds) for feeds in rows]
        self._wanted = [self._outputs(trace) for trace in self._traces]
        self._known: dict[frozenset[str], tuple[float, str]] = {}
        self.count = 0

    def worst(self, lowered: frozenset[str], enough: float = math.inf) -> tuple[float, str]:
        """The error of the worst sample and its output; samples after one beyond `enough` are not run."""
        if lowered in self._known:
            return self._known[lowered]
        self.count += 1
        worst = (0.0, "")
        coarse = {name: self._rounding[name] for name in lowered}
        for trace, want in zip(self._traces, self._wanted, strict=True):
            got = self._outputs(self._emulator.again(trace, coarse))
            errors = worst_relative_l2(got, want)
            worst = max(worst, *((error, name) for name, error in errors.items()))
            if worst[0] > enough:
                return worst
        self._known[lowered] = worst
        return worst

    def _outputs(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        made = {name: outside(values[name]) for name in self._emulator.outputs}
        return {name: np.asarray(value) for name, value in made.items() if not isinstance(value, list)}


def rounding_of(
    precision: str, nodes: Sequence[str], model: ir.Model, weights: Mapping[str, Any]
) -> dict[str, Rounding]:
    """What each node does to values when it is coarse."""
    if precision in HALVES:
        return dict.fromkeys(nodes, rounded_to(HALVES[precision][1]))
    if precision == TF32:
        return dict.fromkeys(nodes, Tf32Operands())
    by_name = {value_key(node): node for node in model.graph}
    made: dict[str, Rounding] = {}
    for name in nodes:
        node = by_name[name]
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        tensor = None if weight is None else weights.get(str(weight.name))
        made[name] = QuantisedOperands(FORMATS[precision], tensor, weight_axes(node)[0])
    return made


class QuantisedOperands(OperandsOnly):
    """Operands of a product quantised and back: weights with a scale per output channel, others with one.

    A scale brings the largest magnitude to the largest of the format. A vector is a bias, which quantised
    kernels add in higher precision: it stays.
    """

    def __init__(self, fmt: Format, weight: Tensor | None = None, axis: int = 0) -> None:
        self._fmt, self._weight, self._axis = fmt, weight, axis

    def __call__(self, tensor: Tensor) -> Tensor:
        if tensor.ndim < 2 or not tensor.numel():
            return tensor
        values = tensor.cpu().numpy().astype(np.float32)
        sizes = np.where(np.isfinite(values), np.abs(values), 0)
        channel = self._axis % tensor.ndim
        axes = tuple(i for i in range(tensor.ndim) if tensor is not self._weight or i != channel)
        scale = (sizes.max(axis=axes, keepdims=True) / self._fmt.largest).astype(np.float32)
        scale[scale == 0] = 1
        with np.errstate(over="ignore"):  # of the largest floats
            made = from_codes(to_codes(values / scale, self._fmt), self._fmt) * scale
        return torch.from_numpy(np.asarray(made, np.float32)).to(tensor.device, tensor.dtype)
