"""Functions fit on a screen, and take few parameters or say why. Few modules lie at the root."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "ridgeline"
MAX_LINES, MAX_PARAMETERS, MAX_ROOT_MODULES = 60, 6, 8
# a docstring with a line that starts so gives the reason for more parameters
REASON = "Parameters: "

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Path, Function]]:
    """Every function outside `kernels/`, where one body is one kernel."""
    for file in sorted(SRC.rglob("*.py")):
        package = file.relative_to(SRC).parts[0].removesuffix(".py")
        if package != "kernels":
            for name, node in named(ast.parse(file.read_text(encoding="utf-8")), ""):
                yield f"{package}: {name}", file, node


def named(parent: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(parent):
        name = prefix
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{prefix}{node.name}."
        yield from named(node, name)


def parameters(node: Function) -> list[str]:
    listed = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [each.arg for each in listed if each.arg not in ("self", "cls")]


def says_why(file: Path, node: Function) -> bool:
    """A command's parameters are its command line, a pattern's the values it matches; others say why."""
    is_command = file.parent.name == "cli" and file.name.startswith("commands_")
    is_pattern = node.name == "pattern"
    lines = (ast.get_docstring(node) or "").splitlines()
    return is_command or is_pattern or any(line.startswith(REASON) for line in lines)


def test_functions_fit_on_a_screen() -> None:
    long = {name for name, _, node in functions() if (node.end_lineno or 0) - node.lineno >= MAX_LINES}
    assert not long, "split by what a reader looks for"


def test_functions_take_few_parameters_or_say_why() -> None:
    many = {
        name
        for name, file, node in functions()
        if len(parameters(node)) > MAX_PARAMETERS and not says_why(file, node)
    }
    assert not many, f"group them in a value, or say why in a line {REASON!r}"


def test_few_modules_lie_at_the_root() -> None:
    assert len([*SRC.glob("*.py")]) <= MAX_ROOT_MODULES
