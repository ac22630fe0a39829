"""The op table: every op name in the source has one row, and rows and functions agree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from ridgeline.base.spec import Op, TensorSpec
from ridgeline.ir.host_ops import HOST_OPS
from ridgeline.ir.op_row import Kind, OpRow
from ridgeline.ir.ops import OPS, add_row, drop_row, is_a, row_of
from ridgeline.ir.work import op_flops
from ridgeline.kernels.floor import FLOOR
from ridgeline.kernels.scalar.moves import MOVES
from ridgeline.kernels.scalar.reductions import ARITHMETIC
from ridgeline.passes.padding_rules import RULES as PADDING_RULES
from ridgeline.tactics.control import CONTROL_OPS

SRC = Path(__file__).parents[2] / "src" / "ridgeline"
# packages whose words are those of other file formats and runtimes, or of op names as attributes
ELSEWHERE = {"frontend", "cli", "torch_in", "analyze"}


def named_ops() -> Iterator[tuple[str, str]]:
    """Where the source uses an op name as a key: a member of a set, the key of a mapping, a comparison."""
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    for file in sorted(SRC.rglob("*.py")):
        place = file.relative_to(SRC)
        if place.parts[0] in ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[ast.expr | None] = []
            if isinstance(node, ast.Set):
                names = [*node.elts]
            elif isinstance(node, ast.Dict):
                names = [*node.keys]
            elif isinstance(node, ast.Compare):
                names = [*node.comparators]
            for name in names:
                if isinstance(name, ast.Constant) and name.value in known:
                    yield str(name.value), f"{place}:{node.lineno}"


def test_every_op_that_the_source_names_has_a_row() -> None:
    missing = {f"{op} at {where}" for op, where in named_ops() if op not in OPS}
    assert not missing, sorted(missing)


def test_rows_and_functions_agree() -> None:
    assert set(FLOOR) == {key for key, row in OPS.items() if row.has_floor}
    assert set(CONTROL_OPS) == {key for key, row in OPS.items() if row.kind & Kind.CONTROL}
    for registry in (ARITHMETIC, MOVES, HOST_OPS, PADDING_RULES):
        assert not registry.keys() - OPS.keys()


def test_every_movement_has_a_check_and_no_flops() -> None:
    for key, row in OPS.items():
        if row.kind & Kind.MOVEMENT:
            assert row.check is not None, key
            assert row.flops == 0, key


def test_an_op_from_outside_is_one_row() -> None:
    add_row(OpRow(domain="test.ops", op_type="Scale", kind=Kind.POINTWISE, flops=3))
    try:
        op = Op("Scale", ("x",), ("y",), domain="test.ops")
        spec = TensorSpec("float32", (4, 5))
        assert is_a(op, Kind.POINTWISE)
        assert op_flops(op, {"x": spec, "y": spec}) == 60
        with pytest.raises(ValueError, match=r"test\.ops::Scale is in the op table already"):
            add_row(OpRow(domain="test.ops", op_type="Scale"))
    finally:
        drop_row("test.ops::Scale")
    assert row_of(op).kind == Kind.OTHER


def test_our_own_rows_stay() -> None:
    with pytest.raises(ValueError, match="needs a domain of its own"):
        add_row(OpRow(op_type="Scale"))
    with pytest.raises(ValueError, match="Add is an op of our own"):
        drop_row("Add")
