"""Scales per input channel moved from activations into weights, or back, before quantisation.

SmoothQuant: x / s and s · w compute the same product, and with s = x_max^α / w_max^(1-α) large channels of x
no longer take the codes of the others. For weights alone (as in AWQ) the same s protects the weights that
large channels meet. α is searched by the error of the product on real rows; a tensor for which no α is better
than none is left alone. The division goes into the norm or the convolution before, where nobody else reads
it, else into a Mul, which fuses with the quantisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.base.scales import encode
from ridgeline.base.spec import Op
from ridgeline.ir.body import op_of
from ridgeline.kernels.floor import call_floor
from ridgeline.precision.calibrate import compared_rows
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.fake_quant import FakeQuant
from ridgeline.precision.histograms import Range
from ridgeline.precision.insert import Inserter
from ridgeline.precision.place import Placement, WeightEdge, place
from ridgeline.precision.samples import Feeds, Samples
from ridgeline.precision.schemes import Scheme, weight_axes
from ridgeline.precision.weights import CLIPS, best_clips

ALPHAS = tuple(i / 10 for i in range(11))
# rows of a tensor that products are compared on
TOKENS = 256
# a channel is never scaled by more than this, so that nothing overflows or vanishes
MOST = 1e4
# images whose products are compared
IMAGES = 2
# an α must leave less than this share of the error, or the multiplication is not worth it
WORTH = 0.9
CONVS = ("Conv", "ConvTranspose")
NORMS = ("LayerNormalization", "RMSNormalization")
PASSED = ("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Identity")


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
    """A tensor, and the products that read it with constant weights and sum over one and the same axis."""

    value: ir.Value
    weights: tuple[WeightEdge, ...]

    @property
    def axis(self) -> int:
        """The channels of the tensor: of images the second axis, of rows the last."""
        return 1 if self.weights[0].edge.node.op_type in CONVS else -1


def smooth_channels(
    model: ir.Model, placement: Placement, emulator: Emulator, samples: Samples
) -> list[Smoothed]:
    """Rewrite the model in place; it computes the same in exact arithmetic."""
    found = readers_of(placement)
    largest, rows = _statistics(emulator, samples, found)
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


def smoothed_copy(
    emulator: Emulator, model: ir.Model, scheme: Scheme, samples: Samples, exclude: Sequence[str] = ()
) -> tuple[ir.Model, list[Smoothed]]:
    """As `smooth_channels`, with the model that the emulator runs left as it is."""
    made = model.clone()
    placement = place(made, scheme, exclude=exclude)
    return made, smooth_channels(made, placement, emulator, samples)


def readers_of(placement: Placement) -> list[Readers]:
    """Tensors with the products that sum over their channels."""
    by_value: dict[tuple[ir.Value, bool], list[WeightEdge]] = {}
    for weight in placement.weights:
        node = weight.edge.node
        is_conv = node.op_type in CONVS
        is_plain = is_conv or (weight.array.ndim == 2 and not node.attributes.get_int("transA", 0))
        if is_plain and node.inputs[0] is not None:
            by_value.setdefault((node.inputs[0], is_conv), []).append(weight)
    return [Readers(value, tuple(weights)) for (value, _), weights in by_value.items()]


def by_channel(weight: WeightEdge) -> tuple[np.ndarray, tuple[int, ...]]:
    """The weights reshaped, and the axes whose product is the input channels, the group first."""
    node, array = weight.edge.node, weight.array
    if node.op_type == "Conv":
        groups = int(node.attributes.get_int("group", 1))
        return array.reshape(groups, array.shape[0] // groups, *array.shape[1:]), (0, 2)
    summed = weight_axes(node)[1] % array.ndim
    return array, (summed,)


def scaled_weight(weight: WeightEdge, scale: np.ndarray) -> np.ndarray:
    """The weights with those of each input channel multiplied by its scale."""
    array, axes = by_channel(weight)
    shape = [array.shape[i] if i in axes else 1 for i in range(array.ndim)]
    made: np.ndarray = (array * scale.reshape(shape)).astype(np.float32).reshape(weight.array.shape)
    return made


def _statistics(
    emulator: Emulator, samples: Samples, found: Sequence[Readers]
) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
    """The largest magnitude of each channel over all samples, and some of the values of each tensor."""
    axes = {str(r.value.name): r.axis for r in found}
    largest: dict[str, np.ndarray] = {}

    def observe(name: str, tensor: Tensor) -> None:
        if name in axes and tensor.numel() and tensor.ndim > 1:
            last = tensor.movedim(axes[name], -1)
            peak = last.abs().reshape(-1, last.shape[-1]).amax(0).cpu().numpy()
            largest[name] = np.maximum(largest[name], peak) if name in largest else peak

    for row in samples:
        emulator.run(row, observe=observe)
    return largest, _values(emulator, compared_rows(samples), axes)


def _values(emulator: Emulator, chosen: Sequence[Feeds], axes: Mapping[str, int]) -> dict[str, Tensor]:
    """Of each sample as many rows, evenly spread over it; of images, the first two samples whole."""
    kept: dict[str, list[Tensor]] = {}
    share = max(1, TOKENS // len(chosen))

    def observe(name: str, tensor: Tensor) -> None:
        if name not in axes or not tensor.numel() or tensor.ndim < 2:
            return
        parts = kept.setdefault(name, [])
        if axes[name] == -1:
            flat = tensor.reshape(-1, tensor.shape[-1])
            parts.append(flat[:: max(1, len(flat) // share)][:share].clone())
        elif len(parts) < IMAGES and (not parts or parts[0].shape[1:] == tensor.shape[1:]):
            parts.append(tensor.clone())

    for row in chosen:
        emulator.run(row, observe=observe)
    return {name: torch.cat(parts) for name, parts in kept.items()}


class Search:
    """The α of one tensor, by the outputs of all products that read it."""

    def __init__(self, scheme: Scheme, readers: Readers, values: Tensor, largest: np.ndarray) -> None:
        self.scheme, self.weights, self.axis = scheme, readers.weights, readers.axis
        self.largest, self.values = largest.astype(np.float64), values.float()
        ops = [op_of(weight.edge.node) for weight in readers.weights]
        self.ops = [replace(op, inputs=op.inputs[:2]) for op in ops]
        self.wanted = [
            self._product(op, self.values, w.array) for op, w in zip(self.ops, self.weights, strict=True)
        ]
        heaviest = []
        for weight in readers.weights:
            array, axes = by_channel(weight)
            others = tuple(i for i in range(array.ndim) if i not in axes)
            heaviest.append(np.abs(array).max(axis=others).reshape(-1))
        self.heaviest = np.max(heaviest, axis=0).astype(np.float64)

    def best(self) -> tuple[float | None, float, float]:
        """α, the error without it and with it."""
        before = self.error(np.ones(len(self.largest)))
        tried = {alpha: self.error(self.scale(alpha)) for alpha in ALPHAS}
        alpha = min(tried, key=lambda a: tried[a])
        return (alpha, before, tried[alpha]) if tried[alpha] < before * WORTH else (None, before, before)

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
        step = torch.from_numpy(scale.astype(np.float32)).to(self.values.device)
        x = self.values / (step.reshape(-1, *[1] * (self.values.ndim - 2)) if self.axis == 1 else step)
        if self.scheme.activation is not None:
            low, high = (float(end) for end in torch.aminmax(x))
            if self.scheme.symmetric:
                # all samples reach further than the values that are compared
                high = float((self.largest / scale).max())
                low = -high
            found = Range(min(low, 0.0), max(high, 0.0))
            rounded = FakeQuant.of(
                self.scheme.activation, found, symmetric=self.scheme.symmetric, device=str(x.device)
            )
            x = rounded(x)
        total = 0.0
        for op, weight, want in zip(self.ops, self.weights, self.wanted, strict=True):
            stored = self._stored(weight, scale, x)
            norm = float(want.square().sum())
            total += float((self._product(op, x, stored) - want).square().sum()) / norm if norm else 0.0
        return total

    def _stored(self, weight: WeightEdge, scale: np.ndarray, x: Tensor) -> np.ndarray:
        """The scaled weights as they would be stored: those of few bits clipped, by a coarse search."""
        scaled, fmt = scaled_weight(weight, scale), self.scheme.weight
        clips: np.ndarray | float = 1.0
        if fmt.bits < 8 and self.axis == -1:
            clips = best_clips(scaled, fmt, weight.granularity, _importance(weight, x), CLIPS[::3])
        return encode(scaled, fmt, weight.granularity, clip=clips).decoded()

    @staticmethod
    def _product(op: Op, x: Tensor, weight: np.ndarray) -> Tensor:
        with torch.inference_mode():
            made: Tensor = call_floor(op, [x, torch.from_numpy(np.array(weight)).to(x.device)])[0]
        return made.double()


def _apply(inserter: Inserter, graph: ir.Graph, readers: Readers, scale: np.ndarray) -> str:
    """Weights times the scale; the division goes where it costs least."""
    for weight in readers.weights:
        made = inserter.constant(f"{weight.edge.value.name}_smoothed", scaled_weight(weight, scale))
        weight.edge.node.replace_input_with(1, made)
    value = readers.value
    is_only_reader = {use.node for use in value.uses()} == {w.edge.node for w in readers.weights}
    node = value.producer()
    if is_only_reader and value not in graph.outputs and node is not None:
        if node.op_type in NORMS and _divide(inserter, node, scale, first=1):
            return str(node.name)
        conv = _conv_before(value, graph)
        if readers.axis == 1 and conv is not None and _divide(inserter, conv, scale, first=1):
            return str(conv.name)
    shape = (-1, *[1] * (len(value.shape) - 2)) if readers.axis == 1 and value.shape is not None else (-1,)
    inverse = inserter.constant(f"{value.name}_smooth", (1 / scale).astype(np.float32).reshape(shape))
    like = (ir.DataType.FLOAT, value.shape)
    mul = inserter.node("Mul", [value, inverse], f"{value.name}_smooth_mul", like=like)
    inserter.place([mul], value)
    for weight in readers.weights:
        weight.edge.node.replace_input_with(0, mul.outputs[0])
    return str(mul.name)


def _conv_before(value: ir.Value, graph: ir.Graph) -> ir.Node | None:
    """The convolution that makes a value, behind ops that a positive scale per channel passes through."""
    node = value.producer()
    while node is not None and node.op_type in PASSED:
        before = node.inputs[0]
        if before is None or len(before.uses()) != 1 or before in graph.outputs:
            return None
        node = before.producer()
    return node if node is not None and node.op_type == "Conv" else None


def _divide(inserter: Inserter, node: ir.Node, scale: np.ndarray, *, first: int) -> bool:
    """Divide what a node multiplies and adds per output channel, if it is constant."""
    parts = [(i, part) for i, part in enumerate(node.inputs) if i >= first and part is not None]
    arrays = [ir.convenience.get_const_tensor(part) for _, part in parts]
    if not all(a is not None and a.shape.numpy()[:1] == scale.shape for a in arrays):
        return False
    for (i, part), tensor in zip(parts, arrays, strict=True):
        assert tensor is not None
        array = tensor.numpy()
        divided = array / scale.reshape(-1, *[1] * (array.ndim - 1))
        made = inserter.constant(f"{part.name}_smoothed", divided.astype(np.float32))
        node.replace_input_with(i, made)
    return True


def output_clips(
    placement: Placement, emulator: Emulator, samples: Samples
) -> Mapping[WeightEdge, np.ndarray]:
    """Clips of weight groups by the output: errors count as the mean square of the channel they meet."""
    found = readers_of(placement)
    axes = {str(r.value.name): r.axis for r in found if r.axis == -1}
    rows = _values(emulator, compared_rows(samples), axes)
    made: dict[WeightEdge, np.ndarray] = {}
    for readers in found:
        x = rows.get(str(readers.value.name))
        if x is None or readers.axis != -1:
            continue
        for weight in readers.weights:
            made[weight] = best_clips(
                weight.array, placement.scheme.weight, weight.granularity, _importance(weight, x)
            )
    return made


def _importance(weight: WeightEdge, rows: Tensor) -> np.ndarray:
    """How much an error of a weight counts: the mean square of the channel that it meets."""
    power = rows.double().square().mean(0).cpu().numpy()
    return power[None, :] if weight_axes(weight.edge.node)[1] == 1 else power[:, None]
