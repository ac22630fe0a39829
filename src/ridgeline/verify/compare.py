"""Compares outputs with the reference: an engine must compute what the model computes, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.base.arrays import data_files, load_sample
from ridgeline.base.spec import EPSILON
from ridgeline.errors import InputError, ModelError, VerifyError
from ridgeline.frontend.profiles import shapes_text
from ridgeline.plan.report import Check
from ridgeline.plugins.catalog import CATALOG
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.non_tensor import flattened
from ridgeline.runtime.profiles import Variant
from ridgeline.select.padding import shapes_to_pad
from ridgeline.verify.metrics import distance_of, reach_of, rms_of, unequal_share
from ridgeline.verify.reference import Reference
from ridgeline.verify.tolerance import Tolerance

Outputs = dict[str, np.ndarray]
UNTOLD = (
    "output {!r} of the original model is {} for every input drawn, and the engine's is too: that compares "
    "little; verify it with inputs that mean something (--data FOLDER, in Python data=)"
)


def compare(
    name: str, got: Mapping[str, Any], want: Outputs, limits: Mapping[str, Tolerance], shapes: str
) -> list[Check]:
    """One row per output. It says when its tolerance was measured in an earlier build."""
    wanted, made = flattened(want), flattened(got)
    missing = np.zeros(0, object)
    rows = [
        _compare_one(name, out, np.asarray(made.get(out, missing)), np.asarray(array), limits[out], shapes)
        for out, array in wanted.items()
    ]
    return [_with_note(row, limits[row.output].note) for row in rows]


def _with_note(row: Check, note: str) -> Check:
    return replace(row, note="; ".join(filter(None, (row.note, f"tolerance {note}")))) if note else row


def _compare_one(
    name: str, output: str, got: np.ndarray, want: np.ndarray, limit: Tolerance, shapes: str
) -> Check:
    if got.shape != want.shape or got.dtype != want.dtype:
        note = f"got {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}"
        return Check(name, output, shapes, math.inf, limit.distance, False, note)
    if str(want.dtype) not in EPSILON:
        share = unequal_share(got, want)
        is_near = share == 0 or distance_of(got, want) <= limit.distance
        note = "share of other values" if is_near else "values far from the reference's"
        return Check(name, output, shapes, share, limit.share, share <= limit.share and is_near, note)
    finite = np.isfinite(want) & np.isfinite(got)
    same_special = True
    if not finite.all():
        same_special = bool(np.array_equal(got[~finite], want[~finite], equal_nan=True))
        got, want = got[finite], want[finite]
    error = reach_of(got, want)
    passed = error <= limit.distance and same_special
    note = "" if same_special else "NaN or infinity where the reference has none, or the other way round"
    if passed and limit.rms is not None and (spread := rms_of(got, want)) > limit.rms:
        return Check(name, output, shapes, spread, limit.rms, False, "root mean square of the distances")
    return Check(name, output, shapes, error, limit.distance, passed, note)


def feeds_text(feeds: Mapping[str, Any]) -> str:
    """``x[1x3x8], names``: the inputs by name, tensors with their shapes."""
    return ", ".join(
        f"{name}[{'x'.join(map(str, array.shape))}]" if hasattr(array, "shape") else name
        for name, array in feeds.items()
    )


def nan_share(array: np.ndarray) -> float:
    """The share of NaN elements; 0 for empty arrays and for types without NaN."""
    is_float = str(array.dtype) in EPSILON and bool(array.size)
    return float(np.mean(np.isnan(array))) if is_float else 0.0


def nan_notes(expected: Outputs) -> list[str]:
    """Warnings about NaN that the original model itself computes."""
    shares = {output: nan_share(array) for output, array in expected.items()}
    return [
        f"output {output!r} of the original model is NaN in {share:.1%} of its elements"
        for output, share in shares.items()
        if share
    ]


class Telling:
    """Which outputs of the original distinguish right engines from wrong ones: those that vary."""

    def __init__(self, outputs: Iterable[str]) -> None:
        self.are_nan = set(outputs)  # throughout
        self._first: Outputs = {}
        self._ends: dict[str, list[Any]] = {name: [] for name in self.are_nan}  # smallest and largest numbers
        self._moved: dict[str, bool] = {}  # whether trials differ; missing where there was one only

    @property
    def untold(self) -> set[str]:
        return {name for name in self._ends if self._why(name)}

    def add(self, want: Outputs) -> bool:
        """Add the outputs of one trial; True if more outputs are now known to distinguish engines."""
        before = self.untold
        for name, ends in self._ends.items():
            array = want[name]
            if nan_share(array) < 1:
                self.are_nan.discard(name)
            finite = array[np.isfinite(array)]
            ends += [finite.min(), finite.max()] if finite.size else []
            first = self._first.setdefault(name, array)
            if first is not array:
                is_other = first.shape != array.shape or not np.array_equal(first, array, equal_nan=True)
                self._moved[name] = self._moved.get(name, False) or is_other
        return bool(before - self.untold)

    def notes(self) -> list[str]:
        """Warnings about outputs that distinguish nothing."""
        return [UNTOLD.format(name, self._why(name)) for name in sorted(self.untold)]

    def _why(self, name: str) -> str:
        ends = self._ends[name]
        if name in self.are_nan:
            return "NaN throughout"
        if not ends:
            is_empty = name in self._first and not self._first[name].size
            return "empty" if is_empty else "infinite or NaN throughout"
        if min(ends) == max(ends) and (len(ends) > 2 or self._first[name].size > 1):
            return f"{ends[0]} throughout"
        return "" if self._moved.get(name, True) else "the same"


def only_nan(name: str) -> ModelError:
    return ModelError(
        f"{name!r} itself computes NaN, and nothing else, for every input drawn: there is nothing to compare",
        help="give it inputs that mean something (--data FOLDER, in Python data=); if those give NaN too, "
        "the export is broken",
    )


def require(checks: Sequence[Check], where: str | Callable[[], str]) -> None:
    """Raise when a check failed; `where` names the stage or the region at fault, or finds it then."""
    failed = [check for check in checks if not check.passed]
    if not failed:
        return
    plugins = CATALOG.plugins()
    raise VerifyError(
        f"the engine does not compute what the model computes: {len(failed)} of {len(checks)} checks failed",
        checks=checks,
        rows=[f"{check.name}: {check}" for check in failed],
        got=where if isinstance(where, str) else where(),
        help="this is a bug in what is named above: report it; a tactic can be left out with --without"
        + (f"; it may be one of a plugin: {', '.join(map(str, plugins))}" if plugins else ""),
    )


def variant_names(variants: Sequence[Variant]) -> Iterator[str]:
    """What the checks of each begin with: nothing for the first, else its profile and the tuned point."""
    profile = 0
    for variant in variants:
        profile += not variant.is_further
        which = [f"profile {profile}"] if profile > 1 else []
        which += [f"tuned at {shapes_text(variant.plan.planned_shapes)}"] if variant.is_further else []
        yield f"{', '.join(which)}: " if which else ""


def check_padded(engine: Engine, reference: Reference) -> list[Check]:
    """Inputs one row short of each profile, which run padded, against the original, which pads nothing."""
    rows: list[Check] = []
    for dim, specs in shapes_to_pad((engine.plan, *engine.plan.others), engine.signature):
        feeds = engine.example_inputs(0, specs)
        try:
            got = engine.context(wait=True).run(feeds)
        except InputError:
            continue  # refused: nothing is padded along this dim
        try:
            want = reference.run(feeds)
        except Exception:  # the original does not take so few rows, so there is nothing to compare with
            continue
        limits = reference.tolerance(feeds, want)
        rows += compare(f"padded along {dim}", got, want, limits, feeds_text(specs))
    require(rows, where="padding: rows that are cut off again reach others")
    return rows


def load_data(folder: Path, inputs: Sequence[str]) -> list[tuple[str, Outputs]]:
    """Users' own inputs: every .npz in the folder, one array per input."""
    return [(path.name, load_sample(path, inputs)) for path in data_files(folder)]
