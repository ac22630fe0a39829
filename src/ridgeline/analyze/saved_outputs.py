"""Inputs and outputs of a run in one file, so that two machines, or two versions, can be compared.

A .npz or .safetensors file: arrays under ``input/SAMPLE/NAME``, ``output/SAMPLE/NAME`` and, with layers,
``layer/SAMPLE/NAME``, and a JSON text that says who computed them, of which model, and the digest of each
sample's inputs. Types that neither format can name are stored as bits, and the text says what they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from ridgeline.analyze.compare_sides import NOT_SAVED, Arrays, Feeds, GraphNode
from ridgeline.base.arrays import load_arrays
from ridgeline.base.files import read_regular, whole_file
from ridgeline.base.spec import Port
from ridgeline.base.typed_json import parse_json, read_as
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.kernels.elements import is_plain, numpy_dtype
from ridgeline.verify.remembered import digest_arrays

FORMAT = "ridgeline/saved-outputs/1"
ABOUT = "about"
SUFFIXES = (".npz", ".safetensors")


@dataclass(frozen=True)
class About:
    """What the file says of itself."""

    format: str
    label: str
    who: str
    samples: dict[str, str]  # the digest of each sample's inputs
    dtypes: dict[str, str] = field(default_factory=dict)  # of arrays that are stored as bits
    versions: dict[str, str] = field(default_factory=dict)


@dataclass
class SavedSide:
    """Outputs that were computed elsewhere. Samples are found by the digest of their inputs."""

    label: str
    who: str
    digests: dict[str, str]  # sample -> digest
    arrays: dict[str, Arrays]  # "output/SAMPLE" -> arrays by name
    inputs: Sequence[Port] = ()
    nodes: Sequence[GraphNode] = ()

    def draw(self, seed: int) -> Feeds:
        raise NotImplementedError("saved outputs have samples of their own")

    def samples(self) -> list[tuple[str, Feeds]]:
        """The inputs that the file holds."""
        return [(name, dict(self.arrays.get(f"input/{name}", {}))) for name in self.digests]

    def run(self, name: str, feeds: Feeds) -> Arrays:
        return self.arrays.get(f"output/{self._sample(name, feeds)}", {})

    def layers(self, name: str, feeds: Feeds) -> Arrays:
        return self.arrays.get(f"layer/{self._sample(name, feeds)}", {})

    def absent(self, value: str, node: GraphNode) -> str:
        return NOT_SAVED

    def _sample(self, name: str, feeds: Feeds) -> str:
        digest = _digest(feeds)
        found = [sample for sample, known in self.digests.items() if known == digest]
        if not found:
            raise OptionError(
                f"{self.label} holds no outputs for the inputs of {name}",
                got=f"digest {digest[:16]}",
                want=", ".join(f"{sample} {known[:16]}" for sample, known in list(self.digests.items())[:5]),
                help="leave --data away: the file holds its own inputs",
            )
        return found[0]


def save_outputs(
    path: Path,
    samples: Mapping[str, tuple[Feeds, Arrays, Arrays]],  # name -> inputs, outputs, layers
    *,
    label: str,
    who: str,
    versions: Mapping[str, str],
) -> None:
    """Write the file: whole, or not at all."""
    arrays: Arrays = {}
    digests = {}
    for sample, (feeds, outputs, layers) in samples.items():
        inputs = {name: np.asarray(array) for name, array in feeds.items()}
        digests[sample] = _digest(inputs)
        for kind, group in (("input", inputs), ("output", outputs), ("layer", layers)):
            arrays |= {f"{kind}/{sample}/{name}": array for name, array in group.items()}
    refused = "OUS" if path.suffix == ".npz" else "OUSc"
    for name in (name for name, array in arrays.items() if array.dtype.kind in refused):
        raise OptionError(
            f"{name!r} cannot be saved in a {path.suffix} file", got=str(arrays[name].dtype), want="numbers"
        )
    stored, dtypes = {}, {}
    for name, array in arrays.items():
        stored[name] = np.ascontiguousarray(array).reshape(array.shape)
        if not is_plain(array.dtype):  # a type of ml_dtypes, as unsigned integers of its size
            dtypes[name] = str(array.dtype)
            stored[name] = stored[name].view(f"u{array.dtype.itemsize}")
    about = About(FORMAT, label, who, digests, dtypes, dict(versions))
    text = json.dumps(vars(about), sort_keys=True)
    try:
        with whole_file(path) as file:
            if path.suffix == ".npz":
                stored[ABOUT] = np.frombuffer(text.encode(), np.uint8)
                np.savez(file, **stored)  # type: ignore[arg-type]
            else:
                file.write(save_safetensors(stored, {ABOUT: text}))
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written", got=str(error)) from error


def load_outputs(path: Path) -> SavedSide:
    """Read such a file. What it says is checked: every sample has inputs with the digest it states."""
    require_suffix(path)
    arrays, text = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    try:
        about = read_as(About, parse_json(text))
    except (ValueError, TypeError, KeyError) as error:
        raise _not_saved(path, str(error)) from error
    if about.format != FORMAT:
        raise _not_saved(path, about.format)
    grouped: dict[str, Arrays] = {}
    samples = sorted(about.samples, key=len, reverse=True)  # a sample's name may begin another's
    for key, array in arrays.items():
        kind, _, rest = key.partition("/")
        sample = next((name for name in samples if rest.startswith(f"{name}/")), None)
        if kind not in ("input", "output", "layer") or sample is None:
            raise _not_saved(path, f"an array {key!r}")
        grouped.setdefault(f"{kind}/{sample}", {})[rest[len(sample) + 1 :]] = _typed(key, array, about)
    for sample, digest in about.samples.items():
        if _digest(grouped.get(f"input/{sample}", {})) != digest:
            raise OptionError(f"{path} is damaged: the inputs of {sample!r} are not those it states")
    return SavedSide(f"{path}", f"{about.label}: {about.who}", dict(about.samples), grouped)


def require_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise OptionError(
            f"{path} is no file of saved outputs", want=" or ".join(f"NAME{s}" for s in SUFFIXES)
        )


def _digest(feeds: Feeds) -> str:
    """Of inputs in any order: file formats have orders of their own."""
    return digest_arrays({name: np.asarray(feeds[name]) for name in sorted(feeds)})


def _typed(key: str, array: np.ndarray, about: About) -> np.ndarray:
    if key not in about.dtypes:
        return array
    name = about.dtypes[key]
    try:
        dtype = numpy_dtype(name)
        return array.view(dtype)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{key!r} is stored as {name!r}, which does not read", got=str(error)) from error


def _read_npz(path: Path) -> tuple[Arrays, bytes]:
    found = load_arrays(path)
    if isinstance(found, np.ndarray) or ABOUT not in found:
        raise _not_saved(path, "no description inside")
    about = found.pop(ABOUT)
    return found, np.ascontiguousarray(about).tobytes()


def _read_safetensors(path: Path) -> tuple[Arrays, bytes]:
    try:
        content = read_regular(path)
        length = int.from_bytes(content[:8], "little")
        header: Any = parse_json(content[8 : 8 + length])
        text = header["__metadata__"][ABOUT]
        return dict(load_safetensors(content)), str(text).encode()
    except FileNotFoundError:
        raise OptionError(f"{path} does not exist", help=did_you_mean(path.name, _beside(path))) from None
    except Exception as error:  # safetensors has an exception of its own, and JSON others
        raise _not_saved(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def _beside(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []


def _not_saved(path: Path, got: str) -> OptionError:
    return OptionError(
        f"{path} holds no saved outputs", got=got, want="a file that ridge compare --save-outputs wrote"
    )
