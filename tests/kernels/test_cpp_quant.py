"""QuantizeLinear and DequantizeLinear in generated C++: bit by bit as the floor and the onnx reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cpp_cases import empty
from torch import Tensor

from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.ir.infer import evaluator_of
from ridgeline.kernels.floor import call_floor
from ridgeline.tactics.base import Offer
from ridgeline.tactics.cpu.cpp import CppPointwise
from ridgeline.tactics.offer import read_offer

SPECIAL = [
    0.0,
    -0.0,
    0.25,
    0.75,
    1.25,
    -0.25,
    -0.75,
    63.5,
    -64.25,
    1e30,
    -1e30,
    np.inf,
    -np.inf,
    np.nan,
    1e-40,
]


def run(op: Op, tensors: dict[str, Tensor], cache_dir: Path) -> tuple[Tensor, Tensor]:
    """By the generated kernel and by the floor."""
    (want,) = call_floor(op, list(tensors.values()))
    specs = {n: TensorSpec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in tensors.items()}
    specs["y"] = TensorSpec(str(want.dtype).removeprefix("torch."), tuple(want.shape))
    site = Site(Body(tuple(tensors), ("y",), (op,)), specs, frozenset(), {}, Target())
    offer = read_offer(CppPointwise(cache_dir=cache_dir), site)
    assert isinstance(offer, Offer), offer
    out = empty(site.outputs[0])
    offer.bind(offer.configs[0], {}).run(list(tensors.values()), [out])
    return out, want


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
def test_quantize(tmp_path: Path, kind: str) -> None:
    ends = np.iinfo(kind)
    x = torch.tensor(np.array([SPECIAL, np.linspace(-70, 70, len(SPECIAL))], np.float32))
    for zero in (ends.min, 3, ends.max):
        for scale in (torch.tensor(0.5), torch.linspace(0.01, 3, len(SPECIAL))):
            zeros = torch.from_numpy(np.full(tuple(scale.shape), zero, kind))
            op = Op("QuantizeLinear", ("x", "s", "z"), ("y",), {"axis": 1})
            got, want = run(op, {"x": x, "s": scale, "z": zeros}, tmp_path)
            assert torch.equal(got.to(torch.int32), want.to(torch.int32))
            finite = torch.isfinite(x) & (x.abs() < 1e29)  # numpy leaves open what becomes of the others
            plain = torch.where(finite, x, 0.0).numpy()
            feeds = {"x": plain, "s": scale.numpy(), "z": zeros.numpy()}
            (reference,) = evaluator_of(op, {"": 21}).run(None, feeds)
            assert np.array_equal(reference[finite.numpy()], got.numpy()[finite.numpy()])


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("shape", "attrs"), [((), {}), ((6,), {"axis": -1}), ((4, 2), {"axis": 1, "block_size": 3})]
)
def test_dequantize(tmp_path: Path, kind: str, shape: tuple[int, ...], attrs: dict[str, int]) -> None:
    ends = np.iinfo(kind)
    levels = torch.from_numpy(np.linspace(ends.min, ends.max, 24).astype(kind).reshape(4, 6))
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.01
    for zero in (None, ends.min, ends.max):
        tensors = {"x": levels, "s": scale}
        if zero is not None:
            tensors["z"] = torch.from_numpy(np.full(shape, zero, kind))
        op = Op("DequantizeLinear", tuple(tensors), ("y",), attrs)
        got, want = run(op, tensors, tmp_path)
        assert torch.equal(got, want)
        (reference,) = evaluator_of(op, {"": 21}).run(None, {n: t.numpy() for n, t in tensors.items()})
        assert np.array_equal(reference, got.numpy())
