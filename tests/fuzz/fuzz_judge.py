"""Whether an engine computes what the onnx reference computes, within what rounding may do to this graph.

Where it does not, ONNX Runtime is asked: the reference is wrong by the standard in places (`fuzz_mended.py`).

The tolerance is measured, element by element: every node is run again by the reference on inputs that
rounding has moved, several times over. What flips there may flip here; what does not move must be the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from fuzz_draft import ELEMENT_TYPES, FLOATS, port
from fuzz_graphs import Case
from fuzz_mended import MENDED
from onnx.reference import ReferenceEvaluator

import ridgeline
from ridgeline.base.spec import EPSILON
from ridgeline.errors import RidgelineError

DRAWS = 8
# a few roundings inside one op, on the way in and on the way out
STEPS = 4.0
# twice for the two who round, four times because eight draws do not find the worst case
MARGIN = 8.0
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}
# terms cancel inside these: a result near zero is known to a step of the largest, not to one of its own
INSIDE = frozenset({
    "GRU", "LSTM", "RNN", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "Gelu", "DFT",
    "BatchNormalization", "MeanVarianceNormalization", "Elu", "Celu", "Selu", "Resize", "GridSample",
    "LogSoftmax",
})  # fmt: skip

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """`right`, `refused` (with our reason), `wrong` or `crashed`."""

    kind: str
    detail: str = ""


def judge(case: Case, **options: Any) -> Verdict:
    """Build the case's graph, run it twice, compare."""
    try:
        got = run_engine(case, **options)
    except RidgelineError as error:
        return Verdict("refused", error.text())
    except Exception as error:
        return Verdict("crashed", f"{type(error).__name__}: {error}")
    names = [out.name for out in case.model.graph.output]
    moved = moved_values(case)
    first = compare(got[0], {n: case.steps.of(n) for n in names}, moved)
    if first and not _is_as_peer(case, got[0], moved):
        return Verdict("wrong", first)
    again = [n for n in names if not np.array_equal(bits(got[0][n]), bits(got[1][n]))]
    return Verdict("wrong", f"{again[0]}: another result the second time") if again else Verdict("right")


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def run_engine(case: Case, **options: Any) -> tuple[Arrays, Arrays]:
    shapes = {n: list(a.shape) for n, a in case.feeds.items() if a.ndim}
    chosen = {"level": 0, "verify": "off", "without": ("ort",), "threads": 1, "profiles": shapes} | options
    engine = ridgeline.build(case.model, **chosen)
    return engine.run(dict(case.feeds)), engine.run(dict(case.feeds))


def run_peer(case: Case) -> Arrays:
    """ONNX Runtime, to tell who is wrong."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(case.model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [out.name for out in case.model.graph.output]
    return dict(zip(names, session.run(names, dict(case.feeds)), strict=True))


def _is_as_peer(case: Case, got: Arrays, moved: Sequence[Arrays]) -> bool:
    try:
        peer = run_peer(case)
    except Exception:  # it lacks an op or a type
        return False
    # how far rounding moves a value is measured around the reference's
    shifted = [{n: m[n] + (peer[n] - case.steps.of(n)) for n in peer if _is_moved(m, peer, n)} for m in moved]
    return compare(got, peer, [{**peer, **values} for values in shifted]) == ""


def _is_moved(moved: Arrays, peer: Arrays, name: str) -> bool:
    return moved[name].shape == peer[name].shape and str(peer[name].dtype) in FLOATS


def moved_values(case: Case) -> list[Arrays]:
    """The graph's values as rounding could have made them, several times; a draw that fails is left out."""
    made = []
    runs = [_node_runner(case, node) for node in case.model.graph.node]
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        values = {n: case.steps.of(n) for n in (*case.steps.inputs, *case.steps.constants)}
        try:
            for node, run in zip(case.model.graph.node, runs, strict=True):
                # a norm divides by a deviation that may be small: what its inputs lose is made large again
                more = 4 if node.op_type in INSIDE else 1
                results = run({n: _moved(a, rng, steps=more * STEPS) for n, a in values.items()})
                values.update(_rounded(node, case.steps.opset, values, results, rng))
        except Exception:
            continue
        made.append(values)
    return made


def _node_runner(case: Case, node: onnx.NodeProto) -> Callable[[Arrays], Sequence[Any]]:
    draft = case.steps
    model = draft.model([node], list(node.output), declared=[])
    needed = sorted(set(_names(node)) & set(draft.values))
    model.graph.input.extend(port(n, ELEMENT_TYPES[draft.type_of(n)], None) for n in needed)
    evaluator = ReferenceEvaluator(model, new_ops=MENDED)

    def run(values: Arrays) -> Sequence[Any]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return list(evaluator.run(None, {n: values[n] for n in needed}))

    return run


def _names(node: onnx.NodeProto) -> list[str]:
    return [*node.input, *(name for attr in node.attribute for sub in attr.g.node for name in _names(sub))]


def _rounded(
    node: onnx.NodeProto, opset: int, values: Arrays, results: Sequence[Any], rng: np.random.Generator
) -> Arrays:
    """The results of a node as its own roundings could have made them."""
    least = EPSILON["float32"] if _has_float_attribute(node, opset) else 0.0
    made = {n: _moved(np.asarray(a), rng, least) for n, a in zip(node.output, results, strict=True)}
    if node.op_type in INSIDE:
        scale = max(_largest(a) for a in (*made.values(), values[node.input[0]]))
        scale = max(scale, _lifted(node, values))
        for name, array in made.items():
            kind = str(array.dtype)
            if kind in FLOATS:
                step = 2 * STEPS * max(EPSILON[kind], least) * scale
                made[name] = np.asarray(array + rng.uniform(-step, step, array.shape)).astype(array.dtype)
    return made


def _lifted(node: onnx.NodeProto, values: Arrays) -> float:
    """How large a norm makes its inputs before their mean is taken away: much, if a group hardly varies."""
    if node.op_type not in ("InstanceNormalization", "GroupNormalization"):
        return 0.0
    x, gain = (values[name].astype(np.float64) for name in node.input[:2])
    attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}  # noqa: TID251 - only read
    groups = x.reshape(x.shape[0] * attrs.get("num_groups", x.shape[1]), -1)
    deviation = np.sqrt(np.nanmin(groups.var(1)) + attrs.get("epsilon", 1e-5))
    return _largest(x) * _largest(gain) / float(deviation)


def _largest(array: np.ndarray) -> float:
    wide = np.abs(array.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def _has_float_attribute(node: onnx.NodeProto, opset: int) -> bool:
    """An attribute is a float32, where 0.01 is another number: doubles made with it are known to no more."""
    # HardSwish is a HardSigmoid with attributes; the reference computes Erf, also in Gelu, in float32
    if node.op_type in ("HardSwish", "Erf", "Gelu"):
        return True
    attributes = onnx.defs.get_schema(node.op_type, opset).attributes.values()
    return any(a.type == onnx.defs.OpSchema.AttrType.FLOAT for a in attributes)


def _moved(
    array: np.ndarray, rng: np.random.Generator, least: float = 0.0, steps: float = STEPS
) -> np.ndarray:
    kind = str(array.dtype)
    if kind not in FLOATS or not array.size:
        return array
    with np.errstate(all="ignore"):
        moves = 1 + steps * max(EPSILON[kind], least) * rng.uniform(-1, 1, array.shape)
        # what is fused is not rounded to half in between: a number too small for it need not be zero
        least_step = STEPS * SMALLEST.get(kind, 0.0) * rng.uniform(-1, 1, array.shape)
        return np.asarray(array.astype(np.float64) * moves + least_step).astype(array.dtype)


def compare(got: Arrays, want: Arrays, moved: Sequence[Arrays]) -> str:
    """The first output that is not what it should be, in words; "" when all are."""
    for name, right in want.items():
        mine = np.asarray(got[name])
        if mine.dtype != right.dtype:
            return f"{name}: {mine.dtype}, want {right.dtype}"
        others = [m[name] for m in moved]
        if any(o.shape != right.shape for o in others):
            continue  # its size itself hangs on rounding
        if mine.shape != right.shape:
            return f"{name}: shape {list(mine.shape)}, want {list(right.shape)}"
        problem = _difference(mine, right, others)
        if problem:
            return f"{name}: {problem}"
    return ""


def _difference(mine: np.ndarray, right: np.ndarray, others: Sequence[np.ndarray]) -> str:
    if not right.size:
        return ""
    kind = str(right.dtype)
    if kind not in FLOATS:
        steady = np.all([o == right for o in others], axis=0) if others else np.ones(right.shape, bool)
        off = (mine != right) & steady
        return _first(off, mine, right, None) if off.any() else ""
    with np.errstate(all="ignore"):
        wide, target = mine.astype(np.float64), right.astype(np.float64)
        spread = [o.astype(np.float64) for o in others]
        special = ~np.isfinite(target)
        steady = (
            np.all([~np.isfinite(s) == special for s in spread], axis=0) if spread else ~special | special
        )
        reach = np.max([np.abs(s - target) for s in spread], axis=0) if spread else np.zeros_like(target)
        limit = MARGIN * reach + 2 * STEPS * EPSILON[kind] * np.abs(target) + float(_tiny(kind))
        same_special = (np.isnan(wide) & np.isnan(target)) | (wide == target)
        off = np.where(special, ~same_special, ~(np.abs(wide - target) <= limit)) & steady
    return _first(off, mine, right, limit) if off.any() else ""


def _tiny(kind: str) -> float:
    """Below the smallest normal number, whether bits are kept is the processor's choice."""
    return {"float64": 2.0**-1022, "float16": 2.0**-14}.get(kind, 2.0**-126)


def _first(off: np.ndarray, mine: np.ndarray, right: np.ndarray, limit: np.ndarray | None) -> str:
    at = tuple(int(i) for i in np.argwhere(off)[0]) if off.ndim else ()
    allowed = "" if limit is None else f", allowed {limit[at]:.3g}"
    return f"{int(off.sum())} of {off.size} off, first at {list(at)}: {mine[at]}, want {right[at]}{allowed}"
