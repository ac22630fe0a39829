"""Ops that draw numbers: a seed draws what ONNX's reference draws, none follows torch's generator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from ridgeline.base.spec import Op
from ridgeline.kernels.floor import FLOOR, call_floor


def reference(text: str, **feeds: np.ndarray) -> np.ndarray:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 22]> draw {text}')
    return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("RandomUniform", {"low": -2.0, "high": 3.0}), ("RandomNormal", {"mean": 1.0, "scale": 0.5})],
)
def test_a_seed_draws_what_the_reference_draws(op: str, attrs: dict[str, float]) -> None:
    said = ", ".join(f"{key} = {value}" for key, value in attrs.items())
    wanted = reference(f"() => (float[3,4] y) {{ y = {op}<shape = [3, 4], seed = 7.0, {said}>() }}")
    made = FLOOR[op].run(shape=(3, 4), seed=7.0, **attrs)
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-6)
    like = FLOOR[f"{op}Like"].run(torch.zeros(3, 4), seed=7.0, **attrs)
    torch.testing.assert_close(like, made)


def test_dropout_hides_what_the_reference_hides() -> None:
    x = np.arange(1, 61, dtype=np.float32).reshape(3, 4, 5)
    text = """(float[3,4,5] x, float r, bool t) => (float[3,4,5] y, bool[3,4,5] m)
              { y, m = Dropout<seed = 3>(x, r, t) }"""
    wanted = reference(text, x=x, r=np.float32(0.75), t=np.array(True))
    op = Op("Dropout", ("x", "r", "t"), ("y", "m"), {"seed": 3})
    made, mask = call_floor(op, [torch.from_numpy(x), torch.tensor(0.75), torch.tensor(True)])
    np.testing.assert_allclose(made, wanted, rtol=1e-6)
    assert torch.equal(mask, made != 0)


def test_without_a_seed_torch_decides() -> None:
    first, second = (FLOOR["RandomNormal"].run(shape=(64,)) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    first = FLOOR["Bernoulli"].run(torch.full((64,), 0.5))
    torch.manual_seed(5)
    assert torch.equal(first, FLOOR["Bernoulli"].run(torch.full((64,), 0.5)))


def test_chances_are_kept() -> None:
    torch.manual_seed(0)
    share = FLOOR["Bernoulli"].run(torch.full((20_000,), 0.3), dtype=11)
    assert share.dtype == torch.float64
    assert abs(share.mean().item() - 0.3) < 0.02
    logs = torch.log(torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]]))
    drawn = FLOOR["Multinomial"].run(logs, sample_size=20_000, seed=1.0)
    assert drawn.dtype == torch.int32
    shares = torch.bincount(drawn[0].long(), minlength=3) / 20_000
    assert torch.allclose(shares, torch.tensor([0.2, 0.5, 0.3]), atol=0.02)
    assert not drawn[1].any()
