"""The model that an engine is judged by: samples of its inputs, and what it computes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from ridgeline.base.spec import Port
from ridgeline.errors import RidgelineError
from ridgeline.frontend.from_onnx import Loaded
from ridgeline.frontend.from_torch import Sample
from ridgeline.frontend.ports import ports
from ridgeline.kernels.elements import numpy_dtype
from ridgeline.options import Options
from ridgeline.precision.budget import Judgement, in_batches
from ridgeline.precision.failed_runs import fail
from ridgeline.precision.row_joining import has_independent_rows
from ridgeline.precision.samples import Feeds, Row, Samples, drawn_samples
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.inference import Inference
from ridgeline.select.shapes import Shapes, choose_every_shapes
from ridgeline.verify.reference import Reference

# random inputs, when no data is given: to find ranges with, and to judge with
CALIBRATION_SEEDS, HELD_OUT_SEEDS = range(100, 104), range(200, 204)


@dataclass
class Original:
    """The model as it was given, the samples, and what the original computes of them."""

    loaded: Loaded
    options: Options
    sample: Sample | None
    planned: Shapes | None = None  # of an engine that was built before

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.loaded, threads=self.options.cores)

    @cached_property
    def inference(self) -> Inference:
        return Inference.of(self.loaded.model, self.options.limits)

    @cached_property
    def shapes(self) -> Shapes:
        if self.planned is not None:
            return self.planned
        reference = None if self.options.verify == "off" else self.reference
        return choose_every_shapes(self.loaded, self.inference, reference, self.options, self.sample)[0]

    @cached_property
    def samples(self) -> tuple[Samples, Samples]:
        """To calibrate with, and to judge with."""
        if self.options.data is not None:
            outputs = ports(self.loaded.model.graph.outputs, what="output")
            inputs = self.shapes.inputs
            return Samples.of(self.options.data, inputs, outputs, self.has_independent_rows).split()
        return self._drawn(CALIBRATION_SEEDS), self._drawn(HELD_OUT_SEEDS)

    def has_independent_rows(self) -> bool:
        """Whether rows of batches of one size may be joined to batches of another."""
        return has_independent_rows(self.reference, self._draw)

    def _drawn(self, seeds: Sequence[int]) -> Samples:
        return drawn_samples(self._draw, seeds, self.shapes.inputs)

    def _draw(self, seed: int) -> dict[str, Any]:
        return example_feeds(self.inference, self.shapes.opt, seed=seed)

    @cached_property
    def held_out(self) -> list[Feeds]:
        return list(self.samples[1])

    def judge(self, engine: Engine) -> Judgement:
        """The engine on all held-out samples, in batches of a size that it takes."""
        made = Judgement(self.options.metric)
        context = engine.context(wait=True)
        batches = self._batches()
        for i, (feeds, left) in enumerate(batches):
            self.options.tell("judge", i, len(batches))
            want = self._wanted(feeds)
            got = context.run(as_ports_take(feeds, engine.plan.inputs))
            for row in islice(_by_rows(self._batch, got, want, feeds), left):
                made.add(*row)
                made.left_out.add(row[1])
        self.options.tell("judge", len(batches), len(batches))
        return made

    def _wanted(self, feeds: Feeds) -> Mapping[str, Any]:
        try:
            return self.reference.run(feeds)
        except RidgelineError:
            raise
        except Exception as problem:  # any exception: ONNX Runtime has its own
            fail(f"the model cannot run on {getattr(feeds, 'where', 'a sample')}", problem)

    def _batches(self) -> list[tuple[Row, int]]:
        """Rows of equal shapes joined to batches; with each, how many of its rows were not judged before.

        The last of a shape is filled up with the first rows.
        """
        by_shape: dict[tuple[tuple[int, ...], ...], list[Feeds]] = {}
        for row in self.held_out:
            by_shape.setdefault(tuple(array.shape for array in row.values()), []).append(row)
        return [
            (batch, len(rows) - i * self._batch)
            for rows in by_shape.values()
            for i, batch in enumerate(in_batches(rows, self._batch))
        ]

    @property
    def _batch(self) -> int:
        """How many rows the planned shapes hold where samples are single rows; else 1."""
        rows = {len(array) for array in self.held_out[0].values() if array.ndim}
        planned = {spec.shape[0] for spec in self.shapes.opt.values() if spec.shape}
        # a profile may begin above one row, and the guards of an export may refuse a single one
        is_planned = self.shapes.low is not None or self.sample is not None
        is_batched = is_planned and self.samples[1].step == 1 and rows == {1} and len(planned) == 1
        return next(iter(planned)) if is_batched else 1


def as_ports_take(feeds: Feeds, inputs: Sequence[Port]) -> Feeds:
    """With floats in the types of half ports; what is too large for one becomes infinite."""
    types = {port.name: numpy_dtype(port.dtype) for port in inputs}
    with np.errstate(over="ignore"):
        return {n: a.astype(types[n]) if a.dtype.kind == "f" else a for n, a in feeds.items()}


def _by_rows(
    batch: int, got: Mapping[str, Any], want: Mapping[str, Any], feeds: Feeds
) -> Iterator[tuple[Feeds, Feeds, Feeds]]:
    """A batch as its rows, where every output has one for each."""
    arrays = [np.asarray(a) for a in (*got.values(), *want.values())]
    if batch == 1 or any(not a.ndim or len(a) != batch for a in arrays):
        yield dict(got), dict(want), feeds
        return
    for i in range(batch):
        yield _row(got, i), _row(want, i), _row(feeds, i)


def _row(batch: Mapping[str, Any], i: int) -> Feeds:
    return {name: np.asarray(array)[i : i + 1] for name, array in batch.items()}
