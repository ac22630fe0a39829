"""Calibration as a readable JSON file: ranges by tensor, with digests of their model and data."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx_ir as ir

from ridgeline.base.files import open_regular, require_place, whole_file
from ridgeline.base.typed_json import Misfit, parse_json, read_as
from ridgeline.errors import OptionError
from ridgeline.frontend.types import to_proto
from ridgeline.precision.calibrate import Calibrated, Group

VERSION = 1


@dataclass(frozen=True)
class GroupRow:
    """One group as the file has it."""

    members: tuple[str, ...]
    format: str
    symmetric: bool
    calibrated: Calibrated


@dataclass(frozen=True)
class CalibrationFile:
    """What was calibrated, with what. `groups` are in the order of the graph."""

    version: int
    model: str
    data: str
    samples: int
    method: str
    groups: tuple[GroupRow, ...]

    def ranges(self) -> dict[str, Calibrated]:
        return {row.members[0]: row.calibrated for row in self.groups}

    def misfit(self, wanted: CalibrationFile, *, with_data: bool) -> str:
        """In what the file differs from what is wanted; empty if it serves."""
        if self.model != wanted.model:
            return "it is of another model"
        if with_data and (self.data, self.samples) != (wanted.data, wanted.samples):
            return "it was made with other data"
        if self.method != wanted.method and with_data:
            return f"it was made with method {self.method}"
        if [_key(row) for row in self.groups] != [_key(row) for row in wanted.groups]:
            return "it is of other tensors, or of another format"
        return ""


def _key(row: GroupRow) -> tuple[tuple[str, ...], str, bool]:
    return row.members, row.format, row.symmetric


def rows_of(groups: Sequence[Group], found: Mapping[str, Calibrated]) -> tuple[GroupRow, ...]:
    unknown = Calibrated(0.0, 0.0, "", 0.0, 0.0, 0)
    return tuple(
        GroupRow(group.members, group.fmt.name, group.symmetric, found.get(group.name, unknown))
        for group in groups
    )


def model_digest(model: ir.Model) -> str:
    """Of the graph with its weights, without what only describes it."""
    proto = to_proto(model)
    del proto.metadata_props[:]
    proto.doc_string = proto.producer_version = ""
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()[:32]


def write_calibration(made: CalibrationFile, path: Path) -> None:
    """The whole file appears at once, or nothing does."""
    text = json.dumps(asdict(made), indent=1, ensure_ascii=False, allow_nan=False)
    require_place(path)
    try:
        with whole_file(path) as file:
            file.write(text.encode() + b"\n")
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written", got=str(error)) from error


def read_calibration(path: Path) -> CalibrationFile:
    """The file, checked: every range is finite, holds zero and lies inside what was observed."""
    try:
        with open_regular(path) as file:
            made = read_as(CalibrationFile, parse_json(file.read()))
    except FileNotFoundError:
        raise OptionError(f"there is no calibration file {str(path)!r}") from None
    except (OSError, Misfit, ValueError, RecursionError) as error:
        raise OptionError(
            f"{str(path)!r} is not a calibration file",
            got=str(error)[:200],
            want="JSON as `ridge quantize --calibration FILE` writes it",
            help="delete it to calibrate again",
        ) from error
    if made.version != VERSION:
        raise OptionError(
            f"{str(path)!r} is a calibration file of another version",
            got=str(made.version),
            want=str(VERSION),
        )
    for row in made.groups:
        c = row.calibrated
        ends = (c.low, c.high, c.observed_low, c.observed_high)
        if not (
            row.members
            and all(map(math.isfinite, ends))
            and c.observed_low <= c.low <= 0 <= c.high <= c.observed_high
        ):
            raise OptionError(
                f"{str(path)!r} has a range that cannot be",
                got=f"{', '.join(row.members) or 'no tensor'}: {c.low} to {c.high}",
                want="finite ends around zero, inside what was observed",
            )
    return made
