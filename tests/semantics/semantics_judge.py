"""What ONNX Runtime and the onnx reference make of a case, and whether a result agrees with them.

Where the two agree, a result must be theirs: integers, NaN and infinities exactly, floats to a few steps of
their type. Where they differ, every element must be one of theirs. Of half types a third opinion counts: the
reference in float32, rounded once, since wider sums may avoid an overflow. Signs of zeros are not compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from semantics_case import FLOATS, Case, feeds_of, make_model, numpy_type

Arrays = Sequence[np.ndarray]
# functions that libraries compute to within this many steps of the type; all else is exact
STEPS = 8
EXACT = frozenset({
    "Abs", "Add", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "DepthToSpace", "Div",
    "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "GlobalMaxPool", "Identity",
    "Max", "MaxPool", "Min", "Mod", "Mul", "Neg", "NonZero", "OneHot", "Pad", "QuantizeLinear",
    "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round", "Sign", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Sub", "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu",
    "Unsqueeze", "Where",
})  # fmt: skip
# terms cancel inside these: an element near zero is known to a step of the largest in its row
CANCELS = frozenset({
    "Attention", "AveragePool", "BatchNormalization", "Cos", "CumSum", "Erf", "Gelu", "GlobalAveragePool",
    "GlobalLpPool", "GroupNormalization", "InstanceNormalization", "LRN", "LayerNormalization",
    "LogSoftmax", "LpNormalization", "LpPool", "Mean", "MeanVarianceNormalization", "RMSNormalization",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "Resize", "Sin", "Softmax", "Sum",
    "Tan",
})  # fmt: skip
# made with float32 numbers such as 1/6, or in float32: doubles of these are known to no more
NARROW = frozenset({"HardSwish", "Erf", "Gelu"})


@dataclass(frozen=True)
class Opinions:
    """Who computes what; a party that cannot run the case is absent, with its reason in `refusals`."""

    case: Case
    made: dict[str, Arrays]
    refusals: dict[str, str]

    @property
    def kinds(self) -> list[tuple[np.dtype, int]]:
        return [(a.dtype, a.ndim) for a in next(iter(self.made.values()))]

    @property
    def differ(self) -> bool:
        """Whether the parties themselves disagree, on any element."""
        first, *others = (made for party, made in self.made.items() if party != "wide")
        return not all(self._agrees(other, first) for other in others)

    def judge(self, got: Arrays) -> str:
        """`both`, or the party that the result agrees with; `either` where that changes from place to place.

        `… alone` where there is one party to ask, `wide` for a half that only wider sums give, and "" for a
        result that is nobody's.
        """
        parties = [party for party, made in self.made.items() if self._agrees(got, made)]
        named = [party for party in self.made if party != "wide"]
        if not parties:
            return "either" if len(named) == 2 and self._is_either(got) else ""
        if parties == ["wide"]:
            return "wide"
        if len(named) == 1:
            return f"{named[0]} alone"
        return parties[0] if self.differ else "both"

    def _is_either(self, got: Arrays) -> bool:
        """Every element is that of some party."""
        for place, mine in enumerate(got):
            matches = [near(self.case, mine, made[place]) for made in self.made.values()]
            matches = [m for m in matches if m.shape == mine.shape]
            if not matches or not np.logical_or.reduce(matches).all():
                return False
        return True

    def _agrees(self, got: Arrays, made: Arrays) -> bool:
        return all(bool(np.all(near(self.case, g, m))) for g, m in zip(got, made, strict=True))

    def first_difference(self, got: Arrays) -> str:
        for place, mine in enumerate(got):
            parts = []
            for party, made in self.made.items():
                if mine.shape != made[place].shape or mine.dtype != made[place].dtype:
                    parts.append(f"{party} has {made[place].dtype}{list(made[place].shape)}")
                    continue
                off = np.argwhere(~near(self.case, mine, made[place]))
                if len(off):
                    at = tuple(int(i) for i in off[0])
                    given = [
                        x[at] if x is not None and x.shape == mine.shape else "" for x in self.case.inputs
                    ]
                    parts.append(
                        f"{len(off)} off {party}, at {list(at)} {mine[at]} want {made[place][at]} of {given}"
                    )
            if parts:
                return f"{mine.dtype}{list(mine.shape)}: " + "; ".join(parts)
        return ""


def opinions(case: Case) -> Opinions:
    made: dict[str, Arrays] = {}
    refusals: dict[str, str] = {}
    for party, run in (("ort", _run_ort), ("reference", _run_reference), ("wide", _run_wide)):
        if party == "wide" and (not _is_half(case) or "reference" in refusals):
            continue
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                made[party] = [_typed(case, np.asarray(a)) for a in run(case)]
        except Exception as error:
            refusals[party] = (
                f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
            )
    return Opinions(case, made, refusals)


def _typed(case: Case, array: np.ndarray) -> np.ndarray:
    """ONNX Runtime hands out float8 as bytes."""
    to = {17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz"}.get(
        case.attrs.get("to", 0)
    )
    return array.view(numpy_type(to)) if to and array.dtype == np.uint8 else array


def _is_half(case: Case) -> bool:
    return any(x is not None and str(x.dtype) in ("float16", "bfloat16") for x in case.inputs)


def _untyped(case: Case) -> onnx.ModelProto:
    """The case as a model that leaves the types of its outputs to whoever runs it."""
    model = make_model([case], [[]])
    names = [f"y0_{n}" for n in range(case.n_outputs)]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    model.graph.node[0].output.extend(names)
    return model


def _run_ort(case: Case) -> Arrays:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    model = _untyped(case)
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return list(session.run(None, feeds_of([case])))


def _run_reference(case: Case) -> Arrays:
    return list(ReferenceEvaluator(_untyped(case)).run(None, feeds_of([case])))


def _run_wide(case: Case) -> Arrays:
    def widened(x: np.ndarray | None) -> np.ndarray | None:
        return x.astype(np.float32) if x is not None and str(x.dtype) in ("float16", "bfloat16") else x

    half = next(x.dtype for x in case.inputs if x is not None and str(x.dtype) in ("float16", "bfloat16"))
    made = _run_reference(replace(case, inputs=tuple(map(widened, case.inputs))))
    return [
        a.astype(half) if a.dtype == np.float32 and case.op not in ("Cast", "CastLike") else a for a in made
    ]


def near(case: Case, got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Element by element; all False where shape or type differ."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return np.zeros(1, bool)
    name = str(want.dtype)
    if name not in FLOATS and not name.startswith("float8"):
        same: np.ndarray = got == want
        return same
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        exact = (a == b) | (np.isnan(a) & np.isnan(b))
        if case.op in EXACT:
            return exact
        limits = ml_dtypes.finfo(np.float32 if name == "float64" and _is_narrow(case) else want.dtype)
        # below the normal range, whether bits are kept is a library's choice
        room = STEPS * float(limits.eps) * np.maximum(np.abs(b), float(limits.tiny)) + float(limits.tiny)
        if case.op in CANCELS:
            room = room + STEPS * float(limits.eps) * _largest(case, b)
        return exact | (np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= room))


@cache
def _has_float_attribute(op: str, opset: int) -> bool:
    kinds = [a.type for a in onnx.defs.get_schema(op, opset).attributes.values()]
    return onnx.defs.OpSchema.AttrType.FLOAT in kinds


def _is_narrow(case: Case) -> bool:
    """An attribute is a float32, where 0.01 is another number."""
    return case.op in NARROW or _has_float_attribute(case.op, case.opset)


def _largest(case: Case, result: np.ndarray) -> np.ndarray:
    """The largest finite number of each row of the result; 1 at least for functions with values around it."""
    wide = np.where(np.isfinite(result), np.abs(result), 0.0)
    largest: np.ndarray = (
        np.maximum(wide.max(-1, keepdims=True, initial=0.0), 1.0) if result.ndim else np.maximum(wide, 1.0)
    )
    return largest
