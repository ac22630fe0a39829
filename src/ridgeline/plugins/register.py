"""The door: `register_op`, `register_tactic`, and what they enter where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import onnx
from onnx.reference.op_run import OpRun

from ridgeline.base.spec import Layout, Op
from ridgeline.errors import PluginError
from ridgeline.frontend.evaluator import PLUGIN_OPS
from ridgeline.ir.op_given import MisfitError
from ridgeline.ir.op_row import OpRow
from ridgeline.ir.ops import add_row, drop_row
from ridgeline.kernels.elements import to_numpy, to_torch
from ridgeline.kernels.floor.registry import FLOOR, FloorOp
from ridgeline.passes.partition import EPILOGUE_OPS
from ridgeline.passes.pipeline import PLUGIN_RULES
from ridgeline.passes.rule import Fusion
from ridgeline.plugins.catalog import CATALOG, Plugin, PluginOp, code_digest, is_same, package_of
from ridgeline.plugins.gate import GatedTactic
from ridgeline.plugins.gpu_tactics import TritonTactic
from ridgeline.plugins.schema import NAME, Schema, Shapes, Spec, read_context, type_of_spec
from ridgeline.plugins.tactics import OpTactic
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.registry import PLUGIN_TACTICS, TacticOptions, cpu_tactics, cuda_tactics

TACTIC_NAME = re.compile(rf"{NAME.pattern}(\.{NAME.pattern})*")
# what takes out again all that a plugin brought, by its name
BROUGHT: dict[str, ExitStack] = {}
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
    try:
        owner = plugin or LOADING.get() or package_of(reference) or Plugin(schema.domain, str(schema.version))
        known = CATALOG.ops.get(schema.key)
        if known is not None and _is_known(schema.key, known.plugin, owner):
            return known
        problems = [
            *schema.problems(shapes, reference),
            *([] if arrays in ("torch", "numpy") else [f"arrays is {arrays!r}, want 'torch' or 'numpy'"]),
            *(f"{rule!r} is not a Fusion" for rule in fusions if not isinstance(rule, Fusion)),
            *(problem for tactic in tactics for problem in _tactic_problems(tactic)),
            *([] if isinstance(owner, Plugin) else [f"plugin is {owner!r}, want a Plugin"]),
        ]
    except (AttributeError, TypeError) as error:
        problems, owner = [f"a part is not what register_op takes: {error}"], Plugin(str(plugin), "")
    if problems:
        key = getattr(schema, "key", schema)
        raise PluginError(f"{key} cannot be registered", rows=problems, help=f"mend the plugin {owner}")
    op = PluginOp(schema, shapes, reference, owner, arrays)
    onnx.defs.register_schema(schema.to_onnx(partial(_infer, op)))
    _brought(owner).callback(onnx.defs.deregister_schema, schema.op_type, schema.version, schema.domain)
    add_row(OpRow(op_type=schema.op_type, domain=schema.domain, has_floor=True, infer=partial(_check, op)))
    _brought(owner).callback(drop_row, schema.key)
    _enter(owner, CATALOG.ops, schema.key, op)
    _enter(owner, CATALOG.code, schema.key, f"{owner} {code_digest(op)}")
    _enter(owner, FLOOR, schema.key, FloorOp(schema.key, op.run))
    _enter(owner, PLUGIN_OPS, schema.key, _evaluated(op))
    PLUGIN_RULES.setdefault(owner.name, []).extend(fusions)
    for tactic in tactics:
        register_tactic(tactic, plugin=owner)
    return op


def register_tactic(tactic: Tactic, *, plugin: Plugin | None = None) -> None:
    """Bring a way to run an op, one of ONNX's or of a plugin. It is checked, timed and kept like ours."""
    problems = list(_tactic_problems(tactic))
    if problems:
        raise PluginError(f"{getattr(tactic, 'name', tactic)!r} cannot be registered", rows=problems)
    family = tactic.name.split(".")[0]
    packages = (package_of(part) for part in (type(tactic), *vars(tactic).values()))
    owner = plugin or LOADING.get() or next(filter(None, packages), None) or Plugin(family, "0")
    if _is_known(tactic.name, CATALOG.tactics.get(tactic.name), owner):
        return
    _enter(owner, CATALOG.tactics, tactic.name, owner)
    _enter(owner, CATALOG.code, tactic.name, f"{owner} {code_digest(tactic)}")
    _enter(owner, PLUGIN_TACTICS, tactic.name, partial(GatedTactic, tactic, owner))
    if isinstance(tactic, TritonTactic) and tactic.epilogue_axis is not None:
        EPILOGUE_OPS.add(tactic.op)
        _brought(owner).callback(EPILOGUE_OPS.discard, tactic.op)


def _tactic_problems(tactic: Any) -> Iterator[str]:
    """What is wrong with a tactic before it is asked for anything."""
    name = getattr(tactic, "name", None)
    if not isinstance(tactic, Tactic) or not isinstance(name, str) or not TACTIC_NAME.fullmatch(name):
        yield f"{type(tactic).__name__} {name!r} is not a Tactic with a name like acme.haar.cpp"
        return
    ours = (*cpu_tactics(TacticOptions({})), *cuda_tactics(TacticOptions({})))
    if any(name.split(".")[0] == own.name.split(".")[0] for own in ours):
        yield f"{name} is named like our own tactics: choose another name"
    if isinstance(tactic, OpTactic):
        if isinstance(tactic.layouts, str) or not tactic.layouts or {*tactic.layouts} - {*get_args(Layout)}:
            yield f"layouts of {name} is {tactic.layouts!r}, want some of {', '.join(get_args(Layout))}"
        if not isinstance(tactic.alignment, int) or tactic.alignment < 1 or tactic.alignment.bit_count() != 1:
            yield f"alignment of {name} is {tactic.alignment!r}, want a power of two"


def unregister(plugin: str) -> None:
    """Take out everything that the plugin of this name brought."""
    BROUGHT.pop(plugin, ExitStack()).close()
    PLUGIN_RULES.pop(plugin, None)


def _brought(owner: Plugin) -> ExitStack:
    return BROUGHT.setdefault(owner.name, ExitStack())


def _enter(owner: Plugin, registry: dict[str, Any], key: str, value: Any) -> None:
    registry[key] = value
    _brought(owner).callback(registry.pop, key)


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


def _check(op: PluginOp, node: Op, specs: Sequence[Any], values: Sequence[Any]) -> None:
    """What our inference asks first, and names the node in errors. ONNX's asks then, and checks the rest."""
    if any(name and spec is None for name, spec in zip(node.inputs, specs, strict=True)):
        return
    given = [spec and Spec(spec.dtype, spec.shape, value) for spec, value in zip(specs, values, strict=True)]
    made = op.output_specs(given, op.schema.given(node.attrs))
    if len(made) < len(node.outputs):
        raise op.broken("shapes", f"{len(made)} outputs", f"{len(node.outputs)}, as {node.outputs[0]} has")


def _infer(op: PluginOp, context: Any) -> None:
    """What ONNX's inference asks. It gets no answer where the author's function has none for open sizes."""
    read = read_context(context, op.schema)
    try:
        made = op.output_specs(*read) if read is not None else []
    except MisfitError:  # our own inference asks again at sizes that are known, and names the node
        return
    for place, spec in enumerate(made[: context.get_num_outputs()]):
        if spec is not None:
            context.set_output_type(place, type_of_spec(spec))


def _evaluated(op: PluginOp) -> type[OpRun]:
    """The op as the onnx evaluator runs it, which verifies models that ONNX Runtime does not take."""

    called: list[int] = []

    def run(self: Any, *arrays: np.ndarray | None, **attrs: Any) -> tuple[np.ndarray, ...]:
        inputs = [None if a is None else to_torch(a) for a in arrays]
        made = op.run(*inputs, **attrs)
        if not called:  # a function that is not pure is told from a wrong engine the first time
            called.append(1)
            if not all(map(is_same, op.run(*inputs, **attrs), made)):
                raise op.broken("reference", "other results for the same inputs", "a pure function")
        return tuple(to_numpy(tensor) for tensor in made[: len(self.output)])

    return type(op.schema.op_type, (OpRun,), {"op_domain": op.schema.domain, "_run": run})
