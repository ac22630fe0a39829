"""Bytes of a region: what it must read and write at the least."""

from __future__ import annotations

import pytest

from ridgeline.base.spec import Body, Op, TensorSpec
from ridgeline.ir.work import body_bytes

WHOLE, PART = TensorSpec("float32", (64, 384)), TensorSpec("float32", (64, 128))


@pytest.mark.parametrize("op_type", ["Slice", "Gather"])
def test_of_what_is_picked_from_only_the_picked_is_read(op_type: str) -> None:
    body = Body(("x",), ("y",), (Op(op_type, ("x",), ("y",)),))
    assert body_bytes(body, {"x": WHOLE, "y": PART}) == 2 * PART.nbytes


def test_parts_that_cover_an_input_read_it_once() -> None:
    names = tuple("abcd")
    body = Body(("x",), names, tuple(Op("Slice", ("x",), (name,)) for name in names))
    specs = {"x": WHOLE, **dict.fromkeys(names, PART)}
    assert body_bytes(body, specs) == WHOLE.nbytes + 4 * PART.nbytes


def test_another_reader_reads_all() -> None:
    ops = (Op("Slice", ("x",), ("a",)), Op("Relu", ("x",), ("b",)))
    body = Body(("x",), ("a", "b"), ops)
    assert body_bytes(body, {"x": WHOLE, "a": PART, "b": WHOLE}) == 2 * WHOLE.nbytes + PART.nbytes
