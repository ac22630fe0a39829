"""Versions of what ridgeline is made of, read without importing any of it, and whether they fit together."""

from __future__ import annotations

import importlib.util
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ridgeline.analyze.doctor_rows import DoctorRow, Topic

VERSIONS = Topic("versions")
OWN = "ridgeline"
REQUIRED = ("torch", "onnx", "onnxruntime", "onnx-ir", "numpy")
OPTIONAL = {"triton": "pip install 'ridgeline[gpu]'"}
ASK_S = 10.0


@dataclass(frozen=True)
class Versions:
    """What is installed; null is what is not."""

    ridgeline: str
    python: str
    packages: dict[str, str | None]
    torch_cuda: str | None  # the CUDA version that PyTorch was built for; null for one without
    compiler: str | None
    requirements: dict[str, str]  # as our own package states them: ">=2.11,<2.14"
    driver: str | None = None
    driver_cuda: str | None = None  # the newest CUDA version that the driver runs


def read_versions(own: str, compiler: str | None) -> Versions:
    """`compiler` is the C++ compiler that builds would use; the driver's versions are NVML's to say."""
    return Versions(
        ridgeline=own,
        python=platform.python_version(),
        packages={name: _installed(name) for name in (*REQUIRED, *OPTIONAL)},
        torch_cuda=_torch_cuda(),
        compiler=None if compiler is None else _compiler_version(compiler),
        requirements=_requirements(),
    )


def judge_versions(versions: Versions, *, has_gpu: bool) -> Iterator[DoctorRow]:
    yield VERSIONS.fine(OWN, versions.ridgeline, f"Python {versions.python}")
    for name, found in versions.packages.items():
        yield _package(name, found, versions.requirements.get(name, ""), has_gpu=has_gpu)
    if versions.compiler is None:
        reason = "no kernels are generated for the CPU: libraries run all regions, and more slowly"
        yield VERSIONS.distorts("C++ compiler", "none", reason, "install g++ or clang++")
    else:
        yield VERSIONS.fine("C++ compiler", versions.compiler, "kernels for the CPU are generated")
    if has_gpu:
        yield from _cuda(versions)


def _package(name: str, found: str | None, required: str, *, has_gpu: bool) -> DoctorRow:
    if found is None and name in OPTIONAL:
        reason = "no kernels of our own are compiled for a GPU: engines bring theirs, or use libraries"
        row = VERSIONS.distorts if has_gpu else VERSIONS.note
        return row(name, "not installed", reason, OPTIONAL[name])
    if found is None:
        return VERSIONS.problem(name, "not installed", "builds need it", f"pip install {name}")
    if not fits(found, required):
        want = f"tested with {required}"
        return VERSIONS.note(name, found, want, f"pip install '{name}{required}'")
    return VERSIONS.fine(name, found, f"tested with {required}" if required else "")


def _cuda(versions: Versions) -> Iterator[DoctorRow]:
    driver = versions.driver or "unknown"
    if versions.packages.get("torch") is not None and versions.torch_cuda is None:
        reason = "this PyTorch was built without CUDA: it cannot use the GPU that is here"
        yield VERSIONS.problem("CUDA", f"driver {driver}", reason, "install a PyTorch for CUDA")
        return
    value = f"PyTorch for CUDA {versions.torch_cuda}, driver {driver} for CUDA {versions.driver_cuda}"
    if _is_older(versions.driver_cuda, versions.torch_cuda):
        reason = "the driver is older than this PyTorch needs"
        yield VERSIONS.problem(
            "CUDA", value, reason, "install a newer driver, or a PyTorch for its CUDA version"
        )
        return
    yield VERSIONS.fine("CUDA", value, "the driver runs what PyTorch was built for")


def _is_older(driver: str | None, built: str | None) -> bool:
    """Within one major version any driver will do."""
    if driver is None or built is None:
        return False
    return int(driver.split(".")[0]) < int(built.split(".")[0])


def fits(version: str, required: str) -> bool:
    """Whether a version meets bounds such as ``>=2.11,<2.14``; other kinds of bounds are not judged."""
    found = _parts(version)
    for sign, bound in re.findall(r"(>=|<)\s*([\d.]+)", required):
        least = _parts(bound)
        if (sign == ">=" and found < least) or (sign == "<" and found >= least):
            return False
    return True


def _parts(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> dict[str, str]:
    """Of our own package's metadata; empty if it runs from a folder without having been installed."""
    try:
        lines = metadata.requires(OWN) or []
    except metadata.PackageNotFoundError:
        return {}
    found = {}
    for line in lines:
        parts = re.match(r"([\w.-]+)\s*([<>=!~][^;\s]*)?", line)
        if parts and parts[2] and parts[1] not in found:
            found[parts[1]] = ",".join(sorted(parts[2].split(","), reverse=True))  # lower bounds first
    return found


def _torch_cuda() -> str | None:
    """From PyTorch's own version file, as text: importing PyTorch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda\b.*=\s*'([\d.]+)'", path.read_text() if path.exists() else "", re.MULTILINE)
    return found[1] if found else None


def _compiler_version(path: str) -> str:
    try:
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=ASK_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return path
    return (asked.stdout.splitlines() or [path])[0]
