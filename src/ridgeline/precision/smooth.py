"""Scales per input channel moved from activations into weights, or back, before quantisation.

SmoothQuant: x / s and s · w compute the same product, and with s = x_max^α / w_max^(1-α) large channels of x
no longer take the codes of the others. For weights alone (as in AWQ) the same s protects the weights that
large channels meet. α is searched by the error of the product on real rows; a tensor for which no α is better
than none is left alone. The division goes into the norm before, where nobody else reads it, else into a Mul,
which fuses with the quantisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.base.scales import Granularity, encode
from ridgeline.precision.calibrate import compared_rows
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.fake_quant import FakeQuant
from ridgeline.precision.histograms import Range
from ridgeline.precision.insert import Inserter
from ridgeline.precision.place import Placement, WeightEdge
from ridgeline.precision.samples import Feeds, Samples
from ridgeline.precision.schemes import Scheme, weight_axes
from ridgeline.precision.weights import best_clips

ALPHAS = tuple(i / 10 for i in range(11))
# rows of a tensor that products are compared on
TOKENS = 256
# a channel is never scaled by more than this, so that nothing overflows or vanishes
MOST = 1e4
NORMS = ("LayerNormalization", "RMSNormalization")


@dataclass(frozen=True)
class Smoothed:
    """One tensor: the α with the least output error, and the relative squared errors without and with it."""

    tensor: str
    alpha: float | None  # None: left alone
    error_before: float
    error_after: float
    into: str  # the norm that divides, or the Mul that was put in


@dataclass(frozen=True)
class Readers:
    """A tensor, and the products that read it along its last axis with constant weights."""

    value: ir.Value
    weights: tuple[WeightEdge, ...]

    def matrices(self) -> list[np.ndarray]:
        """The weights as [K, N]."""
        return [w.array.T if weight_axes(w.edge.node)[1] == 1 else w.array for w in self.weights]


def smooth_channels(
    model: ir.Model, placement: Placement, emulator: Emulator, samples: Samples
) -> list[Smoothed]:
    """Rewrite the model in place; it computes the same in exact arithmetic."""
    found = readers_of(placement)
    largest, rows = _statistics(emulator, samples, {str(r.value.name) for r in found})
    inserter = Inserter(model)
    made = []
    for readers in found:
        name = str(readers.value.name)
        if name not in rows:
            continue
        search = Search(placement.scheme, readers, rows[name], largest[name])
        alpha, before, after = search.best()
        into = ""
        if alpha is not None:
            into = _apply(inserter, model.graph, readers, search.scale(alpha))
        made.append(Smoothed(name, alpha, before, after, into))
    return made


def readers_of(placement: Placement) -> list[Readers]:
    """Tensors with the products that sum over their last axis."""
    by_value: dict[ir.Value, list[WeightEdge]] = {}
    for weight in placement.weights:
        node = weight.edge.node
        is_matrix = weight.array.ndim == 2 and node.op_type in ("MatMul", "Gemm")
        if is_matrix and not node.attributes.get_int("transA", 0) and node.inputs[0] is not None:
            by_value.setdefault(node.inputs[0], []).append(weight)
    return [Readers(value, tuple(weights)) for value, weights in by_value.items()]


def _statistics(
    emulator: Emulator, samples: Samples, names: set[str]
) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
    """The largest magnitude of each channel over all samples, and some rows of each tensor."""
    largest: dict[str, np.ndarray] = {}

    def observe(name: str, tensor: Tensor) -> None:
        if name in names and tensor.numel() and tensor.ndim:
            peak = tensor.abs().reshape(-1, tensor.shape[-1]).amax(0).numpy()
            largest[name] = np.maximum(largest[name], peak) if name in largest else peak

    for row in samples:
        emulator.run(row, observe=observe)
    return largest, _rows(emulator, compared_rows(samples), names)


def _rows(emulator: Emulator, chosen: Sequence[Feeds], names: set[str]) -> dict[str, Tensor]:
    """The same number of rows from each sample, evenly spread over it."""
    kept: dict[str, list[Tensor]] = {}
    share = max(1, TOKENS // len(chosen))

    def observe(name: str, tensor: Tensor) -> None:
        if name in names and tensor.numel() and tensor.ndim:
            flat = tensor.reshape(-1, tensor.shape[-1])
            kept.setdefault(name, []).append(flat[:: max(1, len(flat) // share)][:share].clone())

    for row in chosen:
        emulator.run(row, observe=observe)
    return {name: torch.cat(parts) for name, parts in kept.items()}


class Search:
    """The α of one tensor, by the outputs of all products that read it."""

    def __init__(self, scheme: Scheme, readers: Readers, rows: Tensor, largest: np.ndarray) -> None:
        self.scheme, self.largest = scheme, largest.astype(np.float64)
        self.rows = rows.float()
        self.grains = [w.granularity for w in readers.weights]
        self.turned = [weight_axes(w.edge.node)[1] == 1 for w in readers.weights]
        self.matrices = readers.matrices()
        self.wanted = [self.rows @ torch.from_numpy(m.copy()) for m in self.matrices]
        self.heaviest = np.max([np.abs(m).max(axis=1) for m in self.matrices], axis=0).astype(np.float64)

    def best(self) -> tuple[float | None, float, float]:
        """α, the error without it and with it."""
        before = self.error(np.ones(len(self.largest)))
        tried = {alpha: self.error(self.scale(alpha)) for alpha in ALPHAS}
        alpha = min(tried, key=lambda a: tried[a])
        return (alpha, before, tried[alpha]) if tried[alpha] < before else (None, before, before)

    def scale(self, alpha: float) -> np.ndarray:
        """x_max^α / w_max^(1-α) around 1; channels that are never used, or meet no weight, keep theirs."""
        is_used = (self.largest > 0) & (self.heaviest > 0)
        x, w = np.where(is_used, self.largest, 1.0), np.where(is_used, self.heaviest, 1.0)
        raw = np.where(is_used, x**alpha / w ** (1 - alpha), np.nan)
        if not is_used.any():
            return np.ones_like(raw)
        middle = np.sqrt(np.nanmax(raw) * np.nanmin(raw))
        return np.where(is_used, np.clip(raw / middle, 1 / MOST, MOST), 1.0)

    def error(self, scale: np.ndarray) -> float:
        """Relative squared error of the products, summed."""
        step = torch.from_numpy(scale.astype(np.float32))
        x = self.rows / step
        if self.scheme.activation is not None:
            low, high = (float(end) for end in torch.aminmax(x))
            if self.scheme.symmetric:
                # all samples reach further than the rows that are compared
                high = float((self.largest / scale).max())
                low = -high
            found = Range(min(low, 0.0), max(high, 0.0))
            x = FakeQuant.of(self.scheme.activation, found, symmetric=self.scheme.symmetric)(x)
        total = 0.0
        for matrix, grain, turned, want in zip(
            self.matrices, self.grains, self.turned, self.wanted, strict=True
        ):
            stored = self._stored(matrix * scale[:, None], grain, turned=turned)
            norm = float(want.double().square().sum())
            total += float(((x @ stored) - want).double().square().sum()) / norm if norm else 0.0
        return total

    def _stored(self, matrix: np.ndarray, grain: Granularity, *, turned: bool) -> Tensor:
        array = (matrix.T if turned else matrix).astype(np.float32)
        decoded = encode(array, self.scheme.weight, grain).decoded()
        return torch.from_numpy(np.ascontiguousarray(decoded.T if turned else decoded))


def _apply(inserter: Inserter, graph: ir.Graph, readers: Readers, scale: np.ndarray) -> str:
    """Weights times the scale; the division goes where it costs least."""
    for weight in readers.weights:
        node = weight.edge.node
        turned = weight_axes(node)[1] == 1
        scaled = weight.array * (scale if turned else scale[:, None])
        made = inserter.constant(f"{weight.edge.value.name}_smoothed", scaled.astype(np.float32))
        node.replace_input_with(1, made)
    value = readers.value
    norm = value.producer()
    is_only_reader = {use.node for use in value.uses()} == {w.edge.node for w in readers.weights}
    if norm is not None and norm.op_type in NORMS and is_only_reader and value not in graph.outputs:
        parts = [part for part in norm.inputs[1:] if part is not None]
        arrays = [ir.convenience.get_const_tensor(part) for part in parts]
        if all(a is not None and a.shape.numpy() == scale.shape for a in arrays):
            for i, (part, array) in enumerate(zip(parts, arrays, strict=True), start=1):
                assert array is not None
                divided = (array.numpy() / scale).astype(np.float32)
                norm.replace_input_with(i, inserter.constant(f"{part.name}_smoothed", divided))
            return str(norm.name)
    inverse = inserter.constant(f"{value.name}_smooth", (1 / scale).astype(np.float32))
    like = (ir.DataType.FLOAT, value.shape)
    mul = inserter.node("Mul", [value, inverse], f"{value.name}_smooth_mul", like=like)
    inserter.place([mul], value)
    for weight in readers.weights:
        weight.edge.node.replace_input_with(0, mul.outputs[0])
    return str(mul.name)


def output_clips(
    placement: Placement, emulator: Emulator, samples: Samples
) -> Mapping[WeightEdge, np.ndarray]:
    """Clips of weight groups by the output: errors count as the mean square of the channel they meet."""
    found = readers_of(placement)
    rows = _rows(emulator, compared_rows(samples), {str(r.value.name) for r in found})
    made: dict[WeightEdge, np.ndarray] = {}
    for readers in found:
        x = rows.get(str(readers.value.name))
        if x is None:
            continue
        power = x.double().square().mean(0).numpy()
        for weight in readers.weights:
            turned = weight_axes(weight.edge.node)[1] == 1
            importance = power[None, :] if turned else power[:, None]
            made[weight] = best_clips(weight.array, placement.scheme.weight, weight.granularity, importance)
    return made
