"""The arguments of Dynamo's graphs: weights, tensors, sizes that follow from tensors, and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, fx, nn

Role: TypeAlias = Literal["weight", "tensor", "size", "number"]


@dataclass(frozen=True)
class Argument:
    """One input of a graph.

    weight: kept in the engine; tensor: given at each run; size: told by a dim of a tensor, so free to change;
    number: fixed in an engine, another value gets another engine.
    """

    name: str
    role: Role
    free_axes: tuple[int, ...] = ()  # of a tensor: dims that may change
    told_by: tuple[int, int] = (0, 0)  # of a size: which of the tensors, and its axis
    is_wrapped: bool = False  # a number that comes as a tensor, and is only asked for its item

    def number(self, value: Any) -> Any:
        return value.item() if self.is_wrapped else value


def read_arguments(graph: fx.GraphModule) -> list[Argument]:
    """The role of each placeholder."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    roles = [_role(node) for node in nodes]
    told: dict[str, tuple[int, int]] = {}
    for i, node in enumerate(node for node, role in zip(nodes, roles, strict=True) if role == "tensor"):
        for axis, size in enumerate(node.meta["example_value"].shape):
            if isinstance(size, torch.SymInt):
                told.setdefault(str(size), (i, axis))
    return [_argument(node, role, told) for node, role in zip(nodes, roles, strict=True)]


def _role(node: fx.Node) -> Role:
    example = node.meta.get("example_value")
    if not isinstance(example, Tensor):
        return "size" if isinstance(example, torch.SymInt) else "number"
    if isinstance(example, nn.Parameter) or (node.meta.get("tensor_dict") or {}).get(STATIC):
        return "weight"
    return "number" if _is_wrapped(node, example) else "tensor"


# how Dynamo marks the buffers of modules it traced into
STATIC = "_dynamo_static_input_type"


def _is_wrapped(node: fx.Node, example: Tensor) -> bool:
    """Whether Dynamo passes a float as a tensor, as it does for floats that may change."""
    asked = [(user.op, user.target) for user in node.users]
    return example.ndim == 0 and bool(asked) and all(each == ("call_method", "item") for each in asked)


def _argument(node: fx.Node, role: Role, told: dict[str, tuple[int, int]]) -> Argument:
    name = node.name.removeprefix("l_").strip("_") or node.name
    example = node.meta.get("example_value")
    if role == "size" and str(example) not in told:
        role = "number"
    if role == "size":
        return Argument(name, role, told_by=told[str(example)])
    if role == "tensor" and isinstance(example, Tensor):
        free = tuple(i for i, size in enumerate(example.shape) if isinstance(size, torch.SymInt))
        return Argument(name, role, free_axes=free)
    return Argument(name, role, is_wrapped=role == "number" and isinstance(example, Tensor))


class Filled(nn.Module):
    """A graph with its weights and numbers filled in: only its tensors are still to be given."""

    def __init__(
        self,
        graph: fx.GraphModule,
        arguments: Sequence[Argument],
        weights: Sequence[Tensor],
        numbers: Sequence[Any],
    ) -> None:
        super().__init__()
        for i, weight in enumerate(weights):
            self.register_buffer(f"weight_{i}", weight.detach())
        self._arguments, self._numbers = tuple(arguments), tuple(numbers)
        is_wrapped = any(argument.is_wrapped for argument in arguments)
        self._graph = _with_numbers(graph, arguments, numbers) if is_wrapped else graph
        self.eval()

    @staticmethod
    def index_of(name: str) -> int:
        """Which weight has this name."""
        return int(name.rpartition("_")[2])

    def forward(self, *tensors: Tensor) -> Any:
        weights = [getattr(self, name) for name in self._buffers]
        sizes = [tensors[a.told_by[0]].shape[a.told_by[1]] for a in self._arguments if a.role == "size"]
        given = {"tensor": tensors, "weight": weights, "number": self._numbers, "size": sizes}
        values = {role: iter(of_role) for role, of_role in given.items()}
        return self._graph(*(next(values[argument.role]) for argument in self._arguments))


def _with_numbers(
    graph: fx.GraphModule, arguments: Sequence[Argument], numbers: Sequence[Any]
) -> fx.GraphModule:
    """A copy in which `.item()` of a wrapped number is the number."""
    copy = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    copy.output(copy.graph_copy(graph.graph, mapping))
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    given = iter(numbers)
    for node, argument in zip(placeholders, arguments, strict=True):
        number: Any = next(given) if argument.role == "number" else None
        for user in list(mapping[node].users) if argument.is_wrapped else ():
            user.replace_all_uses_with(number)
            copy.erase_node(user)
    return fx.GraphModule(graph, copy)
