"""Target files: a machine's ceilings as readable TOML. The package ships some; `ridge calibrate` writes one.

Sizes are in bytes, rates in TB/s and TFLOP/s, so that a file compares with a data sheet at a glance.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.base.architectures import ARCHITECTURES, PREDICTED_AS, architecture_of
from ridgeline.base.ceilings import Ceilings, Point
from ridgeline.base.files import read_regular, whole_file
from ridgeline.base.spec import TRAITS
from ridgeline.errors import TargetError, did_you_mean, first_line

FORMAT = 1
KNOWN = Path(__file__).with_name("gpus")
PER_TERA = 1e6  # TB/s or TFLOP/s as bytes or flops per µs
STATED = {"sms": int, "clock_mhz": float, "memory_bytes": int, "l2_bytes": int, "shared_bytes": int}
# the machine that an architecture is taken for when nothing more is known
STANDS_FOR = {
    "sm_75": "t4", "sm_80": "a100", "sm_86": "a10", "sm_87": "orin", "sm_89": "l40s", "sm_90": "h200",
    "sm_100": "b200", "sm_110": "thor", "sm_120": "rtx5090",
}  # fmt: skip
KINDS = ("cuda", "cpu")
WRITES_ONE = "ridge calibrate -o FILE.toml writes one of this machine"
# what a file may say, table by table: a figure under a misspelt name would be left out in silence
TABLES = {
    "": ("format", "name", "title", "kind", "arch", "threads", "stated", "measured", "sources"),
    "stated": (*STATED, "power_w", "memory_tb_s", "tflops"),
    "measured": ("when", "launch_us", "copy", "points", "tflops", "left_out"),
}
# no machine is near these; beyond them sums and ratios of times leave the range of a float
LEAST, MOST = 1e-12, 1e18
TYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")


@cache
def known_targets() -> tuple[str, ...]:
    """The names of the machines that the package describes."""
    return tuple(sorted(path.stem for path in KNOWN.glob("*.toml")))


@cache
def known_ceilings(name: str) -> Ceilings:
    return read_target(KNOWN / f"{name}.toml")


def ceilings_of_arch(arch: str) -> Ceilings:
    """The machine that stands for an architecture, or `TargetError` for one that nothing is known of."""
    architecture_of(arch)
    if arch in PREDICTED_AS:
        return replace(known_ceilings(STANDS_FOR[PREDICTED_AS[arch]]), arch=arch)
    return known_ceilings(STANDS_FOR[arch])


def read_target(path: Path) -> Ceilings:
    """The ceilings in a file, or `TargetError` that names what is wrong with it."""
    try:
        raw = tomllib.loads(read_regular(path).decode("utf-8"))
    except FileNotFoundError:
        raise TargetError(
            f"there is no target file {str(path)!r}", help="ridge calibrate -o writes one"
        ) from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no TOML, endless digits
        raise TargetError(
            f"{str(path)!r} does not read as a target file", got=first_line(error), help=WRITES_ONE
        ) from error
    return _Reader(str(path)).read(raw)


class _Reader:
    """Reads one file, and names the place of whatever does not fit."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self, raw: Mapping[str, Any]) -> Ceilings:
        version = raw.get("format")
        if version != FORMAT or type(version) is not int:
            raise self._error("format", version, str(FORMAT))
        if raw.get("kind") not in KINDS:
            raise self._error("kind", raw.get("kind"), " or ".join(KINDS))
        if TRAITS[raw["kind"]].is_gpu and raw.get("arch") not in ARCHITECTURES:
            raise self._error("arch", raw.get("arch"), " or ".join(ARCHITECTURES))
        stated, measured = self._table(raw, "stated"), self._table(raw, "measured")
        for place, table in (("", raw), ("stated", stated), ("measured", measured)):
            self._require_known(place, table)
        read = Ceilings(
            name=self._text(raw, "name"),
            kind=raw["kind"],
            arch=self._text(raw, "arch"),
            title=str(raw.get("title", "")),
            threads=self._as(int, raw, "threads") or 1,
            measured=self._text(measured, "when") if measured else "",
            **{name: self._as(kind, stated, name) for name, kind in STATED.items()},
            power_w=self._number(stated, "power_w"),
            peak_bytes=self._rate(stated, "memory_tb_s"),
            peak_flops=self._rates(self._table(stated, "tflops")),
            launch_us=self._number(measured, "launch_us"),
            copy=tuple(self._pairs(measured)),
            flops=self._rates(self._table(measured, "tflops")),
            points=tuple(self._points(measured)),
            left_out=self._reasons(self._table(measured, "left_out")),
            sources={str(k): str(v) for k, v in self._table(raw, "sources").items()},
        )
        self._require_enough(read)
        return read

    def _require_known(self, place: str, table: Mapping[str, Any]) -> None:
        for name in table:
            if name not in TABLES[place]:
                where = f"[{place}]" if place else "the file"
                near = did_you_mean(name, TABLES[place])
                raise self._error(name, table[name], f"a name that {where} may have; {near}")

    def _require_enough(self, read: Ceilings) -> None:
        """Without these a time would be made up, not predicted."""
        missing = []
        if not read.copy and read.peak_bytes is None:
            missing.append("memory_tb_s in [stated], or copy in [measured]: the rate of memory")
        if not read.flops and not read.peak_flops:
            missing.append("[stated.tflops] or [measured.tflops]: the rate of arithmetic, by type")
        if read.is_gpu and read.sms is None:
            missing.append("sms in [stated]: the number of multiprocessors")
        if missing:
            raise TargetError(
                f"{self.path!r} says too little of the machine", rows=[f"missing: {m}" for m in missing],
                help=WRITES_ONE,
            )  # fmt: skip

    def _error(self, at: str, got: object, want: str) -> TargetError:
        return TargetError(
            f"{self.path!r} does not read as a target file", got=f"{at} = {str(got)[:80]}", want=want,
            help=WRITES_ONE,
        )  # fmt: skip

    def _table(self, raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        table = raw.get(name, {})
        if not isinstance(table, dict):
            raise self._error(name, table, "a table")
        return table

    def _text(self, raw: Mapping[str, Any], name: str) -> str:
        text = raw.get(name)
        if not isinstance(text, str) or not text:
            raise self._error(name, text, "text")
        return text

    def _number(self, raw: Mapping[str, Any], name: str) -> float | None:
        """Positive and of a size that a machine can have, or not there."""
        value = raw.get(name)
        if value is None:
            return None
        if not _is_number(value) or value <= 0:
            raise self._error(name, value, "a number above 0")
        if not LEAST <= value <= MOST:
            raise self._error(name, value, f"a figure that a machine can have: {LEAST:g} to {MOST:g}")
        return float(value)

    def _as(self, kind: type, raw: Mapping[str, Any], name: str) -> Any:
        value = self._number(raw, name)
        if value is not None and kind(value) != value:
            raise self._error(name, value, "a whole number")
        return None if value is None else kind(value)

    def _rate(self, raw: Mapping[str, Any], name: str) -> float | None:
        value = self._number(raw, name)
        return None if value is None else value * PER_TERA

    def _rates(self, raw: Mapping[str, Any]) -> dict[str, float]:
        for name in raw:
            if name not in TYPES:
                raise self._error("tflops", name, ", ".join(TYPES))
        return {name: (self._number(raw, name) or 0.0) * PER_TERA for name in raw}

    def _pairs(self, measured: Mapping[str, Any]) -> list[tuple[float, float]]:
        rows = measured.get("copy", [])
        pairs = []
        for row in rows if isinstance(rows, list) else [rows]:
            if not isinstance(row, list) or len(row) != 2:
                raise self._error("copy", row, "[bytes, TB/s]")
            named = {"bytes": row[0], "TB/s": row[1]}
            size, rate = self._number(named, "bytes"), self._number(named, "TB/s")
            pairs.append((size or 0.0, (rate or 0.0) * PER_TERA))
        if pairs != sorted(pairs, key=lambda pair: pair[0]) or len({s for s, _ in pairs}) < len(pairs):
            raise self._error("copy", rows, "sizes that grow")
        return pairs

    def _reasons(self, table: Mapping[str, Any]) -> dict[str, str]:
        for name, reason in table.items():
            if not isinstance(reason, str):
                raise self._error(f"left_out.{name}", reason, "text: why it was not measured")
        return dict(table)

    def _points(self, measured: Mapping[str, Any]) -> list[Point]:
        """Rows of family, measured µs, modelled µs, and the features: as many for all of a family."""
        rows = measured.get("points", [])
        if not isinstance(rows, list):
            raise self._error("points", rows, "a list of [family, measured µs, modelled µs, features…]")
        points, counts = [], dict[str, int]()
        for row in rows:
            is_row = isinstance(row, list) and len(row) >= 4 and isinstance(row[0], str)
            numbers: list[Any] = row[1:] if is_row else [""]
            if not all(_is_number(n) and abs(n) <= MOST for n in numbers):
                raise self._error("points", row, "[family, measured µs, modelled µs, features…]")
            if not (numbers[0] >= LEAST and numbers[1] >= LEAST):
                raise self._error("points", row, "times above 0")
            if counts.setdefault(row[0], len(numbers) - 2) != len(numbers) - 2:
                raise self._error("points", row, f"{counts[row[0]]} features, as in the points before it")
            points.append(Point(row[0], tuple(map(float, numbers[2:])), float(numbers[0]), float(numbers[1])))
        return points


def _is_number(value: object) -> bool:
    """TOML has true, nan and inf, and Python counts the first as an integer."""
    return type(value) is int or (type(value) is float and math.isfinite(value))


def write_target(ceilings: Ceilings, path: Path) -> Path:
    """Write a target file: whole, or not at all."""
    lines = [
        f"format = {FORMAT}", f"name = {_text(ceilings.name)}", f"title = {_text(ceilings.title)}",
        f"kind = {_text(ceilings.kind)}", f"arch = {_text(ceilings.arch)}", f"threads = {ceilings.threads}",
        "", "[stated]",
        *(f"{name} = {value}" for name in STATED if (value := getattr(ceilings, name)) is not None),
        *([f"power_w = {ceilings.power_w}"] if ceilings.power_w is not None else []),
        *([f"memory_tb_s = {ceilings.peak_bytes / PER_TERA:.6g}"] if ceilings.peak_bytes else []),
        "", "[stated.tflops]", *_rate_lines(ceilings.peak_flops),
    ]  # fmt: skip
    if ceilings.sources:
        lines += ["", "[sources]", *(f"{k} = {_text(v)}" for k, v in ceilings.sources.items())]
    if ceilings.is_measured:
        lines += ["", "[measured]", f"when = {_text(ceilings.measured)}"]
        if ceilings.launch_us is not None:
            lines.append(f"launch_us = {ceilings.launch_us:.4g}")
        lines += ["copy = [  # bytes read and written, TB/s"]
        lines += [f"  [{size:.0f}, {rate / PER_TERA:.5g}]," for size, rate in ceilings.copy]
        lines += ["]", "points = [  # family, measured µs, modelled µs, features"]
        for point in ceilings.points:
            features = ", ".join(f"{value:.4g}" for value in point.features)
            lines.append(
                f"  [{_text(point.family)}, {point.measured_us:.5g}, {point.modelled_us:.5g}, {features}],"
            )
        lines += ["]", "", "[measured.tflops]", *_rate_lines(ceilings.flops)]
        if ceilings.left_out:
            lines += ["", "[measured.left_out]  # networks, and why"]
            lines += [f"{_text(name)} = {_text(reason)}" for name, reason in ceilings.left_out.items()]
    with whole_file(path) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return path


def _rate_lines(rates: Mapping[str, float]) -> list[str]:
    return [f"{name} = {rate / PER_TERA:.5g}" for name, rate in rates.items()]


def _text(value: str) -> str:
    """A TOML string: escapes are those of JSON, without what TOML forbids."""
    plain = "".join(c if c.isprintable() else " " for c in value)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
