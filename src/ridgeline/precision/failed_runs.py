"""A model that cannot run on a sample: the error says which sample, which node, and what it cannot take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ridgeline.base.spec import Op
from ridgeline.errors import InputError, RidgelineError, first_line

# the second operand has positions along one axis of the first
ALONG_AXIS = frozenset({"Gather", "GatherElements", "ScatterElements", "Scatter"})
# the last axis of the second operand has positions along the first axes of the first
COORDINATES = frozenset({"GatherND", "ScatterND"})
HELP = "leave the sample out, or mend it"


def run_checked(op: Op, run: Callable[[Any], Any], given: Sequence[Any], *, where: str) -> Any:
    """What an op makes of a sample. Wrong indices are found beforehand: on a GPU they end the process."""
    _require_indices(op, given, where)
    try:
        return run(given)
    except (RidgelineError, torch.OutOfMemoryError):
        raise
    except (IndexError, RuntimeError, ValueError) as problem:
        fail(f"{_who(op)} cannot run on {where}", problem)


def fail(what: str, problem: Exception) -> NoReturn:
    raise InputError(what, got=first_line(problem, 600), help=HELP) from problem


def _who(op: Op) -> str:
    return f"the {op.op_type} that makes {next((name for name in op.outputs if name), '')!r}"


def _require_indices(op: Op, given: Sequence[Any], where: str) -> None:
    if op.domain or op.op_type not in ALONG_AXIS | COORDINATES:
        return
    x, indices = given[:2]
    if not isinstance(x, Tensor) or not isinstance(indices, Tensor) or not indices.numel():
        return
    if op.op_type in ALONG_AXIS:
        sizes, columns = [x.shape[int(op.attrs.get("axis", 0))]], [indices]
    else:
        sizes, columns = list(x.shape[int(op.attrs.get("batch_dims", 0)) :]), list(indices.unbind(-1))
    for size, column in zip(sizes, columns, strict=False):
        low, high = (int(end) for end in torch.aminmax(column))
        if low < -size or high >= size:
            raise InputError(
                f"{_who(op)} has an index out of range in {where}",
                got=f"{low if low < -size else high} in {op.inputs[1]!r}",
                want=f"{-size} to {size - 1}" if size else "no index: the axis is empty",
                help=HELP,
            )
