"""Runs `torch.export` and its ONNX exporter in memory without output, with errors that say why."""

from __future__ import annotations

import importlib
import logging
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import torch
import torch.fx.experimental._config as symbol_config
from torch import Tensor, nn
from torch.export import ExportedProgram

from ridgeline.errors import InputError, UnsupportedError
from ridgeline.frontend.evaluator import PLUGIN_OPS
from ridgeline.frontend.opsets import CANONICAL_OPSET
from ridgeline.frontend.torch_dims import Axes, to_export
from ridgeline.frontend.torch_norms import write_out_norms
from ridgeline.frontend.torch_plugins import translations
from ridgeline.frontend.types import ONNX_TYPES

# protobuf ends at 2 GiB, and copies of large weights take memory
LARGE_BYTES = 1 << 30
RANDOM_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
# imported by the first export: importing it here would bring onnxscript to whoever builds from a file
TRANSLATIONS = "torch.onnx._internal.exporter._registration"
_TRANSLATIONS_LOCK = threading.RLock()
# releases of PyTorch that the whole suite was run with; the records of an export are not a stable interface
TESTED = ((2, 11), (2, 13))
HELP_TRACE = 'torch.compile(module, backend="ridgeline") takes modules that branch on data, piece by piece'
HELP_DIMS = "leave such dims out of dynamic_shapes, or write torch.export.Dim.AUTO for them"


def warn_if_untested(version: str) -> None:
    """Warn if this PyTorch is newer than those that the export was tested with."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) > TESTED[1]:
        low, high = (".".join(map(str, release)) for release in TESTED)
        warnings.warn(
            f"PyTorch {version} is newer than the releases ridgeline was tested with ({low} to {high}): "
            "look at the report's checks before you trust an engine made from a module",
            RuntimeWarning,
            stacklevel=2,
        )


def trace(flat: nn.Module, tensors: Sequence[Tensor], axes: Sequence[Axes]) -> tuple[ExportedProgram, bool]:
    """The graph of one call, and whether it was traced without regard to sizes of 0 and 1.

    Traced so, a dim stays open at size 1, and what the module's code does at 0 and 1 is in the guards. Where
    that does not work, torch fixes such dims and takes the others to be larger.
    """
    if any(axes):
        try:
            return _trace(flat, tensors, axes, is_oblivious=True), True
        except Exception:
            pass
    try:
        return _trace(flat, tensors, axes, is_oblivious=False), False
    except UnsupportedError:
        raise
    except Exception as error:  # the module's own code may raise anything
        _blame_the_call(flat, tensors)
        is_about_dims = "Constraints violated" in str(error)
        raise UnsupportedError(
            "torch.export cannot trace this call of the module",
            got=said(error),
            help=HELP_DIMS if is_about_dims else HELP_TRACE,
        ) from error


def _trace(
    flat: nn.Module, tensors: Sequence[Tensor], axes: Sequence[Axes], *, is_oblivious: bool
) -> ExportedProgram:
    shapes = (tuple(to_export(entry) for entry in axes),)
    with symbol_config.patch(backed_size_oblivious=is_oblivious):  # type: ignore[attr-defined]
        return torch.export.export(flat, tuple(tensors), dynamic_shapes=shapes, strict=False)


def _blame_the_call(flat: nn.Module, tensors: Sequence[Tensor]) -> None:
    """Raise the module's own error if the module itself fails on these inputs."""
    try:
        flat(*tensors)
    except Exception as error:
        raise InputError("the module does not run with these inputs", got=said(error)) from error


def to_onnx(program: ExportedProgram, names: Sequence[str] | None = None) -> ir.Model:
    """In memory. Refused where running the module changes more than its result; `names` are its inputs'."""
    _refuse_memory(program)
    try:
        with kept_translations():
            exported = torch.onnx.export(
                program, dynamo=True, opset_version=CANONICAL_OPSET, verbose=False, optimize=False,
                custom_translation_table=translations(PLUGIN_OPS) or None,
            )  # fmt: skip
            assert exported is not None, "the dynamo exporter hands its program out"
            _fold(exported.model)
    except Exception as error:
        raise UnsupportedError(
            "PyTorch cannot write this module as ONNX",
            got=said(error),
            help="an op of torch.library needs a plugin with an op of its name: ridgeline.register_op",
        ) from error
    assert exported.exported_program is not None, "and what it was made of"
    signature = exported.exported_program.graph_signature
    called = dict(zip(signature.user_inputs, names or signature.user_inputs, strict=True))
    inputs = [str(called[name]) for name in signature.user_inputs_to_mutate.values()]
    changed = [*signature.buffers_to_mutate.values(), *inputs]
    if changed:
        raise UnsupportedError(
            "running the module changes tensors in place, and an engine changes nothing",
            rows=[name.removeprefix("module.") for name in changed],
            help="return the new values as outputs, and hand them in as inputs",
        )
    model: ir.Model = exported.model
    _own_outputs(model.graph)
    random = [f"{node.op_type} at {node.name}" for node in model.graph if _is_random(node)]
    if random:
        raise UnsupportedError("the module draws random numbers: no engine can be verified", rows=random)
    return model


def _fold(model: ir.Model) -> None:
    """Constants and unused nodes go; the rest of onnxscript's optimiser is left out.

    Its rewrite rules take time quadratic in the number of nodes, and the passes here do the same work.
    """
    optimizer = importlib.import_module("onnxscript.optimizer")
    optimizer.inline(model)
    optimizer.fold_constants(model)
    write_out_norms(model)
    common_passes.RemoveUnusedNodesPass()(model)
    common_passes.OutputFixPass()(model)
    common_passes.NameFixPass()(model)


def _refuse_memory(program: ExportedProgram) -> None:
    """`as_strided` reads memory and ONNX has values: refused of a tensor that may lie in another order."""
    for node in program.graph.nodes:
        if node.target is not torch.ops.aten.as_strided.default:
            continue
        base = node.args[0]
        is_in_order = base.meta["val"].is_contiguous()
        while getattr(base.target, "is_view", False) and base.target is not torch.ops.aten.contiguous.default:
            base = base.args[0]
        if not is_in_order or base.op == "placeholder":
            raise UnsupportedError(
                "the module reads the memory of a tensor by as_strided, and an engine knows its values only",
                got=f"as_strided of {node.args[0].name}",
                help="say it by views: transpose, unfold, slices",
            )


def _own_outputs(graph: ir.Graph) -> None:
    """An output that is a constant of the model gets a node that makes it."""
    for i, value in enumerate(graph.outputs):
        if value.producer() is None:
            _hand_out(graph, i, ir.node("Identity", [value]), value.type)


def cast_outputs(model: ir.Model, wanted: Sequence[torch.dtype]) -> None:
    """Cast results to the module's types: the exporter leaves sums of half values in float32."""
    for i, (value, dtype) in enumerate(zip(model.graph.outputs, wanted, strict=True)):
        # a complex result is a pair of real ones in ONNX
        want = None if dtype.is_complex else ONNX_TYPES.get(str(dtype).removeprefix("torch."))
        if want is None or value.dtype in (None, want):
            continue
        _hand_out(model.graph, i, ir.node("Cast", [value], {"to": want}), ir.TensorType(ir.DataType(want)))


def _hand_out(graph: ir.Graph, place: int, node: ir.Node, kind: ir.TypeProtocol | None) -> None:
    """The node's result, of this type, in place of the output that it reads."""
    made = node.outputs[0]
    made.shape, made.type = graph.outputs[place].shape, kind
    graph.append(node)
    graph.outputs[place] = made


def _is_random(node: ir.Node) -> bool:
    is_training = node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None
    return node.domain == "" and (node.op_type in RANDOM_OPS or is_training)


def rename_ports(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Rename inputs and outputs. Inner values with such a name get another."""
    ports = [*zip(model.graph.inputs, inputs, strict=True), *zip(model.graph.outputs, outputs, strict=True)]
    wanted = {id(value) for value, _ in ports}
    taken = set(inputs) | set(outputs)
    inner = [v for node in model.graph for v in node.outputs] + list(model.graph.initializers.values())
    for value in inner:
        if value.name in taken and id(value) not in wanted:
            value.name = f"inner_{value.name}"
    for i, (value, _) in enumerate(ports):
        value.name = f"ridgeline_port_{i}"
    for value, name in ports:
        value.name = name


def said(error: Exception) -> str:
    """The first lines of the first exception in the chain."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {' '.join(lines[:5])[:400]}"


@contextmanager
def kept_translations() -> Iterator[None]:
    """PyTorch reads its table of translations anew at each export, which takes a second: here it is kept.

    The piece between two graph breaks is often smaller than that. If that table moves, nothing is kept.
    """
    with suppress(ImportError):
        importlib.import_module(TRANSLATIONS)
    home: Any = getattr(sys.modules.get(TRANSLATIONS), "ONNXRegistry", object)
    with _TRANSLATIONS_LOCK:
        declared = vars(home).get("from_torchlib")
        if not isinstance(declared, classmethod):
            yield
            return
        home.from_torchlib = staticmethod(partial(_translations, home.from_torchlib))
        try:
            yield
        finally:
            home.from_torchlib = declared


@cache
def _translations(read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return read(*args, **kwargs)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's warnings about skipped parts and its own deprecations."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "torch"]
    handlers = {h for name in ("", *names) for h in logging.getLogger(name).handlers}
    handlers |= {logging.lastResort} if logging.lastResort is not None else set()
    for handler in handlers:
        handler.addFilter(_is_not_of_torch)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_not_of_torch)


def _is_not_of_torch(record: logging.LogRecord) -> bool:
    return not record.name.startswith(("torch", "onnxscript", "onnx_ir"))


@contextmanager
def as_source(model: ir.Model) -> Iterator[ir.Model | Path]:
    """A model to load: as it is, or with its weights beside it in a folder where protobuf cannot hold it."""
    weights = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    if weights < LARGE_BYTES:
        yield model
        return
    with TemporaryDirectory(prefix="ridgeline-") as folder:
        path = Path(folder) / f"{model.graph.name or 'module'}.onnx"
        ir.save(model, path, external_data="weights.bin")
        yield path
