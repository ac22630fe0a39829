"""A model with any choice of its products quantised, calibrated once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.base.scales import Encoded
from ridgeline.ir.body import node_sources
from ridgeline.ir.provenance import node_name
from ridgeline.options import Limits
from ridgeline.plan.report import Kept
from ridgeline.precision.budget import Judgement, Metric
from ridgeline.precision.calibrate import AUTO, Calibrated, calibrate
from ridgeline.precision.compensate import compensated
from ridgeline.precision.emulate import Emulator, OperandsOnly, Values
from ridgeline.precision.fake_quant import FakeQuant
from ridgeline.precision.insert import insert_quantization
from ridgeline.precision.place import Edge, Placement, WeightEdge, place
from ridgeline.precision.quantize import product_layers, require_products, stored_weights
from ridgeline.precision.samples import Feeds, Samples, row_digest
from ridgeline.precision.schemes import Scheme
from ridgeline.precision.search import Found, raise_nodes
from ridgeline.precision.smooth import output_clips, smoothed_copy

Tell = Callable[[str, int, int, str], None]
# of a budget, what a search uses: held-out samples are a little worse than those that it sees
MARGIN = 0.97


class CodedOperands(OperandsOnly):
    """What a quantised product reads: activations rounded to codes, weights as they are stored."""

    def __init__(self, by_name: Mapping[str, FakeQuant | Tensor]) -> None:
        self._by_name = by_name

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor

    def operand(self, name: str, tensor: Tensor) -> Tensor:
        found = self._by_name.get(name)
        if found is None:
            return tensor
        return found(tensor) if isinstance(found, FakeQuant) else found


@dataclass
class Quantiser:
    """One model and one scheme. Names are those of products, as the report has them."""

    model: ir.Model  # the float model that Q/DQ is put into; it stays as it is
    scheme: Scheme
    samples: Samples
    limits: Limits
    exclude: tuple[str, ...] = ()
    device: str = "cpu"  # that emulated runs are made on
    method: str = AUTO  # of calibration
    metric: Metric | None = None  # the user's, in place of the relative L2 error
    compensates: bool = False  # codes of a weight make up for one another's rounding
    reasons: Mapping[str, str] = field(default_factory=dict)  # what a report says for a reason of placement

    @cached_property
    def _placement(self) -> Placement:
        """Of all that can be quantised."""
        made = place(self.model, self.scheme, exclude=self.exclude)
        require_products(made)
        return made

    @cached_property
    def products(self) -> dict[str, tuple[str, ...]]:
        """The products that can be quantised, with the nodes of the model that each stands for."""
        return {node_name(node): node_sources(node) for node in _quantised_nodes(self._placement)}

    @property
    def refused(self) -> list[Kept]:
        """The products that cannot be quantised, or that somebody asked to keep."""
        rows = [row for row in self._placement.decisions if row.role == "product" and row.scheme == "float"]
        return [Kept(row.node, self.reasons.get(row.why, row.why)) for row in rows]

    def helped_by(self, original: ir.Model) -> tuple[str, ...]:
        """What brought it nearer to the original."""
        ways = {
            "smoothing": self.model is not original,
            "compensation": self.compensates,
            "the widest ranges": self.method == "max",
        }
        return tuple(name for name, is_used in ways.items() if is_used)

    @cached_property
    def ranges(self) -> dict[str, Calibrated]:
        """By tensor: from one calibration of all that can be quantised."""
        if self.scheme.is_weight_only:
            return {}
        placement = self._placement
        layers = product_layers(placement, self._of_placement(placement), self.device)
        found = calibrate(self._float, self.samples, placement.groups, layers=layers, method=self.method)
        # a tensor that elements were moved from has the range of what they were moved to
        return {n: found[g.name] for g in placement.groups for n in (*g.members, *g.aliases)}

    @cached_property
    def _stored(self) -> dict[tuple[str, int], Encoded]:
        """Every weight in its format, by node and operand; few bits are clipped as is best for the output."""
        clips: Mapping[WeightEdge, np.ndarray] = {}
        if self.scheme.weight.bits < 8:
            clips = output_clips(self._placement, self._float, self.samples)
        stored = stored_weights(self._placement, clips)
        if self.compensates:
            stored = compensated(self._placement, stored, self._float, self.samples)
        return {(node_name(edge.node), edge.index): encoded for edge, encoded in stored.items()}

    def _of_placement(self, placement: Placement) -> dict[Edge, Encoded]:
        edges = [each.edge for each in placement.weights]
        return {edge: self._stored[node_name(edge.node), edge.index] for edge in edges}

    def without(self, floats: Collection[str]) -> ir.Model:
        """A copy in which these products stay float."""
        model = self.model.clone()
        placement = place(model, self.scheme, exclude=self.exclude, floats=floats)
        if not self.scheme.is_weight_only:
            # a sum whose convolution stays float would round its other operand, which has no range
            placement.groups = [g for g in placement.groups if g.members[0] in self.ranges]
            known = {name for group in placement.groups for name in (*group.members, *group.aliases)}
            placement.activations = {e: None for e in placement.activations if str(e.value.name) in known}
        if placement.products or placement.activations:
            ranges = {group.name: self.ranges[group.members[0]] for group in placement.groups}
            insert_quantization(model, placement, self._of_placement(placement), ranges)
        return model

    def smoothed(self) -> Quantiser:
        """The same with scales of channels moved from activations into weights, if there are any to move."""
        model, moved = smoothed_copy(self._float, self.model, self.scheme, self.samples, self.exclude)
        return replace(self, model=model) if moved else self

    def nearer(self, rows: Sequence[Feeds], budget: float) -> Quantiser:
        """The same with what brings emulated runs nearer, as long as they are over the budget."""
        best, error = self, self.error(rows)
        if error > budget and (self.scheme.weight.is_integer or self.scheme.block):
            # float formats have as many codes for small channels as for large ones
            smoothed = best.smoothed()
            if smoothed is not best and (tried := smoothed.error(rows)) < error:
                best, error = smoothed, tried
        if error > budget:
            other = replace(best, compensates=True)
            best = other if other.error(rows) < error else best
        return best

    def error(self, rows: Sequence[Feeds], quantised: Collection[str] | None = None) -> float:
        """The error of emulated runs with these products quantised, or all; of one product, of one row."""
        every = frozenset(self.products)
        chosen = every if quantised is None else frozenset(quantised)
        rows = rows[:1] if len(chosen) == 1 else rows
        key = chosen, tuple(map(row_digest, rows))
        if key not in self._errors:
            self._errors[key] = self._measured(rows, chosen)
        return self._errors[key]

    def error_of_row(self, row: Feeds) -> float:
        """The error of an emulated run with all products quantised; nothing of it is kept."""
        made = Judgement(self.metric)
        run = self._run_of(frozenset(self.products), is_alone=False)
        made.add(_arrays(run(row)), _arrays(self._float.run(row)), row)
        return made.error

    @cached_property
    def _errors(self) -> dict[tuple[frozenset[str], tuple[str, ...]], float]:
        return {}

    def _measured(self, rows: Sequence[Feeds], chosen: frozenset[str]) -> float:
        run = self._run_of(chosen, is_alone=len(chosen) == 1)
        made = Judgement(self.metric)
        for row in rows:
            made.add(_arrays(run(row)), self._wanted(row), row)
        return made.error

    def _run_of(self, chosen: frozenset[str], *, is_alone: bool) -> Callable[[Feeds], Values]:
        """How the model runs with these products quantised."""
        if self._operands is None:
            return Emulator(self.without(set(self.products) - chosen), self.limits, self.device).run
        rounding = {key: read for name, (key, read) in self._operands.items() if name in chosen}
        if is_alone:
            return lambda row: self._float.again(self._trace(row), rounding)
        return partial(self._float.run, rounding=rounding)

    @cached_property
    def _operands(self) -> dict[str, tuple[str, CodedOperands]] | None:
        """By product: its key in the float model, and what it reads when it is quantised.

        None if other nodes read codes too: only a model with QuantizeLinear says what they compute then.
        """
        placement = self._placement
        nodes, groups = _quantised_nodes(placement), placement.groups
        if any(edge.node not in nodes for edge in placement.activations):
            return None
        group_of = {name: group for group in groups for name in (*group.members, *group.aliases)}
        read: dict[ir.Node, dict[str, FakeQuant | Tensor]] = {node: {} for node in nodes}
        for edge in placement.activations:
            name = str(edge.value.name)
            group = group_of[name]
            found = self.ranges[name].range
            rounds = FakeQuant.of(group.fmt, found, symmetric=group.symmetric, device=self.device)
            read[edge.node][name] = rounds
        for edge, encoded in self._of_placement(placement).items():
            read[edge.node][str(edge.value.name)] = torch.from_numpy(encoded.decoded()).to(self.device)
        return {node_name(n): (str(n.outputs[0].name), CodedOperands(made)) for n, made in read.items()}

    def _trace(self, row: Feeds) -> Values:
        """Every value of a float run; only the last is kept."""
        key = row_digest(row)
        if key not in self._traces:
            self._traces.clear()
            self._traces[key] = self._float.trace(row)
        return self._traces[key]

    @cached_property
    def _traces(self) -> dict[str, Values]:
        return {}

    def _wanted(self, row: Feeds) -> dict[str, np.ndarray]:
        """What the float model makes of a row, run once."""
        key = row_digest(row)
        if key not in self._outputs:
            self._outputs[key] = _arrays(self._float.run(row))
        return self._outputs[key]

    @cached_property
    def _float(self) -> Emulator:
        return Emulator(self.model, self.limits, self.device)

    @cached_property
    def _outputs(self) -> dict[str, dict[str, np.ndarray]]:
        return {}

    def search(self, rows: Sequence[Feeds], budget: float, saved: Mapping[str, float], tell: Tell) -> Found:
        """The products that stay float so that an emulated run is inside the budget."""
        whole = self.error(rows)
        if whole <= budget:
            return Found(frozenset(), whole, {})
        error_of = partial(self.error, rows)
        tell_product = partial(tell, "sensitivity")
        found = raise_nodes(list(self.products), error_of, budget * MARGIN, saved, tell_product)
        if len(found.raised) < len(self.products):
            return found
        return raise_nodes(list(self.products), error_of, budget, saved, tell_product)


def _arrays(outputs: Values) -> dict[str, np.ndarray]:
    return {name: value.cpu().numpy() for name, value in outputs.items() if hasattr(value, "numpy")}


def _quantised_nodes(placement: Placement) -> list[ir.Node]:
    """Products and attention; a residual sum follows its convolution."""
    nodes = dict.fromkeys(placement.products)
    nodes.update((edge.node, None) for edge in placement.activations if edge.node.op_type == "Attention")
    return list(nodes)
