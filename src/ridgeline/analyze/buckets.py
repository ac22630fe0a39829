"""Buckets from observed shapes: a few sets of sizes to plan for, with as little padded work as can be.

With one dim that moves the best buckets are found exactly; with several, shapes are joined pair by pair,
always the pair that adds the least work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from ridgeline.base.grouping import grouped
from ridgeline.errors import OptionError
from ridgeline.runtime.observation import Histogram, Shape

Sizes = tuple[int, ...]  # of the dims that move, in their order
Work = Callable[[Sizes], float]
# pairs are tried one by one: more different shapes than this are first rounded up to coarser sizes
MAX_SHAPES = 96


@dataclass(frozen=True)
class Bucket:
    """Sizes to plan for, and the calls that would run at them."""

    sizes: dict[str, int]
    profile: dict[str, str]  # as `--profile` takes it
    calls: int
    shapes: int
    padded: float  # share of its work that is padding


@dataclass(frozen=True)
class Proposal:
    """Buckets, and what fewer or more of them would cost."""

    model: str
    calls: int
    shapes: int
    moving: tuple[str, ...]
    buckets: tuple[Bucket, ...]
    padded: float  # share of all work that is padding
    by_budget: dict[int, float]  # that share for every number of buckets up to the budget
    work: str  # what was counted
    option: str  # for `ridge build`
    is_exact: bool
    paddable: str = ""  # whether the engine can be padded along each dim; empty: not asked


def propose(
    seen: Histogram, *, buckets: int, work: Callable[[dict[str, Shape]], float] | None = None, unit: str = ""
) -> Proposal:
    """The best buckets for a histogram, `buckets` at most."""
    if buckets < 1:
        raise OptionError("there must be a bucket", got=str(buckets), want="1 or more")
    dims = _dims(seen)
    sizes = Counter[tuple[int, ...]]()
    names = _moving(seen, dims)
    for shapes, count in seen.seen:
        sizes[tuple(_symbols(shapes, dims).get(name, 0) for name in names)] += count

    @cache
    def measure(at: Sizes) -> float:
        return float(math.prod(at) if work is None else work(_shapes(seen, dims, names, at)))

    is_exact = len(names) <= 1
    ladder = _exact(sizes, buckets, measure) if is_exact else _joined(sizes, buckets, measure)
    chosen = ladder[max(ladder)]
    served = grouped((bucket, size) for size, bucket in _homes(sizes, chosen, measure).items())
    rows = []
    for bucket, here in sorted(served.items()):
        inside = Counter({size: sizes[size] for size in here})
        shapes = _shapes(seen, dims, names, bucket)
        rows.append(
            Bucket(
                sizes=dict(zip(names, bucket, strict=True)),
                profile={name: "x".join(map(str, shape)) for name, shape in shapes.items() if shape},
                calls=inside.total(),
                shapes=len(inside),
                padded=_padded(inside, [bucket], measure),
            )
        )
    return Proposal(
        model=seen.model,
        calls=sizes.total(),
        shapes=len(sizes),
        moving=names,
        buckets=tuple(rows),
        padded=_padded(sizes, chosen, measure),
        by_budget={k: round(_padded(sizes, made, measure), 6) for k, made in sorted(ladder.items())},
        work=unit if work is not None else "elements",
        option=" ".join(f"--profile '{_option(row.profile)}'" for row in rows),
        is_exact=is_exact,
    )


def _dims(seen: Histogram) -> dict[str, tuple[int | str, ...]]:
    """A name for every dim that has none."""
    made = {}
    for name, dims in seen.dims.items():
        rank = next((len(shapes[name]) for shapes, _ in seen.seen if name in shapes), 0)
        made[name] = dims if dims is not None else tuple(f"{name}.{axis}" for axis in range(rank))
    return made


def _symbols(shapes: Mapping[str, Shape], dims: Mapping[str, Sequence[int | str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, shape in shapes.items():
        for dim, size in zip(dims[name], shape, strict=False):
            if isinstance(dim, str):
                found[dim] = max(size, found.get(dim, 0))
    return found


def _moving(seen: Histogram, dims: Mapping[str, Sequence[int | str]]) -> tuple[str, ...]:
    """The dims that had more than one size."""
    met = grouped(pair for shapes, _ in seen.seen for pair in _symbols(shapes, dims).items())
    return tuple(dim for dim, sizes in met.items() if len(set(sizes)) > 1)


def _shapes(
    seen: Histogram, dims: Mapping[str, Sequence[int | str]], names: Sequence[str], at: Sizes
) -> dict[str, Shape]:
    """All inputs with the moving dims at these sizes; other dims keep their size."""
    fixed = _symbols(seen.seen[0][0], dims) | dict(zip(names, at, strict=True))
    return {
        name: tuple(dim if isinstance(dim, int) else fixed[dim] for dim in dims[name])
        for name in seen.seen[0][0]
    }


def _exact(sizes: Counter[Sizes], budget: int, work: Work) -> dict[int, list[Sizes]]:
    """The best ends of at most `budget` intervals, for every budget: dynamic programming over sizes."""
    order = sorted(sizes)
    n = len(order)
    calls = [0, *accumulate(sizes[size] for size in order)]
    best: list[list[float]] = [[0.0] + [math.inf] * n]
    cut: list[list[int]] = [[0] * (n + 1)]
    ladder: dict[int, list[Sizes]] = {}
    for k in range(1, min(budget, n) + 1):
        costs, cuts = [0.0] + [math.inf] * n, [0] * (n + 1)
        for end in range(1, n + 1):
            top = work(order[end - 1])
            options = ((best[k - 1][i] + top * (calls[end] - calls[i]), i) for i in range(end))
            costs[end], cuts[end] = min(options)
        best.append(costs)
        cut.append(cuts)
        ends, end = [], n
        for level in range(k, 0, -1):
            if end:
                ends.append(order[end - 1])
                end = cut[level][end]
        ladder[k] = ends
    return ladder


def _joined(sizes: Counter[Sizes], budget: int, work: Work) -> dict[int, list[Sizes]]:
    """Join the pair of buckets that adds the least work, until few enough are left."""
    groups = _rounded(sizes)
    ladder: dict[int, list[Sizes]] = {}
    if len(groups) <= budget:
        ladder[len(groups)] = list(groups)
    while len(groups) > 1:
        _, a, b = min(
            ((_added(groups, x, y, work), x, y) for x in groups for y in groups if x < y), key=lambda t: t[0]
        )
        count = groups.pop(a) + groups.pop(b)
        top = tuple(map(max, a, b))
        groups[top] += count
        if len(groups) <= budget:
            ladder.setdefault(len(groups), list(groups))
    return ladder


def _rounded(sizes: Counter[Sizes]) -> Counter[Sizes]:
    """Few enough sizes: multiples of a power of two, none larger than the largest that was seen."""
    groups, step, tops = Counter(sizes), 1, [max(column) for column in zip(*sizes, strict=True)]
    while len(groups) > MAX_SHAPES:
        step *= 2
        groups = Counter[Sizes]()
        for size, count in sizes.items():
            groups[tuple(min(-(-s // step) * step, top) for s, top in zip(size, tops, strict=True))] += count
    return groups


def _added(groups: Counter[Sizes], a: Sizes, b: Sizes, work: Work) -> float:
    top = work(tuple(map(max, a, b)))
    return (top - work(a)) * groups[a] + (top - work(b)) * groups[b]


def _homes(sizes: Counter[Sizes], buckets: Sequence[Sizes], work: Work) -> dict[Sizes, Sizes]:
    """Every shape with the cheapest bucket that holds it."""
    return {
        size: min((b for b in buckets if all(x <= y for x, y in zip(size, b, strict=True))), key=work)
        for size in sizes
    }


def _padded(sizes: Counter[Sizes], buckets: Sequence[Sizes], work: Work) -> float:
    homes = _homes(sizes, buckets, work)
    whole = sum(work(homes[size]) * count for size, count in sizes.items())
    real = sum(work(size) * count for size, count in sizes.items())
    return 1 - real / whole if whole else 0.0


def _option(profile: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shape}" for name, shape in profile.items())
