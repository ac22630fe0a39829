"""The door: `register_op`, `register_tactic`, and what they enter where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

import numpy as np
import onnx
from onnx.reference.op_run import OpRun

from ridgeline.errors import PluginError, failure
from ridgeline.frontend.evaluator import PLUGIN_OPS
from ridgeline.ir.op_row import OpRow
from ridgeline.ir.ops import add_row, drop_row
from ridgeline.kernels.elements import to_numpy, to_torch
from ridgeline.kernels.floor.registry import FLOOR, FloorOp
from ridgeline.passes.partition import EPILOGUE_OPS
from ridgeline.passes.pipeline import PLUGIN_RULES
from ridgeline.passes.rule import Fusion
from ridgeline.plugins.catalog import CATALOG, Plugin, PluginOp, code_digest, package_of
from ridgeline.plugins.gate import GatedTactic
from ridgeline.plugins.gpu_tactics import TritonTactic
from ridgeline.plugins.schema import Schema, Shapes, is_open, read_context, type_of_spec
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.registry import PLUGIN_TACTICS, TacticOptions, cpu_tactics, cuda_tactics

# the package whose entry point is being loaded
LOADING: ContextVar[Plugin | None] = ContextVar("LOADING", default=None)


def register_op(
    schema: Schema,
    *,
    shapes: Shapes,
    reference: Callable[..., Any],
    arrays: Literal["torch", "numpy"] = "torch",
    tactics: Sequence[Tactic] = (),
    fusions: Sequence[Fusion] = (),
    plugin: Plugin | None = None,
) -> PluginOp:
    """Bring an op: what it is, what it computes, and any number of ways to run it.

    docs/writing-a-plugin.md explains each part. Without `plugin` the op belongs to the package that is being
    loaded, or else to its own domain.
    Parameters: the parts of an op, each written by hand and most of them left out.
    """
    owner = plugin or LOADING.get() or package_of(reference) or Plugin(schema.domain, str(schema.version))
    known = CATALOG.ops.get(schema.key)
    if known is not None and _is_known(schema.key, known.plugin, owner):
        return known
    problems = list(schema.problems(shapes, reference))
    if problems:
        raise PluginError(f"the schema of {schema.key} is not sound", rows=problems, help=f"mend {owner}")
    op = PluginOp(schema, shapes, reference, owner, arrays)
    onnx.defs.register_schema(schema.to_onnx(lambda context: _infer(op, context)))
    CATALOG.ops[schema.key], CATALOG.code[schema.key] = op, f"{owner} {code_digest(op)}"
    add_row(OpRow(op_type=schema.op_type, domain=schema.domain, has_floor=True))
    FLOOR[schema.key] = FloorOp(schema.key, op.run)
    PLUGIN_OPS[schema.key] = _evaluated(op)
    PLUGIN_RULES.setdefault(owner.name, []).extend(fusions)
    for tactic in tactics:
        register_tactic(tactic, plugin=owner)
    return op


def register_tactic(tactic: Tactic, *, plugin: Plugin | None = None) -> None:
    """Bring a way to run an op, one of ONNX's or of a plugin. It is checked, timed and kept like ours."""
    family = tactic.name.split(".")[0]
    packages = (package_of(part) for part in (type(tactic), *vars(tactic).values()))
    owner = plugin or LOADING.get() or next(filter(None, packages), None) or Plugin(family, "0")
    ours = (*cpu_tactics(TacticOptions({})), *cuda_tactics(TacticOptions({})))
    if any(family == own.name.split(".")[0] for own in ours):
        raise PluginError(f"{tactic.name} is named like our own tactics", help="choose another name")
    if _is_known(tactic.name, CATALOG.tactics.get(tactic.name), owner):
        return
    CATALOG.tactics[tactic.name], CATALOG.code[tactic.name] = owner, f"{owner} {code_digest(tactic)}"
    if isinstance(tactic, TritonTactic) and tactic.epilogue_axis is not None:
        EPILOGUE_OPS.add(tactic.op)
    PLUGIN_TACTICS[tactic.name] = partial(GatedTactic, tactic, owner)


def unregister(plugin: str) -> None:
    """Take out everything that the plugin of this name brought."""
    for key, op in list(CATALOG.ops.items()):
        if op.plugin.name == plugin:
            onnx.defs.deregister_schema(op.schema.op_type, op.schema.version, op.schema.domain)
            EPILOGUE_OPS.discard(key)
            drop_row(key)
            for registry in (CATALOG.ops, CATALOG.code, FLOOR, PLUGIN_OPS):
                del registry[key]
    for name, owner in list(CATALOG.tactics.items()):
        if owner.name == plugin:
            del CATALOG.tactics[name], CATALOG.code[name], PLUGIN_TACTICS[name]
    PLUGIN_RULES.pop(plugin, None)


def _is_known(name: str, known: Plugin | None, owner: Plugin) -> bool:
    """Whether it was registered by hand, before its own entry point; anything else twice is an error."""
    if known is not None and LOADING.get() != known:
        raise PluginError(
            f"{name} is registered twice",
            got=str(owner),
            want=f"one plugin, and {known} has it",
            help="uninstall one of them; to replace it in this process, ridgeline.plugins.unregister first",
        )
    return known is not None


def _infer(op: PluginOp, context: Any) -> None:
    """What ONNX's inference asks. Open sizes may be more than the author's function can calculate with."""
    read = read_context(context, op.schema)
    if read is None:
        return
    specs, attrs = read
    try:
        made = op.output_specs(specs, attrs)
    except PluginError:
        raise
    except Exception as error:
        if is_open(specs):
            return
        # inference adds the node and the shapes
        raise ValueError(f"its plugin's shape function {failure(error)}") from error
    for place, spec in enumerate(made[: context.get_num_outputs()]):
        if spec is not None:
            context.set_output_type(place, type_of_spec(spec))


def _evaluated(op: PluginOp) -> type[OpRun]:
    """The op as the onnx evaluator runs it, which verifies models that ONNX Runtime does not take."""

    def run(self: Any, *arrays: np.ndarray | None, **attrs: Any) -> tuple[np.ndarray, ...]:
        made = op.run(*(None if a is None else to_torch(a) for a in arrays), **attrs)
        return tuple(to_numpy(tensor) for tensor in made[: len(self.output)])

    return type(op.schema.op_type, (OpRun,), {"op_domain": op.schema.domain, "_run": run})
