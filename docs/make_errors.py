"""Writes docs/errors.md from the error classes and from the places in src/ that raise them.

`errors_page()` is the text; a test compares it with the file.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline import errors

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"

HEAD = """\
# Errors

Written by `make docs` from `src/ridgeline/errors.py` and the lines that raise; do not edit.

Every error says what failed and where, then `got` and `want`, then `help:` with what cures it. All problems
of one kind are listed at once. Below, a word in ⟨angle brackets⟩ is filled in when the error is raised.

In Python, `except ridgeline.errors.RidgelineError` catches everything a user can mend. On the command line
these come without a traceback:

| exit | meaning |
| ---: | --- |
| 0 | done |
| 1 | an error of this page |
| 2 | the command line does not read as a command |
| 3 | the engine does not compute what the model computes (`VerifyError`) |
| 70 | `InternalError`: a bug in ridgeline, with a traceback |
"""


@dataclass(frozen=True, order=True)
class Raised:
    """One place that makes an error, as far as its text is written there."""

    what: str
    want: str
    help: str
    module: str


def errors_page() -> str:
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, Exception)]
    raised = _raised({c.__name__ for c in classes})
    parts = [HEAD]
    for error in classes:
        parts.append(f"## {error.__name__}\n\n{inspect.getdoc(error)}{_kind(error)}\n")
        rows = sorted(raised.get(error.__name__, ()))
        if rows:
            parts.append("| says | wants | help | raised in |\n| --- | --- | --- | --- |")
            parts += [f"| {_cell(r.what)} | {_cell(r.want)} | {_cell(r.help)} | `{r.module}` |" for r in rows]
            parts.append("")
    return "\n".join(parts)


def _kind(error: type[Exception]) -> str:
    parent = error.__mro__[1]
    return f" A `{parent.__name__}`." if parent not in (Exception, errors.RidgelineError) else ""


def _raised(names: set[str]) -> dict[str, set[Raised]]:
    found: dict[str, set[Raised]] = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        for name, call in _error_calls(ast.parse(file.read_text(encoding="utf-8")), names):
            texts = {k.arg: _text(k.value) for k in call.keywords if k.arg}
            what = _text(call.args[0])
            found.setdefault(name, set()).add(
                Raised(what, texts.get("want", ""), texts.get("help", ""), module.removesuffix(".__init__"))
            )
    return found


def _error_calls(tree: ast.Module, names: set[str]) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in names:
                yield name, node


def _text(node: ast.expr) -> str:
    """The words of a string expression; what is computed stands as ⟨its name⟩."""
    match node:
        case ast.Constant(value=str(words)):
            return words
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.FormattedValue(value=inner):
            return _text(inner)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.IfExp(body=body, orelse=other):
            return " or ".join(filter(None, (_text(body), _text(other))))
        case ast.Call(func=ast.Name(id="did_you_mean")):
            return "⟨a near match, or the names there are⟩"
        case ast.Call(args=[first, *_]) | ast.Subscript(value=first) | ast.BoolOp(values=[first, *_]):
            return _text(first)
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Call(func=ast.Attribute(attr=name)):
            return f"⟨{name.strip('_').replace('_', ' ').lower()}⟩"
    return "⟨…⟩"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    PAGE.write_text(errors_page(), encoding="utf-8")
