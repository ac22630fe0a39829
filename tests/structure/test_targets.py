"""What a target is like is asked of its traits; its kind is compared nowhere outside `targets/`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.base.spec import TRAITS, Target
from ridgeline.options import NULL_TARGETS, TARGETS, make_options
from ridgeline.targets import MACHINES, machine_of, target_named
from ridgeline.targets.null import NULL

SRC = Path(__file__).parents[2] / "src" / "ridgeline"
# `Target` itself has the field, and says it in its name
DEFINED_IN = SRC / "base" / "spec.py"


def questions(root: ast.AST) -> Iterator[ast.AST]:
    """Comparisons of `target.kind` (or `….target.kind`) with a text, and every look at `is_null`."""
    for node in ast.walk(root):
        if isinstance(node, ast.Attribute) and node.attr == "is_null":
            yield node
        elif isinstance(node, ast.Compare):
            is_text = any(isinstance(side, (ast.Constant, ast.Tuple)) for side in node.comparators)
            if is_text and is_target_kind(node.left):
                yield node


def is_target_kind(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr != "kind":
        return False
    owner = node.value
    return "target" in (getattr(owner, "id", ""), getattr(owner, "attr", ""))


def test_nothing_outside_targets_asks_for_the_kind() -> None:
    found = [
        f"{file.relative_to(SRC)}:{getattr(node, 'lineno', '?')}"
        for file in sorted(SRC.rglob("*.py"))
        if file != DEFINED_IN and SRC / "targets" not in file.parents
        for node in questions(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert not found, "ask a trait of the target, or its machine: " + ", ".join(found)


def test_a_question_would_be_found() -> None:
    asked = "site.target.kind == 'cuda'; target.kind in ('cpu',); plan.target.is_null; block.kind == 'view'"
    assert len(list(questions(ast.parse(asked)))) == 3


def test_every_kind_has_traits_and_a_machine() -> None:
    assert TRAITS.keys() == MACHINES.keys()
    assert set(NULL) == set(NULL_TARGETS)
    assert TARGETS[:2] == ("cpu", "cuda")
    assert "cuda:sm_90" in TARGETS


@pytest.mark.parametrize("name", ["cpu", "cuda:sm_80", "cuda:sm_90", *NULL_TARGETS])
def test_a_named_target_answers(name: str) -> None:
    target = target_named(make_options({"target": name}))
    machine = machine_of(target)
    assert machine.target == target
    assert target.exists == (name not in NULL_TARGETS)
    assert machine.is_here == (name == "cpu")
    assert target.traits.is_gpu == (target.arch.startswith("sm_"))
    assert machine.device_key == ""


def test_dependent_launch_begins_with_an_architecture() -> None:
    assert [Target("cuda", f"sm_{n}").has_dependent_launch for n in (80, 89, 90, 120)] == [
        False,
        False,
        True,
        True,
    ]
    assert not Target("cpu", "x86_64").has_dependent_launch
