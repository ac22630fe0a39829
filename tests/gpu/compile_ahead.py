"""Compiles the kernels that tests in this folder ask for, on a machine without a GPU.

    PYTHONPATH=src python tests/gpu/compile_ahead.py sm_90 FOLDER [PATH ...]

On a machine with the GPU and the same Triton the tests then start with them, and spend their time on the GPU:

    RIDGELINE_TESTS_KERNELS=FOLDER python -m pytest tests/gpu
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.kernels.triton.compiler import Compiled, KernelStore, compile_kernels

HERE = Path(__file__).resolve().parent


class Ahead:
    """Asks every collected case for its kernels, as the session's fixture does on a GPU."""

    def __init__(self, arch: str, folder: Path) -> None:
        self.arch, self.folder = arch, folder

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        import on_gpu  # after the conftest, which says where it finds the cases

        ask = session.config.pluginmanager.get_plugin(str(HERE / "conftest.py"))._ask
        on_gpu.current_device = lambda: SimpleNamespace(arch=self.arch)  # type: ignore[assignment, return-value]
        with on_gpu.asking():
            for item in session.items:
                patches: list[on_gpu.Patch] = getattr(getattr(item, "module", None), "PATCHES", [])
                if patches and isinstance(item, pytest.Function):
                    ask(item, patches)
        made = compile_kernels(on_gpu.WANTED.kernels, self.arch, store=KernelStore(cache_dir=self.folder))
        failed = sorted({str(each) for each in made if not isinstance(each, Compiled)})
        count = len({kernel.digest for kernel in on_gpu.WANTED.kernels})
        print(f"\n{count} kernels for {self.arch}, {len(failed)} messages of those that do not compile")  # noqa: T201
        print(*failed, sep="\n")  # noqa: T201


if __name__ == "__main__":
    arch, folder, *paths = sys.argv[1:]
    plugin = Ahead(arch, Path(folder).resolve())
    sys.exit(pytest.main(["--collect-only", "-qq", "-n", "0", *(paths or [str(HERE)])], [plugin]))
