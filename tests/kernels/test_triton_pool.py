"""Pools in Triton: kinds, layouts and edges in the interpreter, what follows them, machine code, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from cpp_cases import close
from product_cases import GPU, for_interpreter, machine_code
from quant_cases import UNIT32, _as_spec, _poisoned, codes, exact, make_site, op, quantize, require_near
from torch import Tensor

from interpreted import interpret
from offers import offered, why_not
from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.kernels.elements import to_torch
from ridgeline.kernels.floor import call_floor
from ridgeline.kernels.triton.pool import pool_ref
from ridgeline.kernels.triton.text import MOST_ITEMS
from ridgeline.tactics.cuda.triton_pool import Cut, TritonPool, arguments, cut_of
from ridgeline.tactics.read.pool import AXES, PoolSite, read_pool

TACTIC = TritonPool()
TYPES = ["float16", "int8", "uint8", "float8_e4m3fn"]
LAYOUTS = ["", "x", "y", "x y"]
STEM = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}


def image(dtype: str, channels: int = 20) -> Tensor:
    if dtype.startswith("float8") or dtype in ("int8", "uint8"):
        return codes(2, channels, 9, 7, dtype=dtype)
    return torch.randn(2, channels, 9, 7).to(getattr(torch, dtype))


def pooled(x: Tensor, op_type: str = "MaxPool", last: str = "x y", **attrs: Any) -> Site:
    return make_site({"x": x}, [op(op_type, "x", "y", **attrs)], last=last)


def run(site: Site, tensors: Mapping[str, Tensor], config: Any) -> list[Tensor]:
    found, cut = TACTIC.read(site), cut_of(config)
    outputs = [_poisoned(spec) for spec in site.outputs]
    given = [_as_spec(tensors[name], site.specs[name]) for name in site.body.inputs]
    extras = [to_torch(array) for array in found.tail.extras]
    with np.errstate(all="ignore"):
        kernel = for_interpreter(found.describe(cut))
        interpret(kernel, found.grid(cut), arguments(found, cut, given, extras, outputs))
    return outputs


def check(site: Site, tensors: Mapping[str, Tensor], **cut: int) -> None:
    """Against the floor: maxima exactly, sums within twice the floor's own error."""
    assert why_not(TACTIC, site) is None
    outputs = run(site, tensors, {**offered(TACTIC, site).configs[0], **cut})
    plain, wide = dict(tensors), {name: tensor.double() for name, tensor in tensors.items()}
    for node in site.body.ops:
        for values in (plain, wide):
            values[node.outputs[0]] = call_floor(node, [values[name] for name in node.inputs])[0]
    for name, got in zip(site.body.outputs, outputs, strict=True):
        close(got, plain[name], wide[name])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "attrs",
    [
        pytest.param(STEM, id="stem"),
        pytest.param({"kernel_shape": (2, 3), "dilations": (2, 1), "pads": (0, 1, 1, 0)}, id="dilated"),
        pytest.param({"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}, id="ceil"),
    ],
)
def test_every_type_and_edge(dtype: str, attrs: dict[str, Any]) -> None:
    x = image(dtype)
    site = pooled(x, **attrs)
    assert why_not(TACTIC, site) is None
    (want,) = call_floor(site.body.ops[0], [x])
    (got,) = run(site, {"x": x}, offered(TACTIC, site).configs[0])
    assert torch.equal(got.float(), want.float())


MEANS = {
    "unpadded": {"kernel_shape": (2, 2), "strides": (2, 2)},
    "padded": {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)},
    "padding counted": {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1},
    "sides differ": {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (0, 1, 2, 0), "count_include_pad": 1},
    "ceil": {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 0), "ceil_mode": 1},
    "ceil counted": {
        "kernel_shape": (3, 3), "strides": (3, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1,
        "count_include_pad": 1,
    },
    "dilated": {"kernel_shape": (3, 2), "dilations": (2, 3), "pads": (2, 1, 1, 2)},
    "same upper": {"kernel_shape": (4, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"},
    "same lower": {"kernel_shape": (4, 3), "strides": (2, 2), "auto_pad": "SAME_LOWER"},
    "valid": {"kernel_shape": (3, 3), "strides": (2, 3), "auto_pad": "VALID"},
    "whole": {"kernel_shape": (9, 7)},
    "long": {"kernel_shape": (9, 9), "strides": (2, 2), "pads": (4, 4, 4, 4)},
}  # fmt: skip


@pytest.mark.parametrize(("name", "last"), list(zip(MEANS, 3 * LAYOUTS, strict=True)))
def test_means(name: str, last: str) -> None:
    x = image("float32" if name in ("padded", "dilated", "long") else "float16", 12)
    check(pooled(x, "AveragePool", last, **MEANS[name]), {"x": x})


@pytest.mark.parametrize("name", MEANS)
def test_the_reference_is_the_floor(name: str) -> None:
    x = image("float32").double()
    site = pooled(x.float(), "AveragePool", **MEANS[name])
    got = pool_ref(x, **window_of(read_pool(site)))
    torch.testing.assert_close(got, call_floor(site.body.ops[0], [x])[0], rtol=1e-12, atol=1e-12)


def window_of(pool: PoolSite) -> dict[str, Any]:
    names = ("made", "kernel", "stride", "dilation", "before", "counted_before", "counted")
    axes = slice(AXES + 2 - len(pool.x.shape), None)
    return {"kind": pool.kind, **{name: getattr(pool, name)[axes] for name in names}}


@pytest.mark.parametrize("last", ["", "x", "x y"])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_blocks_that_share_their_loads(op_type: str, last: str) -> None:
    """Sizes that no block divides; the last outputs of a block are none."""
    x = image("float16", 5)
    for high, wide, attrs in ((2, 2, STEM), (4, 1, {"kernel_shape": (3, 3)}), (1, 2, STEM)):
        check(pooled(x, op_type, last, **attrs), {"x": x}, high=high, wide=wide)


@pytest.mark.parametrize("last", ["", "y"])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("sizes", [(11,), (3, 5, 4)], ids=["line", "volume"])
def test_images_of_other_axes(op_type: str, last: str, sizes: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, *sizes).half()
    rank = len(sizes)
    attrs = {"kernel_shape": (3,) * rank, "strides": (2,) * rank, "pads": (1, 0, 2)[:rank] + (1,) * rank}
    check(pooled(x, op_type, last, **attrs), {"x": x})


@pytest.mark.parametrize("p", [1, 2])
def test_norms(p: int) -> None:
    x = image("float16")
    check(pooled(x, "LpPool", "x", p=p, ceil_mode=1, **STEM), {"x": x})


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 1, 4, 1), (1, 4, 1, 1), (2, 33, 1, 5)])
@pytest.mark.parametrize("last", ["", "x y"])
def test_axes_of_size_one(shape: tuple[int, ...], last: str) -> None:
    x = torch.randn(shape)
    for op_type in ("MaxPool", "AveragePool"):
        check(pooled(x, op_type, last, kernel_shape=(3, 3), pads=(1, 1, 1, 1)), {"x": x})


def test_nan_stays() -> None:
    x = image("float16")
    x[0, 3, 4, 4] = torch.nan
    site = pooled(x, **STEM)
    want = pool_ref(x, **window_of(read_pool(site)))
    (got,) = run(site, {"x": x}, offered(TACTIC, site).configs[0])
    assert want.isnan().any()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("last", ["", "x", "x y"])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_infinities_and_windows_of_nothing_but_padding(op_type: str, last: str) -> None:
    x = image("float16", 3)
    x[0, 0, 0, 0], x[0, 0, 0, 1], x[1, 2, 8, 6], x[1, 1, 4, 3] = torch.inf, -torch.inf, torch.nan, -torch.inf
    site = pooled(x, op_type, last, kernel_shape=(2, 2), pads=(3, 0, 3, 2))
    (want,) = call_floor(site.body.ops[0], [x])
    (got,) = run(site, {"x": x}, offered(TACTIC, site).configs[0])
    assert not want.isfinite().all()
    close(got, want, call_floor(site.body.ops[0], [x.double()])[0])


FOLLOWED = [op("AveragePool", "x", "p", **MEANS["padded"]), op("Sub", "p x", "d"), op("Mul", "d s", "q"),
            op("Add", "q r", "y")]  # fmt: skip


@pytest.mark.parametrize("last", ["", "x p d q", "p d q y", "x p d q r y"])
def test_what_follows(last: str) -> None:
    """A token mixer of windows: its own input subtracted, scaled by channel, added to a residual."""
    tensors = {"x": image("float16", 6), "s": torch.randn(6, 1, 1).half(), "r": image("float16", 6)}
    site = make_site(tensors, FOLLOWED, last=last)
    for high in (1, 2):
        check(site, tensors, high=high)


def test_levels_of_a_mean() -> None:
    """The sum stays in float32 up to its level."""
    tensors = {"x": image("float16", 6), "ys": torch.tensor(0.02).half()}
    ops = [op("AveragePool", "x", "p", **MEANS["padded"]), quantize("p", "y")]
    site = make_site(tensors, ops, last="x p y")
    (got,) = run(site, tensors, offered(TACTIC, site).configs[0])
    roundings = (9 + 8) * UNIT32 * tensors["x"].double().abs().max() / tensors["ys"].double()
    require_near(got, exact(site, tensors)["y"], roundings)


def test_what_follows_a_maximum() -> None:
    tensors = {"x": image("float16", 6), "b": torch.randn(1).half()}
    ops = [op("MaxPool", "x", "p", **STEM), op("Add", "p b", "s"), op("Relu", "s", "y")]
    check(make_site(tensors, ops, ("s", "y"), last="x p s y"), tensors)


@pytest.mark.parametrize("name", MEANS)
def test_no_place_outside_of_the_image_is_read(name: str) -> None:
    """Kernels that do not test for edges: no place under any block lies outside."""
    found = TACTIC.read(pooled(image("float16"), "AveragePool", **MEANS[name]))
    pool = found.pool
    for block in itertools.product((1, 2, 3), repeat=2):
        axes = zip(block, pool.made[1:], pool.stride[1:], pool.kernel[1:], pool.dilation[1:], strict=True)
        places = [-(-made // of) * of * step - step + (taps - 1) * gap for of, made, step, taps, gap in axes]
        lasts = [place - pad for place, pad in zip(places, pool.before[1:], strict=True)]
        is_outside = any(pool.before) or any(n >= size for n, size in zip(lasts, pool.size[1:], strict=True))
        assert found.leaves_image(Cut(*block, 16, 16, 4)) or not is_outside


def shaped(
    node: Op, shapes: Mapping[str, tuple[int, ...]], dtype: str = "float16", last: str = "x y"
) -> Site:
    """A site of this op alone, of which only shapes are known."""
    specs = {
        name: TensorSpec(dtype, shape, "channels_last" if name in last.split() else "contiguous")
        for name, shape in shapes.items()
    }
    return Site(Body(node.inputs, node.outputs, (node,)), specs, frozenset(), {}, GPU)


SAME = {"x": (2, 20, 9, 7), "y": (2, 20, 9, 7)}
LARGE = dict.fromkeys("xy", (1, 1, 1 << 16, 1 << 15))


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        (shaped(op("MaxPool", "x", "y", kernel_shape=(2,)), SAME), "windows of [2]"),
        (shaped(op("MaxPool", "x", "y", kernel_shape=(1, 1), strides=(0, 1)), SAME), "strides are [0, 1]"),
        (shaped(op("MaxPool", "x", "y", kernel_shape=(2, 2)), SAME), "make [8, 6], the result is"),
        (shaped(op("MaxPool", "x", "y", kernel_shape=(1, 1)), LARGE), f"a kernel counts {MOST_ITEMS:,}"),
        (shaped(op("LpPool", "x", "y", kernel_shape=(1, 1), p=3), SAME), "power 3"),
        (shaped(op("AveragePool", "x", "y", kernel_shape=(1, 1)), SAME, "float64"), "float64"),
        (shaped(op("Relu", "x", "y"), SAME), "no pool"),
        (
            shaped(Op("MaxPool", ("x",), ("y", "i"), {"kernel_shape": (1, 1)}), SAME | {"i": SAME["x"]}),
            "indices are made too",
        ),
        (
            make_site({"x": image("float16")}, [op("Relu", "x", "r"), op("MaxPool", "r", "y", **STEM)]),
            "reads a value of the region",
        ),
        (
            make_site(
                {"x": image("int8"), "s": torch.ones(())},
                [op("MaxPool", "x", "p", **STEM), op("DequantizeLinear", "p s", "y")],
            ),
            "follows a pool of codes",
        ),
    ],
)
def test_refuses(site: Site, reason: str) -> None:
    assert reason in str(why_not(TACTIC, site))


SHIPPED = {
    "inception mean": ("AveragePool", (8, 192, 35, 35), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    "inception max": ("MaxPool", (8, 64, 147, 147), {"kernel_shape": (3, 3), "strides": (2, 2)}),
    "inception whole": ("AveragePool", (8, 2048, 8, 8), {"kernel_shape": (8, 8)}),
    "densenet": ("AveragePool", (8, 256, 56, 56), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "resnet": ("MaxPool", (8, 64, 112, 112), STEM),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype", "last", "load", "most"),
    [
        *((name, "float16", "x y", "" if "whole" in name else ".128", 80) for name in SHIPPED),
        ("resnet", "int8", "x y", ".128", 128),
        ("resnet", "float16", "x", ".128", 80),
        ("resnet", "float16", "", ".U16", 64),
    ],
)
def test_machine_code(name: str, dtype: str, last: str, load: str, most: int) -> None:
    """Of real networks: loads as wide as the layout lets them be, no spills, room for other warps."""
    op_type, shape, attrs = SHIPPED[name]
    node = op(op_type, "x", "y", **attrs)
    (made,) = call_floor(node, [torch.zeros(1, 1, *shape[2:])])
    site = shaped(node, {"x": shape, "y": (*shape[:2], *made.shape[2:])}, dtype, last)
    offer = offered(TACTIC, site)
    ((compiled, code),) = machine_code(offer.kernels(offer.configs[0]), "sm_90")
    assert f"LDG.E{load}" in code
    assert not compiled.spills
    assert compiled.registers <= most
