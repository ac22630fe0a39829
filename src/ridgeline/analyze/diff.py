"""Two builds or measurements of a model compared: what changed, by how much, and whether it is noise.

docs/diff.md says how rows are matched and when a change counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import TypeAlias

import numpy as np

from ridgeline.analyze.diff_sides import Part, Side, require_comparable
from ridgeline.errors import OptionError

RESAMPLES = 400
SEED = 0
CONFIDENCE = 0.95
# a loss that is less of the whole run than this is nobody's concern
LEAST_OF_TOTAL = 0.002
NORMAL_MAD = 1.4826  # a standard deviation from a median absolute deviation
FAIL_OVER = 0.03
# clocks and neighbours make a whole run this much slower from one day to the next
MACHINES_OWN = 0.10
# with fewer rows, what they share cannot be told from what one of them lost
FEWEST_SHARED = 3
FEWEST_ALIKE = 8  # rows that tell the noise by themselves

Matched: TypeAlias = tuple[list[Part], list[Part]]


@dataclass(frozen=True)
class Change:
    """The same nodes in A and in B. `ratio` above 1: B is slower, apart from what all rows share."""

    nodes: tuple[str, ...]
    name: str
    a_us: float | None
    b_us: float | None
    ratio: float | None
    low: float | None  # ends of the interval of `ratio`; None without samples
    high: float | None
    of_total: float | None  # what it adds to the run, as a share of A's
    causes: tuple[str, ...]  # what is different: tactic, config, precision, fusion, work
    verdict: str  # slower | faster | same | changed | only in A | only in B


@dataclass(frozen=True)
class Diff:
    """All rows, the largest loss first."""

    kind: str
    model: str
    a_total_us: float | None
    b_total_us: float | None
    total_ratio: float | None
    total_low: float | None
    total_high: float | None
    shared: float  # the factor that all rows have in common: the machine, not a layer
    noise: float  # how far rows differ anyway between these two runs, as a standard deviation of the ratio
    rows: tuple[Change, ...]
    notes: tuple[str, ...]
    fail_over: float

    @property
    def slower(self) -> tuple[Change, ...]:
        return tuple(row for row in self.rows if row.verdict == "slower")

    @property
    def is_total_slower(self) -> bool:
        """A change that all rows share may be the machine's, up to a size."""
        return self.total_low is not None and self.total_low > 1 + max(self.fail_over, MACHINES_OWN)

    @property
    def failed(self) -> bool:
        return bool(self.slower) or self.is_total_slower


def diff(a: Side, b: Side, *, fail_over: float = FAIL_OVER) -> Diff:
    """Match, compare and judge."""
    require_comparable(a, b)
    groups = match(a.parts, b.parts)
    both = [(ours, theirs) for ours, theirs in groups if ours and theirs]
    if a.parts and b.parts and not both:
        raise OptionError(
            "A and B have nothing in common", got=f"{a.model} and {b.model}", want="two runs of one model"
        )
    alike, altered = _by_causes(both)
    # rows whose plan is the same tell what the machine did; where there are few of them, all rows do
    logs = _logs(alike if len(alike) >= FEWEST_ALIKE else both)
    shared, noise = _shared(logs)
    spread = noise if len(logs) >= FEWEST_SHARED else MACHINES_OWN / 2
    draw = np.random.default_rng(SEED)
    rows = [
        _change(ours, theirs, total_us=a.total_us, shared=shared, spread=spread,
                rows=len(altered if _causes(ours, theirs) else alike), draw=draw, fail_over=fail_over)
        for ours, theirs in groups
    ]  # fmt: skip
    ratio, low, high = _total(a, b, draw)
    return Diff(
        kind=a.kind if a.kind == b.kind else f"{a.kind} and {b.kind}",
        model=a.model,
        a_total_us=a.total_us,
        b_total_us=b.total_us,
        total_ratio=ratio,
        total_low=low,
        total_high=high,
        shared=shared,
        noise=noise,
        rows=tuple(sorted(rows, key=lambda row: -(row.of_total or 0.0))),
        notes=(*_notes(a, b, shared), *_unjudged(both, rows)),
        fail_over=fail_over,
    )


def _by_causes(rows: Sequence[Matched]) -> tuple[list[Matched], list[Matched]]:
    """Those that two plans run alike, and those that they do not."""
    alike: list[Matched] = []
    altered: list[Matched] = []
    for row in rows:
        (altered if _causes(*row) else alike).append(row)
    return alike, altered


def _logs(rows: Sequence[Matched]) -> list[float]:
    times = ((_us(ours), _us(theirs)) for ours, theirs in rows)
    return [math.log(theirs / ours) for ours, theirs in times if ours and theirs]


def _shared(logs: Sequence[float]) -> tuple[float, float]:
    """The factor that rows have in common, and how far they differ from it anyway."""
    if len(logs) < FEWEST_SHARED:
        return 1.0, 0.0
    middle = median(logs)
    return math.exp(middle), NORMAL_MAD * median(abs(log - middle) for log in logs)


def match(a: Sequence[Part], b: Sequence[Part]) -> list[Matched]:
    """Parts that share nodes of the model, as the smallest groups that cover the same ones."""
    owner: dict[str, int] = {}
    parent: list[int] = []

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    placed: list[tuple[int, Part, bool]] = []
    for parts, is_first in ((a, True), (b, False)):
        for part in parts:
            mine = len(parent)
            parent.append(mine)
            for node in part.sources or (part.name,):
                other = owner.setdefault(node, mine)
                parent[root(mine)] = root(other)
            placed.append((mine, part, is_first))
    groups: dict[int, tuple[list[Part], list[Part]]] = {}
    for index, part, is_first in placed:
        groups.setdefault(root(index), ([], []))[0 if is_first else 1].append(part)
    return list(groups.values())


def _us(parts: Sequence[Part]) -> float | None:
    times = [part.us for part in parts]
    return None if any(us is None for us in times) else math.fsum(us or 0.0 for us in times)


def _samples(parts: Sequence[Part]) -> np.ndarray | None:
    """Sums over the parts, round by round; None unless all have as many."""
    counts = {len(part.samples_us) for part in parts}
    if len(counts) != 1 or 0 in counts or 1 in counts:
        return None
    return np.array([math.fsum(round_) for round_ in zip(*(p.samples_us for p in parts), strict=True)])


def _change(
    ours: Sequence[Part],
    theirs: Sequence[Part],
    *,
    total_us: float | None,
    shared: float,
    spread: float,
    rows: int,
    draw: np.random.Generator,
    fail_over: float,
) -> Change:
    """Parameters: what all rows share, and what a row is judged by."""
    a_us, b_us = (_us(parts) if parts else None for parts in (ours, theirs))
    nodes = tuple(dict.fromkeys(node for part in (*ours, *theirs) for node in part.sources))
    name = ", ".join(part.name for part in (theirs or ours))
    if not ours or not theirs:
        where = "only in B" if theirs else "only in A"
        return Change(nodes, name, a_us, b_us, None, None, None, None, (), where)
    ratio = b_us / a_us / shared if a_us and b_us else None
    lost = None if ratio is None or not total_us or a_us is None else (ratio - 1) * a_us / total_us
    low = high = None
    a_samples, b_samples = _samples(ours), _samples(theirs)
    noise = None
    if ratio is not None and a_samples is not None and b_samples is not None:
        noise = _bootstrap_sd(a_samples, b_samples, draw)
    if ratio is not None and noise is not None:
        # so many rows are looked at that one of twenty would be past a plain interval by chance
        tail = (1 - CONFIDENCE) / 2 / max(rows, 1)
        wide = _quantile(tail) * math.hypot(spread, noise)
        low, high = ratio * math.exp(-wide), ratio * math.exp(wide)
    causes = tuple(_causes(ours, theirs))
    return Change(
        nodes, name, a_us, b_us, ratio, low, high, lost, causes, _verdict(low, high, lost, causes, fail_over)
    )


def _verdict(
    low: float | None, high: float | None, lost: float | None, causes: Sequence[str], fail_over: float
) -> str:
    if low is not None and high is not None and lost is not None and abs(lost) >= LEAST_OF_TOTAL:
        if low > 1 + fail_over:
            return "slower"
        if high < 1 / (1 + fail_over):
            return "faster"
    return "changed" if causes else "same"


def _bootstrap_sd(a: np.ndarray, b: np.ndarray, draw: np.random.Generator) -> float | None:
    """Of the logarithm of the ratio of medians; None where a median may be 0, as of steps that take no longer
    than a time-stamp."""
    medians = [np.median(draw.choice(samples, (RESAMPLES, len(samples))), axis=1) for samples in (a, b)]
    if min(each.min() for each in medians) <= 0:
        return None
    logs = [np.log(each) for each in medians]
    return float(np.std(logs[1] - logs[0]))


def _quantile(tail: float) -> float:
    """How many standard deviations a normal variable passes with this probability."""
    return NormalDist().inv_cdf(1 - tail)


def _total(a: Side, b: Side, draw: np.random.Generator) -> tuple[float | None, float | None, float | None]:
    if not a.total_us or not b.total_us:
        return None, None, None
    ratio = b.total_us / a.total_us
    samples = [np.asarray(side.total_samples_us) for side in (a, b)]
    if min(map(len, samples)) < 2:
        if a.total_spread is None or b.total_spread is None:
            return ratio, None, None
        least = max(a.total_spread, b.total_spread)
        return ratio, ratio / least, ratio * least
    noise = _bootstrap_sd(samples[0], samples[1], draw)
    tenths = [np.percentile(s, (10, 90)) for s in samples]
    if noise is None or min(low for low, _ in tenths) <= 0:
        return ratio, None, None
    # two runs of one engine differ by more than their samples do: clocks and neighbours change between them
    within = [float(high / low) for low, high in tenths]
    wide = max(_quantile((1 - CONFIDENCE) / 2) * noise, math.log(max(within)))
    return ratio, ratio * math.exp(-wide), ratio * math.exp(wide)


def _causes(ours: Sequence[Part], theirs: Sequence[Part]) -> list[str]:
    """What is different about the same nodes."""
    if len(ours) != len(theirs):
        return [f"fusion: {len(ours)} {_steps(ours)} → {len(theirs)} {_steps(theirs)}"]
    causes = []
    for one, other in zip(ours, theirs, strict=True):
        if one.tactic != other.tactic:
            causes.append(f"tactic: {one.tactic} → {other.tactic}")
        elif one.config != other.config:
            causes.append(f"config: {_config(one.config, other.config)}")
        if one.precision != other.precision and one.precision and other.precision:
            causes.append(f"precision: {one.precision} → {other.precision}")
        if one.ops != other.ops and one.ops and other.ops:
            causes.append(f"ops: {' '.join(one.ops)} → {' '.join(other.ops)}")
        if (one.bytes, one.flops) != (other.bytes, other.flops):
            causes.append(
                f"work: {one.bytes:,} → {other.bytes:,} bytes, {one.flops:,} → {other.flops:,} flops"
            )
    return list(dict.fromkeys(causes))


def _steps(parts: Sequence[Part]) -> str:
    return "step" if len(parts) == 1 else "steps"


def _config(a: Mapping[str, object] | None, b: Mapping[str, object] | None) -> str:
    a, b = a or {}, b or {}
    names = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
    return ", ".join(f"{name} {a.get(name, '–')} → {b.get(name, '–')}" for name in names)


def _unjudged(both: Sequence[Matched], rows: Sequence[Change]) -> list[str]:
    """Rows that have samples and yet no interval."""
    sampled = sum(_samples(x) is not None and _samples(y) is not None for x, y in both)
    judged = sum(row.low is not None for row in rows)
    if sampled <= judged:
        return []
    return [f"{sampled - judged} of {sampled} rows have times of 0 µs: no change of theirs can be judged"]


def _notes(a: Side, b: Side, shared: float) -> list[str]:
    notes = []
    if a.model != b.model:
        notes.append(f"the models have different names: {a.model} and {b.model}")
    if a.target != b.target:
        notes.append(f"the targets differ: {a.target} and {b.target}")
    for name in sorted({*(a.measured or {}), *(b.measured or {})} if a.measured and b.measured else ()):
        old, new = ((side.measured or {}).get(name, "–") for side in (a, b))
        if old != new:
            notes.append(f"not measured alike: {name} {old} → {new}")
    if abs(shared - 1) >= FAIL_OVER:
        notes.append(
            f"the median row of B takes {shared:.3f} times as long, which is taken off every row: the"
            " machine, not a layer"
        )
    if a.total_spread is not None and b.total_spread is not None:
        notes.append("benchmarks keep no samples: the run as a whole is judged, by its least and its p90")
    elif not a.total_samples_us or not b.total_samples_us:
        notes.append("without samples no change of a time can be told from noise: profile both engines")
    for name in sorted({*(a.versions or {}), *(b.versions or {})}):
        old, new = (side.versions.get(name, "–") if side.versions else "–" for side in (a, b))
        if old != new and a.versions and b.versions:
            notes.append(f"{name} {old} → {new}")
    return notes
