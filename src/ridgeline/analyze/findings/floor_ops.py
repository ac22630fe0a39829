"""Ops that no kernel of ours takes, although a spelling in other ops would be one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.subject import MODELLED, SCALED, Place, Subject
from ridgeline.base.spec import Body, Op, Site
from ridgeline.kernels.elements import numpy_dtype

Spelling = Callable[[Op, Site], tuple[list[Op], dict[str, np.ndarray]] | None]
LONGEST_SUM = 4096  # a triangle of ones this wide is still a small weight


def find(subject: Subject) -> Iterator[Finding]:
    floor = next((name for name, tactic in subject.costs.tactics.items() if tactic.is_floor), "")
    for place in subject.places:
        ops = place.site.body.ops
        if len(ops) != 1 or not place.us or ops[0].domain or not place.site.is_inferred:
            continue
        spelled = SPELLINGS.get(ops[0].op_type)
        if spelled is not None and _runs_on(subject, place, floor):
            yield from _of_op(subject, place, ops[0], *spelled)


def _runs_on(subject: Subject, place: Place, floor: str) -> bool:
    """Whether the floor is the only one, or the fastest, that takes it."""
    if subject.plan.target.exists and len(place.step.regions) == 1:
        return place.step.tactic == floor
    return subject.costs.willing(place.site) == {floor}


def _of_op(subject: Subject, place: Place, op: Op, text: str, spelling: Spelling) -> Iterator[Finding]:
    made = spelling(op, place.site)
    if made is None:
        return
    ops, constants = made
    body = Body(
        tuple(n for n in place.site.body.inputs if n == op.inputs[0]),
        place.site.body.outputs,
        tuple(ops),
        constants,
    )
    gain = subject.swap_gain_us(place, [subject.changed(place, body=body)])
    if gain is None or gain <= 0:
        return
    spec = place.site.outputs[0]
    yield subject.finding(
        "floor_op", [place],
        f"{op.op_type} has no kernel of ours: PyTorch runs it by itself",
        f"spell {op.op_type} as {text}, which fuses with what is beside it",
        gain_us=gain,
        how=SCALED if subject.is_measured else MODELLED,
        evidence={"made": str(spec), "tactic": place.step.tactic, "us": place.us or 0.0},
    )  # fmt: skip


def _scalar(site: Site, value: float) -> np.ndarray:
    return np.array(value, numpy_dtype(site.outputs[0].dtype))


def _exponentials(join: str) -> Spelling:
    def spelling(op: Op, site: Site) -> tuple[list[Op], dict[str, np.ndarray]]:
        x, y = op.inputs[0], op.outputs[0]
        ops = [
            Op("Exp", (x,), ("up",)), Op("Neg", (x,), ("minus",)), Op("Exp", ("minus",), ("down",)),
            Op(join, ("up", "down"), ("both",)), Op("Mul", ("both", "half"), (y,)),
        ]  # fmt: skip
        return ops, {"half": _scalar(site, 0.5)}

    return spelling


def _log_of_root(sign: float) -> Spelling:
    def spelling(op: Op, site: Site) -> tuple[list[Op], dict[str, np.ndarray]]:
        x, y = op.inputs[0], op.outputs[0]
        ops = [
            Op("Mul", (x, x), ("square",)), Op("Add", ("square", "one"), ("under",)),
            Op("Sqrt", ("under",), ("root",)), Op("Add", (x, "root"), ("sum",)), Op("Log", ("sum",), (y,)),
        ]  # fmt: skip
        return ops, {"one": _scalar(site, sign)}

    return spelling


def _summed(op: Op, site: Site) -> tuple[list[Op], dict[str, np.ndarray]] | None:
    """A product with a triangle of ones; only along the last axis, forwards."""
    spec, axis = site.outputs[0], site.values.get(op.inputs[1])
    width = spec.shape[-1] if spec.shape else 0
    is_last = axis is not None and int(axis.reshape(-1)[0]) % max(len(spec.shape), 1) == len(spec.shape) - 1
    if not is_last or any(op.attrs.values()) or not 1 < width <= LONGEST_SUM or not spec.is_float:
        return None
    triangle = np.triu(np.ones((width, width), numpy_dtype(spec.dtype)))
    return [Op("MatMul", (op.inputs[0], "triangle"), op.outputs)], {"triangle": triangle}


# by op: the same in other ops, for people and for the cost model
SPELLINGS: Mapping[str, tuple[str, Spelling]] = {
    "Sinh": ("(Exp(x) - Exp(-x)) * 0.5", _exponentials("Sub")),
    "Cosh": ("(Exp(x) + Exp(-x)) * 0.5", _exponentials("Add")),
    "Asinh": ("Log(x + Sqrt(x * x + 1))", _log_of_root(1.0)),
    "Acosh": ("Log(x + Sqrt(x * x - 1))", _log_of_root(-1.0)),
    "CumSum": ("MatMul with a triangle of ones as its weight", _summed),
}
KIND = Kind("floor_op", "an op that only PyTorch runs, where other ops would have a kernel", find)
