"""Nodes that a user names, by patterns such as ``*/norm*``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from ridgeline.errors import OptionError

Node = TypeVar("Node")


def kept_patterns(keep: Iterable[str], kind: str = "fp32") -> tuple[str, ...]:
    """The patterns of ``fp32:*/norm*`` that are about this type."""
    pairs = [each.partition(":") for each in keep]
    return tuple(pattern for name, _, pattern in pairs if name == kind)


def match_nodes(
    patterns: Sequence[str], names: Mapping[Node, Sequence[str]], *, want: str
) -> dict[Node, str]:
    """The nodes that patterns name, each with the first pattern that does.

    `names` has all that a node may be called. Patterns that name none are one error, with near matches.
    """
    found: dict[Node, str] = {}
    missed: list[str] = []
    called: dict[str, list[Node]] = {}
    for node, each in names.items():
        for name in dict.fromkeys(each):
            called.setdefault(name, []).append(node)
    for pattern in patterns:
        hits = [node for name, nodes in called.items() if fnmatchcase(name, pattern) for node in nodes]
        found.update((node, pattern) for node in hits if node not in found)
        if not hits:
            missed.append(pattern)
    if missed:
        known = sorted({name for each in names.values() for name in each})
        raise OptionError(
            f"{len(missed)} of {len(patterns)} patterns match no node",
            rows=[f"{p!r}; near: {', '.join(_near(p, known)) or 'none'}" for p in missed],
            want=want,
            help="ridge show MODEL lists the nodes",
        )
    return found


def _near(pattern: str, known: Sequence[str]) -> list[str]:
    bare = pattern.strip("*?")
    return get_close_matches(bare, known, n=3, cutoff=0.5) or [n for n in known if bare and bare in n][:3]
