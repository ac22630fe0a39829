"""One node of another domain as its definition reads it: present inputs, ranks, attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir


class NotCoveredError(Exception):
    """A definition does not cover this call of its op."""


@dataclass(frozen=True)
class Definition:
    """Names of an op's inputs and outputs in its body, and the body in ONNX text, which may refuse a call."""

    inputs: tuple[str, ...]  # a last name with a star stands for any number
    outputs: tuple[str, ...]
    body: Callable[[Call], str]


@dataclass(frozen=True)
class Call:
    """A node with its inputs and wanted outputs by name."""

    given: Mapping[str, ir.Value]
    wanted: Mapping[str, ir.Value]
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, node: ir.Node, definition: Definition) -> Call:
        names = list(definition.inputs)
        if names and names[-1].endswith("*"):
            stem = names.pop()[:-1]
            names += [f"{stem}{i}" for i in range(len(node.inputs) - len(names))]
        given = {name: v for name, v in zip(names, node.inputs, strict=False) if v is not None}
        wanted = {
            name: v
            for name, v in zip(definition.outputs, node.outputs, strict=False)
            if v.uses() or v.is_graph_output()
        }
        return cls(given, wanted, {key: attr.value for key, attr in node.attributes.items()})

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.attributes.get(attribute, default)

    def has(self, name: str) -> bool:
        return name in self.given

    def wants(self, *names: str) -> bool:
        return any(name in self.wanted for name in names)

    def require(self, is_covered: bool) -> None:
        """Refuse the call unless this holds: then it stays as it is."""
        if not is_covered:
            raise NotCoveredError

    def rank(self, name: str) -> int:
        """The number of dims. A call is refused if that is unknown and needed."""
        value = self.given.get(name)
        if value is None or value.shape is None:
            raise NotCoveredError
        return len(value.shape)

    def shape(self, name: str) -> tuple[int | str | None, ...]:
        """Sizes and names of sizes; empty if the rank is unknown."""
        value = self.given.get(name)
        dims = value.shape if value is not None and value.shape is not None else ()
        return tuple(dim if isinstance(dim, int) else dim.value for dim in dims)

    def dtype(self, name: str) -> int:
        """The number of an input's element type; float32's if it is unknown."""
        kind = self.given[name].dtype
        return int(kind if kind is not None else ir.DataType.FLOAT)

    def plus(self, source: str, name: str) -> str:
        """The right side of a statement: an input added to a value, or the value if the input is absent."""
        return f"Add({source}, {name})" if self.has(name) else f"Identity({source})"

    def reads(self, *always: str, maybe: Sequence[str] = ()) -> str:
        """The operands of a statement: names that are present, then inputs that may be absent."""
        return listed(*always, *(name if self.has(name) else "" for name in maybe))


def listed(*names: str) -> str:
    """The names separated by commas, without absent ones at the end."""
    return ", ".join(names).rstrip(", ")


def number(name: str, value: float, dtype: int) -> str:
    """A statement that makes a constant of this type."""
    return (
        f"{name}_wide = Constant<value_float = {float(value):.9e}>() {name} = Cast<to = {dtype}>({name}_wide)"
    )


def ints(name: str, *values: int) -> str:
    return f"{name} = Constant<value_ints = [{', '.join(map(str, values))}]>()"
