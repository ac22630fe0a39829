"""Cases that move items: slices, pads, gathers, scatters, joins, with sizes of none and one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from semantics_case import Case, numpy_type
from semantics_values import few, specials

TYPES = ("float32", "float64", "float16", "int64", "uint64", "int32", "int8", "bool")
FIRST = frozenset({1})
move = partial(Case, "movement")


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _table(name: str, *shape: int) -> np.ndarray:
    return np.resize(few(name), shape)


def pads() -> Iterator[Case]:
    fixed = frozenset({1, 2, 3})
    for name in TYPES:
        x = _table(name, 4, 5)
        fill = np.array(few(name)[-2])
        for mode in ("constant", "edge", "reflect", "wrap"):
            value = (fill,) if mode == "constant" else ()
            for what, amounts in (
                ("grown", (0, 2, 0, 3)),
                ("cut", (0, -1, 0, -2)),
                ("cut and grown", (0, -2, 0, 3)),
            ):
                if name in ("float32", "int64"):
                    yield move("Pad", what, (x, _ints(*amounts), *value), {"mode": mode}, fixed)
            yield move("Pad", "first axis", (x, _ints(1, 1, 2, 0), *value), {"mode": mode}, fixed)
            yield move(
                "Pad", "named axes", (x, _ints(2, 1), *(value or (None,)), _ints(-1)), {"mode": mode}, fixed
            )
        for value in few(name)[-6:] if name != "bool" else (True, False):
            known = fixed if value == value else fixed - {2}  # a model with NaN among its weights is refused
            yield move("Pad", f"filled with {value}", (x, _ints(1, 0, 0, 2), np.array(value)), {}, known)
    yield move("Pad", "of nothing", (np.zeros((0, 3), "f4"), _ints(0, 1, 0, 1)), {}, fixed)
    yield move(
        "Pad", "of an empty axis", (np.zeros((2, 0), "f4"), _ints(0, 1, 0, 2), np.array(4, "f4")), {}, fixed
    )
    yield move("Pad", "cut to nothing", (np.ones((2, 3), "f4"), _ints(0, -1, 0, -2)), {}, fixed)
    yield move(
        "Pad",
        "twice around",
        (np.arange(6, dtype="f4").reshape(2, 3), _ints(0, 7, 0, 8)),
        {"mode": "wrap"},
        fixed,
    )


def cuts() -> Iterator[Case]:
    far = np.iinfo(np.int64)
    spans: tuple[tuple[Any, ...], ...] = (
        (3, 2, 1), (0, 0, 1), (-2, far.max, 1), (far.max, far.min, -1), (-1, -6, -2), (1, 4, 2), (7, 9, 1),
        (2, -9, -1),
    )  # fmt: skip
    for name in TYPES:
        x = _table(name, 4, 5)
        for start, end, step in spans if name in ("float32", "int64") else spans[:4]:
            bounds = (_ints(start), _ints(end), _ints(1), _ints(step))
            yield move("Slice", f"{start}:{end}:{step}", (x, *bounds), fixed=frozenset({1, 2, 3, 4}))
        for sizes in ((0, 5), (5, 0), (2, 0, 3), (1, 4)):
            attrs = {"axis": 1}
            yield move("Split", f"into {sizes}", (x, _ints(*sizes)), attrs, FIRST, len(sizes))
        yield move("Concat", "with nothing", (x, x[:, :0], x[:, 1:]), {"axis": 1})
        yield move("Concat", "two of nothing", (x[:, :0], x[:, :0]), {"axis": 1})
        yield move("Concat", "one", (x,), {"axis": 1})
        for repeats in ((1, 0), (2, 1), (1, 3)):
            yield move("Tile", f"{repeats}", (x, _ints(*repeats)), {}, FIRST)
        yield move("Expand", "by none", (x[:, :1], _ints(1, 0)), {}, FIRST)
        yield move("Expand", "by three", (x[:, :1], _ints(3, 1, 2)), {}, FIRST)
        yield move("Transpose", "table", (x,), {"perm": [1, 0]})
        yield move("Transpose", "nothing", (x[:, :0],), {"perm": [1, 0]})
        yield move("Reshape", "table", (x, _ints(0, 5, 1)), {}, FIRST)
        yield move("Flatten", "nothing", (x[:, :0],), {"axis": 1})
        yield move("Reshape", "nothing", (x[:, :0], _ints(-1, 3)), {}, FIRST)
        yield move("Reshape", "to zero", (x[:, :0], _ints(0, 7)), {"allowzero": 1}, FIRST)
        yield move("Squeeze", "one", (x[:, :1], _ints(1)), {}, FIRST)
        yield move("Unsqueeze", "nothing", (x[:, :0], _ints(1, -1)), {}, FIRST)
        for upper in (0, 1):
            yield move("Trilu", "table", (x, np.array(-1)), {"upper": upper}, FIRST)
            yield move("Trilu", "nothing", (x[:, :0], np.array(9)), {"upper": upper}, FIRST)
        yield move("DepthToSpace", "blocks", (_table(name, 2, 8, 1, 2),), {"blocksize": 2})
        yield move("SpaceToDepth", "blocks", (_table(name, 2, 1, 4, 2),), {"blocksize": 2})


def lookups() -> Iterator[Case]:
    for name in TYPES:
        x = _table(name, 4, 5)
        yield move("Gather", "ends", (x, _ints(-5, 4, 0, -1)), {"axis": 1}, FIRST)
        yield move("Gather", "none", (x, np.zeros((0, 2), np.int64)), {"axis": 1}, FIRST)
        yield move("Gather", "one", (x, np.array(-1)), {"axis": 1}, FIRST)
        yield move("GatherElements", "ends", (x, np.resize(_ints(-5, 4, 0, -1), (4, 3))), {"axis": 1})
        yield move("GatherND", "ends", (x, np.array([[0, -1], [-4, 2]])))
        yield move(
            "OneHot",
            f"ends of {name}",
            (_ints(-3, 2, 0, 3, -4), np.array(3), few(name)[:2].copy()),
            fixed=frozenset({1, 2}),
        )
        for reduction in ("none", "add", "mul", "max", "min"):
            if name == "bool" and reduction != "none":
                continue
            where = np.resize(_ints(1, -2, 0), (4, 3))
            attrs = {"axis": 1, "reduction": reduction}
            updates = _table(name, 4, 3)[::-1].copy()
            yield move("ScatterElements", "ends", (x, where, updates), attrs)
            yield move(
                "ScatterND",
                "ends",
                (x, np.array([[2], [-4]]), updates[:2, :1].repeat(5, 1)),
                {"reduction": reduction},
            )
        yield move("ScatterElements", "nothing", (x, where[:, :0], updates[:, :0]), {"axis": 1})
        yield move("Compress", "some", (x, np.array([True, False, True, False, True])), {"axis": 1}, FIRST)
        yield move("Compress", "none", (x, np.zeros(5, bool)), {"axis": 1}, FIRST)
        yield move("ReverseSequence", "rows", (x, _ints(5, 1, 2, 4)), {"batch_axis": 0, "time_axis": 1})
        yield move("Identity", "nothing", (x[:, :0],))
    for name in ("float32", "int64", "bool", "int32", "uint8"):
        yield move("NonZero", "values", (specials(name),))
        yield move("NonZero", "nothing", (np.zeros((0, 2), numpy_type(name)),))
    for name in ("float32", "int64"):
        a, b = _table(name, 3, 4)[:, :1].copy(), np.arange(8).reshape(4, 2).astype(numpy_type(name))
        yield move("Einsum", "size one spread", (a, b), {"equation": "ij,jk->ik"})
        yield move("Einsum", "size one inside", (b[None, :, :1], b[None]), {"equation": "bij,bik->bjk"})
        yield move("Einsum", "size one in both", (b[:1], b), {"equation": "ij,ij->ij"})
        yield move("Einsum", "of nothing", (b[:, :0], b[:, :0]), {"equation": "ij,ij->i"})
        yield move("Einsum", "ellipsis", (b[None], b[:1]), {"equation": "...ij,kj->...ik"})


def all_cases() -> Iterator[Case]:
    for part in (pads, cuts, lookups):
        yield from part()
