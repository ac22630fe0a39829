"""Graphs in ONNX text for the tests of the passes, and the check that a rewrite kept their meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from ridgeline.base.choices import Refusal
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.match import Found, find
from ridgeline.passes.rule import Fusion, Match, _compiled, _Refused, apply_rules
from ridgeline.passes.shapes import infer_shapes

T = TypeVar("T")
# q3, k3 and v3 of three axes as q, k and v with their heads
SPLIT_HEADS = """
    q4 = Reshape(q3, split)
    q = Transpose<perm = [0, 2, 1, 3]>(q4)
    k4 = Reshape(k3, split)
    k = Transpose<perm = [0, 2, 1, 3]>(k4)
    v4 = Reshape(v3, split)
    v = Transpose<perm = [0, 2, 1, 3]>(v4)
"""


def parse(body: str, opset: int = 23) -> ir.Model:
    """`g (inputs) => (outputs) { ... }` as a model with shapes inferred."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{body}')
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model


def with_weights(body: str, *names: str, opset: int = 23) -> ir.Model:
    """As `parse`, with the inputs of these names turned into seeded initializers."""
    model = parse(body, opset)
    rng = np.random.default_rng(11)
    for value in [v for v in model.graph.inputs if v.name in names]:
        array = (rng.standard_normal(value.shape.numpy()) * 0.3).astype(value.dtype.numpy())
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(array, name=value.name)
        model.graph.register_initializer(value)
    infer_shapes(model)
    return model


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type != "Constant"]


def count(model: ir.Model, op_type: str) -> int:
    return Counter(ops(model))[op_type]


def run(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """By onnxruntime without its own rewrites; the checker looks at the model first."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options)
    results: list[np.ndarray] = session.run(None, dict(feeds))
    return results


def random_feeds(model: ir.Model, sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Seeded inputs; `sizes` gives numbers to the named dims."""
    rng = np.random.default_rng(7)
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.inputs:
        shape = [dim if isinstance(dim, int) else (sizes or {})[dim.value] for dim in value.shape]
        if value.dtype == ir.DataType.BOOL:
            feeds[value.name] = rng.random(shape) < 0.7
        elif value.dtype == ir.DataType.INT64:
            feeds[value.name] = rng.integers(0, 3, shape)
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(value.dtype.numpy())
    return feeds


def assert_same(
    before: Sequence[np.ndarray], after: Sequence[np.ndarray], *, roundings: float = 64.0
) -> None:
    """Equal up to some roundings of the result's own type at its largest magnitude."""
    assert len(before) == len(after)
    for want, got in zip(before, after, strict=True):
        assert want.shape == got.shape
        assert want.dtype == got.dtype
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(want, got)
            continue
        slack = roundings * np.finfo(want.dtype).eps * max(float(np.max(np.abs(want), initial=0.0)), 1e-30)
        np.testing.assert_allclose(got, want, rtol=0.0, atol=slack)


def changed(model: ir.Model, change: Callable[[], T], sizes: Mapping[str, int] | None = None) -> T:
    """Change the model and check that outputs, names and legality are as before."""
    names = [value.name for value in model.graph.outputs]
    feeds = random_feeds(model, sizes)
    before = run(model, feeds)
    result = change()
    remove_unused(model)
    infer_shapes(model)
    assert [value.name for value in model.graph.outputs] == names
    assert_same(before, run(model, feeds))
    return result


def rewritten(
    body: str, rules: Sequence[Fusion], sizes: Mapping[str, int] | None = None
) -> tuple[ir.Model, list[Refusal]]:
    """Apply the rules once; the results stay what they were."""
    model = parse(body)
    return model, changed(model, lambda: apply_rules(model, rules), sizes)


def why_not(model: ir.Model, rule: Fusion) -> str:
    """What a rule says against the first node. A pattern of one node leaves no refusal in the report."""
    (found,) = find(_compiled(rule), model.graph[0].outputs[0], Found())
    try:
        rule.check(Match(found))
    except _Refused as refused:
        return refused.reason
    raise AssertionError(f"{rule.name} takes {model.graph[0]}")
