"""An engine mapped over a Ray Data set: offline inference, in as many actors as there are devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from ray.data import ActorPoolStrategy, Dataset

from ridgeline.builder import load_engine
from ridgeline.errors import InputError, OptionError, did_you_mean

BATCH = 32


class EngineActor:
    """One engine in a process of Ray's, for batch after batch of rows."""

    def __init__(
        self, engine: str, inputs: Mapping[str, str], outputs: Mapping[str, str], trust: bool
    ) -> None:
        self._engine = load_engine(engine, trust=trust)
        self._inputs, self._outputs = dict(inputs), dict(outputs)
        self._run = self._engine.context(wait=True).run

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = len(next(iter(batch.values()))) if batch else 0
        feeds = {name: _array(name, column, batch) for name, column in self._inputs.items()}
        answers = self._run(feeds) if rows else {}
        columns = dict(batch)
        for name, column in self._outputs.items():
            if rows:
                answer = np.asarray(answers[name])
                if answer.shape[:1] != (rows,):
                    raise InputError(
                        f"output {name!r} cannot be column {column!r}",
                        got=f"shape {list(answer.shape)} for {rows} rows",
                        want="one row for each row of the data set",
                    )
                columns[column] = answer
        return columns


def _array(name: str, column: str, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    array = batch[column]
    if array.dtype == object:  # rows of several shapes, or lists
        try:
            array = np.stack([np.asarray(row) for row in array])
        except ValueError as error:
            raise InputError(
                f"column {column!r} cannot be input {name!r}: its rows have several shapes",
                help="bring them to one shape first, or map with batch_size=1",
            ) from error
    return np.ascontiguousarray(array)


def map_engine(
    dataset: Dataset,
    engine: str | Path,
    *,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    batch_size: int = BATCH,
    concurrency: int | tuple[int, int] = 1,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    trust: bool = False,
) -> Dataset:
    """The data set with a column for each output. Lazy, as all of Ray Data.

    `inputs` and `outputs` say which column belongs to which input and output of the engine; without them
    they have the same names. Other columns stay as they are. `concurrency` actors run at the same time.

    Parameters: those of Ray's `map_batches` that matter for an engine, under their names there.
    """
    path = Path(engine).resolve()
    loaded = load_engine(path, trust=trust)
    ports = ([port.name for port in loaded.inputs], [port.name for port in loaded.outputs])
    taken = dict(inputs) if inputs is not None else {name: name for name in ports[0]}
    made = dict(outputs) if outputs is not None else {name: name for name in ports[1]}
    for what, names, given in (("input", ports[0], taken), ("output", ports[1], made)):
        for name in given:
            if name not in names:
                raise OptionError(f"the engine has no {what} {name!r}", help=did_you_mean(name, names))
    if missing := [name for name in ports[0] if name not in taken]:
        raise OptionError(
            f"no column is named for input {missing[0]!r}", want=f"inputs={{{missing[0]!r}: COLUMN}}"
        )
    schema = dataset.schema()
    known = list(schema.names) if schema is not None else []
    for name, column in taken.items():
        if known and column not in known:
            raise OptionError(
                f"the data set has no column {column!r} for input {name!r}", help=did_you_mean(column, known)
            )
    low, high = concurrency if isinstance(concurrency, tuple) else (concurrency, concurrency)
    mapped: Dataset = dataset.map_batches(
        EngineActor,
        fn_constructor_args=(str(path), taken, made, trust),
        batch_size=batch_size,
        batch_format="numpy",
        zero_copy_batch=True,
        compute=ActorPoolStrategy(min_size=low, max_size=high),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
    return mapped
