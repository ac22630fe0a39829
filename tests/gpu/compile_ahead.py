"""Compiles the kernels that tests in this folder ask for, on a machine without a GPU, into the usual cache.

    PYTHONPATH=src python tests/gpu/compile_ahead.py sm_90 [PATH ...]

A machine with the GPU and the same Triton then finds them under `~/.cache/ridgeline/cubin`, if that folder is
carried there, and spends its time on tests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.kernels.triton.compiler import Compiled, compile_kernels

HERE = Path(__file__).resolve().parent


class Ahead:
    """Asks every collected case for its kernels, as the session's fixture does on a GPU."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        import on_gpu  # after the conftest, which says where it finds the cases

        ask = session.config.pluginmanager.get_plugin(str(HERE / "conftest.py"))._ask
        on_gpu.current_device = lambda: SimpleNamespace(arch=self.arch)  # type: ignore[assignment, return-value]
        with on_gpu.asking():
            for item in session.items:
                patches: list[on_gpu.Patch] = getattr(getattr(item, "module", None), "PATCHES", [])
                if patches and isinstance(item, pytest.Function):
                    ask(item, patches)
        made = compile_kernels(on_gpu.WANTED.kernels, self.arch)
        failed = sorted({str(each) for each in made if not isinstance(each, Compiled)})
        count = len({kernel.digest for kernel in on_gpu.WANTED.kernels})
        print(f"\n{count} kernels for {self.arch}, {len(failed)} messages of those that do not compile")  # noqa: T201
        print(*failed, sep="\n")  # noqa: T201


if __name__ == "__main__":
    arch, *paths = sys.argv[1:]
    sys.exit(pytest.main(["--collect-only", "-qq", "-n", "0", *(paths or [str(HERE)])], [Ahead(arch)]))
