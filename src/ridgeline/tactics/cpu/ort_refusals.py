"""Operands that ONNX Runtime's kernels refuse, compute otherwise, or end the process on.

Each rule reads one op and the specs that are known of its operands. Where sizes depend on data none is known:
what an op might then be given counts as given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.errors import InputError, LimitError
from ridgeline.ir.infer import Inferred, settle_body
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import with_trait
from ridgeline.options import Limits
from ridgeline.tactics.control import first_trip

Specs: TypeAlias = Mapping[str, TensorSpec]
Known: TypeAlias = Mapping[str, np.ndarray]


def why_refused(op: Op, site: Site, opset_imports: Mapping[str, int], limits: Limits) -> str | None:
    """What is wrong with an op, or with one in its subgraphs; None where it can run."""
    return _why(op, site.specs, {**site.body.constants, **site.values}, opset_imports, limits)


def _why(op: Op, specs: Specs, known: Known, opset_imports: Mapping[str, int], limits: Limits) -> str | None:
    rule = _RULES.get(op.key)
    reason = rule(op, specs) if rule is not None else None
    for body in (attr for attr in op.attrs.values() if isinstance(attr, Body) and _is_judged(attr)):
        given = specs if op.op_type == "If" else first_trip(op, body, specs) or {}
        inside = Inferred()
        with suppress(InputError, LimitError):  # what comes before the op that does not fit is known
            settle_body(body, given, opset_imports, limits, known=known, into=inside)
        reasons = (_why(inner, inside.specs, inside.values, opset_imports, limits) for inner in body.ops)
        reason = reason or next((found for found in reasons if found is not None), None)
    return reason


def _is_judged(body: Body) -> bool:
    """Whether there is a rule for any op inside."""
    return any(
        op.key in _RULES or any(isinstance(attr, Body) and _is_judged(attr) for attr in op.attrs.values())
        for op in body.ops
    )


def _attention(op: Op, specs: Specs) -> str | None:
    """B batch, H heads, S queries, T keys; [B, H] of a mask may be 1, its rows and columns may not."""
    mask, past = (*op.inputs, "", "")[3:5]
    if op.attrs.get("scale", 1.0) <= 0.0:
        return f"attention has scale {op.attrs['scale']}, ONNX Runtime wants one above 0"
    if any(op.outputs[3:]):
        return "ONNX Runtime gives out other attention scores in some modes"
    if not mask and not past:
        return None
    q, k, v, known_mask, known_past = (specs.get(name) for name in (*op.inputs[:3], mask, past))
    if q is None or k is None or v is None or (mask and known_mask is None) or (past and known_past is None):
        return "sizes of an attention depend on data, and ONNX Runtime does not take all masks"
    queries, new = q.shape[-2], k.shape[-2]
    keys = new + (known_past.shape[2] if known_past is not None else 0)
    if known_mask is not None and (len(known_mask.shape) < 2 or known_mask.shape[-2:] != (queries, keys)):
        wanted = f"[{queries}, {keys}]"
        return f"attention mask of {list(known_mask.shape)}, ONNX Runtime wants {wanted} in the last two axes"
    if past and op.attrs.get("is_causal", 0) and queries == 1 < new:
        return "ONNX Runtime lets a single query see all new keys, causal or not"
    return None


def _rotary(op: Op, specs: Specs) -> str | None:
    """Positions, or angles without them, are [B, S, ...]; the op broadcasts them."""
    x, angles = (specs.get(name) for name in (op.inputs[0], op.inputs[3 if any(op.inputs[3:]) else 1]))
    if x is None or angles is None:
        return "sizes of a rotary embedding depend on data, and ONNX Runtime broadcasts none"
    wanted = (x.shape[0], x.shape[-2])
    if angles.shape[:2] == wanted:
        return None
    return f"rotary positions or angles of {list(angles.shape)}, ONNX Runtime wants {list(wanted)} first"


def _recurrent(op: Op, specs: Specs) -> str | None:
    x = specs.get(op.inputs[0])
    if x is None:
        return (
            f"{op.op_type} may be given a sequence without elements, on which ONNX Runtime ends the process"
        )
    return None if x.numel else f"{op.op_type} of a sequence without elements"


def _group_norm(op: Op, specs: Specs) -> str | None:
    """It is written out there with E[x²] - E[x]²: with a mean of 100 and a deviation of 0.01, NaN."""
    return "ONNX Runtime takes the variance of a group as a difference, which cancels far from zero"


_RULES: Mapping[str, Callable[[Op, Specs], str | None]] = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
    "GroupNormalization": _group_norm,
    **dict.fromkeys(with_trait(Trait.NEVER_EMPTY), _recurrent),
}
