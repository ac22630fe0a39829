"""Outputs as the model makes them, where its file declares them otherwise: what is declared is corrected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from ridgeline.spec import TensorSpec


def correct_outputs(graph: ir.Graph, specs: Mapping[str, TensorSpec], made: Mapping[str, Any]) -> list[str]:
    """Forget declared dims that are wrong at the planned shapes, and say so.

    `specs` are the settled values, `made` what the original model computed for those that data decides.
    """
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
        value.shape = (
            ir.Shape([dim if not isinstance(dim, int) or dim == size else None for dim, size in pairs])
            if is_rank
            else None
        )
        was, is_ = (", ".join(map(str, dims)) for dims in (declared, sizes))
        notes.append(
            f"output {name!r} is declared [{was}] and is [{is_}] at the planned shapes: "
            "the declaration is not believed"
        )
    return notes
