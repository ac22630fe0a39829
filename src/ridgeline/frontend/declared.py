"""Outputs whose declaration in the file is wrong: dims are corrected, types are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import ModelError
from ridgeline.frontend.types import type_of, type_text


def other_outputs(rows: Sequence[str]) -> ModelError:
    return ModelError(
        "the model declares other outputs than it makes",
        rows=rows,
        help="export it again; ridge lint MODEL names the nodes",
    )


def correct_outputs(graph: ir.Graph, specs: Mapping[str, TensorSpec], made: Mapping[str, Any]) -> list[str]:
    """Forget declared dims that are wrong at the planned shapes, and say so.

    `specs` are the inferred values, `made` the outputs of the original model whose shapes depend on data.
    """
    wrong = [
        f"{value.name}: declared {type_text(type_of(value))}, made {specs[str(value.name)]}"
        for value in graph.outputs
        if value.name in specs and type_text(type_of(value)) != specs[str(value.name)].dtype
    ]
    if wrong:
        raise other_outputs(wrong)
    notes = []
    for value in graph.outputs:
        name, declared = str(value.name), value.shape
        found = specs.get(name, made.get(name))
        if declared is None or found is None or not hasattr(found, "shape"):
            continue
        sizes = tuple(found.shape)
        is_rank = len(declared) == len(sizes)
        pairs = list(zip(declared, sizes, strict=True)) if is_rank else []
        if is_rank and all(not isinstance(dim, int) or dim in (size, -1) for dim, size in pairs):
            continue
        kept = [None if isinstance(dim, int) and dim != size else dim for dim, size in pairs]
        value.shape = ir.Shape(kept) if is_rank else None
        was, is_ = (", ".join(map(str, dims)) for dims in (declared, sizes))
        notes.append(
            f"output {name!r} is declared [{was}] and is [{is_}] at the planned shapes: "
            "the declaration is not believed"
        )
    return notes
