"""Which shapes an engine meets: counted while it runs, kept as JSON, read by `ridge shapes`."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.base.files import open_regular, path_given, require_place, whole_file
from ridgeline.base.spec import Port
from ridgeline.errors import OptionError
from ridgeline.plan.plan import Plan

FORMAT = 1
Shape = tuple[int, ...]
Seen = tuple[tuple[str, Shape], ...]  # input name -> its shape, in the order of the inputs


@dataclass
class Observer:
    """Where all contexts of an engine look: None while nobody observes."""

    observation: Observation | None = None

    def observe(self, path: str | Path, plan: Plan) -> Observation:
        """Count the shapes of all runs from now on."""
        target = require_place(path_given(path, what="this"))
        if not target.parent.is_dir():
            raise OptionError(f"there is no folder {str(target.parent)!r}", want="a file that can be written")
        self.observation = Observation(target, plan.model, plan.inputs, self)
        return self.observation


class Observation:
    """A histogram of input shapes. As a context manager it ends, and is written, with its block."""

    def __init__(self, path: Path, model: str, inputs: Sequence[Port], observer: Observer) -> None:
        self.path, self.model, self.inputs = path, model, tuple(inputs)
        self.counts: Counter[Seen] = Counter()
        self._observer = observer
        self._lock = threading.Lock()

    def count(self, shapes: Mapping[str, Shape]) -> None:
        with self._lock:
            self.counts[tuple(shapes.items())] += 1

    def write(self) -> Path:
        """Whole, or not at all: a reader may look at any time."""
        with self._lock:
            seen = [{"shapes": dict(shapes), "count": n} for shapes, n in self.counts.most_common()]
        dims = {port.name: list(port.dims) if port.dims is not None else None for port in self.inputs}
        content = {"format": FORMAT, "model": self.model, "dims": dims, "seen": seen}
        try:
            with whole_file(self.path) as file:
                file.write((json.dumps(content, indent=1) + "\n").encode())
        except OSError as error:
            raise OptionError(f"{str(self.path)!r} cannot be written", got=str(error)) from error
        return self.path

    def stop(self) -> Path:
        """Count no more, and write what was seen."""
        if self._observer.observation is self:
            self._observer.observation = None
        return self.write()

    def __enter__(self) -> Observation:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


@dataclass(frozen=True)
class Histogram:
    """An observation as it is read back."""

    model: str
    dims: dict[str, tuple[int | str, ...] | None]
    seen: tuple[tuple[dict[str, Shape], int], ...]


def read_histogram(path: Path) -> Histogram:
    """The file that `engine.observe` wrote, or an error that says what is wrong with it."""
    try:
        with open_regular(path) as file:
            raw: dict[str, Any] = json.loads(file.read())
        dims = {name: None if d is None else tuple(d) for name, d in raw["dims"].items()}
        seen = tuple(
            ({name: tuple(int(s) for s in shape) for name, shape in row["shapes"].items()}, int(row["count"]))
            for row in raw["seen"]
        )
        is_whole = all(
            count > 0 and all(name in dims and min(shape, default=0) >= 0 for name, shape in shapes.items())
            for shapes, count in seen
        )
    except FileNotFoundError:
        raise OptionError(f"there is no file {str(path)!r}", want="what engine.observe(path) wrote") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, str(error)) from error
    if not is_whole:
        raise _unreadable(path, "a shape of an unknown input, a negative size, or a count below one")
    if not seen:
        raise OptionError(f"{str(path)!r} saw no shape", help="run the engine while it is observed")
    return Histogram(str(raw.get("model", "")), dims, seen)


def _unreadable(path: Path, got: str) -> OptionError:
    return OptionError(
        f"{str(path)!r} does not read as observed shapes",
        got=got,
        want='{"dims": {"x": ["N", 8]}, "seen": [{"shapes": {"x": [4, 8]}, "count": 12}]}',
    )
