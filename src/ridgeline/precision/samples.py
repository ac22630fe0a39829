"""Data sets to calibrate and judge with: any source of inputs, gone through as often as needed, checked once.

A source is a folder of .npz files, a list or iterator of dicts, a torch DataLoader or a Hugging Face dataset.
Where the model takes batches, samples are handed out one row at a time, so that nothing that is measured
depends on the size of a batch. Where it takes batches of one size, rows of other batches are joined to it.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ridgeline.base.arrays import data_files, load_sample
from ridgeline.base.spec import Port
from ridgeline.errors import OptionError, SampleShapeError
from ridgeline.kernels.elements import numpy_dtype
from ridgeline.precision.row_joining import RowJoiner

Feeds: TypeAlias = dict[str, np.ndarray]
# one sample in so many is held back to judge with
HELD_BACK = 4
# of so many rows that differ, none is held back in one case of ten thousand
ENOUGH = 32
NOT_DIVIDED = (
    "the data has {} different samples, too few to hold any back: errors are those on the samples that the "
    "model was calibrated with; give {} or more"
)
WANTED = "a folder of .npz files, dicts of arrays by input name, a DataLoader or a data set with such columns"


class Row(dict[str, np.ndarray]):
    """The inputs of one sample, and what errors call it."""

    where = ""


@dataclass(frozen=True)
class Samples:
    """Inputs of a model by name, row by row. Iterating it again gives the same rows."""

    read: Callable[[], Iterator[tuple[str, Feeds]]]  # batches as the source has them, with their names
    inputs: tuple[Port, ...]
    step: int  # rows of one sample; 0 where what the source has is not divided
    keeps: Callable[[str], bool] = lambda digest: True  # by the digest of a row
    drawn: bool = False  # at random, since the user gave none
    # whether rows may be joined to samples of `step` rows; asked if the source has batches of other sizes
    joins: Callable[[], bool] = lambda: False

    @staticmethod
    def of(
        source: Any,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        joins: Callable[[], bool] = lambda: False,
    ) -> Samples:
        """The samples of a user's source; the first is looked at now, so that a wrong source is refused.

        `joins` says whether the rows of a model of a fixed batch are independent of one another.
        """
        ports = tuple(port for port in inputs if not port.is_non_tensor)
        step = rows_of_sample(inputs, outputs)
        are_batches = bool(step and outputs) and all((port.dims or (0,))[0] == step for port in outputs)
        samples = Samples(
            _reader(source, [port.name for port in ports]),
            ports,
            step,
            joins=cache(joins) if are_batches else lambda: False,
        )
        samples.require_some()
        return samples

    def __iter__(self) -> Iterator[Feeds]:
        joiner = RowJoiner(self.step)
        for name, batch in self.read():
            found = {port.name: _typed_batch(name, port, batch[port.name]) for port in self.inputs}
            is_joined = self._is_joined(found)
            for port in self.inputs:
                _check(name, port, found[port.name], any_batch=is_joined)
            for row in _rows(found, 1 if is_joined else self.step, name):
                if not self.keeps(row_digest(row)):
                    continue
                if is_joined:
                    yield from (named_row(*made) for made in joiner.add(row))
                else:
                    yield row
        yield from (named_row(*made) for made in joiner.rest())

    def _is_joined(self, batch: Feeds) -> bool:
        """Whether the rows of a batch are joined to samples, since the model takes no such batch."""
        sizes = {len(array) if array.ndim else 0 for array in batch.values()}
        return bool(self.step) and len(sizes) == 1 and sizes.pop() % self.step > 0 and self.joins()

    def require_some(self) -> None:
        if next(iter(self), None) is None:
            raise OptionError("the data set has no sample", want=WANTED)

    def split(self) -> tuple[Samples, Samples]:
        """Rows to calibrate with and rows to judge with.

        The content of a row decides, so that order and batches do not. A set that is too small to be divided
        serves as both.
        """
        first = replace(self, keeps=lambda digest: not _is_held_back(digest))
        second = replace(self, keeps=_is_held_back)
        if next(iter(first), None) is None or next(iter(second), None) is None:
            return self, self
        return first, second

    def digest(self) -> str:
        """Equal for the same rows in any order and in any batches."""
        total = sum(int(row_digest(row), 16) for row in self)
        return f"{total % (1 << 128):032x}"


def row_digest(row: Mapping[str, np.ndarray]) -> str:
    made = hashlib.sha256()
    for name in sorted(row):
        made.update(f"{name} {row[name].dtype} {row[name].shape}".encode())
        made.update(np.ascontiguousarray(row[name]).tobytes())
    return made.hexdigest()[:32]


def _is_held_back(digest: str) -> bool:
    return int(digest, 16) % HELD_BACK == 0


def division_warnings(fitting: Samples, judging: Samples) -> list[str]:
    """What to say of the two parts of a data set: that one set serves as both, if it does."""
    if fitting is not judging:
        return []
    count = len({row_digest(row) for row in fitting})
    return [NOT_DIVIDED.format(count, max(ENOUGH, 2 * count))]


def drawn_samples(
    draw: Callable[[int], Mapping[str, Any]], seeds: Sequence[int], inputs: Sequence[Port]
) -> Samples:
    """Random inputs, for a model of which no data is given."""
    ports = tuple(port for port in inputs if not port.is_non_tensor)

    def read() -> Iterator[tuple[str, Feeds]]:
        for seed in seeds:
            drawn = draw(seed)
            yield f"drawn {seed}", {port.name: np.asarray(drawn[port.name]) for port in ports}

    return Samples(read, ports, step=0, drawn=True)


def require_source(source: Any) -> None:
    """Refuse what is no data set, before anything is known about the model."""
    _reader(source, ())


def _reader(source: Any, names: Sequence[str]) -> Callable[[], Iterator[tuple[str, Feeds]]]:
    """How the source is gone through from the start."""
    if isinstance(source, (str, Path)):
        files = data_files(Path(source))
        return lambda: ((path.name, load_sample(path, names)) for path in files)
    if callable(source) and not hasattr(source, "__iter__"):
        return lambda: _named(_called(source), names)
    if isinstance(source, Mapping):
        return lambda: _named([source], names)
    if not isinstance(source, Iterable) and not hasattr(source, "__getitem__"):
        raise OptionError("the data is no data set", got=type(source).__name__, want=WANTED)
    if hasattr(source, "__next__"):  # it can be gone through once
        return _Spooled(source, names).read
    return lambda: _named(source, names)


def _called(source: Callable[[], Any]) -> Iterable[Any]:
    found = source()
    if not isinstance(found, Iterable) and not hasattr(found, "__getitem__"):
        got = type(found).__name__
        raise OptionError("the data is a function that returns no data set", got=got, want=WANTED)
    made: Iterable[Any] = found
    return made


def _named(items: Iterable[Any], names: Sequence[str]) -> Iterator[tuple[str, Feeds]]:
    for i, item in enumerate(items):
        yield f"sample {i}", _by_name(item, names, f"sample {i}")


def _by_name(item: Any, names: Sequence[str], where: str) -> Feeds:
    """A sample as arrays by name: a mapping by its keys, a sequence by position."""
    if isinstance(item, Mapping):
        missing = [name for name in names if name not in item]
        if missing:
            found = [str(key) for key in item]
            raise OptionError(
                f"{where} has nothing for input {missing[0]!r}",
                got=", ".join(found) or "nothing",
                want=", ".join(names),
            )
        return {name: _array(item[name], name, where) for name in names}
    if isinstance(item, (list, tuple)) and not np.isscalar(item[0] if item else 0):
        if len(item) < len(names):
            raise OptionError(f"{where} has {len(item)} values", want=f"one for each of {', '.join(names)}")
        return {name: _array(value, name, where) for name, value in zip(names, item, strict=False)}
    if len(names) == 1:
        return {names[0]: _array(item, names[0], where)}
    raise OptionError(f"{where} does not say which input is which", got=type(item).__name__, want=WANTED)


def _array(value: Any, name: str, where: str) -> np.ndarray:
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu().numpy()
    try:
        return np.asarray(value)
    except ValueError as problem:  # rows of different lengths
        raise OptionError(f"{where} has no array for {name!r}", got=str(problem), want=WANTED) from problem


class _Spooled:
    """What an iterator gives, kept in files, since an iterator can be gone through once only."""

    def __init__(self, source: Any, names: Sequence[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ridgeline-samples-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._source: Iterator[Any] | None = iter(source)
        self._names = list(names)
        self._count = 0

    def read(self) -> Iterator[tuple[str, Feeds]]:
        for i in range(self._count):
            yield f"sample {i}", load_sample(self._path(i), self._names)
        while self._source is not None:
            try:
                item = next(self._source)
            except StopIteration:
                self._source = None
                return
            made = _by_name(item, self._names, f"sample {self._count}")
            np.savez(self._path(self._count), allow_pickle=False, **made)
            self._count += 1
            yield f"sample {self._count - 1}", made

    def _path(self, i: int) -> Path:
        return self._folder / f"{i}.npz"


def _typed_batch(where: str, port: Port, array: np.ndarray) -> np.ndarray:
    """In the type of the input, with the batch axis that a single row may lack."""
    array = _in_type(where, port, array)
    return array[None] if port.dims is not None and array.ndim == len(port.dims) - 1 else array


def _check(where: str, port: Port, array: np.ndarray, *, any_batch: bool) -> None:
    """Refuse an array that the input does not take."""
    dims = port.dims
    fits = dims is None or (
        array.ndim == len(dims)
        and all(
            isinstance(dim, str) or dim == size for dim, size in zip(dims[1:], array.shape[1:], strict=True)
        )
        and (any_batch or not dims or isinstance(dims[0], str) or (dims[0] and array.shape[0] % dims[0] == 0))
    )
    if not fits:
        raise SampleShapeError(
            f"{where} has {port.name!r} in another shape", got=str(list(array.shape)), want=str(port)
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        what = "NaN" if np.isnan(array).any() else "infinity"
        raise OptionError(f"{where} has {what} in {port.name!r}", want="numbers that the model is meant for")


def _in_type(where: str, port: Port, array: np.ndarray) -> np.ndarray:
    """In the type of the input. What Python makes of plain numbers is converted, if none of them changes."""
    wanted = numpy_dtype(port.dtype)
    if array.dtype == wanted:
        return array
    is_python = array.dtype in (np.dtype(np.int64), np.dtype(np.float64)) and array.dtype.kind == wanted.kind
    if not is_python:
        raise OptionError(
            f"{where} has {port.name!r} in another type", got=str(array.dtype), want=str(wanted)
        )
    with np.errstate(over="ignore"):
        made: np.ndarray = array.astype(wanted)
    is_lost = made != array if wanted.kind in "iu" else np.isinf(made) & np.isfinite(array)
    if is_lost.any():
        raise OptionError(
            f"{where} has numbers in {port.name!r} that {wanted} does not hold",
            got=f"{array[is_lost][0]}, the first of {int(is_lost.sum())}",
            want=str(wanted),
        )
    return made


def rows_of_sample(inputs: Sequence[Port], outputs: Sequence[Port]) -> int:
    """How many rows of its arrays one sample is; 0 where the arrays of a batch are one sample.

    An axis is the batch if it is the first of every input and every output by one name, which no other axis
    has: time, or the number of points, is first in some models too, and their rows are no samples. Of a fixed
    size, as many rows as the model takes.
    """
    firsts = {port.dims[0] if port.dims else 0 for port in inputs}
    first = firsts.pop() if len(firsts) == 1 else 0
    if isinstance(first, int):
        return first
    are_batches = all(port.dims and port.dims[0] == first for port in outputs)
    others = {dim for port in (*inputs, *outputs) for dim in (port.dims or ())[1:]}
    return int(bool(outputs) and are_batches and first not in others)


def _rows(batch: Feeds, step: int, where: str) -> Iterator[Row]:
    sizes = {len(array) if array.ndim else 0 for array in batch.values()}
    if not step or len(sizes) != 1:
        yield named_row(batch, where)
        return
    total = sizes.pop()
    for i in range(0, total, step):
        single = {name: array[i : i + step] for name, array in batch.items()}
        yield named_row(single, where if total == step else f"row {i} of {where}")


def named_row(arrays: Mapping[str, np.ndarray], where: str) -> Row:
    made = Row(arrays)
    made.where = where
    return made
