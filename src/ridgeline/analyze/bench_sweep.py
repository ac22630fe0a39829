"""Speed against the size of one dim: throughput and latency of an engine at each of several batch sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.analyze.bench import BenchReport, bench_alone
from ridgeline.analyze.bench_figures import flat_row
from ridgeline.analyze.bench_settings import BenchSettings
from ridgeline.base.notebook import Notebook, Table, View
from ridgeline.base.spec import Port, TensorSpec
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.options import MAX_DIM, DimRange
from ridgeline.plan.plan import Plan
from ridgeline.runtime.engine import Engine

BATCH = "batch"
EXAMPLE = "batch=1..64 (powers of two), or batch=1,2,5"
MAX_SIZES = 64


@dataclass(frozen=True)
class Sweep:
    """A dim, as the user names it, and the sizes to run at, ascending."""

    dim: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class SweepRow:
    """The engine at one size. An item is one index of the dim: one image of a batch."""

    size: int
    shapes: dict[str, tuple[int, ...]]
    queries: int
    throughput_qps: float
    items_per_s: float
    us_per_item: float
    mean_us: float
    median_us: float
    percentiles_us: dict[str, float]
    variation: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class SweepReport(Notebook):
    """A bench run for each size of one dim."""

    model: str
    target: str
    threads: int
    dim: str
    rebuilt: bool  # each size has an engine of its own; else one plan ran all
    tuned_for: int | None  # the size that the one plan was tuned for
    concurrency: int
    transfers: bool
    percentiles: tuple[float, ...]
    rows: tuple[SweepRow, ...]
    passed: bool  # contexts side by side computed the same
    versions: dict[str, str]

    def _view(self) -> View:
        hidden = ("shapes", "warnings")
        rows = [{k: v for k, v in flat_row(row).items() if k not in hidden} for row in self.rows]
        about = f"{self.model}, {self.target}, {self.threads} threads: speed against {self.dim}"
        return View(about, (Table("", tuple(rows)),), ())

    @property
    def best(self) -> int:
        """The size with the most items per second."""
        return max(self.rows, key=lambda row: row.items_per_s).size


def parse_sweep(text: str) -> Sweep:
    """``batch=1..64`` as 1, 2, 4, … 64; ``batch=1,2,5`` as written."""
    dim, equals, sizes = (part.strip() for part in text.partition("="))
    too_large = OptionError(
        "--sweep has a size that is too large", got=text[:80], want=f"at most {MAX_DIM:,}"
    )
    if re.search(r"\d{19}", sizes):  # not to be listed power by power
        raise too_large
    span = re.fullmatch(r"(\d+)\.\.(\d+)", sizes)
    listed = re.fullmatch(r"\d+(\s*,\s*\d+)*", sizes)
    if not (dim and equals and (span or listed)):
        raise OptionError("--sweep does not read as DIM=SIZES", got=text, want=EXAMPLE)
    if span:
        low, high = int(span[1]), int(span[2])
        powers = [1 << i for i in range(high.bit_length())]
        # the ends belong to the range, whether they are powers of two or not
        found = sorted({low, high, *(power for power in powers if low < power < high)}) if low <= high else []
    else:
        found = sorted({int(size) for size in sizes.split(",")})
    if not found or found[0] < 1:
        raise OptionError("--sweep has no size to run at", got=text, want=f"sizes from 1 up: {EXAMPLE}")
    if found[-1] > MAX_DIM:
        raise too_large
    if len(found) > MAX_SIZES:
        raise OptionError("--sweep has too many sizes", got=str(len(found)), want=f"at most {MAX_SIZES}")
    return Sweep(dim, tuple(found))


def find_dim(inputs: Sequence[Port], name: str) -> str:
    """The model's own name of a dim; `batch` is also the first dim of the first input."""
    names = list(dict.fromkeys(dim for port in inputs for dim in port.dims or () if isinstance(dim, str)))
    if name in names:
        return name
    first = next((port for port in inputs if port.dims), None)
    if name == BATCH and first is not None and first.dims:
        if isinstance(first.dims[0], str):
            return first.dims[0]
        raise OptionError(
            f"the batch of input {first.name!r} is fixed at {first.dims[0]}",
            got=f"{first.name}: {first}",
            want="a first dim that may change",
            help="export the model with a dynamic batch (torch.onnx.export: dynamic_shapes)"
            + (f", or sweep another dim: {', '.join(names)}" if names else ""),
        )
    raise OptionError(
        f"no input has a dim {name!r}",
        want=", ".join([BATCH, *names]),
        help=did_you_mean(name, [BATCH, *names]),
    )


def sweep_profile(
    inputs: Sequence[Port], dim: str, sizes: Sequence[int], given: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """What to build for: the swept dim over all sizes, other dims as they were given."""
    swept = DimRange(sizes[0], sizes[-1], sizes[-1])
    made: dict[str, Any] = {dim: (swept,)}
    dims = {port.name: port.dims or () for port in inputs}
    for name, ranges in given.items():
        own = dims.get(name, ())
        if len(own) == len(ranges):
            made[name] = tuple(swept if d == dim else r for d, r in zip(own, ranges, strict=True))
        elif name != dim:
            made[name] = ranges
    return made


def require_sizes(plan: Plan, dim: str, sizes: Sequence[int]) -> None:
    """Raise if an engine was not built for some of these sizes."""
    places = [(port.name, port.dims.index(dim)) for port in plan.inputs if port.dims and dim in port.dims]
    ranges = [
        each.profile[name][axis]
        for each in (plan, *plan.others)
        for name, axis in places
        if name in each.profile
    ]
    outside = [size for size in sizes if ranges and not any(r.min <= size <= r.max for r in ranges)]
    if outside:
        raise OptionError(
            f"the engine was not built for {dim} = {', '.join(map(str, outside))}",
            want=" or ".join(dict.fromkeys(f"{dim} in {r.min}..{r.max}" for r in ranges)),
            help=f"ridge bench MODEL --sweep builds for the whole range; or ridge build MODEL --shapes "
            f"{dim}={sizes[0]}..{sizes[-1]}",
        )


def shapes_at(
    inputs: Sequence[Port], shapes: Mapping[str, TensorSpec], dim: str, size: int
) -> dict[str, TensorSpec]:
    """These shapes with the dim at this size, in every input that has it."""
    made = dict(shapes)
    for port in inputs:
        if port.name in shapes and port.dims and dim in port.dims:
            pairs = zip(port.dims, shapes[port.name].shape, strict=True)
            made[port.name] = TensorSpec(
                shapes[port.name].dtype, tuple(size if own == dim else old for own, old in pairs)
            )
    return made


def sweep(
    engine_at: Callable[[int], Engine],
    feeds_at: Callable[[Engine, int], Mapping[str, Any]],
    wanted: Sweep,
    settings: BenchSettings,
    *,
    rebuilt: bool,
    on_size: Callable[[int, int], None] | None = None,
) -> SweepReport:
    """Bench each size in turn. `wanted.dim` is the model's own name; `on_size` hears how many are done."""
    rows, passed = [], True
    for done, size in enumerate(wanted.sizes):
        engine = engine_at(size)
        report = bench_alone(engine, feeds_at(engine, size), settings).report
        rows.append(_row(size, report))
        passed &= report.passed
        if on_size is not None:
            on_size(done + 1, len(wanted.sizes))
    return SweepReport(
        model=report.model,
        target=report.target,
        threads=report.threads,
        dim=wanted.dim,
        rebuilt=rebuilt,
        tuned_for=None if rebuilt else _planned_size(engine.plan, wanted.dim),
        concurrency=settings.concurrency,
        transfers=settings.transfers,
        percentiles=settings.percentiles,
        rows=tuple(rows),
        passed=passed,
        versions=report.versions,
    )


def _row(size: int, report: BenchReport) -> SweepRow:
    row = report.rows[0]
    return SweepRow(
        size=size,
        shapes=report.shapes,
        queries=row.queries,
        throughput_qps=row.throughput_qps,
        items_per_s=row.throughput_qps * size,
        us_per_item=1e6 / (row.throughput_qps * size) if row.throughput_qps else 0.0,
        mean_us=row.mean_us,
        median_us=row.median_us,
        percentiles_us=row.percentiles_us,
        variation=row.variation,
        warnings=report.warnings,
    )


def _planned_size(plan: Plan, dim: str) -> int | None:
    for port in plan.inputs:
        if port.dims and dim in port.dims and port.name in plan.planned_shapes:
            return plan.planned_shapes[port.name].shape[port.dims.index(dim)]
    return None
