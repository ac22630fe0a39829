"""What loading makes of a model that is right, and what it leaves alone."""

from __future__ import annotations

import onnx
import pytest

import ridgeline
from ridgeline.frontend.from_onnx import load
from ridgeline.passes.pipeline import canonicalise
from ridgeline.spec import Target

# both branches call their constant the same
TWICE = """<ir_version: 9, opset_import: ["" : 21]> g (float[4] x, bool b) => (float[4] y) {{
  y = If(b) <
    then_branch = t () => (float[4] p) <{kind} k = {{{value}}}> {{ v = Cast<to = 1>(k) p = Add(x, v) }},
    else_branch = e () => (float[4] q) <{kind} k = {{{value}}}> {{ v = Cast<to = 1>(k) q = Sub(x, v) }}
  >
}}"""


@pytest.mark.parametrize(("kind", "value"), [("float", "2.5"), ("string", '"2.5"'), ("int4", "3")])
def test_the_original_stays_as_it_came(kind: str, value: str) -> None:
    original = onnx.parser.parse_model(TWICE.format(kind=kind, value=value))
    before = original.SerializeToString(deterministic=True)
    loaded = load(original)
    canonicalise(loaded.model, target=Target("cpu", "x86_64", 1))
    assert loaded.original.SerializeToString(deterministic=True) == before


def test_constants_of_one_name_in_two_bodies_build() -> None:
    engine = ridgeline.build(onnx.parser.parse_model(TWICE.format(kind="float", value="2.5")), level=0)
    assert engine.report.reference.startswith("onnxruntime")
