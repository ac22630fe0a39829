"""A GPU kernel as a description: plain data that can be hashed, sent to a process and compiled anywhere.

Triton is imported only when a function is needed, so the package works without it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from ridgeline.base.files import private_folder, why_not_private

GENERATED = "ridgeline_generated_"  # begins the names of modules of generated text
# generated and hand-written kernels call these helpers, so a change there changes every kernel
SHARED_MODULES = tuple(f"ridgeline.kernels.triton.{name}" for name in ("math", "codes", "tiles"))


@dataclass(frozen=True)
class Generated:
    """A `@triton.jit` function in a module of generated text."""

    function: str
    text: str


@dataclass(frozen=True)
class Kernel:
    """One kernel: its function, its parameters, the constants it is specialised for, and its launch."""

    function: str
    module: str  # where the function lives; "" when `text` is a generated module
    signature: tuple[tuple[str, Any], ...]  # parameter and type; a tuple of types for a tuple parameter
    constants: tuple[tuple[str, Any], ...] = ()  # constexpr parameters; a `Generated` for a function
    text: str = ""
    num_warps: int = 4
    num_stages: int = 3
    pdl: bool = True
    unaligned: tuple[str, ...] = ()  # pointers that need not be 16-byte aligned
    # limit per thread; 0 is no limit, and then the digest does not mention it
    registers: int = field(default=0, repr=False)

    @cached_property
    def digest(self) -> str:
        """Equal for kernels that compile to the same code with the same compiler."""
        parts = [repr(self), *(_source_digest(m) for m in (self.module, *SHARED_MODULES) if m)]
        if self.registers:
            parts.append(f"registers={self.registers}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Kernel:
        values = json.loads(text)
        values["signature"] = tuple(
            (name, tuple(kind) if isinstance(kind, list) else kind) for name, kind in values["signature"]
        )
        values["constants"] = tuple(
            (name, Generated(**value) if isinstance(value, dict) else value)
            for name, value in values["constants"]
        )
        return Kernel(**{**values, "unaligned": tuple(values["unaligned"])})

    @property
    def argument_types(self) -> tuple[str, ...]:
        """Types of the arguments of a launch: constants left out, tuples flattened."""
        types: list[str] = []
        for _, kind in self.signature:
            if kind != "constexpr":
                types += kind if isinstance(kind, tuple) else (kind,)
        return tuple(types)


@cache
def _source_digest(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


@cache
def triton_version() -> str | None:
    """None if Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:  # vendored builds carry no metadata
        return str(importlib.import_module("triton").__version__)


def function_of(kernel: Kernel) -> Any:
    """The kernel's jit function, imported or made from its text."""
    module = load_text(kernel.text) if kernel.text else importlib.import_module(kernel.module)
    return getattr(module, kernel.function)


def constants_of(kernel: Kernel) -> dict[str, Any]:
    return {
        name: getattr(load_text(value.text), value.function) if isinstance(value, Generated) else value
        for name, value in kernel.constants
    }


def _module_name(text: str) -> str:
    return f"{GENERATED}{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _generated_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"ridgeline-generated-{os.getuid()}"


def generated_text(module: str) -> str | None:
    """The text of a module that was generated on this machine, if it is still there."""
    try:
        text = (_generated_folder() / f"{module}.py").read_text(encoding="utf-8")
    except OSError:
        return None
    return text if _module_name(text) == module else None


@cache
def load_text(text: str) -> ModuleType:
    """A module from generated text. It is written to a file, since Triton reads the source it compiles."""
    name = _module_name(text)
    # files in this folder are executed, so nobody else may write to it
    folder = private_folder(_generated_folder())
    path = folder / f"{name}.py"
    if why_not_private(path) is not None or path.read_text() != text:
        partial = folder / f"{name}.{os.getpid()}.part"
        partial.write_text(text)
        partial.replace(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, f"{path} is a Python file"
    assert spec.loader is not None, f"{path} is a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
