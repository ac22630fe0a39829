"""Records every value of a model for given inputs, so that a part is run on its real inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ridgeline.base.files import whole_file
from ridgeline.errors import BuildError, OptionError
from ridgeline.frontend.evaluator import Evaluator
from ridgeline.frontend.functions import copy_of
from ridgeline.frontend.other_runtimes import (
    WEIGHTS_FOLDER,
    open_session,
    session_options,
    session_or_evaluator,
)
from ridgeline.frontend.types import tensor_type
from ridgeline.surgery.graph import ModelGraph

Sample = Mapping[str, np.ndarray]


class Recording:
    """The values of several samples, one file each on disk: a model's values may be larger than memory."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self._files: dict[str, str] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def keep(self, sample: int, name: str, array: np.ndarray) -> None:
        file = self._files.setdefault(name, f"v{len(self._files)}")
        self._dtypes[name] = array.dtype  # numpy cannot write bfloat16
        np.save(self.folder / f"{file}_{sample}.npy", array, allow_pickle=False)

    def has(self, name: str) -> bool:
        return name in self._files

    def of(self, name: str) -> list[np.ndarray]:
        """One array per sample."""
        file = self._files[name]
        places = [self.folder / f"{file}_{i}.npy" for i in range(self.count)]
        return [np.load(place, allow_pickle=False).view(self._dtypes[name]) for place in places]

    def type_of(self, name: str) -> onnx.TypeProto:
        """A type that fits all samples: a dim of several sizes gets a name."""
        arrays = self.of(name)
        element = int(ir.DataType.from_numpy(arrays[0].dtype))
        sizes = zip(*(a.shape for a in arrays), strict=True)
        return tensor_type(
            element, [s[0] if len(set(s)) == 1 else f"{name}.{i}" for i, s in enumerate(sizes)]
        )

    def write_samples(self, names: Sequence[str], folder: Path) -> list[Path]:
        """The inputs of a part as sample files, one per sample."""
        arrays = {name: self.of(name) for name in names}
        written = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(self.count):
                written.append(path := folder / f"sample_{i:02d}.npz")
                with whole_file(path) as file:
                    np.savez(file, **{name: arrays[name][i] for name in names})  # type: ignore[arg-type]
        except OSError as error:
            raise OptionError(f"{str(folder)!r} cannot be written to", got=str(error)) from error
        return written


def random_sample(graph: ModelGraph, seed: int) -> dict[str, np.ndarray]:
    """Inputs at declared sizes; an open dim is 1. Integers are 0 or 1, which most models can take."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, port in graph.inputs.items():
        kind = port.type.tensor_type
        sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
        shape = [size if size >= 0 else 1 for size in sizes]  # some exporters write -1 for an open dim
        element = ir.DataType(kind.elem_type)
        dtype = element.numpy()
        drawn = rng.standard_normal(shape) if element.is_floating_point() else rng.integers(0, 2, shape)
        made[name] = np.asarray(drawn).astype(dtype)
    return made


def record(graph: ModelGraph, samples: Sequence[Sample], folder: Path) -> Recording:
    """Run the model on every sample and keep every value whose type is a tensor of numbers."""
    made = Recording(folder, len(samples))
    names = [name for name in graph.producer if graph.types.get(name) is not None]
    names = [name for name in names if graph.types[name].WhichOneof("value") == "tensor_type"]
    run = _runner(graph, names)
    for i, sample in enumerate(samples):
        for name, array in (*sample.items(), *zip(names, run(sample), strict=True)):
            made.keep(i, name, np.asarray(array))
    return made


def _runner(graph: ModelGraph, names: Sequence[str]) -> Callable[[Sample], Sequence[Any]]:
    """ONNX Runtime with every optimisation off, else the onnx reference."""
    proto = copy_of(graph.proto)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=n, type=graph.types[n]) for n in names)
    settings = {} if graph.folder is None else {WEIGHTS_FOLDER: str(graph.folder)}
    options = session_options(is_optimised=False, settings=settings)
    runner, _ = session_or_evaluator(
        lambda: open_session(proto, options),
        lambda: Evaluator(proto),
        lambda rows: BuildError("nobody runs the model to record its values", rows=rows),
    )
    return lambda sample: runner.run(list(names), dict(sample))
