"""Verification: no engine leaves unless it computes what the model computes.

The reference is the original model, run unfused in fp32 by somebody else. Tolerances are measured on that
reference: how far its outputs move when weights and inputs move by what rounding moves them anyway.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from ridgeline.errors import BuildError, ModelError, OptionError, VerifyError, did_you_mean, first_line
from ridgeline.frontend.from_onnx import Loaded, all_tensors, folder_of
from ridgeline.plan.report import Check
from ridgeline.spec import EPSILON

Feeds = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]
PROBES = 2
FEW_ELEMENTS, FEW_DRAWS = 1024, 8
# a model up to this size is copied to move its weights, wherever they are; of a larger one, initializers only
COPIED_BYTES = 64 << 20
PROVIDERS = ["CPUExecutionProvider"]
CONTRACTIONS = {"MatMul": 0, "Gemm": 0, "Conv": 1, "ConvTranspose": 1}


class Reference:
    """The original model as ONNX Runtime runs it with every optimisation off, else the onnx reference."""

    def __init__(self, loaded: Loaded, *, threads: int) -> None:
        self.loaded, self.threads = loaded, threads
        self._probes: list[Callable[[Feeds], Outputs]] | None = None
        self.names = [port.name for port in loaded.original.graph.output]
        try:
            self._run = self._session(loaded.original)
            self.who = f"onnxruntime {ort.__version__}, all optimisations off"
        except Exception as error:  # ORT lacks an op, a type or an opset: the slow evaluator has most of them
            try:
                evaluator = ReferenceEvaluator(loaded.original)
            except Exception as second:
                raise BuildError(
                    f"nobody can run {loaded.name!r} as a reference to verify against",
                    rows=[f"ONNX Runtime: {first_line(error)}", f"onnx reference: {first_line(second)}"],
                    help="ridge build MODEL --verify off builds it unverified",
                ) from second
            self._run = lambda feeds: dict(zip(self.names, evaluator.run(None, dict(feeds)), strict=True))
            self.who = f"onnx {onnx.__version__} reference evaluator"

    def run(self, feeds: Feeds) -> Outputs:
        return self._run(feeds)

    def _session(
        self, proto: onnx.ModelProto, changed: Mapping[str, np.ndarray] | None = None
    ) -> Callable[[Feeds], Outputs]:
        options = self._options()
        # ORT reads these for as long as the session lives, and does not keep them alive itself
        kept = {n: ort.OrtValue.ortvalue_from_numpy(array) for n, array in (changed or {}).items()}
        for name, value in kept.items():
            options.add_initializer(name, value)
        # the file itself where it is the same: external data lies beside it, and it need not be written again
        is_file = proto is self.loaded.original and self.loaded.path is not None
        source: Any = str(self.loaded.path) if is_file else proto.SerializeToString()
        session = ort.InferenceSession(source, options, PROVIDERS)

        def run(feeds: Feeds, _held: object = (kept, changed)) -> Outputs:
            return dict(zip(self.names, session.run(self.names, dict(feeds)), strict=True))

        return run

    def run_other(
        self, proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], feeds: Feeds
    ) -> Outputs | None:
        """Another graph with the same outputs, run as the reference is; None where ONNX Runtime refuses."""
        options = self._options()
        options.add_external_initializers(
            list(weights), [ort.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        )
        try:
            session = ort.InferenceSession(proto.SerializeToString(), options, PROVIDERS)
        except Exception:  # the reference is not ONNX Runtime then either
            return None
        return dict(zip(self.names, session.run(self.names, dict(feeds)), strict=True))

    def _options(self) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return options

    def tolerance(self, feeds: Feeds, expected: Outputs) -> dict[str, Tolerance]:
        """How far rounding alone may carry each output from `expected`."""
        if self._probes is None:
            self._probes = list(self._make_probes())
        # the largest of many elements says enough; of an output of few, one draw can be small by luck
        smallest = min((a.size for a in expected.values()), default=0)
        draws = 1 if smallest >= FEW_ELEMENTS else FEW_DRAWS
        seeds = range(draws * len(self._probes))
        moved = [self._probes[i % len(self._probes)](_jitter_feeds(feeds, self._step, i)) for i in seeds]
        return {name: _tolerance(expected[name], [m[name] for m in moved]) for name in expected}

    @cached_property
    def _is_small(self) -> bool:
        tensors = self.loaded.original.graph.initializer
        return bool(sum(4 * math.prod(t.dims) for t in tensors) <= COPIED_BYTES)

    @cached_property
    def _step(self) -> float:
        """How many eps rounding moves a value: the root of the longest sum."""
        return math.sqrt(longest_sum(self.loaded.original))

    def _make_probes(self) -> Iterator[Callable[[Feeds], Outputs]]:
        """The reference with its weights moved by rounding."""
        for seed in range(PROBES if self._is_small else 1):
            try:
                yield self._moved(seed)
            except Exception:  # the onnx reference has no such door: inputs alone are moved then
                yield self._run

    def _moved(self, seed: int) -> Callable[[Feeds], Outputs]:
        original = self.loaded.original
        if self._is_small:
            proto = onnx.ModelProto()
            proto.CopyFrom(original)
            for tensor in all_tensors(proto):
                if _is_weight(tensor) and tensor.data_location != onnx.TensorProto.EXTERNAL:
                    array = _jitter(onnx.numpy_helper.to_array(tensor), self._step, seed)
                    name = tensor.name
                    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
            return self._session(proto)
        folder = folder_of(self.loaded)
        changed = {
            t.name: _jitter(onnx.numpy_helper.to_array(t, folder), self._step, seed)
            for t in original.graph.initializer
            if _is_weight(t)
        }
        return self._session(original, changed)


def _is_weight(tensor: onnx.TensorProto) -> bool:
    """Scales, bounds and the like are no weights: moved, they would change shapes and meanings."""
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    return bool(tensor.data_type in kinds and math.prod(tensor.dims) > 8)


@dataclass(frozen=True)
class Tolerance:
    """For floats the largest allowed distance; for the rest the largest allowed share of other values."""

    distance: float
    share: float = 0.0


def _tolerance(expected: np.ndarray, moved: Sequence[np.ndarray]) -> Tolerance:
    """Both engine and reference round, hence twice what one of them moves, and the type's own step."""
    kind = str(expected.dtype)
    same_shape = [m for m in moved if m.shape == expected.shape]
    if kind not in EPSILON:
        share = max((float(np.mean(m != expected)) for m in same_shape if m.size), default=0.0)
        reach = max((_distance(m, expected) for m in same_shape if m.size), default=0.0)
        return Tolerance(2 * reach, min(1.0, 2 * share))
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite], dtype=np.float64).max()) if finite.any() else 0.0
    reach = 0.0
    for m in same_shape:
        both = finite & np.isfinite(m)
        if both.any():
            reach = max(reach, float(np.abs(m[both].astype(np.float64) - expected[both]).max()))
    return Tolerance(2 * reach + 2 * EPSILON[kind] * scale)


def _distance(got: np.ndarray, want: np.ndarray) -> float:
    """How far integers are apart; for strings and the like, infinitely if at all."""
    if want.dtype.kind not in "iub":
        return 0.0 if np.array_equal(got, want) else math.inf
    return float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0.0))


def longest_sum(proto: onnx.ModelProto) -> int:
    """The most terms that one product or convolution of the model adds up."""
    sizes = {t.name: tuple(t.dims) for t in all_tensors(proto) if t.name}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            sizes.update((node.output[0], tuple(a.t.dims)) for a in node.attribute if a.name == "value")
    longest = 16
    for node in proto.graph.node:
        if node.op_type not in CONTRACTIONS or len(node.input) < 2 or node.input[1] not in sizes:
            continue
        shape = sizes[node.input[1]]
        terms = math.prod(shape[1:]) if CONTRACTIONS[node.op_type] else max(shape[-2:], default=1)
        longest = max(longest, terms)
    return longest


def _jitter(array: np.ndarray, steps: float, seed: int) -> np.ndarray:
    """The array with every element moved by up to `steps` eps of its type."""
    reach = steps * EPSILON[str(array.dtype)]
    # a short pattern repeated: as good as fresh numbers here, and many times quicker on large weights
    pattern = np.random.default_rng(seed).uniform(-reach, reach, min(array.size, 65521)).astype(array.dtype)
    moved = np.resize(pattern, array.shape)
    moved *= array
    # masks hold the largest float there is, and that cannot move up
    np.copyto(moved, 0, where=np.abs(array) > 1e30)
    moved += array
    return moved


def _jitter_feeds(feeds: Feeds, steps: float, seed: int) -> Outputs:
    kinds = ("float32", "float64")
    return {
        n: _jitter(a, steps, seed + 7) if str(a.dtype) in kinds and a.ndim else a for n, a in feeds.items()
    }


def compare(
    name: str, got: Mapping[str, Any], want: Outputs, limits: Mapping[str, Tolerance], shapes: str
) -> list[Check]:
    """One row per output."""
    return [_compare_one(name, out, np.asarray(got[out]), want[out], limits[out], shapes) for out in want]


def _compare_one(
    name: str, output: str, got: np.ndarray, want: np.ndarray, limit: Tolerance, shapes: str
) -> Check:
    if got.shape != want.shape or got.dtype != want.dtype:
        note = f"got {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}"
        return Check(name, output, shapes, math.inf, limit.distance, False, note)
    if str(want.dtype) not in EPSILON:
        share = float(np.mean(got != want)) if want.size else 0.0
        is_near = share == 0 or _distance(got, want) <= limit.distance
        note = "share of other values" if is_near else "values far from the reference's"
        return Check(name, output, shapes, share, limit.share, share <= limit.share and is_near, note)
    special = ~np.isfinite(want) | ~np.isfinite(got)
    same_special = bool(np.array_equal(got[special], want[special], equal_nan=True))
    finite = np.isfinite(want) & np.isfinite(got)
    error = float(np.abs(got[finite].astype(np.float64) - want[finite]).max()) if finite.any() else 0.0
    passed = error <= limit.distance and same_special
    note = "" if same_special else "NaN or infinity where the reference has none, or the other way round"
    return Check(name, output, shapes, error, limit.distance, passed, note)


def check_finite(name: str, expected: Outputs) -> list[str]:
    """A model that makes nothing but NaN is refused; a few are worth a warning."""
    warnings = []
    for output, array in expected.items():
        if str(array.dtype) not in EPSILON or not array.size:
            continue
        share = float(np.mean(np.isnan(array)))
        if share == 1.0:
            raise ModelError(
                f"{name!r} itself computes NaN, and nothing else, for output {output!r}",
                help="the weights or the export are broken: run the original with real data and see",
            )
        if share:
            warnings.append(f"output {output!r} of the original model is NaN in {share:.1%} of its elements")
    return warnings


def require(checks: Sequence[Check], where: str) -> None:
    """Raise when a check failed, naming the first region that diverges."""
    failed = [check for check in checks if not check.passed]
    if not failed:
        return
    raise VerifyError(
        f"the engine does not compute what the model computes: {len(failed)} of {len(checks)} checks failed",
        rows=[
            f"{c.name}: {c.output} off {c.max_error:.3g}, tolerance {c.tolerance:.3g} at {c.shapes} {c.note}"
            for c in failed
        ],
        got=where,
        help="this is a bug in a kernel or a rule: build --without the tactic named above, and report it",
    )


def load_data(folder: Path, inputs: Sequence[str]) -> list[tuple[str, Outputs]]:
    """Users' own inputs: every .npz in the folder, one array per input."""
    files = [folder] if folder.is_file() else sorted(folder.glob("*.npz"))
    if not files:
        raise OptionError(f"no .npz file is in {str(folder)!r}", want="files with one array per input")
    made = []
    for path in files:
        try:
            with np.load(path, allow_pickle=False) as archive:
                feeds = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise OptionError(f"{str(path)!r} does not load", got=str(error)) from error
        missing = [name for name in inputs if name not in feeds]
        if missing:
            raise OptionError(f"{path.name} holds no array for {missing[0]!r}", got=", ".join(feeds))
        for name in feeds:
            if name not in inputs:
                raise OptionError(f"{path.name} holds {name!r}", help=did_you_mean(name, list(inputs)))
        made.append((path.name, feeds))
    return made
