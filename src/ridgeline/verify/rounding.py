"""Moves values by as much as rounding does, to measure how far a right engine may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import onnx

from ridgeline.base.spec import EPSILON
from ridgeline.frontend.from_onnx import all_tensors

# runs a model moved by rounding; each seed moves the inputs otherwise
Probe: TypeAlias = Callable[[Mapping[str, Any], int], dict[str, np.ndarray]]
RunModel: TypeAlias = Callable[[Mapping[str, Any]], dict[str, np.ndarray]]
FEW_ELEMENTS, FEW_DRAWS = 1024, 8
# products: the place of the weight, and whether its sums run over all axes but the first
CONTRACTIONS = {
    "MatMul": (1, False), "Gemm": (1, False), "Conv": (1, True), "ConvTranspose": (1, True),
    "QLinearMatMul": (3, False), "QLinearConv": (3, True),
    "MatMulInteger": (1, False), "ConvInteger": (1, True),
}  # fmt: skip
# ops whose result has the shape of their first input, and which stand between a weight and its product
SAME_SHAPE = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "Identity"})


def longest_sum(proto: onnx.ModelProto) -> int:
    """The most terms that one product or convolution of the model adds up."""
    sizes = {t.name: tuple(t.dims) for t in all_tensors(proto) if t.name}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            sizes.update((node.output[0], tuple(a.t.dims)) for a in node.attribute if a.name == "value")
    longest = 16
    for node in proto.graph.node:
        if node.op_type in SAME_SHAPE and node.input[0] in sizes:
            sizes[node.output[0]] = sizes[node.input[0]]
        place, is_conv = CONTRACTIONS.get(node.op_type, (0, False))
        if not place or len(node.input) <= place or node.input[place] not in sizes:
            continue
        shape = sizes[node.input[place]]
        terms = math.prod(shape[1:]) if is_conv else max(shape[-2:], default=1)
        longest = max(longest, terms)
    return longest


def run_probe(probes: Sequence[Probe], feeds: Mapping[str, Any], seed: int) -> dict[str, np.ndarray] | None:
    """What the probe of this seed computes.

    A move can lead to where a model does not run, such as an index past its table. Such a draw measures
    nothing, whatever the library says of it.
    """
    with suppress(Exception):
        return probes[seed % len(probes)](feeds, seed)
    return None


def opened_late(open_run: Callable[[], RunModel]) -> RunModel:
    """A model that is opened when it first runs."""
    opened: list[RunModel] = []

    def run(feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        if not opened:
            opened.append(open_run())
        return opened[0](feeds)

    return run


def draws_for(expected: Mapping[str, np.ndarray]) -> int:
    """The largest of many elements says enough; of an output of few, one draw can be small by luck."""
    smallest = min((array.size for array in expected.values()), default=0)
    return 1 if smallest >= FEW_ELEMENTS else FEW_DRAWS


def run_moved(run: RunModel, steps: float, feeds: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    return run(jitter_feeds(feeds, steps, seed))


def jitter(array: np.ndarray, steps: float, seed: int) -> np.ndarray:
    """The array with every element moved by up to `steps` eps of its type."""
    reach = steps * EPSILON[str(array.dtype)]
    # a repeated short pattern is many times faster on large weights than fresh numbers, and as good here
    pattern = np.random.default_rng(seed).uniform(-reach, reach, min(array.size, 65521)).astype(array.dtype)
    moved = np.resize(pattern, array.shape)
    moved *= array
    # masks hold the largest float, which cannot move up
    np.copyto(moved, 0, where=np.abs(array) > 1e30)
    moved += array
    return moved


def jitter_feeds(feeds: Mapping[str, Any], steps: float, seed: int) -> dict[str, Any]:
    """The inputs with every single and double moved by up to `steps` eps of its type."""
    return {n: jitter(a, steps, seed + 7) if _moves(a) else a for n, a in feeds.items()}


def _moves(array: Any) -> bool:
    return bool(np.ndim(array)) and str(getattr(array, "dtype", "")) in ("float32", "float64")
