"""Compares an engine that was made from PyTorch with the module itself, not only with its export."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.guards import SIZE, Sizes, Term, broken, holds, sizes_in
from ridgeline.errors import RidgelineError, VerifyError, first_line
from ridgeline.frontend.from_torch import Sample
from ridgeline.frontend.torch_guards import Assumed
from ridgeline.kernels.elements import as_numpy
from ridgeline.plan.report import Check
from ridgeline.runtime.engine import Engine
from ridgeline.verify.compare import feeds_text, require
from ridgeline.verify.divergence import Expected, find_culprit
from ridgeline.verify.reference import Reference

EXPORT = "example inputs: exported graph against the module in PyTorch"
ENGINE = "example inputs: engine against the module in PyTorch"
RESIZED = "other sizes: exported graph against the module in PyTorch"
# with more open dims than this, none is tried at 1 and 0: each trial is a run of the module and of its export
MAX_DIMS = 6
STEPS = 12
Place = tuple[str, int]  # input and axis


def check_sample(engine: Engine, reference: Reference, sample: Sample, *, runs_here: bool) -> list[Check]:
    """Rows for the example inputs: the export, and the engine where it runs, against the module."""
    expected, rows = _compare_export(reference, sample)
    if runs_here:
        rows += expected.check(ENGINE, engine.run(expected.feeds))
        require(rows, where=partial(find_culprit, engine, expected))
    return rows


def check_export(reference: Reference, sample: Sample) -> tuple[Sample, list[Check]]:
    """The export against the module, before it is lowered: the sample with its guards, and the rows.

    A lowered graph is not what the module computes. It is held to the export, under the budget.
    """
    try:
        _, rows = _compare_export(reference, sample)
    except RidgelineError:
        raise
    except Exception:  # of the module, or of ONNX Runtime, which names no argument
        sample.require_runs()
        raise
    return replace(sample, guards=check_guards(reference, sample)), rows


def _compare_export(reference: Reference, sample: Sample) -> tuple[Expected, list[Check]]:
    """What the module makes of the example inputs, and rows for the export.

    The tolerance is that of the exported model: the module rounds as often as its graph does.
    """
    feeds, eager = arrays(sample.feeds), arrays(sample.eager())
    want = reference.run(feeds)
    expected = Expected(reference, feeds, eager, reference.tolerance(feeds, want))
    rows = expected.check(EXPORT, want)
    _require_export(rows)
    return expected, rows


def _require_export(rows: list[Check]) -> None:
    wrong = [row for row in rows if not row.passed]
    if wrong:
        raise VerifyError(
            "the exported graph does not compute what the module computes",
            rows=list(map(str, wrong)),
            help="this is the exporter's, not the engine's: is the module deterministic? try fixed dims, "
            "or another PyTorch; does every plugin op compute what its torch op does?",
        )


def check_guards(reference: Reference | None, sample: Sample) -> tuple[Term, ...]:
    """The guards of an export, after the module was asked at other sizes.

    torch takes an open size to be 2 or more. Where the module and its export agree at 1 or 0 as well, the
    guards let that size through. Where they disagree at sizes that the guards take, the export is refused.
    """
    if sample.guards is not None:
        return sample.guards
    example = {name: tuple(tensor.shape) for name, tensor in sample.feeds.items()}
    guards = sample.assumed.all_guards(example)
    if reference is None or not sample.assumed.dims:
        return guards
    if not sample.is_program:  # the module of an ExportedProgram is not known, so it cannot be run at size 1
        guards = _relaxed(reference, sample, guards, example)
    for shapes in _other_shapes(sample.assumed, guards, example):
        _require_export(_rows_at(reference, sample, shapes))
    return guards


def _relaxed(
    reference: Reference, sample: Sample, guards: tuple[Term, ...], example: Sizes
) -> tuple[Term, ...]:
    """Open dims at 1 and at 0, each alone; and at 1 all of them, if each may be so."""
    dims = [set(dim.places) for dim in sample.assumed.dims if not dim.is_bounded]
    if len(dims) > MAX_DIMS:
        return guards
    for places, size in (*((p, 1) for p in dims), (set[Place]().union(*dims), 1), *((p, 0) for p in dims)):
        shapes = _resized(example, dict.fromkeys(places, size))
        wrong = [set(sizes_in(guard)) for guard in guards if not holds(guard, shapes)]
        is_one_s_own = places not in dims and any(read <= dim for read in wrong for dim in dims)
        if wrong and not is_one_s_own and _agrees(reference, sample, shapes):
            guards = tuple(_or_at(guard, places, shapes) for guard in guards)
    return guards


def _or_at(guard: Term, places: set[Place], shapes: Sizes) -> Term:
    """A guard that lets these shapes through, if it is about nothing but the dims that were moved."""
    read = sizes_in(guard)
    if holds(guard, shapes) or not read or not places.issuperset(read):
        return guard
    here = [((SIZE, name, axis), shapes[name][axis]) for name, axis in read]
    if guard == (">=", here[0][0], here[0][1] + 1):
        return (">=", *here[0])
    equal: list[Term] = [("==", *pair) for pair in here]
    return ("or", guard, reduce(lambda one, other: ("and", one, other), equal))


def _other_shapes(assumed: Assumed, guards: Sequence[Term], example: Sizes) -> Iterator[Sizes]:
    """Shapes that the guards take, each open dim with another size: near the example's, and small."""
    places = [(place, i) for i, dim in enumerate(assumed.dims) for place in dim.places]
    at = {place: example[place[0]][place[1]] for place, _ in places}
    near = (
        {place: at[place] + step + spread * i for place, i in places}
        for step in (*range(1, STEPS), *range(-1, -STEPS, -1))
        for spread in (1, 0)  # dims that differ are moved by different amounts, where that is allowed
    )
    small = (
        {place: size + spread * i for place, i in places} for size in range(2, STEPS) for spread in (1, 0)
    )
    for moves in (near, small):
        shapes = (_resized(example, moved) for moved in moves if min(moved.values()) > 0)
        found = next((each for each in shapes if not broken(guards, each)), None)
        if found is not None and found != example:
            yield found


def _resized(example: Sizes, moved: Mapping[Place, int]) -> Sizes:
    return {
        name: tuple(moved.get((name, axis), size) for axis, size in enumerate(shape))
        for name, shape in example.items()
    }


def _agrees(reference: Reference, sample: Sample, shapes: Sizes) -> bool:
    rows = _rows_at(reference, sample, shapes)
    return bool(rows) and all(row.passed for row in rows)


def _rows_at(reference: Reference, sample: Sample, shapes: Sizes) -> list[Check]:
    """The export against the module at other shapes; no rows where the module does not take them."""
    tensors = {name: _at_shape(tensor, shapes[name]) for name, tensor in sample.feeds.items()}
    feeds = arrays(tensors)
    try:
        eager = arrays(sample.eager_of(tensors))
    except Exception:  # the module's own code refuses these sizes
        return []
    try:
        want = reference.run(feeds)
    except Exception as error:  # the reference may raise anything
        return [Check(RESIZED, next(iter(eager)), feeds_text(feeds), math.inf, 0.0, False, first_line(error))]
    return Expected(reference, feeds, eager, reference.tolerance(feeds, want)).check(RESIZED, want)


def _at_shape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The example's own values, repeated or cut: indices stay inside their tables."""
    for axis, size in enumerate(shape):
        if 0 < tensor.shape[axis] != size:
            index = torch.arange(size, device=tensor.device) % tensor.shape[axis]
            tensor = tensor.index_select(axis, index)
    if tuple(tensor.shape) != tuple(shape):
        tensor = tensor.new_zeros(tuple(shape))
    if tensor.is_floating_point() and tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
        # equal values would hide what a module does with them
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
        tensor = tensor + noise.to(tensor)
    return tensor


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors as arrays, for engine and reference."""
    return {name: as_numpy(tensor.detach().cpu().contiguous()) for name, tensor in tensors.items()}
