"""Puts Triton's perf_analyzer and the two libraries that it needs into a folder: python THIS FOLDER.

The last wheel of tritonclient whose binary runs on glibc 2.36 is 2.49.0; wheels from 2.61 on have none. Where
it cannot be had, missing.txt in the folder says why, and tests of it are skipped with that reason.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# wheel: its SHA-256, and the member that is taken
WHEELS = {
    "tritonclient==2.49.0": (
        "e7b40ba11056c93da434bc8a8b302c0a337489923a0a747c5d313314baa26db3",
        "tritonclient-2.49.0.data/data/bin/perf_analyzer",
    ),
    "nvidia-cuda-runtime-cu12==12.9.79": (
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
        "nvidia/cuda_runtime/lib/libcudart.so.12",
    ),
}
DEBIAN_PACKAGE, LIBRARY = "libb64-0d", "libb64.so.0d"
TIMEOUT_S = 300


class Missing(Exception):
    """Why there is no perf_analyzer here."""


def fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for wheel, (digest, member) in WHEELS.items():
            with zipfile.ZipFile(_download(wheel, digest, Path(scratch))) as archive:
                target = folder / Path(member).name
                target.write_bytes(archive.read(member))
                target.chmod(0o755)
    problem = run_version(folder)
    if LIBRARY in problem:
        _library_of_debian(folder)
        problem = run_version(folder)
    if problem:
        raise Missing(f"perf_analyzer does not start: {problem}")


def run_version(folder: Path) -> str:
    """Why it does not start, or nothing."""
    try:
        done = subprocess.run(
            [folder / "perf_analyzer", "--version"],
            env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except OSError as error:
        return str(error)
    said = done.stdout + done.stderr
    return "" if "Perf Analyzer Version" in said else said.strip()[:500]


def _download(wheel: str, digest: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    project = wheel.partition("==")[0].replace("-", "_")
    _run([*command, "--dest", str(folder), wheel])
    (found,) = folder.glob(f"{project}-*.whl")
    if hashlib.sha256(found.read_bytes()).hexdigest() != digest:
        raise Missing(f"{found.name} is not the file that was pinned")
    return found


def _library_of_debian(folder: Path) -> None:
    """Unpacked, not installed: nothing outside the folder changes."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Missing(
            f"perf_analyzer needs {LIBRARY} ({DEBIAN_PACKAGE} on Debian and Ubuntu), which is not here"
        )
    with tempfile.TemporaryDirectory() as scratch:
        try:
            _run(["apt-get", "download", "-qq", DEBIAN_PACKAGE], folder=scratch)
        except Missing:
            if os.geteuid() != 0:
                raise
            _run(["apt-get", "update", "-qq"])
            _run(["apt-get", "download", "-qq", DEBIAN_PACKAGE], folder=scratch)
        (package,) = Path(scratch).glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), scratch])
        shutil.copy(next(Path(scratch).rglob(LIBRARY)), folder / LIBRARY)


def _run(command: list[str], *, folder: str | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{' '.join(command[:4])}: {error}") from error
    if done.returncode:
        raise Missing(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")


def main() -> None:
    folder = Path(sys.argv[1])
    missing = folder / "missing.txt"
    missing.unlink(missing_ok=True)
    try:
        fetch(folder)
    except Missing as reason:
        missing.write_text(f"{reason}\n", encoding="utf-8")
        sys.stderr.write(f"perf_analyzer is not tested: {reason}\n")


if __name__ == "__main__":
    main()
