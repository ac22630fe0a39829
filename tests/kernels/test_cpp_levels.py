"""Products of 8-bit levels in generated C++: exact sums at both ends of the types, any sizes and epilogue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cpp_cases import empty
from torch import Tensor

from ridgeline.base.spec import Body, Layout, Op, Site, Target, TensorSpec
from ridgeline.kernels.cpp.compiler import cpu_has, find_compiler
from ridgeline.kernels.elements import TORCH_DTYPES
from ridgeline.kernels.floor import call_floor
from ridgeline.kernels.floor.sub_byte import closed
from ridgeline.tactics.base import Offer, Refused
from ridgeline.tactics.cpu import cpp_levels
from ridgeline.tactics.cpu.cpp_levels import VNNI, CppDynamicLevels, CppLevels, CppNarrowWeight, CppPool
from ridgeline.tactics.offer import read_offer

needs_vnni = pytest.mark.skipif(not cpu_has(find_compiler() or "c++", VNNI), reason="no VNNI here")
KINDS = {"int8": torch.int8, "uint8": torch.uint8}


def spec(tensor: Tensor, layout: Layout = "contiguous") -> TensorSpec:
    return TensorSpec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), layout)


def levels(shape: tuple[int, ...], kind: str, seed: int, extreme: str = "") -> Tensor:
    ends = torch.iinfo(KINDS[kind])
    if extreme:
        return torch.full(shape, ends.max if extreme == "high" else ends.min, dtype=KINDS[kind])
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(ends.min, ends.max + 1, shape, generator=generator).to(KINDS[kind])


class Case:
    """A region DQ(x), DQ(w), product, bias, Relu, residual, Q, with its exact result."""

    def __init__(self, x: Tensor, w: Tensor, *, zero: int | None, per_channel: bool, made: str = "uint8",
                 attrs: dict[str, object] | None = None, last: bool = False, residual: bool = False,
                 made_zero: int = 3, scale: float = 0.05,
                 weight_zero: Tensor | None = None) -> None:  # fmt: skip
        is_conv = w.ndim > 2
        n = w.shape[0] if is_conv else w.shape[1]
        generator = torch.Generator().manual_seed(5)
        scales = torch.rand(n if per_channel else 1, generator=generator) * 0.01 + 0.001
        bias = torch.randn(n, generator=generator)
        self.tensors = {
            "x": x, "sx": torch.tensor(scale), "w": w, "b": bias,
            "sw": scales if per_channel else scales.reshape(()),
        }  # fmt: skip
        if zero is not None:
            self.tensors["zx"] = torch.tensor(zero).to(x.dtype)
        shape = (-1, *(1,) * (w.ndim - 2)) if is_conv else (-1,)
        centred = x.double() - (zero or 0)
        weight = w.double()
        if weight_zero is not None:
            self.tensors["zw"] = weight_zero
            weight = weight - weight_zero.double().reshape((-1, *(1,) * (w.ndim - 1)) if is_conv else (-1,))
        if is_conv:
            a = attrs or {}
            sums = torch.nn.functional.conv2d(
                centred,
                weight,
                None,
                a.get("strides", 1),
                a.get("pads", (0, 0))[:2],
                a.get("dilations", 1),
            )
        else:
            sums = centred @ weight
        y = sums * float(np.float32(scale)) * scales.double().reshape(shape if per_channel else (1,))
        y = (y + bias.double().reshape(shape)).clamp(min=0)
        layout: Layout = "channels_last" if last else "contiguous"
        ops = [
            Op("DequantizeLinear", ("x", "sx", "zx") if zero is not None else ("x", "sx"), ("xf",)),
            Op(
                "DequantizeLinear",
                ("w", "sw") if weight_zero is None else ("w", "sw", "zw"),
                ("wf",),
                {"axis": 0 if is_conv else 1},
            ),
        ]
        if is_conv:
            ops.append(Op("Conv", ("xf", "wf", "b"), ("c",), attrs or {}))
        else:
            ops += [Op("MatMul", ("xf", "wf"), ("m",)), Op("Add", ("m", "b"), ("c",))]
        ops.append(Op("Relu", ("c",), ("r",)))
        tip = "r"
        if residual:
            self.tensors["o"] = levels(tuple(y.shape), "uint8", 9)
            if last:
                self.tensors["o"] = self.tensors["o"].contiguous(memory_format=torch.channels_last)
            self.tensors["so"] = torch.tensor(0.02)
            ops += [Op("DequantizeLinear", ("o", "so"), ("of",)), Op("Add", ("r", "of"), ("a",))]
            y = y + self.tensors["o"].double() * float(np.float32(0.02))
            tip = "a"
        self.step = 0.0
        if made:
            self.tensors["sy"] = torch.tensor(max(float(y.abs().max()) / 200, 1e-3))
            self.tensors["zy"] = torch.tensor(made_zero).to(KINDS[made])
            ops.append(Op("QuantizeLinear", (tip, "sy", "zy"), ("y",)))
            ends, self.step = torch.iinfo(KINDS[made]), float(self.tensors["sy"])
            y = ((y / self.step).round() + made_zero).clamp(ends.min, ends.max)
        else:
            ops[-1] = Op(ops[-1].op_type, ops[-1].inputs, ("y",))
        self.exact = y
        floats = {name: TensorSpec("float32", tuple(self.exact.shape), layout) for name in "cmra"}
        specs = {
            **floats, **{name: spec(t) for name, t in self.tensors.items()},
            "x": spec(x, layout), "xf": TensorSpec("float32", tuple(x.shape), layout),
            "wf": TensorSpec("float32", tuple(w.shape)), "of": TensorSpec("float32", tuple(y.shape), layout),
            "y": TensorSpec(made or "float32", tuple(y.shape), layout),
        }  # fmt: skip
        if residual:
            specs["o"] = spec(self.tensors["o"], layout)
        self.weights = frozenset(self.tensors) - {"x", "o"}
        body = Body(tuple(self.tensors), ("y",), tuple(ops))
        self.site = Site(body, specs, self.weights, {}, Target(threads=2))

    def check(self, cache_dir: Path) -> None:
        offer = read_offer(CppLevels(cache_dir=cache_dir), self.site)
        assert isinstance(offer, Offer), offer
        for config in offer.configs:
            launch = offer.bind(config, {name: self.tensors[name] for name in self.weights})
            out = empty(self.site.outputs[0])
            launch.run(list(self.tensors.values()), [out])
            error = (out.double() - self.exact).abs().max()
            if self.step:
                assert error <= 1
                assert (out.double() != self.exact).double().mean() <= 0.02
            else:
                assert error <= 1e-6 * self.exact.abs().max() + 1e-6


@needs_vnni
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 4, 1), (7, 36, 50), (130, 64, 33)])
def test_products(tmp_path: Path, kind: str, m: int, k: int, n: int) -> None:
    for zero, per_channel, made in ((None, True, "uint8"), (torch.iinfo(KINDS[kind]).max, False, "int8"),
                                    (torch.iinfo(KINDS[kind]).min, True, "")):  # fmt: skip
        case = Case(levels((m, k), kind, 1), levels((k, n), "int8", 2), zero=zero, per_channel=per_channel,
                    made=made, residual=n == 50)  # fmt: skip
        case.check(tmp_path)


@needs_vnni
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("ends", [("high", "high"), ("high", "low"), ("low", "low"), ("low", "high")])
def test_no_sum_saturates(tmp_path: Path, kind: str, ends: tuple[str, str]) -> None:
    """Pairs of extreme levels pass 16 bits, which is where instructions before VNNI saturate."""
    x, w = levels((9, 1024), kind, 0, ends[0]), levels((1024, 20), "int8", 0, ends[1])
    for zero in (None, torch.iinfo(KINDS[kind]).max):
        Case(x, w, zero=zero, per_channel=True, made="").check(tmp_path)


@needs_vnni
@pytest.mark.parametrize(
    ("channels", "kernel", "attrs"),
    [
        (8, 1, {}),
        (8, 1, {"strides": (2, 2)}),
        (3, 3, {"pads": (1, 1, 1, 1)}),
        (5, 3, {"pads": (2, 1, 2, 1), "strides": (2, 1), "dilations": (2, 1)}),
    ],
)
def test_convolutions(tmp_path: Path, channels: int, kernel: int, attrs: dict[str, tuple[int, ...]]) -> None:
    for kind, zero in (("uint8", 255), ("int8", None)):
        x = levels((2, channels, 7, 6), kind, 3).contiguous(memory_format=torch.channels_last)
        w = levels((17, channels, kernel, kernel), "int8", 4)
        Case(x, w, zero=zero, per_channel=True, attrs=dict(attrs), last=True, residual=True).check(tmp_path)


@pytest.mark.parametrize(
    ("bits", "block", "k", "n", "m"),
    [(8, 0, 37, 50, 1), (8, 16, 64, 33, 3), (4, 32, 64, 70, 1), (4, 2, 6, 5, 4), (4, 0, 38, 16, 2)],
)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_weights_alone(
    tmp_path: Path, *, bits: int, block: int, k: int, n: int, m: int, is_transposed: bool
) -> None:
    generator = torch.Generator().manual_seed(3)
    levels_kn = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (k, n), generator=generator).to(torch.int8)
    levels_kn[0, 0], levels_kn[-1, -1] = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    scales = torch.rand((k // block if block else 1, n), generator=generator) + 0.01
    x, bias = torch.randn(m, k, generator=generator), torch.randn(n, generator=generator)
    numbers = levels_kn.double() * scales.double().repeat_interleave(block or k, 0)
    exact = (x.double() @ numbers + bias.double()).clamp(min=0)
    weight = (levels_kn.t() if is_transposed else levels_kn).contiguous()
    stored = closed(weight, TORCH_DTYPES["int4"]) if bits == 4 else weight
    scale = (scales.t() if is_transposed else scales).contiguous() if block else scales.reshape(-1)
    axis = (1 if is_transposed else 0) if block else (0 if is_transposed else 1)
    ops = (
        Op("DequantizeLinear", ("w", "s"), ("wf",), {"axis": axis, "block_size": block}),
        Op("Gemm", ("x", "wf", "b"), ("p",), {"transB": int(is_transposed)}),
        Op("Relu", ("p",), ("y",)),
    )
    tensors = {"x": x, "w": stored, "s": scale, "b": bias}
    shapes = {"x": x, "s": scale, "b": bias, "wf": weight.float(), "p": exact.float(), "y": exact.float()}
    specs = {name: spec(t) for name, t in shapes.items()}
    specs["w"] = TensorSpec("int4" if bits == 4 else "int8", tuple(weight.shape))
    site = Site(Body(tuple(tensors), ("y",), ops), specs, frozenset("wsb"), {}, Target(threads=2))
    offer = read_offer(CppNarrowWeight(cache_dir=tmp_path), site)
    assert isinstance(offer, Offer), offer
    for config in offer.configs:
        out = empty(site.outputs[0])
        offer.bind(config, {n: tensors[n] for n in "wsb"}).run(list(tensors.values()), [out])
        assert (out.double() - exact).abs().max() <= 4e-6 * float((x.abs().double() @ numbers.abs()).max())


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
        {"kernel_shape": (2, 3), "strides": (1, 2), "pads": (0, 1, 1, 0), "ceil_mode": 1},
        {"kernel_shape": (2, 2), "dilations": (2, 1)},
    ],
)
def test_pools(tmp_path: Path, kind: str, attrs: dict[str, object]) -> None:
    x = levels((2, 19, 9, 8), kind, 3).contiguous(memory_format=torch.channels_last)
    op = Op("MaxPool", ("x",), ("y",), attrs)
    (want,) = call_floor(op, [x])
    # the float form of the op is the meaning
    (numbers,) = call_floor(op, [x.float()])
    assert torch.equal(numbers, want.float())
    specs = {"x": spec(x, "channels_last"), "y": spec(want, "channels_last")}
    site = Site(Body(("x",), ("y",), (op,)), specs, frozenset(), {}, Target(threads=2))
    offer = read_offer(CppPool(cache_dir=tmp_path), site)
    assert isinstance(offer, Offer), offer
    out = empty(site.outputs[0])
    offer.bind(offer.configs[0], {}).run([x], [out])
    assert torch.equal(out, want)


DYNAMIC = {
    "drawn": torch.randn(3, 7, 33, generator=torch.Generator().manual_seed(1)),
    "many": torch.randn(70001, generator=torch.Generator().manual_seed(2)) * 3 + 1,
    "positive": torch.rand(1, 5),
    "negative": -torch.rand(5),
    "ties": torch.cat([torch.arange(0, 256) - 100.5, torch.tensor([155.0, -100.0])]),
    "zeros": torch.zeros(4),
    "one": torch.tensor([-2.5]),
    "scalar": torch.tensor(7.0),
    "tiny": torch.tensor([1e-38, -1e-39, 0.0]),
    "large": torch.tensor([3e38, -1.0]),
}


@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize("threads", [1, 2])
def test_dynamic_levels_are_those_of_the_floor(tmp_path: Path, name: str, threads: int) -> None:
    x = DYNAMIC[name]
    op = Op("DynamicQuantizeLinear", ("x",), ("y", "s", "z"), {})
    want = call_floor(op, [x])
    specs = {n: spec(t) for n, t in zip(("x", "y", "s", "z"), (x, *want), strict=True)}
    site = Site(Body(("x",), ("y", "s", "z"), (op,)), specs, frozenset(), {}, Target(threads=threads))
    offer = read_offer(CppDynamicLevels(cache_dir=tmp_path), site)
    assert isinstance(offer, Offer), offer
    made = [empty(each) for each in site.outputs]
    offer.bind(offer.configs[0], {}).run([x], made)
    assert all(torch.equal(got, one) for got, one in zip(made, want, strict=True))


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_dynamic_levels_of_special_numbers_have_a_special_scale(tmp_path: Path, special: float) -> None:
    """So that what is computed with them is no number either."""
    x = torch.tensor([1.0, special, -3.0])
    op = Op("DynamicQuantizeLinear", ("x",), ("y", "s", "z"), {})
    want = call_floor(op, [x])
    specs = {n: spec(t) for n, t in zip(("x", "y", "s", "z"), (x, *want), strict=True)}
    site = Site(Body(("x",), ("y", "s", "z"), (op,)), specs, frozenset(), {}, Target())
    offer = read_offer(CppDynamicLevels(cache_dir=tmp_path), site)
    made = [empty(each) for each in site.outputs]
    offer.bind(offer.configs[0], {}).run([x], made)
    assert torch.equal(made[1].isnan(), want[1].isnan())
    assert not made[1].isfinite()


def test_a_processor_without_vnni_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_levels, "cpu_has", lambda compiler, features: False)
    case = Case(levels((4, 8), "uint8", 1), levels((8, 16), "int8", 2), zero=None, per_channel=True)
    answer = read_offer(CppLevels(), case.site)
    assert isinstance(answer, Refused)
    assert "no VNNI" in answer.reason


@needs_vnni
@pytest.mark.parametrize("extreme", ["", "high", "low"])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("shape", [(8, 40), (21, 9, 3, 3)])
def test_weights_with_zero_points(tmp_path: Path, shape: tuple[int, ...], kind: str, extreme: str) -> None:
    """As dynamic quantisation writes them: uint8 between the ends of the weight."""
    is_conv = len(shape) > 2
    channels = shape[0] if is_conv else shape[1]
    x = levels((2, 9, 6, 5) if is_conv else (5, 8), "int8" if extreme == "low" else "uint8", 1, extreme)
    other = {"": "", "high": "low", "low": "high"}[extreme]
    zero = levels((channels,), kind, 4, other)
    attrs: dict[str, object] = {"pads": (1, 1, 1, 1), "strides": (2, 2)} if is_conv else {}
    x = x.contiguous(memory_format=torch.channels_last) if is_conv else x
    Case(x, levels(shape, kind, 2, extreme), zero=7, per_channel=True, made="", attrs=attrs, last=is_conv,
         weight_zero=zero).check(tmp_path)  # fmt: skip


@needs_vnni
def test_levels_without_a_sign_or_a_zero_point(tmp_path: Path) -> None:
    one = Case(levels((5, 8), "uint8", 1), levels((8, 40), "uint8", 2), zero=None, per_channel=False, made="")
    one.check(tmp_path)
    shifted = levels((), "uint8", 3)
    Case(levels((5, 8), "int8", 1), levels((8, 40), "uint8", 2), zero=-5, per_channel=False,
         weight_zero=shifted).check(tmp_path)  # fmt: skip
