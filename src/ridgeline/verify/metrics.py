"""How far one array is from another: every figure that a comparison reports, defined once.

`ridge compare`, verification and the error budget all count with these. The second array is the reference.
Figures are computed in float64 over the places where both are finite; NaN and infinities are counted apart,
and a place that is special in one array only, or otherwise so, makes a distance infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

PIECE = 1 << 16
# how many of the largest values `top_k` looks at
TOP = 5


@dataclass(frozen=True)
class Metrics:
    """How far one output is from its reference; null where a figure means nothing for these arrays."""

    max_abs: float
    mean_abs: float
    relative_l2: float
    cosine: float | None
    psnr_db: float | None  # infinite where nothing differs
    top_1: float | None  # the share of rows whose largest value is at the same place
    top_k: float | None  # the share of the largest five of a row that are among the reference's
    other_share: float  # of places with another value
    nans: int
    infs: int
    wanted_nans: int
    wanted_infs: int
    special_differ: int  # places where NaN or infinity stands on one side only, or otherwise
    required_atol: float  # the smallest tolerances that would pass, each without the other
    required_rtol: float
    scale: float  # the largest magnitude of the reference
    worst: tuple[int, ...] | None  # the place of the largest distance, with both values there
    worst_got: float | None
    worst_want: float | None


@dataclass(frozen=True)
class Pair:
    """Two arrays of one shape as float64, with the places where both are finite."""

    got: np.ndarray
    want: np.ndarray
    finite: np.ndarray
    special_differ: int

    @staticmethod
    def of(got: np.ndarray, want: np.ndarray) -> Pair:
        a, b = as_float64(got), as_float64(want)
        finite = np.isfinite(a) & np.isfinite(b)
        apart = 0
        if not finite.all():
            is_same = (a == b) | (np.isnan(a) & np.isnan(b))
            apart = int((~finite & ~is_same).sum())
        return Pair(a, b, finite, apart)

    @property
    def kept(self) -> tuple[np.ndarray, np.ndarray]:
        """Both arrays, flat, where both are finite."""
        if self.finite.all():
            return self.got.reshape(-1), self.want.reshape(-1)
        return self.got[self.finite], self.want[self.finite]


def measure(got: np.ndarray, want: np.ndarray) -> Metrics | None:
    """Every figure for two arrays of one shape; None if the shapes differ or one holds no numbers."""
    if got.shape != want.shape or not (is_numeric(got) and is_numeric(want)):
        return None
    pair = Pair.of(got, want)
    a, b = pair.kept
    gap = _distances(a, b)
    is_apart = pair.special_differ > 0
    worst = _worst(pair)
    top_1, top_k = top_agreement(got, want)
    peak = float(np.abs(b).max(initial=0.0))
    return Metrics(
        max_abs=math.inf if is_apart else float(gap.max(initial=0.0)),
        mean_abs=math.inf if is_apart else float(gap.mean()) if gap.size else 0.0,
        relative_l2=relative_l2(got, want),
        cosine=cosine(a, b) if a.size and not is_apart else None,
        psnr_db=None if not a.size or is_apart else _psnr_db(gap, peak),
        top_1=top_1,
        top_k=top_k,
        other_share=other_share(got, want),
        nans=int(np.isnan(pair.got).sum()),
        infs=int(np.isinf(pair.got).sum()),
        wanted_nans=int(np.isnan(pair.want).sum()),
        wanted_infs=int(np.isinf(pair.want).sum()),
        special_differ=pair.special_differ,
        required_atol=math.inf if is_apart else float(gap.max(initial=0.0)),
        required_rtol=required_rtol(got, want),
        scale=peak,
        worst=worst,
        worst_got=None if worst is None else float(pair.got[worst]),
        worst_want=None if worst is None else float(pair.want[worst]),
    )


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """‖got - want‖ / ‖want‖, the error that budgets are about. 0 for equal arrays, empty ones among them.

    Infinite if the shapes differ, if NaN or infinity stands on one side only or otherwise, or if the
    reference is zero throughout and the other is not. Where both are the same NaN or infinity, the place does
    not count. Integers and booleans: the smaller of this and the share of other values, so that an index that
    flips counts as one value, whatever its number, and a pixel that is off by one counts as little. Text is
    equal or infinitely far away.
    """
    if got.shape != want.shape:
        return math.inf
    if not (is_numeric(got) and is_numeric(want)):
        return 0.0 if np.array_equal(got, want) else math.inf
    pair = Pair.of(got, want)
    if pair.special_differ:
        return math.inf
    a, b = pair.kept
    gap = _distances(a, b)
    error = _ratio(gap, b)
    return min(error, other_share(got, want)) if is_integer(want) else error


def worst_relative_l2(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The error of every output of the reference. One that is missing is infinitely far away."""
    return {
        name: relative_l2(np.asarray(got[name]), np.asarray(array)) if name in got else math.inf
        for name, array in want.items()
    }


def required_rtol(got: np.ndarray, want: np.ndarray, atol: float = 0.0) -> float:
    """The smallest rtol with which ``|got - want| <= atol + rtol * |want|`` holds everywhere.

    That is the rule of `numpy.allclose`. Infinite where no rtol would do.
    """
    if got.shape != want.shape or not (is_numeric(got) and is_numeric(want)):
        return math.inf
    pair = Pair.of(got, want)
    if pair.special_differ:
        return math.inf
    a, b = pair.kept
    over = _distances(a, b) - atol
    is_over = over > 0
    with np.errstate(divide="ignore", over="ignore"):
        needed = over[is_over] / np.abs(b[is_over])
    return float(needed.max(initial=0.0))


def max_abs(got: np.ndarray, want: np.ndarray) -> float:
    """The largest distance between numbers; infinite where a special value stands on one side only."""
    if got.shape != want.shape:
        return math.inf
    pair = Pair.of(got, want)
    return math.inf if pair.special_differ else reach_of(*pair.kept)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of the angle between two finite vectors; 1 between zeros, 0 between a zero and another."""
    a, b = _scaled(a), _scaled(b)
    lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    if not lengths:
        return 1.0 if not a.any() and not b.any() else 0.0
    return max(-1.0, min(1.0, float(a @ b) / lengths))


def top_agreement(got: np.ndarray, want: np.ndarray, k: int = TOP) -> tuple[float | None, float | None]:
    """How far the largest values of each row, along the last axis, are at the same places: of one, and of k.

    A place counts if the reference's own value there is among its largest, so that ties agree. None for
    integers and for rows of one value; the second also where a row has no more than k.
    """
    if is_integer(want) or want.ndim < 1 or want.shape[-1] < 2 or not want.size:
        return None, None
    width = want.shape[-1]
    rows, wanted = (_ranked(array).reshape(-1, width) for array in (got, want))
    return _agreement(rows, wanted, 1), _agreement(rows, wanted, k) if width > k else None


def other_share(got: np.ndarray, want: np.ndarray) -> float:
    """The share of places with another value. NaN equals NaN."""
    if is_integer(want) or not is_numeric(got):
        return unequal_share(got, want)
    a, b = as_float64(got), as_float64(want)
    return float(np.mean((a != b) & ~(np.isnan(a) & np.isnan(b)))) if b.size else 0.0


def unequal_share(got: np.ndarray, want: np.ndarray) -> float:
    """The share of places where ``!=`` holds, whatever the type; of no places, none."""
    return float(np.mean(got != want)) if want.size else 0.0


def reach_of(got: np.ndarray, want: np.ndarray) -> float:
    """The largest distance between finite floats, piece by piece: fresh memory costs more than the sums."""
    one, other = got.reshape(-1), want.reshape(-1)
    pieces = (slice(i, i + PIECE) for i in range(0, one.size, PIECE))
    return max((float(np.abs(one[p].astype(np.float64) - other[p]).max()) for p in pieces), default=0.0)


def rms_of(got: np.ndarray, want: np.ndarray) -> float:
    """The root mean square of the distances between finite floats; of no places, 0."""
    one, other = got.reshape(-1), want.reshape(-1)
    total = 0.0
    for i in range(0, one.size, PIECE):
        gap = one[i : i + PIECE].astype(np.float64) - other[i : i + PIECE]
        total += float(gap @ gap)
    return math.sqrt(total / one.size) if one.size else 0.0


def distance_of(got: np.ndarray, want: np.ndarray) -> float:
    """How far integers are apart; for strings and the like, infinitely if at all."""
    if want.dtype.kind not in "iub":
        return 0.0 if np.array_equal(got, want) else math.inf
    return reach_of(got, want.astype(np.float64))


def is_numeric(array: np.ndarray) -> bool:
    # bfloat16 and the 8-bit floats come from ml_dtypes as kind V; they convert to float64 all the same
    return array.dtype.kind in "biufc" or array.dtype.name.startswith(("bfloat", "float", "int", "uint"))


def is_integer(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu" or array.dtype.name.startswith(("int", "uint"))


def as_float64(array: np.ndarray) -> np.ndarray:
    """The same numbers; a complex one as two, along a new last axis."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], -1).astype(np.float64)
    return array.astype(np.float64)


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # two finite doubles may be infinitely far apart
    with np.errstate(over="ignore"):
        made: np.ndarray = np.abs(a - b)
    return made


def _ratio(gap: np.ndarray, want: np.ndarray) -> float:
    """‖gap‖ / ‖want‖, scaled so that squares neither overflow nor vanish."""
    top, below = float(gap.max(initial=0.0)), float(np.abs(want).max(initial=0.0))
    if not top:
        return 0.0
    if not below or math.isinf(top):
        return math.inf
    upper, lower = gap / top, want / below
    return math.sqrt(float(upper @ upper)) / math.sqrt(float(lower @ lower)) * (top / below)


def _scaled(array: np.ndarray) -> np.ndarray:
    largest = float(np.abs(array).max(initial=0.0))
    return array / largest if largest else array


def _psnr_db(gap: np.ndarray, peak: float) -> float:
    """20 log10(peak / rmse), the peak being the largest magnitude of the reference."""
    top = float(gap.max(initial=0.0))
    if not top:
        return math.inf
    if not peak or math.isinf(top):
        return -math.inf
    scaled = gap / top
    rmse = top * math.sqrt(float(scaled @ scaled) / gap.size)
    return 20 * (math.log10(peak) - math.log10(rmse)) if rmse else math.inf


def _ranked(array: np.ndarray) -> np.ndarray:
    """Numbers in the order that ranks them; NaN is below all others."""
    values = as_float64(array) if array.dtype.kind != "c" else np.abs(array)
    return np.where(np.isnan(values), -np.inf, values)


def _agreement(rows: np.ndarray, wanted: np.ndarray, k: int) -> float:
    places = np.argsort(-rows, axis=-1, kind="stable")[:, :k]
    least = -np.sort(-wanted, axis=-1)[:, k - 1 : k]
    return float(np.mean(np.take_along_axis(wanted, places, -1) >= least))


def _worst(pair: Pair) -> tuple[int, ...] | None:
    """The place of the largest distance: of a special value that differs first; None if nothing differs."""
    if not pair.got.size:
        return None
    is_same = (pair.got == pair.want) | (np.isnan(pair.got) & np.isnan(pair.want))
    if is_same.all():
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.where(pair.finite, np.abs(pair.got - pair.want), np.inf)
    gap = np.where(is_same, -1.0, gap)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(gap)), gap.shape))
