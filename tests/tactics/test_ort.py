"""What ONNX Runtime is not given: what would stop the process, and values without elements."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.tactics.ort import Ort


def why_not(op: Op, specs: dict[str, TensorSpec], **known: np.ndarray) -> str | None:
    body = Body(tuple(n for n in op.inputs if n not in known), op.outputs, (op,), known)
    return Ort({"": 21}).why_not(Site(body, specs, frozenset(), {}, Target()))


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
