"""What a lint rule finds, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import onnx

from ridgeline.frontend.functions import plain_domain, subgraphs
from ridgeline.surgery.graph import ModelGraph, label

Severity: TypeAlias = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, slow or strange: where, what, what it is, what it should be, what to do."""

    severity: Severity
    rule: str
    where: str
    what: str
    got: str = ""
    want: str = ""
    help: str = ""


@dataclass(frozen=True)
class Scope:
    """One graph of the model (the main one, a branch, a function) with the names it sees from outside."""

    graph: Any  # GraphProto or FunctionProto
    outer: frozenset[str]
    where: str  # "" for the main graph


@dataclass(frozen=True)
class Subject:
    """A model under inspection."""

    graph: ModelGraph

    @property
    def proto(self) -> onnx.ModelProto:
        return self.graph.proto

    @cached_property
    def opsets(self) -> dict[str, int]:
        return {plain_domain(entry.domain): entry.version for entry in self.proto.opset_import}

    @cached_property
    def local_functions(self) -> set[tuple[str, str]]:
        return {(plain_domain(f.domain), f.name) for f in self.proto.functions}

    @cached_property
    def scopes(self) -> list[Scope]:
        """Every graph there is, outer ones first."""
        found = [Scope(self.proto.graph, frozenset(), "")]
        found += [Scope(f, frozenset(), f"function {f.name}") for f in self.proto.functions]
        for scope in found:
            seen = scope.outer | names_given(scope.graph)
            for node in scope.graph.node:
                seen |= {name for name in node.output if name}
                found += [Scope(inner, seen, label(node)) for inner in subgraphs(node)]
        return found

    @cached_property
    def all_nodes(self) -> list[tuple[Scope, onnx.NodeProto]]:
        return [(scope, node) for scope in self.scopes for node in scope.graph.node]


Rule: TypeAlias = Callable[[Subject], Iterator[Problem]]


def names_given(graph: Any) -> frozenset[str]:
    """What a graph starts with: inputs and weights."""
    if isinstance(graph, onnx.FunctionProto):
        return frozenset(graph.input)
    sparse = {t.values.name for t in graph.sparse_initializer}
    return frozenset({p.name for p in graph.input} | {t.name for t in graph.initializer} | sparse)


def names_wanted(graph: Any) -> list[str]:
    """What a graph promises to make."""
    return list(graph.output) if isinstance(graph, onnx.FunctionProto) else [p.name for p in graph.output]


def domain_of(node: onnx.NodeProto) -> str:
    return plain_domain(node.domain)
