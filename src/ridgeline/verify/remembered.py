"""Facts about a model that a later build need not measure again, kept beside the timing cache.

What it computes, how far rounding carries that, and that its fused graph computes the same. Each stands under
a digest of all that it depends on. An engine is never among them: it is run and compared in every build.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from google.protobuf.message import EncodeError

from ridgeline.base.files import open_regular, prune, whole_file
from ridgeline.base.typed_json import parse_json, read_as
from ridgeline.errors import first_line
from ridgeline.frontend.from_onnx import Loaded, all_tensors, folder_of
from ridgeline.tactics.cache import locked, write_text

FORMAT = 1
# enough for hundreds of models; the oldest go first
KEPT = 2000
# outputs of the reference, a file for each set of inputs
MAX_ARRAY_BYTES, MAX_ARRAY_FILES = 64 << 20, 64
FROM_CACHE = "from the cache"
# what json, zipfile and numpy raise on a damaged file
UNREADABLE = (
    OSError, ValueError, TypeError, KeyError, AttributeError, EOFError, SyntaxError, MemoryError,
    RuntimeError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip
T = TypeVar("T")


@dataclass
class Facts:
    """Facts by key. What could not be read is said in `problems`, never fatal."""

    path: Path | None = None
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    has_news: bool = False

    @staticmethod
    def beside(timing_cache: Path | None) -> Facts:
        """Those of the timing cache's folder; without a timing cache none are kept."""
        if timing_cache is None:
            return Facts()
        return Facts._at(timing_cache.with_name(f"{timing_cache.name}.facts.json"))

    @staticmethod
    def _at(path: Path) -> Facts:
        try:
            return Facts(path, _read_facts(path) if path.exists() else {})
        except UNREADABLE as error:
            return Facts(path, problems=[f"{path.name} is damaged and was ignored: {first_line(error)}"])

    def find_as(self, kind: type[T], key: str | None) -> T | None:
        """A fact of this type; None where there is none, or one of another type, which is then said."""
        try:
            found = self.entries.get(key) if key is not None else None
            return None if found is None else read_as(kind, found)
        except ValueError as error:
            self.problems.append(f"a fact of another type was ignored: {first_line(error)}")
            return None

    def keep(self, key: str | None, fact: Mapping[str, Any]) -> None:
        if key is not None:
            self.entries[key] = dict(fact)
            self.has_news = True

    def find_arrays(self, key: str | None) -> dict[str, np.ndarray] | None:
        """The kept arrays; None if there are none or they cannot be read."""
        path = self._arrays_path(key)
        try:
            with open_regular(path) as file:
                with zipfile.ZipFile(file) as archive:
                    if sum(member.file_size for member in archive.infolist()) > 2 * MAX_ARRAY_BYTES:
                        return None
                with np.load(file, allow_pickle=False) as kept:
                    return {name: kept[name] for name in kept.files}
        except UNREADABLE:
            return None

    def keep_arrays(self, key: str | None, arrays: Mapping[str, Any]) -> bool:
        """Keep arrays; False for large ones and for types that numpy does not write."""
        plain = {name: np.asarray(array) for name, array in arrays.items()}
        path = self._arrays_path(key)
        is_small = sum(array.nbytes for array in plain.values()) <= MAX_ARRAY_BYTES
        if key is None or not is_small or any(a.dtype.kind not in "fiub" for a in plain.values()):
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path, mode=0o600) as file:
                np.savez(file, allow_pickle=False, **plain)
            prune(path.parent, "*.npz", kept=MAX_ARRAY_FILES)
        except OSError:  # a full or unwritable disk: the next build computes them again
            return False
        return True

    def _arrays_path(self, key: str | None) -> Path:
        folder = Path("facts") if self.path is None else self.path.with_suffix("")
        return folder / f"{key}.npz"

    def write(self) -> None:
        if self.path is None or not self.has_news:
            return
        with locked(self.path):
            merged = {**Facts._at(self.path).entries, **self.entries}
            newest = dict(list(merged.items())[-KEPT:])
            made = {"format": FORMAT, "digest": _digest_facts(newest), "facts": newest}
            write_text(self.path, json.dumps(made, indent=1) + "\n")


def _read_facts(path: Path) -> dict[str, dict[str, Any]]:
    with open_regular(path) as file:
        raw = parse_json(file.read())
    facts: dict[str, dict[str, Any]] = raw["facts"] if raw["format"] == FORMAT else {}
    if not all(isinstance(fact, dict) for fact in facts.values()):
        raise ValueError("a fact is not an object")
    if facts and raw["digest"] != _digest_facts(facts):
        raise ValueError("its digest is not that of its facts")
    return facts


def _digest_facts(facts: Mapping[str, Any]) -> str:
    """A checksum, so that a damaged or edited file cannot loosen a check."""
    return digest_texts([json.dumps(facts, sort_keys=True)])


class ModelDigest:
    """The digest of a model with all its weights, made on a thread of its own while the build goes on."""

    def __init__(self, loaded: Loaded) -> None:
        pool = ThreadPoolExecutor(1, "digest")
        self._made: Future[str | None] = pool.submit(_digest_model, loaded)
        pool.shutdown(wait=False)
        # kept alive, so that no other array gets the same address
        self._own = {
            name: value.const_value.numpy() for name, value in loaded.model.graph.initializers.items()
        }
        self._places = {array.ctypes.data: name for name, array in self._own.items() if array.nbytes}

    def value(self) -> str | None:
        """None if the model was not read from a file."""
        return self._made.result()

    def of_weights(self, weights: Mapping[str, np.ndarray]) -> str:
        """The digest of a fused graph's weights. Unchanged weights of the model count by name."""
        made = hashlib.sha256()
        for name, array in weights.items():
            own = self._places.get(array.ctypes.data)
            is_own = own is not None and _is_same_memory(self._own[own], array)
            made.update(f"{name} is {own};".encode() if is_own else digest_arrays({name: array}).encode())
        return made.hexdigest()


def _is_same_memory(one: np.ndarray, other: np.ndarray) -> bool:
    return (one.shape, one.strides, one.dtype) == (other.shape, other.strides, other.dtype)


def _digest_model(loaded: Loaded) -> str | None:
    try:
        made = hashlib.sha256(loaded.original.SerializeToString(deterministic=True))
    except (ValueError, EncodeError):  # over protobuf's 2 GiB
        return None
    for location in outside_files(loaded.original):
        path = Path(folder_of(loaded)) / location
        made.update(f"{location} {path.stat().st_size} ".encode())
        if path.stat().st_size:
            # one call over mapped memory copies nothing and releases the interpreter lock
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                made.update(content)
    return made.hexdigest()


def outside_files(proto: onnx.ModelProto) -> list[str]:
    """Files that hold weights of the model, its own among them where large weights were left in it."""
    places = {
        entry.value
        for tensor in all_tensors(proto)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(places)


def digest_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """The digest of names, types, shapes and all elements."""
    made = hashlib.sha256()
    for name, array in arrays.items():
        made.update(f"{name} {array.dtype} {array.shape} ".encode())
        plain = np.ascontiguousarray(array)
        is_object = array.dtype == object
        made.update(repr(plain.tolist()).encode() if is_object else plain.reshape(-1).view(np.uint8).data)
    return made.hexdigest()


def digest_texts(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
