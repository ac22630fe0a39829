"""The smallest set of nodes to keep in high precision, by name, and how much each node costs alone.

Nothing is built: the graph is run op by op in float32, and nodes that are coarse read and make rounded values
(`precision/emulate.py`). Rows only; nothing here prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.analyze.ranges import QUANTISED, all_samples
from ridgeline.base.formats import FORMATS, HALF_NAMES, Format, from_codes, to_codes
from ridgeline.base.spec import TF32
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.frontend.from_onnx import Source, load
from ridgeline.ir.body import node_sources
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.options import DEFAULT_BUDGET, QUANTISED_BUDGET, Options
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.tf32 import is_float32_product
from ridgeline.precision.emulate import Emulator, OperandsOnly, Rounding, Tf32Operands, rounded_to
from ridgeline.precision.lower import lowerable, value_key
from ridgeline.precision.minimal import minimal_set
from ridgeline.precision.original import Original
from ridgeline.precision.place import place
from ridgeline.precision.quantised import CodedOperands
from ridgeline.precision.quantize import stored_weights
from ridgeline.precision.ranges import HALVES
from ridgeline.precision.schemes import SCHEMES, weight_axes
from ridgeline.precision.traced_runs import TracedRuns

SENSITIVITY, SEARCH = "sensitivity", "minimal set"
# products that are quantised; attention has a mask among its operands
WEIGHTED = ("MatMul", "Gemm", "Conv", "ConvTranspose")
# with scales of their own for channels or blocks of weights, as a build has them
WEIGHTS_ALONE = tuple(
    name for name, scheme in SCHEMES.items() if scheme.is_weight_only and name not in QUANTISED
)
PRECISION_NAMES = (*HALF_NAMES, TF32, *QUANTISED, *WEIGHTS_ALONE)


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
        return tuple(f"fp32:{escape(name)}" for name in names)


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
        budget = QUANTISED_BUDGET if precision in (*QUANTISED, *WEIGHTS_ALONE) else DEFAULT_BUDGET
    if not (math.isfinite(budget) and budget >= 0):
        raise OptionError("budget is no error", got=str(budget), want="a number from 0 on")
    loaded = load(source, options.limits)
    canonicalise(loaded.model, limits=options.limits)
    original = Original(loaded, options, None)
    rows = list(islice(all_samples(original), samples))
    nodes = candidates(loaded.model, precision)
    emulator = Emulator(loaded.model, options.limits)
    runs = TracedRuns(emulator, rows, rounding_of(precision, nodes, loaded.model, emulator.given))
    alone = {}
    for i, node in enumerate(nodes):
        options.tell(SENSITIVITY, i, len(nodes), node)
        alone[node] = runs.judge(frozenset([node]))
        options.tell(SENSITIVITY, i + 1, len(nodes), node)
    every = frozenset(nodes)

    def is_inside(kept: frozenset[str]) -> bool:
        options.tell(SEARCH, runs.count - len(nodes), 0, f"{len(kept)} kept")
        return runs.judge(every - kept, enough=budget).error <= budget

    order = sorted(nodes, key=lambda node: -alone[node].error)
    kept = minimal_set(nodes, is_inside, order)
    # with every candidate kept nothing is rounded, and the error is 0
    assert kept is not None, "keeping everything is inside any budget"
    by_name = {value_key(node): node for node in loaded.model.graph}
    places = {name: i for i, name in enumerate(by_name)}
    table = [
        NodeRow(
            places[name], _shown(by_name[name]), by_name[name].op_type, node_sources(by_name[name]),
            alone[name].error, alone[name].worst_output, name in kept,
        )
        for name in nodes
    ]  # fmt: skip
    return SensitivityReport(
        loaded.name, precision, budget, len(rows), original.samples[0].drawn,
        runs.judge(every).error, runs.judge(every - kept).error, runs.count, tuple(table),
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
    half = HALF_NAMES.get(precision, "float16")
    able = [node for node in model.graph if lowerable(node, half, version) is not None]
    if precision in HALF_NAMES:
        return [value_key(node) for node in able if not is_a(node, Kind.MOVEMENT)]
    if precision == TF32:
        return [value_key(node) for node in model.graph if is_float32_product(node)]
    if precision in WEIGHTS_ALONE:
        return [value_key(node) for node in place(model, SCHEMES[precision]).products]
    return [value_key(node) for node in able if node.op_type in WEIGHTED]


def rounding_of(
    precision: str, nodes: Sequence[str], model: ir.Model, weights: Mapping[str, Any]
) -> dict[str, Rounding]:
    """What each node does to values when it is coarse."""
    if precision in HALF_NAMES:
        return dict.fromkeys(nodes, rounded_to(HALVES[HALF_NAMES[precision]]))
    if precision == TF32:
        return dict.fromkeys(nodes, Tf32Operands())
    if precision in WEIGHTS_ALONE:
        stored = stored_weights(place(model, SCHEMES[precision]), {})
        return {
            value_key(edge.node): CodedOperands({str(edge.value.name): torch.from_numpy(codes.decoded())})
            for edge, codes in stored.items()
        }
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
