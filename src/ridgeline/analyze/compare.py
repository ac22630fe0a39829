"""Two sides of a comparison run on the same inputs: rows per output, rows per tensor, the first divergence.

The second side is the reference. Every figure is `verify/metrics.py`'s. Rows only; nothing here prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ridgeline.analyze.compare_sides import Arrays, Feeds, GraphNode, Side
from ridgeline.base.notebook import Notebook, Table, View
from ridgeline.base.progress import Progress
from ridgeline.base.spec import Port
from ridgeline.errors import OptionError
from ridgeline.kernels.elements import numpy_dtype
from ridgeline.verify.metrics import Metrics, as_float64, is_numeric, measure, relative_l2, required_rtol

STAGE = "compare"
NOTHING = "nothing was compared: no output has a value in any sample; give samples that are not empty"
EMPTY = "empty: nothing to compare"
NO_NUMBERS = "NaN or infinite throughout, on both sides: no error counts that"


@dataclass(frozen=True)
class Allowed:
    """What counts as the same: a relative L2 error per output, or |a - b| <= atol + rtol * |b| everywhere."""

    relative_l2: float = 1e-2
    atol: float | None = None
    rtol: float | None = None
    whose: str = ""  # where the relative L2 error comes from, if the user did not say it

    def __post_init__(self) -> None:
        for name, value in (("relative L2", self.relative_l2), ("atol", self.atol), ("rtol", self.rtol)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise OptionError(f"{name} is no tolerance", got=str(value), want="a number from 0 on")

    def takes(self, got: np.ndarray, want: np.ndarray) -> bool:
        if self.atol is None and self.rtol is None:
            return relative_l2(got, want) <= self.relative_l2
        if not is_numeric(want):
            return bool(np.array_equal(got, want))
        return required_rtol(got, want, self.atol or 0.0) <= (self.rtol or 0.0)

    def __str__(self) -> str:
        if self.atol is None and self.rtol is None:
            return f"relative L2 at most {self.relative_l2:g}{self.whose and f' ({self.whose})'}"
        return f"|a - b| at most {self.atol or 0:g} + {self.rtol or 0:g}·|b| everywhere"


@dataclass(frozen=True)
class OutputRow:
    """One output in its worst sample; `every` has its relative L2 error in each."""

    output: str
    dtype: str
    shape: tuple[int, ...]
    sample: str
    passed: bool  # in every sample
    metrics: Metrics | None  # null if shapes or types do not allow a comparison
    note: str = ""
    every: dict[str, float] = field(default_factory=dict)
    values: int = 0  # of the reference in all samples; of 0, nothing was compared


@dataclass(frozen=True)
class LayerRow:
    """One tensor of the model, by the node that makes it, in its worst sample."""

    value: str
    node: str
    op_type: str
    metrics: Metrics | None  # null where it does not exist on both sides
    passed: bool | None
    sample: str = ""
    absent_a: str = ""  # why it does not exist there
    absent_b: str = ""
    note: str = ""


@dataclass(frozen=True)
class NonFinite:
    """A tensor with NaN or infinities; `is_origin` if the node made them of finite inputs."""

    side: str
    value: str
    node: str
    op_type: str
    nans: int
    infs: int
    sample: str
    is_origin: bool


@dataclass(frozen=True)
class Comparison(Notebook):
    """Two sides on the same inputs; b is the reference."""

    a: str
    b: str
    a_who: str
    b_who: str
    rule: str
    samples: tuple[str, ...]
    outputs: tuple[OutputRow, ...]
    layers: tuple[LayerRow, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()
    first_divergence: LayerRow | None = None
    notes: tuple[str, ...] = ()
    is_drawn: bool = False  # no data was given: inputs are random

    def _view(self) -> View:
        rows = tuple(
            {
                "output": row.output, "dtype": row.dtype, "shape": list(row.shape), "passed": row.passed,
                "relative_l2": row.metrics.relative_l2 if row.metrics else None,
                "max_absolute": row.metrics.max_abs if row.metrics else None,
                "cosine": row.metrics.cosine if row.metrics else None, "sample": row.sample, "note": row.note,
            }
            for row in self.outputs
        )  # fmt: skip
        verdict = "the same" if self.passed else "different"
        return View(f"{self.a} and {self.b}: {verdict} ({self.rule})", (Table("", rows),), self.notes)

    @property
    def passed(self) -> bool:
        return self.has_values and all(row.passed for row in self.outputs)

    @property
    def has_values(self) -> bool:
        """Whether any value was compared: outputs without elements are equal and prove nothing."""
        return any(row.values for row in self.outputs)


def compare_sides(
    a: Side,
    b: Side,
    samples: Iterable[tuple[str, Feeds]],
    *,
    allowed: Allowed,
    with_layers: bool = False,
    progress: Progress | Literal[False] | None = None,
) -> Comparison:
    """Run both on every sample and compare what they make."""
    outputs, layers = _Outputs(allowed), _Layers(a, b, allowed)
    names: list[str] = []
    for name, feeds in samples:
        if progress:
            progress(STAGE, len(names), 0, name)
        names.append(name)
        given = [fitted(feeds, side.inputs) for side in (a, b)]
        outputs.add(name, a.run(name, given[0]), b.run(name, given[1]))
        if with_layers:
            layers.add(name, a.layers(name, given[0]), b.layers(name, given[1]))
    if not names:
        raise OptionError("there is no sample to compare with")
    rows = layers.rows() if with_layers else ()
    made = outputs.rows()
    return Comparison(
        a=a.label, b=b.label, a_who=a.who, b_who=b.who, rule=str(allowed), samples=tuple(names),
        outputs=made, layers=rows, non_finite=tuple(layers.non_finite),
        first_divergence=next((row for row in rows if row.passed is False), None),
        notes=(*_notes(rows), *([] if any(row.values for row in made) else [NOTHING])),
    )  # fmt: skip


def fitted(feeds: Feeds, ports: Sequence[Port]) -> Feeds:
    """Inputs as a side takes them: floats in its own float type, since precisions differ in their ports."""
    made = dict(feeds)
    for port in ports:
        array = made.get(port.name)
        if port.is_non_tensor or not isinstance(array, np.ndarray) or str(array.dtype) == port.dtype:
            continue
        if _is_float(str(array.dtype)) and _is_float(port.dtype):
            made[port.name] = array.astype(numpy_dtype(port.dtype))
    return made


def require_same_inputs(a: Side, b: Side) -> None:
    """Raise if two models take inputs of other names."""
    names = [[port.name for port in side.inputs] for side in (a, b)]
    if names[0] and names[1] and set(names[0]) != set(names[1]):
        raise OptionError(
            "the two sides do not take the same inputs",
            rows=[f"{side.label}: {', '.join(each)}" for side, each in zip((a, b), names, strict=True)],
        )


class _Outputs:
    """The worst row of each output so far."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._rows: dict[str, OutputRow] = {}
        self._every: dict[str, dict[str, float]] = {}
        self._failed: set[str] = set()
        self._values: dict[str, int] = {}

    def add(self, sample: str, got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> None:
        for name in dict.fromkeys((*want, *got)):
            row = self._row(sample, name, got.get(name), want.get(name))
            if not row.passed:
                self._failed.add(name)
            self._values[name] = self._values.get(name, 0) + math.prod(row.shape)
            known = self._rows.get(name)
            is_worse = known is not None and _badness(row.metrics) > _badness(known.metrics)
            # a sample with values says more than one without
            if known is None or is_worse or (known.passed and not math.prod(known.shape)):
                self._rows[name] = row

    def _row(self, sample: str, name: str, got: np.ndarray | None, want: np.ndarray | None) -> OutputRow:
        there = want if want is not None else got
        assert there is not None, "the name is one of either side"
        kind = (name, str(there.dtype), tuple(there.shape), sample)
        errors = self._every.setdefault(name, {})
        if got is None or want is None:
            errors[sample] = math.inf
            return OutputRow(
                *kind, passed=False, metrics=None, note=f"only {'b' if got is None else 'a'} has it"
            )
        errors[sample] = relative_l2(got, want)
        note = _other_form(got, want)
        metrics = measure(got, want)
        if not note and not want.size:
            note = EMPTY
        elif not note and metrics is not None and metrics.wanted_nans + metrics.wanted_infs >= want.size:
            note = NO_NUMBERS if not metrics.special_differ else ""
        return OutputRow(*kind, passed=self._allowed.takes(got, want), metrics=metrics, note=note)

    def rows(self) -> tuple[OutputRow, ...]:
        return tuple(
            OutputRow(
                row.output, row.dtype, row.shape, row.sample, name not in self._failed, row.metrics, row.note,
                self._every[name], self._values[name],
            )
            for name, row in self._rows.items()
        )  # fmt: skip


class _Layers:
    """The worst row of each tensor so far, in the order of the model's nodes."""

    def __init__(self, a: Side, b: Side, allowed: Allowed) -> None:
        self._sides = (a, b)
        self._allowed = allowed
        # the model's own nodes name tensors best; an engine file has steps only
        self._nodes = max((b.nodes, a.nodes), key=len)
        self._rows: dict[str, LayerRow] = {}
        self.non_finite: list[NonFinite] = []
        self._seen_non_finite: set[tuple[str, str]] = set()

    def add(self, sample: str, got: Arrays, want: Arrays) -> None:
        for node in self._nodes:
            for value in node.outputs:
                row = self._row(sample, node, value, got.get(value), want.get(value))
                known = self._rows.get(value)
                if known is None or _badness(row.metrics) > _badness(known.metrics):
                    self._rows[value] = row
        for side, values in zip("ab", (got, want), strict=True):
            self._scan(side, sample, values)

    def _row(
        self, sample: str, node: GraphNode, value: str, got: np.ndarray | None, want: np.ndarray | None
    ) -> LayerRow:
        absent = [
            side.absent(value, node) if array is None else ""
            for side, array in zip(self._sides, (got, want), strict=True)
        ]
        if got is None or want is None:
            return LayerRow(value, node.name, node.op_type, None, None, sample, *absent)
        note = _other_form(got, want)
        if got.shape != want.shape:
            return LayerRow(value, node.name, node.op_type, None, None, sample, note=note)
        passed = self._allowed.takes(got, want)
        return LayerRow(value, node.name, node.op_type, measure(got, want), passed, sample, note=note)

    def _scan(self, side: str, sample: str, values: Arrays) -> None:
        bad: set[str] = set()
        for node in self._nodes:
            for value in node.outputs:
                array = values.get(value)
                counts = (0, 0) if array is None else _special(array)
                if not any(counts):
                    continue
                bad.add(value)
                if (side, value) not in self._seen_non_finite:
                    self._seen_non_finite.add((side, value))
                    is_origin = bad.isdisjoint(node.inputs)
                    found = NonFinite(side, value, node.name, node.op_type, *counts, sample, is_origin)
                    self.non_finite.append(found)

    def rows(self) -> tuple[LayerRow, ...]:
        return tuple(self._rows.values())


def _badness(metrics: Metrics | None) -> tuple[float, float]:
    return (math.inf, math.inf) if metrics is None else (metrics.relative_l2, metrics.max_abs)


def _other_form(got: np.ndarray, want: np.ndarray) -> str:
    if got.shape != want.shape:
        return f"shapes differ: {list(got.shape)} and {list(want.shape)}"
    return "" if got.dtype == want.dtype else f"types differ: {got.dtype} and {want.dtype}"


def _special(array: np.ndarray) -> tuple[int, int]:
    if not _is_float(str(array.dtype)) or not array.size:
        return 0, 0
    numbers = as_float64(array)
    return int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _notes(rows: Sequence[LayerRow]) -> Iterable[str]:
    compared = sum(row.metrics is not None for row in rows)
    if rows and compared < len(rows):
        yield (
            f"{compared} of {len(rows)} tensors of the model exist on both sides; the others are inside fused"
            " regions, folded or rewritten (a dump of layers does not change fusion; --unfused does)"
        )
