"""What ONNX Runtime is not given: what would stop the process, and values without elements."""

from __future__ import annotations

import numpy as np
import pytest

from offers import why_not as refused
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.tactics.cpu.ort import Ort


def why_not(op: Op, specs: dict[str, TensorSpec], **known: np.ndarray) -> str | None:
    body = Body(tuple(n for n in op.inputs if n not in known), op.outputs, (op,), known)
    return refused(Ort({"": 21}), Site(body, specs, frozenset(), {}, Target()))


@pytest.mark.parametrize("key", ["Div", "Mod"])
def test_integer_divisors_must_be_known(key: str) -> None:
    """The least int64 over -1 is a signal there, and 0 an error; both are zeros or wrap around elsewhere."""
    op, ints = Op(key, ("x", "d"), ("y",)), TensorSpec("int64", (3,))
    specs = {"x": ints, "d": ints, "y": ints}
    assert "divisor" in (why_not(op, specs) or "")
    assert "divisor" in (why_not(op, specs, d=np.array([2, -1, 3])) or "")
    assert why_not(op, specs, d=np.array([2, 4, 3])) is None
    floats = TensorSpec("float32", (3,))
    assert why_not(op, {"x": floats, "d": floats, "y": floats}) is None


def test_values_without_elements() -> None:
    """Some ops refuse them, and a reduction of them comes out with another shape than ONNX says."""
    op = Op("ReduceMax", ("x", "axes"), ("y",))
    specs = {
        "x": TensorSpec("int8", (0, 6)),
        "y": TensorSpec("int8", (0, 1)),
        "axes": TensorSpec("int64", (1,)),
    }
    assert "no elements" in (why_not(op, specs, axes=np.array([1])) or "")
    resize, image = Op("Resize", ("x", "roi", "scales"), ("y",)), TensorSpec("float32", (1, 1, 4, 4))
    roi = np.zeros(0, np.float32)
    specs = {
        "x": image,
        "y": image,
        "roi": TensorSpec("float32", (0,)),
        "scales": TensorSpec("float32", (4,)),
    }
    assert why_not(resize, specs, roi=roi, scales=np.ones(4, np.float32)) is None


FLOATS = {
    name: TensorSpec("float32", shape)
    for name, shape in {
        "q": (2, 4, 3, 8), "one": (2, 4, 1, 8), "k": (2, 4, 5, 8), "v": (2, 4, 5, 8), "y": (2, 4, 3, 8),
        "past": (2, 4, 2, 8), "whole": (3, 5), "heads": (4, 3, 5), "all": (2, 1, 3, 5), "row": (1, 5),
        "column": (3, 1), "flat": (5,), "short": (3, 4), "longer": (1, 7),
    }.items()
}  # fmt: skip


@pytest.mark.parametrize(("inputs", "attrs", "refused"), [
    (("q", "k", "v"), {}, None),
    *(((*"qkv", mask), {}, None) for mask in ("whole", "heads", "all")),
    *(((*"qkv", mask), {}, "mask") for mask in ("row", "column", "flat", "short")),
    ((*"qkv", "somewhere"), {}, "depend on data"),
    (("q", "k", "v"), {"scale": 0.0}, "scale"),
    (("one", "k", "v", "longer", "past", "past"), {}, None),
    (("one", "k", "v", "longer", "past", "past"), {"is_causal": 1}, "single query"),
])  # fmt: skip
def test_attention_that_it_refuses_or_computes_otherwise(
    inputs: tuple[str, ...], attrs: dict[str, float], refused: str | None
) -> None:
    """A mask must have a row for each query and a column for each key there, though the op broadcasts it."""
    reason = why_not(Op("Attention", inputs, ("y",), attrs), FLOATS)
    assert reason is None if refused is None else refused in (reason or "")


@pytest.mark.parametrize(("shape", "inputs", "is_taken"), [
    ((2, 3), ("q", "table", "table", "x"), True),
    ((1, 3), ("q", "table", "table", "x"), False),
    ((2, 1), ("q", "table", "table", "x"), False),
    ((2, 3, 4), ("q", "x", "x"), True),
    ((1, 3, 4), ("q", "x", "x"), False),
])  # fmt: skip
def test_rotary_positions_that_are_broadcast(
    shape: tuple[int, ...], inputs: tuple[str, ...], is_taken: bool
) -> None:
    specs = {**FLOATS, "x": TensorSpec("int64" if len(shape) == 2 else "float32", shape)}
    specs["table"] = TensorSpec("float32", (10, 4))
    reason = why_not(Op("RotaryEmbedding", inputs, ("y",)), specs)
    assert reason is None if is_taken else "rotary positions" in (reason or "")


@pytest.mark.parametrize("key", ["LSTM", "GRU"])
def test_recurrent_layers_that_may_be_given_nothing(key: str) -> None:
    """Those end the whole process."""
    x, made = TensorSpec("float32", (3, 2, 4)), TensorSpec("float32", (1, 2, 5))
    op = Op(key, ("x", "w", "r"), ("", "y"), {"hidden_size": 5})
    branch = Body((), ("y",), (op,))
    both = Op("If", ("c",), ("z",), {"then_branch": branch, "else_branch": branch})
    assert why_not(op, {"x": x, "y": made}) is None
    assert "ends the process" in (why_not(op, {"y": made}) or "")
    assert "ends the process" in (why_not(both, {"z": made}) or "")
