"""One process of the hostile fuzzer: seeds in, one line of JSON per seed out.

    python tests/fuzz/hostile_worker.py FOLDER FIRST COUNT [--sanitize]

With --sanitize generated C++ is compiled with AddressSanitizer and UBSan, and every value and every weight
has an allocation of its own, since an overrun inside one arena would go unseen. The process must have been
started with the sanitizers' libraries loaded first, as `hostile_many.py` does. What kills this process is
seen from outside: the line of the seed that began is there, the line that says how it ended is not.
"""

from __future__ import annotations

import copy
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from fuzz_graphs import make_case
from fuzz_seeds import foreign, walk_seeds
from hostile_models import GRAPHS, make_model
from hostile_mutations import mutate_engine, mutate_model

import ridgeline
from ridgeline import builder
from ridgeline.base.spec import TensorSpec
from ridgeline.errors import RidgelineError
from ridgeline.kernels.cpp import compiler
from ridgeline.kernels.elements import TORCH_DTYPES, numpy_dtype
from ridgeline.runtime import instance

SANITIZERS = (
    "-std=c++17", "-O1", "-g1", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp",
    "-fwrapv", "-shared", "-fPIC", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
)  # fmt: skip
MOST_ITEMS = 1 << 20
OPTIONS: dict[str, Any] = {"level": 0, "verify": "off", "threads": 1, "without": "ort"}


def sanitize() -> None:
    """Compile for the sanitizers from here on, and let no two values share an allocation."""
    compiler._FLAGS = SANITIZERS

    def own_place(arena: torch.Tensor, offset: int, spec: TensorSpec) -> torch.Tensor:
        return torch.empty_strided(spec.shape, spec.strides, dtype=TORCH_DTYPES[spec.dtype])

    instance.place = own_place
    read = builder.read_engine

    def read_apart(path: Path) -> Any:
        stored = read(path)
        return replace(stored, weights={name: tensor.clone() for name, tensor in stored.weights.items()})

    builder.read_engine = read_apart


def base_model(rng: random.Random) -> tuple[str, onnx.ModelProto]:
    if rng.random() < 0.7:
        name = rng.choice(list(GRAPHS))
        return name, make_model(name)
    seed = rng.randrange(4000)
    return f"graph {seed}", copy.deepcopy(make_case(seed).model)


def base_engine(name: str, folder: Path) -> Path:
    """Built once for all seeds."""
    path = folder / f"{name}.ridge"
    if not path.exists():
        engine = ridgeline.build(make_model(name).SerializeToString(), **OPTIONS)
        engine.save(path)
    return path


def run_engine(engine: Any, rng: random.Random) -> None:
    """Two calls at likely shapes, and one at others where dims are open."""
    for size in (2, 2, 3):
        feeds = {}
        for port in engine.inputs:
            if port.is_non_tensor or port.dims is None:
                return
            shape = tuple(dim if isinstance(dim, int) else size for dim in port.dims)
            if min(shape, default=1) < 0 or np.prod(shape, dtype=float) > MOST_ITEMS:
                return
            feeds[port.name] = draw(shape, numpy_dtype(port.dtype), rng)
        engine.run(feeds)


def draw(shape: tuple[int, ...], dtype: np.dtype, rng: random.Random) -> np.ndarray:
    numbers = np.random.default_rng(rng.randrange(2**32))
    if dtype.kind in "iu":
        array = numbers.integers(0, 5, shape)
        if rng.random() < 0.2:  # indices and lengths are data too
            array = numbers.integers(-(2**31), 2**31, shape)
        return array.astype(dtype)
    return numbers.normal(size=shape).astype(dtype)


def run_seed(seed: int, folder: Path) -> dict[str, Any]:
    rng = random.Random(seed)
    row: dict[str, Any] = {"seed": seed}
    try:
        if rng.random() < 0.5:
            name, model = base_model(rng)
            row |= {"kind": "model", "base": name, "changes": mutate_model(model, rng)}
            engine = ridgeline.build(model.SerializeToString(), **OPTIONS)
        else:
            name = rng.choice(list(GRAPHS))
            target = folder / f"changed-{seed}.ridge"
            try:
                changes = mutate_engine(base_engine(name, folder), target, rng)
                row |= {"kind": "engine", "base": name, "changes": changes}
                engine = ridgeline.load(target)
                run_engine(engine, rng)
            finally:
                target.unlink(missing_ok=True)
        run_engine(engine, rng)
        row["verdict"] = "ran"
    except RidgelineError as error:
        row |= {"verdict": "refused", "error": type(error).__name__, "detail": str(error)[:300]}
    except Exception as error:
        row |= foreign(error)
    return row


def main() -> None:
    folder = Path(sys.argv[1])
    if "--sanitize" in sys.argv:
        sanitize()
    walk_seeds(lambda seed: run_seed(seed, folder))


if __name__ == "__main__":
    main()
