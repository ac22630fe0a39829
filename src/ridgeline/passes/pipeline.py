"""The order of the passes: from a loaded model to plain standard ops, with what was refused and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import onnx
import onnx_ir as ir

from ridgeline.base.choices import Refusal
from ridgeline.base.spec import Target
from ridgeline.options import DEFAULT_LIMITS, Limits
from ridgeline.passes import (
    canonical_activation,
    canonical_attention,
    canonical_einsum,
    canonical_image,
    canonical_index,
    canonical_integer,
    canonical_linear,
    canonical_norm,
    canonical_quant,
    canonical_rotary,
    canonical_rows,
    canonical_windows,
    fold_weights,
)
from ridgeline.passes.canonical_broadcast import broadcast_rows
from ridgeline.passes.canonical_groups import group_heads
from ridgeline.passes.clean import remove_duplicates, remove_noops, remove_unused
from ridgeline.passes.divide_split import divide_splits
from ridgeline.passes.fold import FOLDED_BYTES, fold_constants
from ridgeline.passes.fold_broadcast import fold_broadcast
from ridgeline.passes.merge_linear import merge_linear
from ridgeline.passes.ops_before_views import ops_before_views
from ridgeline.passes.rule import Change, Fusion, apply_rules
from ridgeline.passes.shapes import infer_shapes, name_counts
from ridgeline.passes.simplify_views import simplify_views
from ridgeline.passes.split_levels import split_levels
from ridgeline.passes.unread_rows import drop_unread_rows

# folding a shape can settle a branch, which can complete a pattern; no known model needs a third round
MAX_ROUNDS = 3
INFERRED = "ridgeline.inferred"
# large or nested: the same object is the same value
_NOT_COMPARED = (
    ir.AttributeType.TENSOR,
    ir.AttributeType.TENSORS,
    ir.AttributeType.GRAPH,
    ir.AttributeType.GRAPHS,
)
HOST = Target()


@dataclass(frozen=True)
class Stage:
    """One named pass; the model is legal ONNX before and after it."""

    name: str
    run: Callable[[ir.Model], list[Refusal]]
    may_change: tuple[Change, ...] = ()  # of a pass without rules: those state it themselves
    is_by_index: bool = False  # for targets alone whose kernels read by index


def _edit(*edits: Callable[[ir.Model], None]) -> Callable[[ir.Model], list[Refusal]]:
    def run(model: ir.Model) -> list[Refusal]:
        for edit in edits:
            edit(model)
        return []

    return run


def _rules(rules: Sequence[Fusion]) -> Callable[[ir.Model], list[Refusal]]:
    return partial(apply_rules, rules=rules)


def _infer_anew(model: ir.Model) -> None:
    """Without the names that inference made up: it never improves on them when rules told it more."""
    for graph in model.graphs():
        for out in (out for node in graph for out in node.outputs if out.shape is not None):
            if any(map(_is_invented, out.shape)):
                out.shape = ir.Shape([None if _is_invented(dim) else dim for dim in out.shape])
    infer_shapes(model)


def _refresh_shapes(model: ir.Model) -> None:
    """Infer anew where the graph changed since it was last done: inference reads and writes all of it."""
    if model.meta.get(INFERRED) != graph_state(model):
        _infer_anew(model)
        if name_counts(model):
            _infer_anew(model)
        model.meta[INFERRED] = graph_state(model)


def _is_invented(dim: int | ir.SymbolicDim) -> bool:
    return not isinstance(dim, int) and (dim.value or "").startswith("unk__")


# rewrites that plugins brought, by plugin; `plugins.register` fills it
PLUGIN_RULES: dict[str, list[Fusion]] = {}


def _plugin_rules(model: ir.Model) -> list[Refusal]:
    rules = [rule for brought in PLUGIN_RULES.values() for rule in brought]
    refusals = apply_rules(model, rules) if rules else []
    for node in model.graph.all_nodes() if rules else ():
        if node.domain not in model.opset_imports and node.domain:
            model.opset_imports[node.domain] = onnx.defs.get_schema(
                node.op_type, domain=node.domain
            ).since_version
    return refusals


def _levels_of_parts(model: ir.Model) -> list[Refusal]:
    forward = partial(apply_rules, rules=canonical_quant.FORWARD, order="inputs first")
    return forward(model) if split_levels(model) else []


PASSES: tuple[Stage, ...] = (
    Stage("shapes", _edit(_refresh_shapes)),
    Stage("fold", _edit(fold_constants), (Change.ROUNDING, Change.HALF_OVERFLOW)),
    Stage(
        "clean", _edit(remove_noops, remove_unused, remove_duplicates, remove_unused), (Change.SIGNED_ZERO,)
    ),
    Stage("plugins", _plugin_rules),
    Stage("einsum", _rules(canonical_einsum.RULES)),
    Stage("integer products", _rules(canonical_integer.RULES)),
    Stage("levels forward", partial(apply_rules, rules=canonical_quant.FORWARD, order="inputs first")),
    Stage("levels split", _levels_of_parts),
    Stage("levels back", _rules(canonical_quant.BACKWARD)),
    Stage("levels moved", _edit(remove_noops, remove_unused), (Change.SIGNED_ZERO,)),
    Stage("weights", partial(apply_rules, rules=fold_weights.RULES, order="inputs first")),
    Stage("norms", _rules((*canonical_norm.RULES, *canonical_norm.HALF_RULES))),
    Stage("activations", _rules(canonical_activation.RULES)),
    Stage("linear", _rules((*canonical_linear.RULES, *canonical_index.RULES))),
    Stage("inner shapes", _edit(_refresh_shapes)),
    Stage("rotary", _rules(canonical_rotary.RULES)),
    # on a CPU a library's attention with a mask for every window is slower than the ops apart
    Stage("windows", _rules(canonical_windows.RULES), is_by_index=True),
    Stage("attention", _rules(canonical_attention.RULES)),
    Stage("scaled queries", _rules(canonical_attention.SCALE_RULES)),
    Stage("rows", _rules(canonical_rows.RULES)),
    Stage("grouped heads", group_heads, (Change.ROUNDING,)),
    Stage("views", _edit(simplify_views)),
    Stage("reciprocals", _rules(canonical_activation.LATE_RULES)),
    Stage("sweep", _edit(remove_unused)),
)

# on a GPU a launch costs as much as a small product: fewer and wider ones, no mask that a kernel can count
CUDA_PASSES: tuple[Stage, ...] = (
    Stage("spelled rotary", _rules(canonical_rotary.CUDA_RULES)),
    Stage("spread constants", _edit(fold_broadcast)),
    Stage("masks", _rules(canonical_attention.MASK_RULES)),
    Stage("images", _rules(canonical_image.RULES)),
    Stage("unread rows", _edit(drop_unread_rows, _refresh_shapes), (Change.ROUNDING,)),
    Stage("ops before views", ops_before_views),
    Stage("views moved", _edit(remove_noops, remove_unused), (Change.SIGNED_ZERO,)),
    Stage("merged products", merge_linear, (Change.ROUNDING, Change.SIGNED_ZERO)),
    Stage("divided splits", _edit(divide_splits)),
    Stage("last sweep", _edit(remove_unused, remove_duplicates, remove_unused)),
)


LAST_PASSES: tuple[Stage, ...] = (Stage("spread rows", _edit(broadcast_rows)),)
# told of each pass before and after it runs
Watch: TypeAlias = Callable[[Stage, ir.Model], AbstractContextManager[None]]


def canonicalise(
    model: ir.Model,
    *,
    target: Target = HOST,
    watch: Watch | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> list[Refusal]:
    """Run all passes until nothing changes. What the last round refused is what stays unfused."""
    model.meta[FOLDED_BYTES] = limits.folded_bytes

    def run(stages: Sequence[Stage]) -> list[Refusal]:
        made = []
        for stage in stages:
            if stage.is_by_index and not target.traits.reads_by_index:
                continue
            with nullcontext() if watch is None else watch(stage, model):
                made += stage.run(model)
        return made

    refusals: list[Refusal] = []
    before = None
    for _ in range(MAX_ROUNDS):
        refusals = run(PASSES)
        after = graph_state(model)
        if after == before:
            break
        before = after
    if target.traits.reads_by_index:
        _refresh_shapes(model)
        refusals += run(CUDA_PASSES)
    run(LAST_PASSES)
    if model.meta.pop(INFERRED, None) != graph_state(model):
        infer_shapes(model)
    return list(dict.fromkeys(refusals))


def graph_state(model: ir.Model) -> list[tuple[object, ...]]:
    """What is computed from what, and how: equal as long as no pass changed the graph."""
    return [
        (
            node.op_type,
            *(value.name if value is not None else None for value in node.inputs),
            *(value.name for value in node.outputs),
            *(
                (name, attr if attr.type in _NOT_COMPARED else attr.value)
                for name, attr in node.attributes.items()
            ),
        )
        for graph in model.graphs()
        for node in graph
    ]
