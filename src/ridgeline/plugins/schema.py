"""What an op of a plugin is: its schema, as an author states it and as ONNX registers it, and its shapes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import GenericAlias
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from ridgeline.frontend.types import ELEMENT_NAMES, ONNX_TYPES, tensor_type
from ridgeline.ir.body import attr_value
from ridgeline.ir.ops import OPS
from ridgeline.kernels.elements import BIT_WIDTHS

Size: TypeAlias = "int | ir.SymbolicDim"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PORT = re.compile(NAME.pattern + r"[?*]?")
DOMAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
OWN_DOMAINS = frozenset({"ai.onnx", "ridgeline"})
# tensors of strings, and of types that several share a byte, have no torch tensors to compute with
ELEMENTS = ONNX_TYPES.keys() - BIT_WIDTHS.keys() - {"string"}
# how an author states a type, what ONNX calls it
ATTRIBUTE_TYPES: dict[Any, Any] = {
    int: OpSchema.AttrType.INT, bool: OpSchema.AttrType.INT, float: OpSchema.AttrType.FLOAT,
    str: OpSchema.AttrType.STRING, list[int]: OpSchema.AttrType.INTS, list[float]: OpSchema.AttrType.FLOATS,
    list[str]: OpSchema.AttrType.STRINGS, np.ndarray: OpSchema.AttrType.TENSOR,
}  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """Type and shape of a tensor. A size that is still open is a symbol that can be calculated with."""

    dtype: str
    shape: tuple[Size, ...]
    value: np.ndarray | None = field(default=None, compare=False)  # of a small constant input

    def resized(self, *sizes: Size) -> Spec:
        """The same type with another shape."""
        return Spec(self.dtype, sizes)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


Shapes: TypeAlias = Callable[..., "Spec | Sequence[Spec | None] | None"]


@dataclass(frozen=True)
class Schema:
    """Name, inputs, outputs, attributes and types of an op, as docs/writing-a-plugin.md explains them."""

    key: str  # domain::OpType
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, Sequence[str]] = field(default_factory=dict)
    version: int = 1

    @property
    def domain(self) -> str:
        return self.key.partition("::")[0]

    @property
    def op_type(self) -> str:
        return self.key.partition("::")[2]

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: value for name, value in self.attributes.items() if not _is_type(value)}

    def given(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of a node as the author's functions get them: with defaults, and truths as bools."""
        made = {name: tuple(v) if isinstance(v, list) else v for name, v in self.defaults.items()}
        for name, value in attrs.items():
            plain = value.item() if isinstance(value, np.generic) else value
            plain = tuple(plain) if isinstance(plain, list) else plain
            made[name] = bool(plain) if _kind(self.attributes.get(name)) is bool else plain
        return made

    def formal(self, role: Literal["inputs", "outputs"]) -> list[str]:
        """The ports of a role that stand for one tensor each."""
        return [name for name in getattr(self, role) if not name.endswith("*")]

    def allowed(self, place: int, inputs: Sequence[Spec | None]) -> Sequence[str]:
        """The element types that an output may have: that of an input whose type has the same name."""
        named = _at(self.outputs, place)
        given = (spec.dtype for i, spec in enumerate(inputs) if spec and _at(self.inputs, i) == named)
        bound = next(given, None)
        return (bound,) if bound else self._types(named)

    def why_not(self, inputs: Sequence[Spec | None]) -> str:
        """What is wrong with the types that a node gives the op; "" where nothing is."""
        for place, spec in enumerate(inputs):
            allowed = self._types(_at(self.inputs, place))
            if spec is not None and spec.dtype not in allowed:
                return f"unsupported type: input {place} is {spec.dtype}, want {' or '.join(allowed)}"
        return ""

    def _types(self, named: str) -> Sequence[str]:
        return self.types.get(named, (named,))

    def problems(self, shapes: Callable[..., Any], reference: Callable[..., Any]) -> Iterator[str]:
        """Everything that is wrong with it, and with the functions that belong to it."""
        if not DOMAIN.fullmatch(self.domain) or not NAME.fullmatch(self.op_type):
            yield f"the name {self.key!r} is not domain::OpType"
        elif self.domain in OWN_DOMAINS or onnx.defs.has(self.op_type) or self.key in OPS:
            yield f"{self.key!r} has a domain or an op type of ONNX or Ridgeline: choose other names"
        if not isinstance(self.version, int) or not 1 <= self.version < 2**31:
            yield f"version is {self.version!r}, want a number from 1 on"
        if not self.outputs:
            yield "it has no outputs"
        for role, ports in (("input", self.inputs), ("output", self.outputs)):
            yield from self._port_problems(role, ports)
        for name, value in self.attributes.items():
            if not NAME.fullmatch(name):
                yield f"attribute {name!r} is not a Python name"
            try:
                _attribute(name, value)
            except Exception:  # whatever an author wrote
                yield f"attribute {name!r} is {value!r}, want a type ONNX has, or a default of one"
        for what, function in (("shapes", shapes), ("reference", reference)):
            yield from self._call_problems(what, function)

    def _port_problems(self, role: str, ports: Mapping[str, str]) -> Iterator[str]:
        for place, (name, named) in enumerate(ports.items()):
            if not PORT.fullmatch(name):
                yield f"{role} {name!r} is not a name"
            if name.endswith("*") and place + 1 < len(ports):
                yield f"{role} {name!r} stands for any number, and is not the last"
            kinds = self._types(named)
            if isinstance(kinds, str) or not kinds:
                yield f"types[{named!r}] is {kinds!r}, want a list of types"
            elif unknown := [kind for kind in kinds if kind not in ELEMENTS]:
                want = f"a name in `types`, or one of {', '.join(sorted(ELEMENTS))}"
                yield f"{role} {name!r} has type {', '.join(map(str, unknown))}: want {want}"
        if len({name.rstrip("?*") for name in ports}) < len(ports):
            yield f"two {role}s have one name"

    def _call_problems(self, what: str, function: Callable[..., Any]) -> Iterator[str]:
        if not callable(function):
            yield f"{what} is not a function"
            return
        attrs = {name: None for name in self.attributes if NAME.fullmatch(name)}
        try:
            inspect.signature(function).bind(*self.inputs, **attrs)
        except TypeError as error:
            yield f"{what} cannot be called with the inputs and attributes: {error}"
        except ValueError:  # a builtin without a signature
            return

    def to_onnx(self, infer: Callable[[Any], None]) -> OpSchema:
        """As ONNX's registry takes it; `infer` is asked for shapes by every inference."""
        constraints = {named: self._types(named) for named in (*self.inputs.values(), *self.outputs.values())}
        schema = OpSchema(
            self.op_type, self.domain, self.version,
            inputs=[_port(name, named) for name, named in self.inputs.items()],
            outputs=[_port(name, named) for name, named in self.outputs.items()],
            type_constraints=[(_type_name(n), list(map(_onnx_type, k)), "") for n, k in constraints.items()],
            attributes=[_attribute(name, value) for name, value in self.attributes.items()],
        )  # fmt: skip
        schema.set_type_and_shape_inference_function(infer)
        return schema


def _at(ports: Mapping[str, str], place: int) -> str:
    """The type of a port; the last one may stand for any number."""
    return list(ports.values())[min(place, len(ports) - 1)]


def _is_type(value: Any) -> bool:
    return isinstance(value, (type, GenericAlias))


def _kind(value: Any) -> Any:
    """The type of an attribute that is stated as a type or as a default."""
    if isinstance(value, np.ndarray):
        return np.ndarray
    if isinstance(value, (list, tuple)):
        kinds = {type(item) for item in value}
        return list[kinds.pop()] if len(kinds) == 1 else None  # type: ignore[misc]
    return value if _is_type(value) else type(value)


def _type_name(named: str) -> str:
    return f"T_{named}"


def _onnx_type(kind: str) -> str:
    return f"tensor({onnx.TensorProto.DataType.Name(ONNX_TYPES[kind]).lower()})"


def _port(name: str, named: str) -> OpSchema.FormalParameter:
    options = OpSchema.FormalParameterOption
    option = {"?": options.Optional, "*": options.Variadic}.get(name[-1], options.Single)
    return OpSchema.FormalParameter(name.rstrip("?*"), _type_name(named), param_option=option)


def _attribute(name: str, value: Any) -> OpSchema.Attribute:
    if _is_type(value):
        return OpSchema.Attribute(name, ATTRIBUTE_TYPES[value], "", required=True)
    if isinstance(value, np.ndarray):  # ONNX keeps no tensors as defaults; `given` fills it in
        return OpSchema.Attribute(name, OpSchema.AttrType.TENSOR, "", required=False)
    assert _kind(value) in ATTRIBUTE_TYPES
    plain = int(value) if isinstance(value, bool) else value
    proto = ir.serde.serialize_attribute(ir.convenience.convert_attribute(name, plain))
    return OpSchema.Attribute(name, proto, "")


def read_context(context: Any, schema: Schema) -> tuple[list[Spec | None], dict[str, Any]] | None:
    """What ONNX's inference knows of a node; None while the rank of an input is unknown."""
    specs: list[Spec | None] = []
    for place in range(context.get_num_inputs()):
        if not context.has_input(place):
            specs.append(None)
            continue
        kind = context.get_input_type(place)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        data = context.get_input_data(place)
        value = None if data is None else ir.serde.deserialize_tensor(data).numpy()
        shape = tuple(_size(dim) for dim in kind.tensor_type.shape.dim)
        specs.append(Spec(ELEMENT_NAMES[kind.tensor_type.elem_type], shape, value))
    found = {name: context.get_attribute(name) for name in schema.attributes}
    attrs = {n: attr_value(ir.serde.deserialize_attribute(a)) for n, a in found.items() if a is not None}
    return specs, schema.given(attrs)


def _size(dim: Any) -> Size:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return ir.SymbolicDim(dim.dim_param or None)


def type_of_spec(spec: Spec) -> onnx.TypeProto:
    dims = [s.value or "" if isinstance(s, ir.SymbolicDim) else int(s) for s in spec.shape]
    return tensor_type(ONNX_TYPES[spec.dtype], dims)


def is_size(size: Any) -> bool:
    """A symbol, or a whole number that a tensor can have."""
    is_whole = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
    return isinstance(size, ir.SymbolicDim) or (is_whole and 0 <= size < 2**63)


def is_open(specs: Sequence[Spec | None]) -> bool:
    """Some size is not a number yet."""
    return any(isinstance(size, ir.SymbolicDim) for spec in specs if spec is not None for size in spec.shape)
