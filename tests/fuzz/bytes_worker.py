"""One process of the byte fuzzer, as `hostile_many.py --bytes` starts it: a line of JSON for each seed.

    python tests/fuzz/bytes_worker.py FOLDER FIRST COUNT

A seed takes a file that outsiders hand in (engine, model, lock, timing cache, facts), changes it without
knowing what it means, with hashes made to fit or not, and uses it as a caller would. Right is an engine that
runs, or an error of ours.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from bytes_mutations import change_bytes, change_json, change_message
from fuzz_seeds import foreign, walk_seeds
from hostile_models import make_model

import ridgeline
from ridgeline.errors import RidgelineError
from ridgeline.kernels.elements import numpy_dtype
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.plan.report import Check
from ridgeline.runtime.file import Stored, read_engine, write_engine
from ridgeline.tactics.cache import TimingCache
from ridgeline.verify.remembered import Facts

BASES = ("gemm", "softmax", "conv_small", "pointwise", "lstm")
# most seeds end before a kernel is compiled; those that do not should not wait for the compiler
OPTIONS: dict[str, Any] = {"level": 0, "verify": "off", "threads": 1, "without": ("ort", "cpp")}
MOST_ITEMS = 1 << 16
DIGEST = "0123456789abcdef" * 2 + "01234567"
KERNEL = Compiled("add", "sm_90", b"\x7fELF", 0, 4, True, 3, ("*fp16", "i32"), 32, 0, 0.1, "3.7")
MANIFEST = "manifest.json"


class Bases:
    """The files as they were, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = {name: make_model(name).SerializeToString() for name in BASES}
        self.engines: dict[str, dict[str, bytes]] = {}
        self.raw: dict[str, bytes] = {}
        self.cache, self.facts = folder / "base.toml", folder / "base.toml.facts.json"
        for name, model in self.models.items():
            path = folder / f"{name}.ridge"
            if not path.exists():
                verify = {"timing_cache": self.cache, "verify": "fast", "level": 1} if name == "gemm" else {}
                engine = ridgeline.build(model, **{**OPTIONS, **verify})
                kernels = {DIGEST: KERNEL} if name == "softmax" else {}
                write_engine(path, Stored(engine.plan, engine.report, kernels, engine.model, engine.weights))
            self.raw[name] = path.read_bytes()
            with zipfile.ZipFile(path) as archive:
                self.engines[name] = {member: archive.read(member) for member in archive.namelist()}
        self.lock = folder / "base.lock"
        if not self.lock.exists():
            ridgeline.build(self.models["gemm"], **OPTIONS, lock=self.lock)


def engine_bytes(bases: Bases, rng: random.Random, path: Path) -> None:
    """The zip itself."""
    path.write_bytes(change_bytes(bases.raw[rng.choice(BASES)], rng))
    use_engine(path, rng)


def engine_member(bases: Bases, rng: random.Random, path: Path) -> None:
    """One member, by its bytes or as what it is, with hashes that fit."""
    members = dict(bases.engines[rng.choice(BASES)])
    name = rng.choice(sorted(members))
    members[name] = changed_member(name, members[name], rng)
    if name != MANIFEST:
        manifest = json.loads(members[MANIFEST])
        manifest["sha256"][name] = hashlib.sha256(members[name]).hexdigest()
        members[MANIFEST] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    use_engine(path, rng)


def changed_member(name: str, content: bytes, rng: random.Random) -> bytes:
    is_structured = rng.random() < 0.7
    if name.endswith(".json") and is_structured:
        return change_json(content, rng)
    if name.endswith(".onnx") and is_structured:
        proto = onnx.ModelProto.FromString(content)
        change_message(proto, rng)
        return proto.SerializeToString()
    if name.endswith(".safetensors") and is_structured:
        length = int.from_bytes(content[:8], "little")
        header = change_json(content[8 : 8 + length], rng)
        header += b" " * (-(8 + len(header)) % 64)
        return len(header).to_bytes(8, "little") + header + content[8 + length :]
    return change_bytes(content, rng)


def use_engine(path: Path, rng: random.Random) -> None:
    engine = ridgeline.load(path, trust=rng.random() < 0.1)
    run(engine, rng)
    if rng.random() < 0.05:
        read_engine(engine.save(path))


def model_bytes(bases: Bases, rng: random.Random, path: Path) -> None:
    """An ONNX file, by its bytes or its fields."""
    name = rng.choice(BASES)
    content = changed_member("model.onnx", bases.models[name], rng)
    path.write_bytes(content)
    run(ridgeline.build(path, **OPTIONS), rng)


def lock_or_cache(bases: Bases, rng: random.Random, path: Path) -> None:
    """A lock or a timing cache: read, and sometimes built with."""
    source, option = rng.choice(((bases.lock, "lock"), (bases.cache, "timing_cache")))
    path.write_bytes(change_bytes(source.read_bytes(), rng))
    TimingCache.read(path)
    if rng.random() < 0.1:
        run(ridgeline.build(bases.models["gemm"], **OPTIONS, **{option: path}), rng)


def facts(bases: Bases, rng: random.Random, path: Path) -> None:
    """What a former build is said to have found out."""
    beside = path.with_name(f"{path.name}.facts.json")
    content = bases.facts.read_bytes()
    if rng.random() < 0.7:
        made = json.loads(change_json(content, rng))
        if isinstance(made, dict) and isinstance(made.get("facts"), dict):
            text = json.dumps(made["facts"], sort_keys=True)
            made["digest"] = hashlib.sha256(text.encode()).hexdigest()
        beside.write_text(json.dumps(made))
    else:
        beside.write_bytes(change_bytes(content, rng))
    try:
        known = Facts.beside(path)
        for key in list(known.entries):
            known.find_as(dict[str, tuple[float, float]], key)
            known.find_as(dict[str, tuple[Check, ...]], key)
        folder = bases.facts.with_suffix("")
        arrays = sorted(folder.glob("*.npz"))
        if arrays:
            target = beside.with_suffix("")
            target.mkdir(exist_ok=True)
            (target / "some.npz").write_bytes(change_bytes(rng.choice(arrays).read_bytes(), rng))
            known.find_arrays("some")
    finally:
        beside.unlink(missing_ok=True)


KINDS: dict[Callable[[Bases, random.Random, Path], None], int] = {
    engine_member: 45, engine_bytes: 25, model_bytes: 12, lock_or_cache: 10, facts: 8,
}  # fmt: skip


def run(engine: Any, rng: random.Random) -> None:
    feeds = {}
    for port in engine.inputs:
        if port.is_non_tensor or port.dims is None:
            return
        shape = tuple(dim if isinstance(dim, int) else 2 for dim in port.dims)
        if min(shape, default=1) < 0 or np.prod(shape, dtype=float) > MOST_ITEMS:
            return
        feeds[port.name] = np.ones(shape, numpy_dtype(port.dtype))
    engine.context(wait=True).run(feeds)


def run_seed(seed: int, bases: Bases) -> dict[str, Any]:
    rng = random.Random(seed)
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    path = bases.folder / f"seed-{seed}"
    row: dict[str, Any] = {"seed": seed, "kind": kind.__name__}
    try:
        kind(bases, rng, path)
        row["verdict"] = "ran"
    except RidgelineError as error:
        row |= {"verdict": "refused", "error": type(error).__name__}
    except Exception as error:
        row |= foreign(error)
    finally:
        path.unlink(missing_ok=True)
    return row


def main() -> None:
    bases = Bases(Path(sys.argv[1]))
    walk_seeds(lambda seed: run_seed(seed, bases))


if __name__ == "__main__":
    main()
