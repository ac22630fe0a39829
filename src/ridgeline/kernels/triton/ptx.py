"""PTX of a kernel. Engines keep machine code alone, so it is compiled again, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from ridgeline.kernels.triton.compiler import COMPILE_LIMIT_S, CompileError
from ridgeline.kernels.triton.source import Kernel, triton_version

# Triton's interpreter would compile nothing
MAKE = """
import os, sys
sys.path[:0] = {paths!r}
os.environ.pop("TRITON_INTERPRET", None)
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.worker import lower_here
sys.stdout.write(lower_here(Kernel.from_json(sys.stdin.read()), sys.argv[1]).asm["ptx"])
"""


def make_ptx(kernel: Kernel, arch: str) -> str:
    """As the installed Triton makes it."""
    if triton_version() is None:
        raise CompileError(
            f"the PTX of {kernel.function} is made by Triton, which is not installed",
            help="pip install 'ridgeline[gpu]'; --sass shows the machine code that the engine holds",
        )
    program = MAKE.format(paths=[path for path in sys.path if path])
    try:
        made = subprocess.run(
            [sys.executable, "-c", program, arch],
            input=kernel.to_json(), capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{kernel.function} took over {COMPILE_LIMIT_S:.0f} s to compile") from error
    if made.returncode:
        said = (made.stderr.strip().splitlines() or ["no message"])[-1]
        raise CompileError(f"{kernel.function} does not compile", got=said[:300])
    return made.stdout
