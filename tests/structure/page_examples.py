"""What pages show, taken out of them and run: Python blocks as one script a page, `$` lines in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RIDGE = [sys.executable, "-c", "import sys; from ridgeline.cli.main import main; sys.exit(main())"]
PROGRAMS = {"ridge": RIDGE, "python": [sys.executable]}
LIMIT_S = 600  # a hang; README builds a real model at the default level
NODES = re.compile(r"\b\d+ nodes|\bnodes +\d+ of \d+")


def blocks(page: str, language: str) -> list[str]:
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [text for name, text in found if name == language]


def commands(page: str) -> list[tuple[str, str]]:
    """Every command of a page, with the output that is shown below it."""
    joined = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    parts = re.split(r"^\$ (.*)$", joined, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # own process: an example must not lean on what other tests imported
    environment = os.environ | {"NO_COLOR": "1"}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


def run_python(page: str, folder: Path) -> None:
    done = run([sys.executable, "-c", "\n".join(blocks(page, "python"))], folder)
    assert done.returncode == 0, done.stderr


def run_commands(page: str, folder: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command, shown in commands(page):
        program, *words = shlex.split(command, comments=True)
        if program in PROGRAMS:
            done = run([*PROGRAMS[program], *words], folder)
            assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
            for count in NODES.findall(shown):  # what is shown is of the model that is named
                assert count in done.stdout, f"$ {command}\n{done.stdout}"
        elif program == "make":
            targets = [word for word in words if "=" not in word]
            assert all(f"\n{target}:" in makefile for target in targets), f"no such target: {command}"
