"""The order of the passes: from a loaded model to plain standard ops, with what was refused and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from ridgeline.passes import (
    canonical_activation,
    canonical_attention,
    canonical_linear,
    canonical_norm,
    fold_weights,
)
from ridgeline.passes.clean import remove_duplicates, remove_noops, remove_unused
from ridgeline.passes.fold import fold_constants
from ridgeline.passes.rule import Fusion, Refusal, apply_rules
from ridgeline.passes.shapes import infer_shapes

# folding a shape can settle a branch, which can complete a pattern; no known model needs a third round
MAX_ROUNDS = 3


@dataclass(frozen=True)
class Stage:
    """One named pass; the model is legal ONNX before and after it."""

    name: str
    run: Callable[[ir.Model], list[Refusal]]


def _edit(*edits: Callable[[ir.Model], None]) -> Callable[[ir.Model], list[Refusal]]:
    def run(model: ir.Model) -> list[Refusal]:
        for edit in edits:
            edit(model)
        return []

    return run


def _rules(rules: Sequence[Fusion]) -> Callable[[ir.Model], list[Refusal]]:
    return partial(apply_rules, rules=rules)


def _forget_invented_sizes(model: ir.Model) -> None:
    """Inference never improves on a name it made up before the rules told it more."""
    for graph in model.graphs():
        for out in (out for node in graph for out in node.outputs if out.shape is not None):
            if any(map(_is_invented, out.shape)):
                out.shape = ir.Shape([None if _is_invented(dim) else dim for dim in out.shape])


def _is_invented(dim: int | ir.SymbolicDim) -> bool:
    return not isinstance(dim, int) and (dim.value or "").startswith("unk__")


PASSES: tuple[Stage, ...] = (
    Stage("shapes", _edit(_forget_invented_sizes, infer_shapes)),
    Stage("fold", _edit(fold_constants)),
    Stage("clean", _edit(remove_noops, remove_unused, remove_duplicates, remove_unused)),
    Stage("weights", partial(apply_rules, rules=fold_weights.RULES, order="inputs first")),
    Stage("norms", _rules(canonical_norm.RULES)),
    Stage("activations", _rules(canonical_activation.RULES)),
    Stage("linear", _rules(canonical_linear.RULES)),
    Stage("inner shapes", _edit(_forget_invented_sizes, infer_shapes)),
    Stage("attention", _rules(canonical_attention.RULES)),
    Stage("reciprocals", _rules(canonical_activation.LATE_RULES)),
    Stage("sweep", _edit(remove_unused)),
)


def canonicalise(model: ir.Model) -> list[Refusal]:
    """Run all passes until nothing changes. What the last round refused is what stays unfused."""
    refusals: list[Refusal] = []
    before = None
    for _ in range(MAX_ROUNDS):
        refusals = [refusal for stage in PASSES for refusal in stage.run(model)]
        after = _outline(model)
        if after == before:
            break
        before = after
    infer_shapes(model)
    return list(dict.fromkeys(refusals))


def _outline(model: ir.Model) -> tuple[tuple[str | None, ...], ...]:
    return tuple(
        (node.op_type, *(value.name if value is not None else None for value in node.inputs))
        for graph in model.graphs()
        for node in graph
    )
