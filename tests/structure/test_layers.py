"""Imports point one way, in the order of the data; only the CLI imports late or reads the environment."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "ridgeline"
LAYERS = (
    "errors", "base", "options", "frontend", "ir", "passes", "kernels", "tactics", "plugins", "plan",
    "runtime", "select", "targets", "verify", "precision",
    "builder", "replan", "analyze", "surgery", "torch_in", "serve", "onnx_backend", "__init__", "cli",
    "__main__",
)  # fmt: skip
FILES = sorted(SRC.rglob("*.py"))
# the CLI imports late so that --help is quick; the package's front door so that importing it is
MAY_IMPORT_LATE = {"cli", "__init__"}
# all that the runtime needs of the frontend: how ONNX names types, and the tensors that a file holds
RUNTIME_READS = ("frontend.types.", "frontend.from_onnx.all_tensors")


def layer(file: Path) -> str:
    return file.relative_to(SRC).parts[0].removesuffix(".py")


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def where(file: Path, node: ast.AST) -> str:
    return f"{file.relative_to(SRC)}:{getattr(node, 'lineno', '?')}"


def own_imports(root: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every import of a ridgeline module, as the dotted path under the package ("" is the package itself)."""
    for node in ast.walk(root):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "ridgeline":
                yield node, rest


def layer_of_import(dotted: str) -> str:
    first = dotted.split(".")[0]
    return first if first in LAYERS else "__init__"


def test_every_file_has_a_layer() -> None:
    assert not {layer(file) for file in FILES} - set(LAYERS)


def test_imports_point_one_way() -> None:
    wrong = [
        f"{where(file, node)}: {layer(file)} must not import {dotted or 'ridgeline'}"
        for file in FILES
        for node, dotted in own_imports(tree(file))
        if LAYERS.index(layer_of_import(dotted)) > LAYERS.index(layer(file))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_runtime_imports_no_pass() -> None:
    """Passes and selection reach an engine through its planner, which the build hands in."""
    wrong = [
        f"{where(file, node)}: {dotted}"
        for file in FILES
        if layer(file) == "runtime"
        for node, dotted in own_imports(tree(file))
        if layer_of_import(dotted) in ("passes", "select", "frontend")
        and not dotted.startswith(RUNTIME_READS)
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_form_no_cycle() -> None:
    modules = {".".join(f.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): f for f in FILES}
    graph = {
        name: {known for _, dotted in own_imports(tree(file)) for known in _resolve(dotted, modules)} - {name}
        for name, file in modules.items()
    }
    TopologicalSorter(graph).prepare()


def _resolve(dotted: str, modules: dict[str, Path]) -> set[str]:
    """`a.b.name` is the module a.b.name, or a name in a.b."""
    return {dotted, dotted.rpartition(".")[0]} & modules.keys() - {""}


def test_no_late_imports() -> None:
    late = {
        where(file, node)
        for file in FILES
        if layer(file) not in MAY_IMPORT_LATE
        for function in ast.walk(tree(file))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert not late, "an import inside a function hides a cycle: " + ", ".join(sorted(late))


def test_only_the_cli_reads_the_environment() -> None:
    reads = [
        where(file, node)
        for file in FILES
        if layer(file) != "cli"
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Attribute)
        and node.attr in {"environ", "getenv", "putenv"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    assert not reads, "take an option instead: " + ", ".join(reads)
