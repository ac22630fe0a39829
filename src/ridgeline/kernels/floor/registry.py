"""The table of floor ops: ONNX op key -> a function over torch tensors, and how to call it for an `Op`.

The families fill the table when `ridgeline.kernels.floor` is imported; no op is defined here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from ridgeline.base.spec import Op, TensorSpec
from ridgeline.ir.ops import OPS
from ridgeline.kernels.values import Items

Reason: TypeAlias = Callable[[Op, Mapping[str, TensorSpec]], str | None]
Run = TypeVar("Run", bound=Callable[..., Any])


@dataclass(frozen=True)
class FloorOp:
    """One ONNX op over torch tensors. Absent optional inputs arrive as None, attributes as keywords.

    `run` may return an input or a view of one (Slice, Transpose, Expand, a Clip without bounds). A caller
    that needs other memory uses `out`, or copies.
    """

    key: str
    run: Callable[..., Any]
    why_not: Reason | None = None
    # out(*inputs, out=[tensors], **attrs) fills given tensors, whose strides may be channels_last
    out: Callable[..., None] | None = None
    view: bool = False  # the output shares memory with the first input when that is contiguous
    wants_n_outputs: bool = False
    takes_strings: bool = False  # any value will do: numpy arrays of strings, sequences


FLOOR: dict[str, FloorOp] = {}


def floor(
    key: str,
    *,
    why_not: Reason | None = None,
    out: Callable[..., None] | None = None,
    view: bool = False,
    takes_strings: bool = False,
) -> Callable[[Run], Run]:
    """Enter the decorated function into `FLOOR` under `key`; if it declares `out`, that is its `out` form."""

    def enter(run: Run) -> Run:
        assert key not in FLOOR, f"{key} is entered twice"
        assert key in OPS, f"{key} has no row in the op table"
        fill = into(run) if out is None and _declares(run, "out") else out
        FLOOR[key] = FloorOp(key, run, why_not, fill, view, _declares(run, "n_outputs"), takes_strings)
        return run

    return enter


def into(run: Callable[..., Any]) -> Callable[..., None]:
    """The `out` form of a function that has one result and an `out=` for it."""

    def write(*inputs: Tensor | None, out: Sequence[Tensor], **attrs: Any) -> None:
        run(*inputs, out=out[0], **attrs)

    return write


def placed(made: Tensor, out: Tensor | None) -> Tensor:
    """The result, copied to `out` if that is given."""
    return made if out is None else out.copy_(made)


def copies(run: Callable[..., Tensor]) -> Callable[..., None]:
    """The `out` form of a function whose result is a view: one pass from the view to the output."""

    def write(*inputs: Tensor | None, out: Sequence[Tensor], **attrs: Any) -> None:
        out[0].copy_(run(*inputs, **attrs))

    return write


def call_floor(op: Op, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run `op`; one entry for each of its outputs, None where the function makes no such output."""
    entry = FLOOR[op.key]
    if entry.wants_n_outputs:
        result = entry.run(*inputs, **op.attrs, n_outputs=len(op.outputs))
    else:
        result = entry.run(*inputs, **op.attrs)
    is_several = isinstance(result, tuple | list) and not isinstance(result, Items)
    outputs: tuple[Any, ...] = tuple(result) if is_several else (result,)
    wanted = len(op.outputs)
    return outputs[:wanted] + (None,) * (wanted - len(outputs))


def _declares(run: Callable[..., Any], parameter: str) -> bool:
    try:
        return parameter in inspect.signature(run).parameters
    except ValueError:  # torch's own builtins have no signature, and no such parameter
        return False
