"""What an engine file says of itself: manifest, plan, report and compiled kernels, read in plain Python.

`ridge show`, `ridge explain` and `ridge kernels` need no more, so nothing here imports a framework or numpy.
`file.py` reads the rest of the file, and writes it.
"""

from __future__ import annotations

import hashlib
import platform
import re
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.base.spec import Needed
from ridgeline.base.typed_json import parse_json, read_as
from ridgeline.errors import PlanError, RidgelineError, first_line
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.plan.check import check_sizes
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Report
from ridgeline.runtime.zip_members import read_members

FORMAT = 1
MANIFEST, PLAN, REPORT = "manifest.json", "plan.json", "report.json"
GRAPH, WEIGHTS = "fused.onnx", "weights.safetensors"
MEMBERS = (PLAN, REPORT, GRAPH, WEIGHTS)
EXPECTED = "expected.safetensors"  # inputs and outputs to check the first run with
KERNEL = re.compile(r"kernels/([0-9a-f]{40})\.kernel")
# what zipfile, json and our own readers raise on a damaged file
DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, KeyError, IndexError, ValueError,
    TypeError, AttributeError, RuntimeError, NotImplementedError, RecursionError, MemoryError, OverflowError,
    AssertionError,
)  # fmt: skip


@dataclass(frozen=True)
class Manifest:
    """What every member hashes to, and what the file is for."""

    format: int
    target: str
    sha256: dict[str, str]
    versions: dict[str, str]
    seal: str = ""
    plugins: tuple[Needed, ...] = ()  # that its ops and tactics come from

    @property
    def code(self) -> dict[str, str]:
        """The hashes of those members that are machine code."""
        return {name: digest for name, digest in self.sha256.items() if KERNEL.fullmatch(name)}


@dataclass(frozen=True)
class Description:
    """The part of an engine file that is text, and its compiled kernels by digest."""

    plan: Plan
    report: Report
    kernels: Mapping[str, Compiled]


def read_description(path: Path) -> Description:
    """Only the members that are read here are hashed: the weights may be large."""
    members, manifest = open_members(path)
    check_hashes(members, manifest, path, only={PLAN, REPORT, *manifest.code})
    return describe(members, manifest, path)


def open_members(path: Path) -> tuple[dict[str, memoryview], Manifest]:
    """Every member of an engine file and its manifest, which names exactly these members."""
    if not path.exists():
        raise PlanError(f"there is no engine file {str(path)!r}", help="ridge build MODEL.onnx makes one")
    try:
        members = read_members(path)
        return members, _read_manifest(parse_json(members[MANIFEST]), path)
    except DAMAGE as error:
        raise PlanError(
            f"{str(path)!r} is not a whole engine file",
            got=first_line(error),
            help="build it again: ridge build MODEL.onnx",
        ) from error


def check_hashes(
    members: Mapping[str, memoryview], manifest: Manifest, path: Path, *, only: Collection[str] | None = None
) -> None:
    """The members are those of the manifest, and unchanged; `only` these are hashed."""
    hashes = manifest.sha256
    wrong = [f"{name} is not in the manifest" for name in members if name not in hashes and name != MANIFEST]
    wrong += [f"{name} is missing" for name in hashes if name not in members]
    for name, digest in hashes.items():
        is_asked = name in members and (only is None or name in only)
        if is_asked and hashlib.sha256(members[name]).hexdigest() != digest:
            wrong.append(f"{name} does not match its hash")
    if wrong:
        raise PlanError(
            f"{str(path)!r} was changed after it was made",
            rows=wrong,
            help="build it again: ridge build MODEL.onnx",
        )


def describe(members: Mapping[str, memoryview], manifest: Manifest, path: Path) -> Description:
    """Plan, report and kernels out of members whose hashes were checked."""
    try:
        made = Description(
            plan=Plan.from_json(members[PLAN]),
            report=Report.from_json(members[REPORT]),
            kernels={
                m[1]: Compiled.from_bytes(bytes(v)) for n, v in members.items() if (m := KERNEL.fullmatch(n))
            },
        )
    except (*DAMAGE, RidgelineError) as error:
        raise PlanError(f"{str(path)!r} does not read as an engine", got=first_line(error)) from error
    if str(made.plan.target) != manifest.target:
        raise PlanError(
            f"{str(path)!r} holds a plan for another target", got=str(made.plan.target), want=manifest.target
        )
    check_sizes(made.plan)
    return made


def _read_manifest(raw: Any, path: Path) -> Manifest:
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != FORMAT:
        raise PlanError(
            f"{str(path)!r} is of another format version",
            got=str(version),
            want=str(FORMAT),
            help="build it again with this version of ridgeline: ridge build MODEL.onnx",
        )
    manifest = read_as(Manifest, raw)
    named = {n for n in manifest.sha256 if n != EXPECTED and not KERNEL.fullmatch(n)}
    if named != set(MEMBERS):
        raise PlanError(f"{str(path)!r} has a manifest that names other members", want=", ".join(MEMBERS))
    target, here = manifest.target, f"cpu:{platform.machine()}"
    # others may be looked at anywhere; whether a GPU here fits is asked when the engine runs
    if target != here and target.startswith("cpu:"):
        raise PlanError(
            f"{str(path)!r} was made for another target",
            got=target,
            want=here,
            help="build it again for this machine: ridge build MODEL.onnx --target cpu",
        )
    return manifest
