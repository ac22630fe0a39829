"""Runs the cells of examples/07_notebook/engine.ipynb in order and stores what they show, as Jupyter does."""

from __future__ import annotations

import ast
import io
import json
import os
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "examples" / "07_notebook" / "engine.ipynb"
FORMAT = (4, 5)


def run_cells(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with new outputs. All code cells share one namespace; an error ends it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, number = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            outputs = _run("".join(cell["source"]), names, number)
            cell = {**cell, "execution_count": number, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _run(code: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What is printed, and the value of the last line if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        outputs.append(
            {
                "data": _shown(value),
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs


def _shown(value: Any) -> dict[str, list[str]]:
    as_html = getattr(value, "_repr_html_", None)
    html = {"text/html": _lines(as_html())} if as_html is not None else {}
    return {**html, "text/plain": _lines(repr(value))}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def write(path: Path = NOTEBOOK) -> None:
    """Cells run in an empty folder: the files that they make are not kept."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        done = run_cells(notebook)
    path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + os.linesep, encoding="utf-8")


if __name__ == "__main__":
    write()
