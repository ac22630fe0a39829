"""What pages show, taken out of them and run: Python blocks as one script a page, `$` lines in order."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# what follows `python`
RIDGE = ["-c", "import sys; from ridgeline.cli.main import main; sys.exit(main())"]
PROGRAMS: dict[str, list[str]] = {"ridge": RIDGE, "python": []}
LIBRARIES = ["torch", "torch.export", "onnx", "onnx_ir", "onnxruntime"]
STREAMS = ("stdout", "stderr")
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


@dataclass(frozen=True)
class Done:
    """A process that has ended."""

    returncode: int
    stdout: str
    stderr: str


def run(words: list[str], folder: Path) -> Done:
    """A command in a process of its own, so that it does not lean on what other tests imported.

    The process is a fork of one that has imported libraries and nothing of ours: half the time of a short
    command is spent on importing them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    with tempfile.TemporaryDirectory() as scratch:
        process = context.Process(target=_run_here, args=(words, folder, Path(scratch)))
        process.start()
        process.join(LIMIT_S)
        hangs = process.is_alive()
        process.kill()
        process.join()
        assert not hangs, f"{words} ran longer than {LIMIT_S} s"
        texts = [(Path(scratch) / name).read_text(encoding="utf-8") for name in STREAMS]
    assert process.exitcode is not None, "it has been joined"
    return Done(process.exitcode, *texts)


def _run_here(words: list[str], folder: Path, scratch: Path) -> None:
    """What `python` does with these words: `-c` and a text, or the file of a script."""
    for number, name in enumerate(STREAMS, start=1):
        os.dup2(os.open(scratch / name, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    os.environ["NO_COLOR"] = "1"
    code = words[1] if words[0] == "-c" else Path(words[0]).read_text(encoding="utf-8")
    sys.argv = ["-c", *words[2:]] if words[0] == "-c" else words
    sys.path = [each for each in sys.path if not each.startswith(str(ROOT / "tests"))]
    sys.path.insert(0, "" if words[0] == "-c" else str(folder / Path(words[0]).parent))
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        exec(compile(code, "<string>" if words[0] == "-c" else words[0], "exec"), vars(main))
    finally:
        atexit._run_exitfuncs()  # a child of multiprocessing ends without them


def run_python(page: str, folder: Path) -> None:
    done = run(["-c", "\n".join(blocks(page, "python"))], folder)
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
