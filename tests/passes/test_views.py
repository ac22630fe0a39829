"""Splits and joins without copies: on a GPU only where every part begins at aligned memory."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.ir.views import joins_of, views_of


def site(op_type: str, parts: tuple[int, ...], kind: str, dtype: str = "float16", batch: int = 1) -> Site:
    """A Split of rows into parts, or their Concat."""
    names = tuple(f"p{i}" for i in range(len(parts)))
    specs = {name: TensorSpec(dtype, (batch, size)) for name, size in zip(names, parts, strict=True)}
    specs["x"] = TensorSpec(dtype, (batch, sum(parts)))
    ends = (("x",), names) if op_type == "Split" else (names, ("x",))
    reads = ("x", "sizes") if op_type == "Split" else names
    op, known = Op(op_type, reads, ends[1], {"axis": 1}), {"sizes": np.array(parts)}
    return Site(
        Body(*ends, (op,), known if op_type == "Split" else {}),
        specs,
        frozenset(),
        {},
        Target(kind, "sm_90" if kind == "cuda" else ""),
    )


def test_aligned_parts_are_views() -> None:
    assert views_of(site("Split", (16, 8, 3), "cuda")) == (("p0", "x", 0), ("p1", "x", 16), ("p2", "x", 24))
    assert joins_of(site("Concat", (16, 8, 3), "cuda")) == (("p0", 0), ("p1", 16), ("p2", 24))


@pytest.mark.parametrize(
    ("parts", "dtype"), [((4, 12), "float16"), ((16, 4, 4), "float16"), ((8, 8), "int8")]
)
def test_parts_that_begin_between_are_copied_on_a_gpu(parts: tuple[int, ...], dtype: str) -> None:
    assert views_of(site("Split", parts, "cuda", dtype)) == ()
    assert joins_of(site("Concat", parts, "cuda", dtype)) == ()
    assert len(views_of(site("Split", parts, "cpu", dtype))) == len(parts)
    assert len(joins_of(site("Concat", parts, "cpu", dtype))) == len(parts)


def test_parts_of_several_rows_are_copied() -> None:
    assert views_of(site("Split", (16, 8), "cuda", batch=2)) == ()
    assert joins_of(site("Concat", (16, 8), "cuda", batch=2)) == ()


@pytest.mark.parametrize(
    ("perm", "layouts", "is_view"),
    [
        ((0, 2, 3, 1), ("channels_last", "contiguous"), True),
        ((0, 3, 1, 2), ("contiguous", "channels_last"), True),
        ((0, 3, 1, 2), ("contiguous", "contiguous"), False),
        ((0, 2, 3, 1), ("contiguous", "channels_last"), False),
    ],
)
def test_a_turn_between_layouts_moves_nothing(
    perm: tuple[int, ...], layouts: tuple[str, str], is_view: bool
) -> None:
    op = Op("Transpose", ("x",), ("y",), {"perm": perm})
    sizes = (2, 16, 4, 8)
    shapes = (sizes, tuple(sizes[axis] for axis in perm))
    specs = {
        name: TensorSpec("float16", *of_one) for name, *of_one in zip("xy", shapes, layouts, strict=True)
    }
    turn = Site(Body(("x",), ("y",), (op,)), specs, frozenset(), {}, Target("cuda", "sm_90"))
    assert views_of(turn) == ((("y", "x", 0),) if is_view else ())


@pytest.mark.parametrize(
    ("shape", "perm", "is_view"),
    [
        ((2, 16, 1, 1), (0, 2, 3, 1), True),
        ((1, 1, 16, 8), (2, 0, 3, 1), True),
        ((1, 2, 16, 8), (2, 0, 3, 1), False),
        ((1, 1), (1, 0), True),
        ((0, 3), (1, 0), False),
    ],
)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_turn_of_axes_of_one_item_moves_nothing(
    shape: tuple[int, ...], perm: tuple[int, ...], is_view: bool, kind: str
) -> None:
    op = Op("Transpose", ("x",), ("y",), {"perm": perm})
    made = tuple(shape[axis] for axis in perm)
    specs = {"x": TensorSpec("float16", shape), "y": TensorSpec("float16", made)}
    turn = Site(Body(("x",), ("y",), (op,)), specs, frozenset(), {}, Target(kind, "sm_90"))
    assert views_of(turn) == ((("y", "x", 0),) if is_view else ())
