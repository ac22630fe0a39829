"""Every README of examples/ runs in a copy of its folder: Python blocks as one script, then its commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from page_examples import ROOT, blocks, commands, run_commands, run_python

EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("[0-9]*/README.md"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    folder, page = tmp_path / name, f"examples/{name}/README.md"
    shutil.copytree(ROOT / "examples" / name, folder)
    assert blocks(page, "python") or commands(page)
    if blocks(page, "python"):
        run_python(page, folder)
    run_commands(page, folder)


def test_every_example_is_listed() -> None:
    index = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in EXAMPLES if f"({name}/README.md)" not in index] == []
