"""The reference: the original model, run unfused in fp32 by somebody else, and how far rounding carries it.

Tolerances are measured on it: how far its outputs move when weights and inputs move by what rounding moves
them anyway. Of a half model, the same graph in fp32 is the reference, and what rounding every result to half
does is the measure. What it computed for a model is a fact, and kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from ridgeline.base.spec import EPSILON, TF32
from ridgeline.errors import BuildError
from ridgeline.frontend.evaluator import Evaluator, is_needed_for
from ridgeline.frontend.from_onnx import Loaded, all_tensors, folder_of
from ridgeline.frontend.functions import copy_of
from ridgeline.frontend.group_norm import with_exact_group_norms
from ridgeline.frontend.other_runtimes import (
    WEIGHTS_FOLDER,
    open_session,
    session_options,
    session_or_evaluator,
)
from ridgeline.frontend.quantize_types import STOPPED, with_float32_quantising
from ridgeline.frontend.types import type_text
from ridgeline.kernels.elements import TORCH_DTYPES, crosses
from ridgeline.plugins.catalog import CATALOG
from ridgeline.runtime.non_tensor import flattened
from ridgeline.tactics.cache import measuring_context
from ridgeline.verify.draws import Draws
from ridgeline.verify.float32_reference import Float32Model, coarsest, halves_inside, widen_feeds
from ridgeline.verify.initializers import is_outside, is_weight, with_weights
from ridgeline.verify.levels import rounds_to_levels, with_moved_levels
from ridgeline.verify.limited_run import LimitedRun
from ridgeline.verify.remembered import Facts, ModelDigest, digest_arrays, digest_texts
from ridgeline.verify.rounding import Probe, jitter, jitter_feeds, longest_sum, opened_late, run_moved
from ridgeline.verify.tf32_reference import RoundingProducts
from ridgeline.verify.tolerance import Tolerance

Feeds = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]
PROBES = 2
# results are rounded as often as weights: a few such steps add up along a path
HALF_STEPS = 4
# of a model that rounds to levels: two pairs, each of which flips every level that rounding may flip
LEVEL_PROBES = 4
# a model up to this size is copied to move its weights, wherever they are; of a larger one, initializers only
COPIED_BYTES = 64 << 20
# ops whose operands may broadcast in ONNX, but not in ONNX Runtime
NARROWER = ("Attention", "RotaryEmbedding")


class Reference:
    """The original model as ONNX Runtime runs it with every optimisation off, else the onnx reference."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        threads: int,
        facts: Facts | None = None,
        limited: LimitedRun | None = None,
        rounds: bool = False,  # products of float32 may round to TF32
    ) -> None:
        self.loaded, self.threads = loaded, threads
        self._limited = limited  # of a model with loops
        self.facts = facts or Facts()
        self._digest = ModelDigest(loaded) if self.facts.path is not None else None
        # for outputs that half values reach (True) or not, and the same for products that round to TF32
        self._probes: dict[tuple[bool, bool], list[Probe]] = {}
        self._rounding = RoundingProducts(loaded.original) if rounds else None
        self._kept: dict[str, Outputs] = {}  # by the digest of the inputs
        self.names = [port.name for port in loaded.original.graph.output]
        self._halves = halves_inside(loaded.original)  # by output
        self._half = coarsest(self._halves.values())
        self.who = ""

    @cached_property
    def _run(self) -> Callable[[Feeds], Outputs]:
        """The session, opened at the first run: facts that are remembered need none."""
        wide = self._open_float32() if self._half else None
        if wide is not None:
            return wide
        self.who = f"onnxruntime {ort.__version__}, all optimisations off"
        original = self.loaded.original
        run, is_session = session_or_evaluator(
            lambda: self._session(original),
            lambda: self._evaluator(original),
            lambda rows: BuildError(
                f"nobody can run {self.loaded.name!r} as a reference to verify against",
                rows=rows,
                help="ridge build MODEL --verify off builds it unverified",
            ),
        )
        if not is_session:
            self.who = f"onnx {onnx.__version__} reference evaluator"
        return run

    def _evaluator(self, proto: onnx.ModelProto) -> Callable[[Feeds], Outputs]:
        # a file is read again, whole: the evaluator finds no weights that lie outside
        is_whole = self.loaded.path is None or proto is not self.loaded.original
        evaluator = Evaluator(proto if is_whole else str(self.loaded.path))
        return lambda feeds: self._named(evaluator.run(None, dict(feeds)))

    def open(self) -> None:
        """Raise now if neither ONNX Runtime nor the evaluator can run the model."""
        _ = self._run

    def run(self, feeds: Feeds, *, keep: bool = False) -> Outputs:
        """What the model computes: from the cache if these very inputs were run before, else now.

        With `keep` the outputs stay in memory, so that the next run with these inputs costs nothing.
        """
        if not all(isinstance(array, np.ndarray) for array in feeds.values()):
            return self._run_limited(feeds)
        digest = digest_arrays(feeds)
        made = self._kept[digest] if digest in self._kept else self._run_or_find(feeds)
        if keep:
            self._kept[digest] = made
        return made

    def _run_or_find(self, feeds: Feeds) -> Outputs:
        key = self.fact_key("outputs", feeds)
        known, arrays = self.facts.find_as(dict[str, str], key), self.facts.find_arrays(key)
        if known is not None and arrays is not None and known.get("digest") == digest_arrays(arrays):
            self.who = str(known.get("who"))
            return arrays
        made = self._run_limited(feeds)
        if self.facts.keep_arrays(key, made):
            self.facts.keep(key, {"who": self.who, "digest": digest_arrays(made)})
        return made

    @cached_property
    def _float32(self) -> Float32Model | None:
        """A half model in float32."""
        try:
            return Float32Model(self.loaded.original, folder_of(self.loaded))
        except Exception:  # any exception: the model as it is serves as the reference
            return None

    def _run_limited(self, feeds: Feeds) -> Outputs:
        if self._limited is not None:
            self._limited.require_end(feeds)
        return self._run(feeds)

    def _open_float32(self) -> Callable[[Feeds], Outputs] | None:
        """A half model as float32 computes it; None where ONNX Runtime does not take it so."""
        try:
            run = self._float32.session(self._options(), self._float32.weights) if self._float32 else None
        except Exception:  # ONNX Runtime lacks an op, as in the model itself
            return None
        self.who = f"onnxruntime {ort.__version__} in float32, all optimisations off"
        return run

    def _half_probes(self) -> Iterator[Probe]:
        """What rounding every result to half does: done op by op, else weights moved by as much."""
        if self._float32 is None:
            return (yield from self._moved_probes())
        steps = EPSILON[self._half] / EPSILON["float32"]
        try:
            yield partial(_run_half, self._float32.rounding_session(self._options()), steps)
        except Exception:  # any exception: moved weights serve as the measure
            with suppress(Exception):  # or none at all
                steps *= HALF_STEPS
                for seed in range(PROBES):
                    moved = {n: jitter(a, steps, seed) for n, a in self._float32.weights.items()}
                    yield partial(_run_half, self._float32.session(self._options(), moved), steps)
            return
        if rounds_to_levels(self._float32.proto):
            with suppress(Exception):  # where values are of another type than float32
                for seed in range(LEVEL_PROBES):  # a half value is off by at most half a step
                    levels = with_moved_levels(self._float32.proto, steps / 2, seed)
                    yield partial(_run_half, self._float32.rounding_session(self._options(), levels), steps)

    @cached_property
    def _crosses(self) -> bool:
        """Whether ONNX Runtime takes and gives arrays of the model's ports; of bfloat16 it does not."""
        graph = self.loaded.original.graph
        kinds = {type_text(port.type) for port in (*graph.input, *graph.output)}
        return all(crosses(kind) for kind in kinds if kind in TORCH_DTYPES)

    def _session(
        self, proto: onnx.ModelProto, changed: Mapping[str, np.ndarray] | None = None
    ) -> Callable[[Feeds], Outputs]:
        if is_needed_for(proto):
            return partial(self._evaluate, proto)
        proto = with_exact_group_norms(proto)
        options = self._options()
        # ORT reads these for as long as the session lives, and does not keep them alive itself
        kept = {n: ort.OrtValue.ortvalue_from_numpy(array) for n, array in (changed or {}).items()}
        for name, value in kept.items():
            options.add_initializer(name, value)
        if self.loaded.path is not None:
            # weights that lie outside, in the file itself too, are mapped from there and not copied
            options.add_session_config_entry(WEIGHTS_FOLDER, str(self.loaded.path.absolute().parent))
        is_large_file = proto is self.loaded.original and self.loaded.path and proto.ByteSize() > COPIED_BYTES
        source = str(self.loaded.path) if is_large_file else proto
        session_run = self._timed(open_session(source, options))

        def run(feeds: Feeds, _held: object = (kept, changed)) -> Outputs:
            try:
                return self._named(session_run(self.names, dict(feeds)))
            except Exception as error:
                if not _is_narrower(error):
                    raise
                return self._evaluate(proto, feeds)

        return run

    def _evaluate(self, proto: onnx.ModelProto, feeds: Feeds) -> Outputs:
        """By the onnx evaluator, for what ONNX Runtime refuses or computes otherwise."""
        self.who = f"onnx {onnx.__version__} reference evaluator, in place of onnxruntime {ort.__version__}"
        return self._evaluator(proto)(feeds)

    def _named(self, made: Sequence[Any]) -> Outputs:
        return flattened(dict(zip(self.names, made, strict=True)))

    def run_other(
        self,
        proto: onnx.ModelProto,
        weights: Mapping[str, np.ndarray],
        feeds: Feeds,
        names: Sequence[str] | None = None,  # None: the outputs of the model
    ) -> Outputs | None:
        """Another graph of the same inputs, run as the reference is; None where ONNX Runtime refuses."""
        if not self._crosses or is_needed_for(proto):
            return None
        wanted = self.names if names is None else names
        try:
            return self._run_graph(proto, weights, feeds, wanted)
        except Exception as error:
            if _is_narrower(error):
                return None
            if STOPPED not in str(error):
                raise
        return self._run_graph(with_float32_quantising(proto), weights, feeds, wanted)

    def _run_graph(
        self, proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], feeds: Feeds, wanted: Sequence[str]
    ) -> Outputs | None:
        options, given = self._options(), map(ort.OrtValue.ortvalue_from_numpy, weights.values())
        options.add_external_initializers(list(weights), list(given))
        try:
            session_run = self._timed(open_session(with_exact_group_norms(proto), options))
        except Exception:  # then the reference is not ONNX Runtime either
            return None
        return flattened(dict(zip(wanted, session_run(wanted, dict(feeds)), strict=True)))

    def _timed(self, session: ort.InferenceSession) -> Callable[..., Sequence[Any]]:
        run: Callable[..., Sequence[Any]] = session.run
        return run if self._limited is None else self._limited.timed(run)

    def _options(self) -> ort.SessionOptions:
        # packing weights takes longer than the few runs a reference makes
        settings = {"session.intra_op.allow_spinning": "0", "session.disable_prepacking": "1"}
        return session_options(threads=self.threads, is_optimised=False, settings=settings)

    def fact_key(self, kind: str, feeds: Feeds, *more: str) -> str | None:
        """Names all that a fact about the model at these inputs depends on; None where facts are not kept."""
        model = None if self._digest is None else self._digest.value()
        if model is None or not all(isinstance(array, np.ndarray) for array in feeds.values()):
            return None
        context = (measuring_context(self.threads), _code_digest(), ort.__version__, onnx.__version__)
        more = more if self._rounding is None else (*more, TF32)
        return f"{kind}-{digest_texts([model, digest_arrays(feeds), *context, CATALOG.digest(), *more])[:40]}"

    def weights_digest(self, weights: Mapping[str, np.ndarray]) -> str:
        return "" if self._digest is None else self._digest.of_weights(weights)

    def tolerance(self, feeds: Feeds, expected: Outputs) -> dict[str, Tolerance]:
        """How far rounding alone may carry each output from `expected`: measured once for a model."""
        draws = Draws(self, feeds, expected)
        draws.widen(fully=True)
        return draws.limits

    @cached_property
    def _is_small(self) -> bool:
        tensors = self.loaded.original.graph.initializer
        return bool(sum(4 * math.prod(t.dims) for t in tensors) <= COPIED_BYTES)

    @cached_property
    def _step(self) -> float:
        """How many eps rounding moves a value: the root of the longest sum."""
        return math.sqrt(longest_sum(self.loaded.original))

    def half_behind(self, output: str) -> str:
        """The half type whose values reach the output, if there is one."""
        return self._halves.get(output.partition("[")[0], "")

    def is_rounded(self, output: str) -> bool:
        """Whether products that may round to TF32 reach the output."""
        return self._rounding is not None and output.partition("[")[0] in self._rounding.outputs

    def probes_for(self, *, is_half: bool, is_rounded: bool) -> list[Probe]:
        key = is_half, is_rounded
        if key not in self._probes:
            made = list(self._half_probes() if is_half else self._moved_probes())
            if is_rounded and self._rounding is not None:
                made.append(self._rounding.probe(self._session, self._evaluator, first=len(made)))
            self._probes[key] = made
        return self._probes[key]

    def _moved_probes(self) -> Iterator[Probe]:
        """The reference with its weights and inputs moved by rounding."""
        proto = self.loaded.original
        has_levels = rounds_to_levels(proto)
        for seed in range(LEVEL_PROBES if has_levels else PROBES if self._is_small else 1):
            # values of another type than float32 cannot be moved before their levels
            made = [partial(with_moved_levels, proto, self._step, seed)] if has_levels else []
            yield partial(run_moved, opened_late(partial(self._open_moved, made, seed)), self._step)

    def _open_moved(
        self, made: Sequence[Callable[[], onnx.ModelProto]], seed: int
    ) -> Callable[[Feeds], Outputs]:
        """Where nobody takes other weights, only the inputs are moved."""
        for make in (*made, self._unmoved):
            with suppress(Exception):
                return self._moved(make(), seed)
        return self._run

    def _unmoved(self) -> onnx.ModelProto:
        return self.loaded.original

    def _moved(self, proto: onnx.ModelProto, seed: int) -> Callable[[Feeds], Outputs]:
        folder = folder_of(self.loaded)
        beside = {
            t.name: jitter(onnx.numpy_helper.to_array(t, folder), self._step, seed)
            for t in proto.graph.initializer
            if is_weight(t) and (is_outside(t) or not self._is_small)
        }
        if self._is_small:
            proto = copy_of(proto)
            for tensor in all_tensors(proto):
                if is_weight(tensor) and not is_outside(tensor):
                    array = jitter(onnx.numpy_helper.to_array(tensor), self._step, seed)
                    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        try:
            return self._session(proto, beside)
        except Exception:  # ONNX Runtime lacks an op or a type of the model
            return self._evaluator(with_weights(proto, beside, folder))


def _run_half(run: Callable[[Feeds], Outputs], steps: float, feeds: Feeds, seed: int) -> Outputs:
    """The first draw uses the inputs as they are; further draws move them, or all would be equal."""
    return run(jitter_feeds(widen_feeds(feeds), steps, seed) if seed else feeds)


def _is_narrower(error: Exception) -> bool:
    """Whether ONNX Runtime stopped at an op of which it takes fewer forms than ONNX defines."""
    return any(f"running {op} node" in str(error) for op in NARROWER)


@lru_cache(maxsize=1)
def _code_digest() -> str:
    """The digest of the code that measures tolerances and verdicts."""
    here = Path(__file__)
    names = ("draws", "float32_reference", "levels", "metrics", "rounding", "tf32_reference", "tolerance")
    files = (here, *(here.with_name(f"{name}.py") for name in names))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
