"""The checks that a build runs on its engine: with which inputs, at which shapes, against which reference."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import BuildError, LimitError, OptionError, PluginError, first_line
from ridgeline.frontend.declared import other_outputs
from ridgeline.frontend.profiles import shapes_flags
from ridgeline.frontend.types import to_ir
from ridgeline.ir.body import Program, read_program
from ridgeline.kernels.elements import as_numpy, to_torch
from ridgeline.options import Options
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Check, Report
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.examples import OTHER_FLOATS, example_feeds
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.non_tensor import flattened
from ridgeline.runtime.profiles import load_variants
from ridgeline.select.shapes import Shapes
from ridgeline.verify.call_times import busy_notes, call_overhead, timed
from ridgeline.verify.compare import (
    Telling,
    check_padded,
    compare,
    feeds_text,
    load_data,
    nan_notes,
    nan_share,
    only_nan,
    require,
    variant_names,
)
from ridgeline.verify.divergence import (
    Expected,
    as_others_run_it,
    find_culprit,
    first_wrong_region,
    passed_where_levels_flipped,
)
from ridgeline.verify.limited_run import LimitedRun
from ridgeline.verify.reference import Reference
from ridgeline.verify.remembered import FROM_CACHE
from ridgeline.verify.tolerance import Tolerance

BATCH = 3
BOUND_AGAIN_BYTES = 64 << 20
# inputs and outputs that travel with an engine for another machine, to check its first run
EXPECTED_BYTES = 64 << 20
GIVEN, WANTED = "given/", "wanted/"
WRITTEN_AND_READ = "plan and graph written and read"
NO_EXAMPLE = "not verified: the original model refuses the values drawn for its inputs ({})"


def run_first(
    reference: Reference | None,
    limited: LimitedRun | None,
    inference: Inference,
    every_shapes: Sequence[Shapes],
) -> dict[str, np.ndarray]:
    """Run the original model on the inputs that selection times plans with, before it does: its outputs.

    Without a reference only a model with loops is run, to see that they end.
    What the original refuses never reaches a kernel of ours. Its outputs are kept for `verify`. Values drawn
    for strings and sequences may not suit a model: then `verify` says that nothing could be compared.
    """
    made: dict[str, np.ndarray] = {}
    outputs: dict[str, np.ndarray] = {}
    for shapes in every_shapes:
        feeds = example_feeds(inference, shapes.opt, seed=0)
        try:
            if reference is not None:
                outputs = reference.run(feeds, keep=True)
            elif limited is not None:
                limited.require_end(feeds)
        except (LimitError, PluginError):
            raise
        except Exception as error:
            if not inference.program.loose_inputs:
                raise _does_not_run(shapes.opt, error) from error
        else:
            made = made or outputs
    return made


def verify(engine: Engine, reference: Reference, options: Options) -> Report:
    """Run every check; raise when one fails."""
    trials = list(_trials(engine, Shapes.of(engine.plan), options))
    total = len(trials) + 2
    found: list[Check] = []
    notes: list[str] = []
    got: Mapping[str, Any] = {}  # what the engine made of the first trial
    context = engine.context(wait=True)
    first_call = _at_new_shapes(trials) if engine.serves_new_shapes else ""
    telling = Telling(port.name for port in engine.outputs if not port.is_non_tensor)
    for i, (name, feeds) in enumerate(chain(trials, _other_values(engine))):
        if i >= len(trials) and not telling.untold:
            break
        options.tell("verify", min(i, len(trials)), total, name)
        try:
            want = reference.run(feeds)
        except (LimitError, PluginError):
            raise
        except Exception as error:
            if i == 0 and engine.program.loose_inputs:
                return Report(unverified=NO_EXAMPLE.format(first_line(error)))
            if i == 0:
                raise _does_not_run(engine.plan.planned_shapes, error) from error
            notes.append(_not_checked(name, error))
            continue
        if i == 0:
            _check_declared(engine.plan, want)
        if not telling.add(want) and i >= len(trials):
            continue
        notes += nan_notes(want)
        expected = Expected.of(reference, feeds, want)
        rows = []
        if name == first_call:  # nothing is compiled for this shape yet
            rows += expected.check(f"{name}, first call", engine.uncompiled_context().run(feeds))
        outputs = context.run(feeds)
        got = got or outputs
        rows += passed_where_levels_flipped(engine, expected, expected.check(name, outputs))
        if i == 0 and options.verify == "full":
            rows += _fused_against_unfused(engine, expected)
        found += rows
        require(found, where=partial(find_culprit, engine, expected))
    if telling.are_nan and len(telling.are_nan) == len(engine.outputs):
        raise only_nan(engine.plan.model)
    notes += telling.notes()
    first = trials[0][1]
    options.tell("verify", len(trials), total, "same input, same bits")
    again, run_s = timed(partial(context.run, first))
    found += _same_bits("same input again", again, got, first)
    options.tell("verify", len(trials) + 1, total, "written and read again")
    found += _written_and_read(engine, first, got)
    require(found, where="")
    overhead, whole = call_overhead(context, first, run_s)
    notes += busy_notes(engine.plan, whole)
    options.tell("verify", total, total)
    return Report(
        reference=reference.who, checks=tuple(found), call_overhead_us=overhead, run_us=whole,
        library_allocations=_library_steps(engine), warnings=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _at_new_shapes(trials: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The first trial whose shapes are not those of the first of all, "" if there is none."""
    return next((name for name, feeds in trials if feeds_text(feeds) != feeds_text(trials[0][1])), "")


def _not_checked(name: str, error: Exception) -> str:
    """The note on a trial that the original model refuses; a file of the user must be one it takes."""
    if name.endswith(".npz"):
        raise OptionError(
            f"the original model does not take {name}", got=first_line(error), help="look at its arrays"
        ) from error
    return f"not checked at {name}: the original model refuses ({first_line(error)})"


def verify_profiles(engine: Engine, reference: Reference, options: Options) -> Report:
    """Run every check at every profile; raise when one fails. Times are those of the first profile."""
    engine.context()  # on its GPU a predicted plan is retuned first, once for all that follows
    reports = [verify(engine.only(variant), reference, options) for variant in engine.variants]
    named = zip(variant_names(engine.variants), reports, strict=True)
    checks = [replace(row, name=f"{name}{row.name}") for name, report in named for row in report.checks]
    return replace(
        reports[0],
        checks=(*checks, *check_padded(engine, reference)),
        library_allocations=tuple(dict.fromkeys(s for r in reports for s in r.library_allocations)),
        warnings=tuple(dict.fromkeys(w for r in reports for w in r.warnings)),
    )


def unverified(plan: Plan) -> str:
    """Why an engine for a GPU that is not here is not verified yet, and what was checked."""
    if not plan.target.exists:
        return "built for no machine"
    steps = [step for each in plan.every_plan for step in each.steps]
    kernels = "its kernels compile and none spills; " if any("triton" in s.tactic for s in steps) else ""
    return f"built without its GPU: {kernels}its first run there verifies it"


def verify_graph(engine: Engine, reference: Reference, options: Options) -> Report:
    """Without the GPU: compare the fused graph with the original, both run by another runtime.

    The engine takes the expected outputs along, so that its first run can be checked.
    """
    options.tell("verify", 0, 1, "fused against unfused graph")
    feeds, want = _telling_run(engine, reference)
    _check_declared(engine.plan, want)
    telling = Telling(port.name for port in engine.outputs)
    telling.add(want)
    expected = Expected(reference, feeds, want, reference.tolerance(feeds, want))
    rows = _fused_against_unfused(engine, expected)
    rows += _read_back(engine, feeds)[0]
    require(rows, where=partial(find_culprit, engine, expected, has_run=False))
    if sum(array.nbytes for array in (*feeds.values(), *want.values())) <= EXPECTED_BYTES:
        given = {f"{GIVEN}{name}": array for name, array in feeds.items()}
        engine.expected = {
            n: to_torch(np.asarray(a)) for n, a in (given | {WANTED + n: want[n] for n in want}).items()
        }
    options.tell("verify", 1, 1)
    return Report(
        reference=reference.who,
        checks=tuple(rows),
        library_allocations=_library_steps(engine),
        warnings=(*nan_notes(want), *telling.notes()),
        unverified=unverified(engine.plan),
        limits={name: (limit.distance, limit.share) for name, limit in expected.limits.items()},
    )


def _telling_run(engine: Engine, reference: Reference) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Inputs for which the original computes something other than NaN, and its outputs."""
    first = engine.example_inputs(0)
    for name, feeds in chain([("", first)], _other_values(engine)):
        try:
            want = reference.run(feeds)
        except (LimitError, PluginError):
            raise
        except Exception as error:
            if not name:
                raise _does_not_run(engine.plan.planned_shapes, error) from error
            continue
        if any(nan_share(array) < 1 for array in want.values()):
            return feeds, want
    raise only_nan(engine.plan.model)


def _does_not_run(specs: Mapping[str, TensorSpec], error: Exception) -> BuildError:
    return BuildError(
        "the original model does not run at the planned shapes",
        got=first_line(error),
        help=f"these were {shapes_flags(specs) or 'none'}: give others if it takes others",
    )


def compare_expected(engine: Engine) -> list[Check]:
    """The engine's first run on its GPU against what its build expected; raise where they differ."""
    kept = {name: as_numpy(tensor) for name, tensor in engine.expected.items()}
    feeds = {n.removeprefix(GIVEN): a for n, a in kept.items() if n.startswith(GIVEN)}
    want = {n.removeprefix(WANTED): a for n, a in kept.items() if n.startswith(WANTED)}
    limits = {name: Tolerance(*engine.report.limits[name]) for name in want}
    rows = compare("first run on its GPU", engine.context().run(feeds), want, limits, feeds_text(feeds))
    require(rows, where=partial(first_wrong_region, engine, feeds))
    return rows


def _check_declared(plan: Plan, made: Mapping[str, np.ndarray]) -> None:
    """Raise if the file declares outputs otherwise than the graph makes them."""
    wrong = []
    for port in plan.outputs:
        if port.is_non_tensor and port.name not in made:
            continue
        array = made.get(port.name)
        if array is None:
            wrong.append(f"{port.name}: declared {port}, made something that is no tensor")
            continue
        is_same_rank = port.dims is None or len(port.dims) == array.ndim
        dtype = "string" if array.dtype.kind in "OUS" else str(array.dtype)
        if dtype != port.dtype or not is_same_rank:
            wrong.append(f"{port.name}: declared {port}, made {array.dtype}{list(array.shape)}")
    if wrong:
        raise other_outputs(wrong)


def _trials(engine: Engine, shapes: Shapes, options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Named inputs: planned shapes, the profile's corners, more rows, rows in another order, users' data."""
    draw = engine.example_inputs
    yield "planned shapes", draw(0)
    if options.data is not None:
        yield from load_data(options.data, [port.name for port in shapes.inputs])
    if options.verify == "fast":
        return
    yield "planned shapes, other values", draw(1)
    several: tuple[str, dict[str, Any]] | None = None
    for name, corner in (("min shapes", shapes.low), ("max shapes", shapes.high)):
        if corner is not None and corner != shapes.opt and not engine.signature.broken(corner):
            feeds = draw(2, corner)
            yield name, feeds
            if name == "max shapes" and _has_rows(shapes, corner):
                several = f"{name}, rows in another order", feeds
    if several is not None:  # one more batch would be one more shape to compile every kernel for
        name, feeds = several
        yield name, _reversed(feeds)
    elif _takes_batches(shapes):
        wide = {n: replace(s, shape=(BATCH, *s.shape[1:])) for n, s in shapes.opt.items()}
        if engine.signature.broken(wide):
            return
        feeds = draw(3, wide)
        yield f"batch 1 against {BATCH}", feeds
        yield "rows in another order", _reversed(feeds)


def _reversed(feeds: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.ascontiguousarray(array[::-1]) for name, array in feeds.items()}


def _other_values(engine: Engine) -> Iterator[tuple[str, dict[str, Any]]]:
    """Inputs at the planned shapes with floats of other distributions."""
    for name, floats in OTHER_FLOATS.items():
        feeds = example_feeds(engine.inference, engine.plan.planned_shapes, seed=4, floats=floats)
        yield f"planned shapes, {name}", feeds


def _is_batched(shapes: Shapes) -> bool:
    """Whether one symbol stands first in every input."""
    firsts = {port.dims[0] if port.dims and not port.is_non_tensor else None for port in shapes.inputs}
    return len(firsts) == 1 and isinstance(firsts.pop(), str)


def _has_rows(shapes: Shapes, corner: Mapping[str, TensorSpec]) -> bool:
    """Whether these shapes are a batch of several rows, and more than the planned ones."""
    return _is_batched(shapes) and all(
        spec.shape[0] > max(shapes.opt[name].shape[0], 1) for name, spec in corner.items()
    )


def _takes_batches(shapes: Shapes) -> bool:
    """Whether there may be a batch of so many rows."""
    if not _is_batched(shapes):
        return False
    is_low = all(spec.shape[0] <= BATCH for spec in (shapes.low or {}).values())
    return is_low and all(spec.shape[0] >= BATCH for spec in (shapes.high or {}).values())


def _same_bits(
    name: str, got: Mapping[str, Any], want: Mapping[str, Any], feeds: Mapping[str, Any]
) -> list[Check]:
    exact = {out: Tolerance(0.0) for out in flattened(want)}
    return compare(name, got, dict(want), exact, feeds_text(feeds))


def _written_and_read(engine: Engine, feeds: dict[str, Any], got: Mapping[str, Any]) -> list[Check]:
    """The engine as its file gives it back: plan and graph through their written forms."""
    rows, plan, model, program = _read_back(engine, feeds)
    # binding a large engine again would take longer than all other checks; equal plans and graphs bind alike
    if engine.plan.memory.weight_bytes <= BOUND_AGAIN_BYTES:
        inference = Inference(program, engine.weights)
        fused = replace(engine.fused, graph=model, inference=inference, notes=[])
        variants = load_variants(plan, fused, engine.planner.bind_body)
        again = Engine(variants, engine.planner, report=engine.report)
        rows += _same_bits(WRITTEN_AND_READ, again.run(feeds), got, feeds)
    return rows


def _read_back(engine: Engine, feeds: dict[str, Any]) -> tuple[list[Check], Plan, ir.Model, Program]:
    plan = Plan.from_json(engine.plan.to_json())
    model = to_ir(engine.fused_onnx(weights=False))
    program = read_program(model, engine.program.limits)
    is_same = plan == engine.plan and _regions(program) == _regions(engine.program)
    error = 0.0 if is_same else math.inf
    row = Check(WRITTEN_AND_READ, "plan.json, fused.onnx", feeds_text(feeds), error, 0.0, is_same)
    return [row], plan, model, program


def _regions(program: Program) -> list[tuple[Any, ...]]:
    return [(r.name, r.function, r.inputs, r.outputs, r.body.digest) for r in program.regions]


def _fused_against_unfused(engine: Engine, expected: Expected) -> list[Check]:
    """The fused graph as another runtime computes it, against the original: the rules alone, no kernels."""
    reference, feeds = expected.reference, expected.feeds
    proto, arrays = as_others_run_it(engine.model, engine.weights)
    graph = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    key = reference.fact_key("fused", feeds, graph, reference.weights_digest(arrays))
    known = reference.facts.find_as(dict[str, tuple[Check, ...]], key)
    if known is not None:
        # only a verdict that passed is kept
        return [replace(row, note=f"verdict {FROM_CACHE}") for row in known["rows"]]
    got = reference.run_other(proto, arrays, feeds)
    rows = [] if got is None else expected.check("fused against unfused graph", got)
    if all(row.passed for row in rows):
        reference.facts.keep(key, {"rows": [asdict(row) for row in rows]})
    return rows


def _library_steps(engine: Engine) -> tuple[str, ...]:
    names = {block.value for block in engine.plan.memory.blocks if block.kind == "library"}
    return tuple(step.name for step in engine.plan.steps if names & set(step.outputs))
