"""Nodes that a user names: by op type, by name, or by patterns over either such as ``*/norm*``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from glob import escape
from typing import TypeVar

import onnx_ir as ir

from ridgeline.errors import OptionError
from ridgeline.ir.body import node_sources
from ridgeline.ir.provenance import node_name

Node = TypeVar("Node")
WANTED = "op types, names of nodes, or globs such as '*/attention/*'"


def patterns_given(given: object, *, what: str) -> tuple[str, ...]:
    """Patterns as a user writes them: one, or several."""
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, str) for each in listed):
        raise OptionError(
            f"{what} is not a list of patterns", got=repr(given), want="('Softmax', '*/head/*')"
        )
    return tuple(listed)


def names_of(node: ir.Node) -> tuple[str, ...]:
    """What a user may call a node: its name, or those of the model's nodes it was made from."""
    return (node_name(node), *node_sources(node))


def op_types(model: ir.Model) -> dict[str, str]:
    """By name of a node; read before nodes are rewritten into others."""
    return {node_name(node): node.op_type for node in model.graph}


def keep_by_name(keep: Sequence[str], types: Mapping[str, str], model: ir.Model) -> tuple[str, ...]:
    """``fp32:Softmax`` as the names of the nodes of that type, in the model as it was given or is now.

    `types` are those of the nodes as they were given. Names outlast rewrites, types do not. A pattern that
    matches neither a name nor a type is an error.
    """
    every: dict[ir.Node | str, Sequence[str]] = {
        node: (node.op_type, *(types[n] for n in node_sources(node) if n in types), *names_of(node))
        for node in model.graph
    }
    given: dict[ir.Node | str, Sequence[str]] = {name: (name, kind) for name, kind in types.items()}
    match_nodes([each.partition(":")[2] for each in keep], {**given, **every}, want=WANTED)
    made: dict[str, None] = {}
    for each in keep:
        kind, _, pattern = each.partition(":")
        if any(fnmatchcase(name, pattern) for node in model.graph for name in names_of(node)):
            made[each] = None
        for node in model.graph:
            is_typed = fnmatchcase(node.op_type, pattern)
            for name in node_sources(node):
                if is_typed or fnmatchcase(types.get(name, ""), pattern):
                    made[f"{kind}:{escape(name)}"] = None
    return tuple(made)


def kept_patterns(keep: Iterable[str], kind: str = "fp32") -> tuple[str, ...]:
    """The patterns of ``fp32:*/norm*`` that are about this type."""
    pairs = [each.partition(":") for each in keep]
    return tuple(pattern for name, _, pattern in pairs if name == kind)


def match_nodes(
    patterns: Sequence[str], names: Mapping[Node, Sequence[str]], *, want: str
) -> dict[Node, str]:
    """As `named_nodes`. Patterns that name none are one error, with near matches."""
    found, missed = named_nodes(patterns, names)
    if missed:
        known = sorted({name for each in names.values() for name in each})
        raise OptionError(
            f"{len(missed)} of {len(patterns)} patterns match no node",
            rows=[f"{p!r}; near: {', '.join(_near(p, known)) or 'none'}" for p in missed],
            want=want,
            help="ridge show MODEL.onnx lists the nodes",
        )
    return found


def named_nodes(
    patterns: Sequence[str], names: Mapping[Node, Sequence[str]]
) -> tuple[dict[Node, str], list[str]]:
    """The nodes that patterns name, each with the first pattern that does; and the patterns that name none.

    `names` has all that a node may be called.
    """
    found: dict[Node, str] = {}
    missed: list[str] = []
    called: dict[str, list[Node]] = {}
    for node, each in names.items():
        for name in dict.fromkeys(each):
            called.setdefault(name, []).append(node)
    for pattern in patterns:
        if set(pattern).isdisjoint("*?["):  # a plain name: an op type may stand for thousands of them
            hits = called.get(pattern, [])
        else:
            hits = [node for name, nodes in called.items() if fnmatchcase(name, pattern) for node in nodes]
        found.update((node, pattern) for node in hits if node not in found)
        if not hits:
            missed.append(pattern)
    return found, missed


def _near(pattern: str, known: Sequence[str]) -> list[str]:
    bare = pattern.strip("*?")
    return get_close_matches(bare, known, n=3, cutoff=0.5) or [n for n in known if bare and bare in n][:3]
