"""Where an engine stops computing what its model computes: in reading it, a pass, fusion or a kernel.

Looked for when a check has failed, and only then: every stage is done again, and what it leaves is run by
somebody else. The first graph that is wrong names its stage; where none is, the steps of the engine are run
one by one on right inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.base.spec import EPSILON, TF32_EPSILON
from ridgeline.errors import RidgelineError, first_line
from ridgeline.frontend.evaluator import Evaluator
from ridgeline.frontend.from_onnx import load
from ridgeline.kernels.elements import crosses, dtype_name, fill, on_device, to_numpy, to_torch
from ridgeline.passes.partition import partition
from ridgeline.passes.pipeline import Stage, canonicalise, graph_state
from ridgeline.plan.report import Check
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.file import fused_proto, write_inside
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.weights import weights_of
from ridgeline.verify.compare import compare, feeds_text
from ridgeline.verify.draws import Draws
from ridgeline.verify.levels import outputs_of_levels
from ridgeline.verify.limited_run import run_on_floor
from ridgeline.verify.metrics import max_abs
from ridgeline.verify.reference import Reference
from ridgeline.verify.tolerance import Tolerance

LEVELS = (torch.int8, torch.uint8)
FIRST_WRONG = "the first stage that is wrong: "
# of the tolerance that probes measured (docs/decisions/006): a right engine of MiniLM was seen at 1.4
FLIPPED = 4.0
# eps of the largest value that one step may be off: to find the step at fault, and to say that none is
MANY_STEPS: Mapping[str, int] = {"": 1024}
FEW_STEPS: Mapping[str, int] = {"": 64, "float16": 4, "bfloat16": 4}
HAVE_FLIPPED = "(levels flipped near ties; every region is right alone)"


@dataclass(frozen=True)
class Expected:
    """What the original model makes of some inputs, and how far rounding may carry that."""

    reference: Reference
    feeds: dict[str, Any]
    want: Mapping[str, np.ndarray]
    limits: Mapping[str, Tolerance]
    draws: Draws | None = None  # in place of limits: tolerances that are measured as far as needed

    @staticmethod
    def of(reference: Reference, feeds: dict[str, Any], want: Mapping[str, np.ndarray]) -> Expected:
        return Expected(reference, feeds, want, {}, Draws(reference, feeds, want))

    def check(self, name: str, got: Mapping[str, Any]) -> list[Check]:
        """One row per output of what somebody made of the same inputs.

        More draws only widen a tolerance, so that what passes after some of them passes after all.
        """
        draws, shapes = self.draws, feeds_text(self.feeds)
        if draws is None:
            return compare(name, got, dict(self.want), self.limits, shapes)
        if not draws.limits:
            draws.widen()
        rows = compare(name, got, dict(self.want), draws.limits, shapes)
        while draws.is_open and not all(row.passed for row in rows):
            draws.widen()
            rows = compare(name, got, dict(self.want), draws.limits, shapes)
        return rows

    def is_right(self, model: ir.Model, weights: Mapping[str, Tensor] | None = None) -> bool | None:
        """Whether a graph computes the same, as somebody else runs it; None where nobody else can."""
        weights = weights_of(model) if weights is None else weights
        got = _run(self.reference, *as_others_run_it(model, weights), self.feeds)
        return None if got is None else all(row.passed for row in self.check("", got))

    def values(
        self, model: ir.Model, weights: Mapping[str, Tensor], names: Sequence[str]
    ) -> dict[str, np.ndarray] | None:
        """Values inside a graph, as somebody else runs it; None where nobody else can."""
        proto, arrays = as_others_run_it(model, weights)
        known = {port.name for port in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
        try:
            return self.reference.run_other(proto, arrays, self.feeds, names)
        except Exception:  # the graph runs without these outputs, and no more is known
            return None


def find_culprit(engine: Engine, expected: Expected, *, has_run: bool = True) -> str:
    """The first stage of the build that is wrong, in words. Kernels are asked only if the engine has run."""
    if expected.is_right(engine.model, engine.weights) is False:
        return FIRST_WRONG + _wrong_stage(engine, expected)
    if not has_run:
        return "no stage: the graph is right as others run it"
    names = [name for step in engine.plan.steps for name in step.outputs]
    return first_wrong_region(engine, expected.feeds, expected.values(engine.model, engine.weights, names))


def _wrong_stage(engine: Engine, expected: Expected) -> str:
    """The first stage whose graph is wrong."""
    loaded = expected.reference.loaded
    try:
        model = load(loaded.original if loaded.path is None else loaded.path).model
        if expected.is_right(model) is False:
            return f"reading the model, which brings it to opset {model.opset_imports.get('', '?')}"
        canonicalise(model, target=engine.plan.target, watch=partial(_watched, expected, _state_of(model)))
        if expected.is_right(model) is False:
            return "the passes together; none of them alone"
        partition(
            model,
            Inference.of(model, engine.program.limits).at(engine.plan.planned_shapes),
            target=engine.plan.target,
        )
    except _Found as found:
        return str(found)
    except RidgelineError as error:
        return f"none that could be done again ({first_line(error)})"
    if expected.is_right(model) is False:
        return "fusion: the regions do not compute what their ops compute"
    return "none: done again, every stage is right; the engine was made from another model or by other code"


class _Found(Exception):
    """Ends the passes at the one that is wrong."""


@contextmanager
def _watched(expected: Expected, state: list[Any], stage: Stage, model: ir.Model) -> Iterator[None]:
    """Compares what a pass leaves, unless it changed nothing; `state` is what the one before it left."""
    before = model.clone()
    yield
    after = _state_of(model)
    if after == state:
        return
    state[:] = after
    if expected.is_right(model) is False:
        where = _wrong_value(expected, before, model)
        raise _Found(f"pass {stage.name!r}{_wrong_rule(expected, stage, before)}{where}")


def _state_of(model: ir.Model) -> list[Any]:
    """Nodes with their attributes, and the weights by identity: equal if a pass changed nothing."""
    weights = [(name, value.const_value) for name, value in model.graph.initializers.items()]
    return [graph_state(model), [(name, id(tensor)) for name, tensor in weights], weights]


def _wrong_rule(expected: Expected, stage: Stage, model: ir.Model) -> str:
    """The first rule of a pass that makes the graph wrong."""
    run: Any = stage.run
    for rule in run.keywords.get("rules", ()) if isinstance(run, partial) else ():
        run.func(model, **{**run.keywords, "rules": (rule,)})
        if expected.is_right(model) is False:
            return f", rule {rule.name}"
    return ""


def _wrong_value(expected: Expected, before: ir.Model, after: ir.Model) -> str:
    """The first value that has the same name after a pass and other contents."""
    weights = weights_of(after)
    left = {out.name for node in after.graph for out in node.outputs}
    made = [str(out.name) for node in before.graph for out in node.outputs]
    right = expected.values(
        before, weights_of(before), [name for name in made if name in left | set(weights)]
    )
    found = expected.values(after, weights, [name for name in made if name in left])
    if right is None or found is None:
        return ""
    got = _as_tensors(found) | {name: weights[name] for name in made if name in weights}
    wrong = (name for name, want in _as_tensors(right).items() if name in got and _off(got[name], want) > 1)
    return next((f", first at {name!r}" for name in wrong), "")


def as_others_run_it(
    model: ir.Model, weights: Mapping[str, Tensor]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The graph as ONNX, and its large weights as arrays where ONNX Runtime takes arrays of their type."""
    proto = fused_proto(model, weights)
    arrays = {}
    for entry in (entry for entry in proto.graph.initializer if entry.external_data):
        tensor = weights[entry.name]
        if crosses(dtype_name(tensor)):
            arrays[entry.name] = to_numpy(tensor)
        else:
            write_inside(entry, tensor)
    return proto, arrays


def _run(
    reference: Reference, proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray], feeds: dict[str, Any]
) -> dict[str, np.ndarray] | None:
    """By ONNX Runtime, else by the onnx evaluator; None where neither runs it."""
    try:
        made = reference.run_other(proto, arrays, feeds)
        if made is not None:
            return made
        for entry in proto.graph.initializer:
            if entry.name in arrays:
                write_inside(entry, to_torch(arrays[entry.name]))
        return dict(zip(reference.names, Evaluator(proto).run(None, feeds), strict=True))
    except Exception:  # any exception: this graph gives no information
        return None


def passed_where_levels_flipped(engine: Engine, expected: Expected, rows: Sequence[Check]) -> list[Check]:
    """The rows of one run, passed if all that happened is that levels flipped.

    Levels within rounding of a tie flip, and a deep model carries them on. How far is sampled with a few
    probes, so a distance beyond their tolerance need not be a fault: up to `FLIPPED` times as much passes
    where the graph is right as others run it, and every step is right on right inputs. Only distances do.
    """
    failed = [row for row in rows if not row.passed]
    flips = outputs_of_levels(expected.reference.loaded.original) if failed else set()
    if not failed or not all(row.output in flips and not row.note and _is_near(row) for row in failed):
        return list(rows)
    if not expected.is_right(engine.model, engine.weights):
        return list(rows)
    names = [name for step in engine.plan.steps for name in step.outputs]
    values = expected.values(engine.model, engine.weights, names)
    if values is None or _wrong_region(engine, expected.feeds, values, allowed=FEW_STEPS)[0] > 1:
        return list(rows)
    return [row if row.passed else replace(row, passed=True, note=HAVE_FLIPPED) for row in rows]


def _is_near(row: Check) -> bool:
    return row.tolerance < row.max_error <= FLIPPED * row.tolerance


def first_wrong_region(
    engine: Engine, feeds: Mapping[str, Any], values: Mapping[str, np.ndarray] | None = None
) -> str:
    """The first step that is wrong, each run on right inputs; else the one furthest off.

    `values` are the right ones; without them they are those of the same ops, run one by one through PyTorch.
    """
    off, label = _wrong_region(engine, feeds, values)
    if off > 1:
        return f"first diverging region: {label}"
    return f"no region diverges much alone; the furthest off is {label}"


def _wrong_region(
    engine: Engine,
    feeds: Mapping[str, Any],
    values: Mapping[str, np.ndarray] | None,
    *,
    allowed: Mapping[str, int] = MANY_STEPS,
) -> tuple[float, str]:
    """How far the first wrong step is off, else that which is furthest off, in units of what may be.

    `allowed` is what rounding may do to one step, in eps of its largest value, by the type of its result.
    """
    instance = engine.context(wait=True).instance(feeds)
    with torch.inference_mode():
        want = _floor_values(engine, instance) if values is None else _as_tensors(values)
        worst = (0.0, "none")
        rounding = {step.index for step in instance.steps if step.site.body.may_round}
        for i, call in enumerate(instance.calls):
            step = engine.plan.steps[instance.call_steps[i]]
            operands = TF32_EPSILON if instance.call_steps[i] in rounding else 0.0
            _give_right_inputs(instance, step.inputs, want)
            call()
            label = f"{step.name} ({' '.join(step.op_types[:8])}) by {step.tactic}"
            for name in (name for name in step.outputs if name in want):
                made = instance.result(name).cpu()
                is_rounded = "QuantizeLinear" in step.op_types and made.dtype in LEVELS
                steps = allowed.get(dtype_name(made), allowed[""])
                off = (_off_levels if is_rounded else _off)(made, want[name], operands, steps)
                if off > 1:
                    return off, label
                worst = max(worst, (off, label))
    return worst


def _floor_values(engine: Engine, instance: Instance) -> dict[str, Tensor]:
    names = [n for step in instance.steps for n in step.region.outputs]
    given = [t.cpu().clone() for t in instance.inputs.values()]
    made = run_on_floor(engine.inference, names, given, instance.inferred.specs)
    return dict(zip(names, made, strict=True))


def _as_tensors(values: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return {name: to_torch(array) for name, array in arrays.items() if array.dtype.kind not in "OUS"}


def _give_right_inputs(instance: Instance, names: tuple[str, ...], want: Mapping[str, Tensor]) -> None:
    """Overwrite the results of earlier steps, so that their errors are not attributed to a later step."""
    for name in names:
        right, there = want.get(name), instance.tensors.get(name)
        if right is not None and there is not None and there.shape == right.shape:
            fill(there, on_device(right, str(there.device)))


def _off_levels(got: Tensor, want: Tensor, operands: float = 0.0, steps: int = 1024) -> float:
    """Levels that differ, in units of how many may: one, and those within rounding of a tie.

    A level that is off by more than one is wrong.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return math.inf
    gap = (got.int() - want.int()).abs()
    if not gap.numel() or gap.max() > 1:
        return math.inf if gap.numel() else 0.0
    reach = steps * max(EPSILON["float32"], operands) * 2**7  # of the largest value, in levels
    return float(gap.sum()) / (1 + gap.numel() * min(1.0, 2 * reach))


def _off(got: Tensor, want: Tensor, operands: float = 0.0, steps: int = 1024) -> float:
    """Distance in units of what rounding may do to one region: so many eps of its largest value.

    `operands` is the eps of what its products read, if that is coarser than their type.
    """
    if got.shape != want.shape:
        return math.inf
    if not want.numel():
        return 0.0
    if not want.is_floating_point():
        return 0.0 if torch.equal(got, want) else math.inf
    eps = EPSILON.get(str(want.dtype).removeprefix("torch."), EPSILON["bfloat16"])
    scale = want.double().abs().nan_to_num(posinf=0.0).max()
    return max_abs(to_numpy(got), to_numpy(want)) / float(steps * max(eps, operands) * scale + 1e-300)
