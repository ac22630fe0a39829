"""Guards: what a model takes for granted about the sizes of its inputs, as data.

`torch.export` records which way a module went wherever its code asked for a size. A guard is a tree of
numbers, sizes and operators. It is read, checked and evaluated here: no text of a file is ever run as code.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

# a number, ("size", input, axis), or (operator, term, ...)
Term: TypeAlias = int | float | tuple[Any, ...]
Sizes: TypeAlias = Mapping[str, Sequence[int]]

SIZE = "size"
MAX_TERMS, MAX_DEPTH = 100_000, 100
# an intermediate result beyond this is no size: a file could otherwise ask for numbers without end
MAX_VALUE = 1 << 128
MAX_EXPONENT = 8


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int) and not 0 <= exponent <= MAX_EXPONENT:
        raise ValueError(f"exponent {exponent}")
    return base**exponent


INFIX: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "/": operator.truediv, "**": _power, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge, "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}  # fmt: skip
CALLED: dict[str, tuple[int, Callable[..., Any]]] = {
    "min": (2, min), "max": (2, max), "float": (1, float), "floor": (1, math.floor), "ceil": (1, math.ceil),
    "trunc": (1, math.trunc), "round": (1, round), "sqrt": (1, math.sqrt), "not": (1, operator.not_),
}  # fmt: skip
ARITY = dict.fromkeys(INFIX, 2) | {name: arity for name, (arity, _) in CALLED.items()}


def evaluate(term: Term, sizes: Sizes) -> Any:
    """The value of a term at these sizes."""
    if not isinstance(term, tuple):
        return term
    if term[0] == SIZE:
        return int(sizes[term[1]][term[2]])
    values = [evaluate(part, sizes) for part in term[1:]]
    made = (INFIX.get(term[0]) or CALLED[term[0]][1])(*values)
    if isinstance(made, int) and abs(made) > MAX_VALUE:
        raise OverflowError(text(term))
    return made


def holds(guard: Term, sizes: Sizes) -> bool:
    """Is the guard kept? One that cannot be computed at these sizes, such as a division by 0, is not."""
    try:
        return bool(evaluate(guard, sizes))
    except (ArithmeticError, ValueError, TypeError):
        return False


def sizes_in(term: Term) -> list[tuple[str, int]]:
    """Every size that a term reads, once: input and axis."""
    if not isinstance(term, tuple):
        return []
    if term[0] == SIZE:
        return [(term[1], term[2])]
    return list(dict.fromkeys(size for part in term[1:] for size in sizes_in(part)))


def text(term: Term) -> str:
    """As Python writes it, for errors."""
    if not isinstance(term, tuple):
        return str(term)
    if term[0] == SIZE:
        return f"{term[1]}.shape[{term[2]}]"
    parts = [text(part) for part in term[1:]]
    if term[0] not in INFIX:
        return f"{term[0]}({', '.join(parts)})"
    wrapped = [
        f"({said})" if isinstance(part, tuple) and part[0] in INFIX else said
        for part, said in zip(term[1:], parts, strict=True)
    ]
    return f" {term[0]} ".join(wrapped)


def broken(guards: Sequence[Term], sizes: Sizes) -> list[str]:
    """A row for each guard that these sizes do not keep: the guard, and the sizes it reads."""
    return [
        f"{text(guard)}: " + ", ".join(f"{n}.shape[{a}] is {sizes[n][a]}" for n, a in sizes_in(guard))
        for guard in guards
        if not holds(guard, sizes)
    ]


def read_guards(raw: Any, ranks: Mapping[str, int | None]) -> tuple[Term, ...]:
    """Guards from JSON. ValueError where they are not what `evaluate` takes, over inputs of these ranks."""
    left = [MAX_TERMS]
    if not isinstance(raw, list):
        raise ValueError("guards are not a list")  # noqa: TRY004 - what a reader raises on a damaged file
    return tuple(_read(guard, ranks, left, 0) for guard in raw)


def _read(raw: Any, ranks: Mapping[str, int | None], left: list[int], depth: int) -> Term:
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        raise ValueError("guards are too large")
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return raw
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], str):
        raise ValueError(f"{str(raw)[:80]!r} is no term of a guard")
    if raw[0] == SIZE:
        _check_size(raw, ranks)
        return tuple(raw)
    if ARITY.get(raw[0]) != len(raw) - 1:
        raise ValueError(f"a guard has no operator {raw[0][:40]!r} of {len(raw) - 1} terms")
    return (raw[0], *(_read(part, ranks, left, depth + 1) for part in raw[1:]))


def _check_size(raw: list[Any], ranks: Mapping[str, int | None]) -> None:
    is_whole = len(raw) == 3 and isinstance(raw[1], str) and type(raw[2]) is int
    if not is_whole or raw[1] not in ranks:
        raise ValueError(f"a guard reads a size of {str(raw[1:])[:80]}, and there is no such input")
    rank = ranks[raw[1]]
    if rank is None or not 0 <= raw[2] < rank:
        raise ValueError(f"a guard reads axis {raw[2]} of {raw[1]!r}, which has rank {rank}")
