"""`torch.library` ops that a module calls, as nodes of the plugin ops of the same name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx
import torch

# how an argument that is not a tensor is typed, for the exporter to make an attribute of it
ATTRIBUTES: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "List[int]": Sequence[int],
    "List[float]": Sequence[float], "List[str]": Sequence[str],
}  # fmt: skip


def translations(keys: Iterable[str]) -> dict[Callable[..., Any], Callable[..., Any]]:
    """For the ONNX exporter: each op of `domain::op_type` that torch has too, and what writes its node."""
    made: dict[Callable[..., Any], Callable[..., Any]] = {}
    for key in keys:
        namespace, _, name = key.partition("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        for op in () if packet is None else (getattr(packet, each) for each in packet.overloads()):
            # a list of tensors has no number of outputs; the exporter names an op without a translation
            if all(str(made_of.type) == "Tensor" for made_of in op._schema.returns):
                made[op] = _writer(op, namespace, name)
    return made


def _writer(op: Any, domain: str, op_type: str) -> Callable[..., Any]:
    """Tensors, also those in lists, become inputs, in order; all else becomes attributes, by name."""
    values, schema = (
        importlib.import_module("onnxscript").values,
        onnx.defs.get_schema(op_type, domain=domain),
    )
    node = values.Op(values.Opset(domain, schema.since_version), op_type)
    arguments, count = op._schema.arguments, len(op._schema.returns)
    kinds = {a.name: ATTRIBUTES[str(a.type)] for a in arguments if str(a.type) in ATTRIBUTES}

    def write(*given: Any, **named: Any) -> Any:
        bound = write.__signature__.bind(*given, **named)  # type: ignore[attr-defined]
        bound.apply_defaults()
        others = [value for name, value in bound.arguments.items() if name not in kinds]
        inputs = [t for value in others for t in (value if isinstance(value, (list, tuple)) else [value])]
        attrs = {n: _plain(v) for n, v in bound.arguments.items() if n in kinds and v is not None}
        if lacking := attrs.keys() - schema.attributes.keys():
            raise TypeError(f"the plugin op {domain}::{op_type} lacks the attributes {sorted(lacking)}")
        return node(*inputs, **attrs, _outputs=count)

    # the exporter tells attributes from inputs by the types of the parameters
    write.__annotations__ = dict(kinds)
    write.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(
            a.name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=a.default_value if a.has_default_value() else inspect.Parameter.empty,
            annotation=kinds.get(a.name, inspect.Parameter.empty),
        )
        for a in arguments
    ])  # fmt: skip
    return write


def _plain(value: Any) -> Any:
    """ONNX has no truth among its attributes, and lists of one type."""
    return (
        int(value) if isinstance(value, bool) else list(value) if isinstance(value, (list, tuple)) else value
    )
