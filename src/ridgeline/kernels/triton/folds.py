"""How a loop over a row carries reductions: the states of each lane, their update, and the join of lanes.

Two reductions of which the second needs the first, as in softmax and variance, are carried in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.base.choices import RefusedError
from ridgeline.kernels.scalar.program import Number, Program, Step, Term
from ridgeline.kernels.triton.text import TYPES, literal, term

_LOWEST = {"int32": -(2**31), "int64": -(2**63)}
_EXPONENTIALS = ("rl_exp_low({0})", "rl_exp({0})")


def identity(fold: str, dtype: str) -> str:
    """The value that a fold starts from, as a scalar of that type."""
    if fold in ("sum", "prod"):
        return literal(Number(0 if fold == "sum" else 1, dtype))
    is_max = fold.startswith("max")
    if dtype in _LOWEST:
        return literal(Number(_LOWEST[dtype] if is_max else -_LOWEST[dtype] - 1, dtype))
    return literal(Number(float("-inf") if is_max else float("inf"), dtype))


def joined(fold: str, value: str, *, is_single: bool = False, axis: int = 1) -> str:
    """Reduces the lanes of a row to [ROWS, 1], or to a scalar for a single row; axis 2 keeps the lanes."""
    where = f"axis={None if is_single else axis}, keep_dims={axis == 1 and not is_single}"
    if fold in ("sum", "max", "min"):
        return f"tl.{fold}({value}, {where})"
    combine = {"prod": "rl_mul", "max_nan": "rl_max", "min_nan": "rl_min"}[fold]
    return f"tl.reduce({value}, combine_fn={combine}, {where})"


@dataclass(frozen=True)
class Lanes:
    """A tile of `rows` by `cols` as lanes; one thread holds the `deep` neighbours of a lane."""

    rows: int
    cols: int
    deep: int

    @property
    def shape(self) -> str:
        return f"({self.rows}, {self.cols // self.deep})"

    def pieces(self, value: str) -> str:
        """A tile reshaped into lanes, [ROWS, LANES, deep]; unchanged if lanes are single elements."""
        whole = f"tl.broadcast_to({value}, ({self.rows}, {self.cols}))"
        if self.deep == 1:
            return whole
        return f"tl.reshape({whole}, ({self.rows}, {self.cols // self.deep}, {self.deep}))"

    def each(self, fold: str, value: str) -> str:
        """Reduces the neighbours of each lane."""
        return value if self.deep == 1 else joined(fold, value, axis=2)

    def against(self, value: str) -> str:
        """A value per lane, broadcast to the lane's neighbours."""
        return value if self.deep == 1 else f"{value}[:, :, None]"


def combined(fold: str, a: str, b: str) -> str:
    if fold in ("sum", "prod"):
        return f"{a} {'+' if fold == 'sum' else '*'} {b}"
    name = {"max": "tl.maximum", "min": "tl.minimum", "max_nan": "rl_max", "min_nan": "rl_min"}[fold]
    return f"{name}({a}, {b})"


@dataclass(frozen=True)
class Group:
    """Reductions of one value that a pass carries together. Each state is named after its reduction."""

    folds: tuple[Step, ...]

    @property
    def value(self) -> Term:
        """The value of the row that is reduced."""
        return self.folds[0].args[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"c_{fold.name}" for fold in self.folds)

    @property
    def states(self) -> Mapping[str, str]:
        """The states by name, with the value that each starts from."""
        dtype = self.folds[0].dtype
        starts = (identity(fold.fold, dtype) for fold in self.folds)
        return dict(zip(self.names, starts, strict=True))

    def update(self, mask: str, lanes: Lanes) -> list[str]:
        """Folds one more tile into the states, without the elements outside `mask`; "" masks none."""
        raise NotImplementedError

    def join(self, *, is_single: bool = False) -> list[str]:
        """Joins the lanes: states and folds become [ROWS, 1], or scalars for a single row."""
        raise NotImplementedError


def _masked(value: str, mask: str, other: str) -> str:
    return f"tl.where({mask}, {value}, {other})" if mask else value


class Single(Group):
    """One reduction on its own."""

    def update(self, mask: str, lanes: Lanes) -> list[str]:
        (name,), (fold,) = self.names, self.folds
        value = lanes.pieces(_masked(term(self.value), mask, identity(fold.fold, fold.dtype)))
        return [f"{name} = {combined(fold.fold, name, lanes.each(fold.fold, value))}"]

    def join(self, *, is_single: bool = False) -> list[str]:
        (name,), (fold,) = self.names, self.folds
        return [f"{name} = {joined(fold.fold, name, is_single=is_single)}", f"{fold.name} = {name}"]


class Exponentials(Group):
    """max(x) and sum(exp(x - max)); the sum is rescaled whenever the maximum grows."""

    def update(self, mask: str, lanes: Lanes) -> list[str]:
        top, total = self.names
        value = lanes.pieces(_masked(term(self.value), mask, identity("max", self.folds[0].dtype)))
        return [
            f"here = {value}",
            f"high = tl.maximum({top}, {lanes.each('max', 'here')})",
            # the difference of two infinities would be NaN
            'shift = tl.where(high == float("-inf"), 0, high)',
            f"raised = rl_exp_low(here - {lanes.against('shift')})",
            f"{total} = {total} * rl_exp_low({top} - shift) + {lanes.each('sum', 'raised')}",
            f"{top} = high",
        ]

    def join(self, *, is_single: bool = False) -> list[str]:
        top, total = self.names
        return [
            f"high = {joined('max', top, is_single=is_single)}",
            'shift = tl.where(high == float("-inf"), 0, high)',
            f"totals = {total} * rl_exp_low({top} - shift)",
            f"{total} = {joined('sum', 'totals', is_single=is_single)}",
            f"{top} = high",
            f"{self.folds[0].name} = {top}",
            f"{self.folds[1].name} = {total}",
        ]


class Variance(Group):
    """sum(x) and sum((x - mean)²); each lane has its own mean, spread and count, joined by Chan's formula."""

    @property
    def names(self) -> tuple[str, ...]:
        return *super().names, f"n_{self.folds[0].name}"

    @property
    def states(self) -> Mapping[str, str]:
        return dict.fromkeys(self.names, identity("sum", self.folds[0].dtype))

    def update(self, mask: str, lanes: Lanes) -> list[str]:
        mean, spread, count = self.names
        many, inverse = f"{float(lanes.deep)}", f"{1 / lanes.deep}"
        lines = [f"here = {lanes.pieces(_masked(term(self.value), mask, '0.0'))}"]
        if mask:
            lines.append(f"counts = {lanes.pieces(f'tl.where({mask}, 1.0, 0.0)')}")
            lines.append(f"many = {lanes.each('sum', 'counts')}")
            many, inverse = "many", "(1.0 / tl.maximum(many, 1.0))"
        return [
            *lines,
            f"middle = {lanes.each('sum', 'here')} * {inverse}",
            f"away = here - {lanes.against('middle')}",
            f"squares = away * away{' * counts' if mask else ''}",
            f"delta = middle - {mean}",
            f"share_of = {many} / tl.maximum({count} + {many}, 1.0)",
            f"{spread} += {lanes.each('sum', 'squares')} + delta * delta * {count} * share_of",
            f"{mean} += delta * share_of",
            f"{count} += {many}",
        ]

    def join(self, *, is_single: bool = False) -> list[str]:
        mean, spread, count = self.names
        return [
            f"every = {joined('sum', count, is_single=is_single)}",
            f"weighted = {mean} * {count}",
            f"middle = {joined('sum', 'weighted', is_single=is_single)} / tl.maximum(every, 1.0)",
            f"away = {mean} - middle",
            f"spreads = {spread} + {count} * (away * away)",
            f"{spread} = {joined('sum', 'spreads', is_single=is_single)}",
            f"{mean} = middle",
            f"{count} = every",
            f"{self.folds[0].name} = {mean} * {count}",
            f"{self.folds[1].name} = {spread}",
        ]


@dataclass(frozen=True)
class Pass:
    """The groups that one pass over a row carries."""

    groups: tuple[Group, ...]

    @property
    def folds(self) -> list[Step]:
        return [fold for group in self.groups for fold in group.folds]

    @property
    def values(self) -> list[Term]:
        """The values that are reduced."""
        return [group.value for group in self.groups]

    @property
    def states(self) -> dict[str, str]:
        """All states by name, with the value that each starts from."""
        return {name: start for group in self.groups for name, start in group.states.items()}

    def begin(self, shape: str) -> list[str]:
        """Initialises the states of lanes of that shape."""
        return [
            f"{name} = tl.zeros({shape}, {TYPES[group.folds[0].dtype][1]}) + {start}"
            for group in self.groups
            for name, start in group.states.items()
        ]

    def update(self, mask: str, lanes: Lanes) -> list[str]:
        return [line for group in self.groups for line in group.update(mask, lanes)]

    def join(self, *, is_single: bool = False) -> list[str]:
        return [line for group in self.groups for line in group.join(is_single=is_single)]


def passes(program: Program) -> list[Pass]:
    """The reductions of a program, in the order in which passes over the row can carry them."""
    steps: dict[Term, Step] = {step.name: step for step in program.steps}
    folds = [step for step in program.steps if step.fold]
    count = math.prod(program.sizes[axis] for axis in folds[0].over)
    level: dict[str, int] = {}
    found: list[list[Group]] = []
    for group in _groups(folds, steps, count):
        own = {fold.name for fold in group.folds}
        needed = {fold.name for fold in folds} & behind([group.value], steps) - own
        if not needed <= set(level):
            raise RefusedError("reductions need one another in turn")
        at = max((level[name] + 1 for name in needed), default=0)
        level.update(dict.fromkeys(own, at))
        if at == len(found):
            found.append([])
        found[at].append(group)
    return [Pass(tuple(groups)) for groups in found]


def _groups(folds: Sequence[Step], steps: Mapping[Term, Step], count: int) -> list[Group]:
    groups: list[Group] = []
    taken: set[str] = set()
    for fold in folds:
        if fold.name in taken:
            continue
        second = next((f for f in folds if _follows(f, fold, steps, count) and f.name not in taken), None)
        if second is None:
            groups.append(Single((fold,)))
            continue
        taken.add(second.name)
        groups.append((Exponentials if fold.fold == "max" else Variance)((fold, second)))
    return groups


def _follows(second: Step, first: Step, steps: Mapping[Term, Step], count: int) -> bool:
    """Whether two folds over `count` items are the maximum and sum of softmax, or the sums of a variance."""
    made = steps.get(second.args[0])
    if second.fold != "sum" or made is None or first.dtype not in ("float32", "float64"):
        return False
    less = steps.get(made.args[0]) if made.args else None
    if less is None or less.template != "{0} - {1}" or less.args[0] != first.args[0]:
        return False
    if first.fold == "max" and made.template in _EXPONENTIALS:
        return less.args[1] == first.name
    mean = steps.get(less.args[1])
    return (
        first.fold == "sum"
        and made.template == "{0} * {0}"
        and mean is not None
        and mean.template == "rl_div({0}, {1})"
        and mean.args[0] == first.name
        and isinstance(mean.args[1], Number)
        and mean.args[1].value == count
    )


def behind(values: Iterable[Term], steps: Mapping[Term, Step]) -> set[Term]:
    """These values and everything that they are computed from, without numbers."""
    found: set[Term] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if not isinstance(value, Number) and value not in found:
            found.add(value)
            waiting += steps[value].args if value in steps else ()
    return found
