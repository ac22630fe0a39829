"""Resize in Triton: modes, coordinates, sizes and layouts in the interpreter; machine code; refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
from cpp_cases import close
from onnx.reference import ReferenceEvaluator
from product_cases import GPU, for_interpreter, machine_code, op
from quant_cases import _as_spec, _poisoned
from resize_cases import COORDINATES, ROUNDINGS, UNIT32, by_floor, require_as_floor, resized
from torch import Tensor

from interpreted import interpret
from offers import offered, why_not
from ridgeline.base.spec import Body, Config, Op, Site, TensorSpec
from ridgeline.kernels.elements import dtype_name, to_torch
from ridgeline.kernels.floor import call_floor
from ridgeline.kernels.triton.resize import resize_ref
from ridgeline.kernels.triton.resize_tables import Tables, longest_run
from ridgeline.tactics.cuda.triton_resize import TritonResize, arguments, cut_of
from ridgeline.tactics.read.resize import read_resize

TACTIC = TritonResize()
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LAST = "x y"
# larger, smaller, one of each, and odd ratios of 5 x 7
SIZES = ((10, 14), (15, 21), (3, 4), (1, 1), (5, 7), (7, 5), (1, 20))


def image(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape or (2, 3, 5, 7), generator=torch.Generator().manual_seed(0)).to(dtype)


def run(site: Site, x: Tensor, config: Config, **more: Tensor) -> Tensor:
    """`more`: further inputs of the region."""
    resizing, y = TACTIC.read(site), _poisoned(site.outputs[0])
    tensors = {"x": x, "s": torch.from_numpy(site.values["s"]), **more}
    given, outputs = [_as_spec(tensors[name], site.specs[name]) for name in site.body.inputs], [y]
    if len(site.body.ops) == 1 and resizing.found.is_copy:
        given[0], outputs[0] = (tensor.view(BITS[tensor.element_size()]) for tensor in (given[0], y))
    tables = [torch.from_numpy(array) for array in resizing.tables(cut_of(config)).arrays]
    extras = [to_torch(array) for array in resizing.tail.extras]
    kernel = for_interpreter(resizing.describe(cut_of(config), pdl=True))
    with np.errstate(all="ignore"):
        grid = (resizing.programs(cut_of(config)),)
        interpret(kernel, grid, arguments(resizing, given, extras, outputs, tables))
    return y


def check(x: Tensor, *size: int, configs: int = 1, **more: Any) -> None:
    site = resized(x, size, target=GPU, **more)
    for config in offered(TACTIC, site).configs[:configs]:
        require_as_floor(site, x, run(site, x, config))


def by_tables(site: Site, x: Tensor) -> Tensor:
    """What the tables mean, without a kernel."""
    found = read_resize(site)
    made = [torch.from_numpy(array) for t in (found.lines, found.columns) for array in (t.places, t.shares)]
    return resize_ref(x, *made)


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_tables_are_the_floor_s(coordinates: str) -> None:
    """Every mode and rounding; coordinates that are fractions land on ties, in float32."""
    modes = [{"mode": "nearest", "nearest_mode": rounding} for rounding in ROUNDINGS]
    for mode in (*modes, {"mode": "linear"}, {"mode": "cubic"}):
        attrs = {"coordinate_transformation_mode": coordinates, **mode}
        for size in SIZES:
            site = resized(image(), size, target=GPU, **attrs)
            require_as_floor(site, image(), by_tables(site, image()))
        for scale in (0.3, 0.6, 0.7, 1.1, 1.3, 1.7, 2.3, 3.6):
            site = resized(image(), scales=(scale, 1.4), target=GPU, **attrs)
            require_as_floor(site, image(), by_tables(site, image()))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_kernel(mode: str) -> None:
    for number, size in enumerate(SIZES):
        check(image(), *size, last=LAST if number % 2 else "", mode=mode)
    check(image(), scales=(0.6, 1.4), mode=mode)


@pytest.mark.parametrize("last", ["", "x y", "x", "y"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_layouts_and_every_offered_cut(mode: str, dtype: torch.dtype, last: str) -> None:
    for channels, configs in ((1, 1), (6, 1), (8, 9)):
        check(image(2, channels, 2, 5, dtype=dtype), 8, 15, mode=mode, last=last, configs=configs)


def test_cells_deeper_than_programs_are_offered() -> None:
    """Runs of 4, 8 and 4 lines in cells of at most 8, 5 and 3."""
    x = image(1, 2, 2, 3)
    site = resized(x, (16, 9), mode="linear", target=GPU)
    assert longest_run(read_resize(site).lines.places) == 8
    for depth in (8, 5, 3):
        require_as_floor(site, x, run(site, x, {"depth": depth, "high": 4, "wide": 8, "warps": 4}))


def test_attributes_of_cubic_and_antialiasing_without_an_effect() -> None:
    check(image(), 4, 9, mode="cubic", cubic_coeff_a=-0.5)
    check(image(), 6, 3, mode="cubic", exclude_outside=1)
    check(image(), 4, 9, mode="linear", exclude_outside=1)
    check(image(), 9, 11, mode="linear", antialias=1)
    check(image(), 4, 5, mode="linear", antialias=1)  # four positions of an axis at most


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 1, 3, 5, 7), (1, 1, 1, 1), (3, 2, 1, 9)])
def test_other_ranks_and_sizes_of_one(shape: tuple[int, ...]) -> None:
    for mode in ("nearest", "linear"):
        check(image(*shape), 10, mode=mode)
        check(image(*shape), 2, 11, mode=mode)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "uint8", "bool", "float64", "float8_e4m3fn"])
def test_any_type_is_copied_by_its_bits(dtype: str) -> None:
    x = (image(2, 8, 3, 5) * 50).to(getattr(torch, dtype))
    for last in ("", LAST):
        site = resized(x.float(), (2, 9), mode="nearest", last=last, target=GPU)
        specs = {
            name: replace(spec, dtype=dtype) if name in "xy" else spec for name, spec in site.specs.items()
        }
        typed = Site(site.body, specs, site.weights, site.values, site.target)
        require_as_floor(typed, x.float(), run(typed, x, offered(TACTIC, typed).configs[0]).float())


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_special_values_reach_what_reads_them(mode: str) -> None:
    x = image(1, 3, 6, 6)
    x[0, 0, 2, 3], x[0, 1, 0, 0], x[0, 2, 5, 5] = torch.nan, torch.inf, -torch.inf
    for size, last in (((9, 12), ""), ((4, 4), LAST)):
        site = resized(x, size, mode=mode, last=last, target=GPU)
        want = by_tables(site, x.double())
        got = run(site, x, offered(TACTIC, site).configs[0]).double()
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.isinf(), want.isinf())
        # sums of at most 16 terms, whose shares are 1 together and 2 by their size
        bound = 24 * UNIT32 * 4 * float(x.nan_to_num(0, 0, 0).abs().max())
        assert ((got - want).abs() <= bound)[want.isfinite()].all()


def test_nan_between_pixels_stays_where_it_is_read() -> None:
    x = image(1, 1, 4, 4)
    x[0, 0, 1, 1] = torch.nan
    site = resized(x, (8, 8), mode="linear", target=GPU)
    got = run(site, x, offered(TACTIC, site).configs[0])
    assert got.isnan().sum() == 16
    assert got[0, 0, 1:5, 1:5].isnan().all()


ONNX_CASES = [
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "nearest"},
    *({"mode": "linear", "coordinate_transformation_mode": name} for name in COORDINATES),
    {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
]


@pytest.mark.parametrize("attrs", ONNX_CASES)
def test_against_the_onnx_reference(attrs: dict[str, Any]) -> None:
    x = image(1, 2, 4, 5)
    for size in ((8, 10), (3, 2)):
        site = resized(x, size, target=GPU, **attrs)
        given = ", ".join(f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in attrs.items())
        model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 19]>
            g (float[1,2,4,5] x, int64[2] s) => (float[a,b,c,d] y) {{
                y = Resize <axes = [2, 3], {given}> (x, , , s) }}""")
        (want,) = ReferenceEvaluator(model).run(None, {"x": x.numpy(), "s": np.array(size)})
        got = run(site, x, offered(TACTIC, site).configs[0])
        # as `require_as_floor`, of coordinates in float64
        bound = (24 + 6 * 10) * UNIT32 * 16 * float(x.abs().max())
        assert np.abs(got.numpy() - want).max() <= (0 if attrs["mode"] == "nearest" else bound)


def test_tables_name_what_is_there() -> None:
    site = resized(image(2, 6, 5, 7), (13, 9), mode="cubic", last=LAST, target=GPU)
    resizing = TACTIC.read(site)
    for config in offered(TACTIC, site).configs:
        tables = resizing.tables(cut_of(config))
        assert isinstance(tables, Tables)
        assert tables.lines.min() >= 0
        assert tables.lines.max() < 5
        assert tables.columns.min() >= 0
        assert tables.columns.max() < 7
        stated = offered(TACTIC, site).footprint
        assert stated is not None
        assert stated(config).packed_bytes == sum(array.nbytes for array in tables.arrays)


def test_extents_are_the_whole_tensors() -> None:
    site = resized(image(2, 6, 5, 7), (13, 9), mode="linear", target=GPU)
    offer = offered(TACTIC, site)
    assert offer.extents is not None
    assert offer.extents(offer.configs[0]) == {0: 4 * 2 * 6 * 5 * 7, 2: 4 * 2 * 6 * 13 * 9}


def followed(x: Tensor, size: tuple[int, ...], ops: Sequence[Op], last: str = "", *, mode: str = "linear",
             **more: Tensor) -> Site:  # fmt: skip
    """A Resize and what follows it; `more` are further inputs of the region."""
    site = resized(x, size, mode=mode, last=last, target=GPU)
    (node,) = site.body.ops
    values = by_steps(replace(site, body=Body((), (), (node, *ops))), {"x": x, **more})
    specs = {
        name: TensorSpec(
            dtype_name(t), tuple(t.shape), "channels_last" if name in last.split() else "contiguous"
        )
        for name, t in values.items()
    }
    body = Body(("x", "s", *more), ops[-1].outputs, (node, *ops))
    return replace(site, body=body, specs=specs | {"s": site.specs["s"]})


def by_steps(site: Site, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every value of the region, by the floor."""
    values = {**tensors, "s": torch.from_numpy(site.values["s"])}
    for node in site.body.ops:
        (values[node.outputs[0]],) = call_floor(node, [values.get(name) for name in node.inputs])
    return {name: value for name, value in values.items() if name != "s"}


def check_followed(site: Site, tensors: Mapping[str, Tensor], configs: int = 1) -> None:
    """Against the floor behind what the kernel makes of the Resize alone, which it rounds."""
    node, *ops = site.body.ops
    alone = replace(site, body=Body(("x", "s"), node.outputs, (node,)))
    made = run(alone, tensors["x"], offered(TACTIC, alone).configs[0])
    behind = replace(site, body=replace(site.body, ops=tuple(ops)))
    plain = by_steps(behind, {**tensors, "y": made})
    wide = by_steps(behind, {name: t.double() for name, t in {**tensors, "y": made}.items()})
    for config in offered(TACTIC, site).configs[:configs]:
        got = run(site, config=config, **tensors)
        close(got, plain[site.body.outputs[0]], wide[site.body.outputs[0]])


@pytest.mark.parametrize("last", ["", "x y z", "x", "y z"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_cast_takes_the_rounded_value(mode: str, last: str) -> None:
    """To the bit what the Resize alone makes, also of numbers that are none."""
    x = image(2, 6, 5, 7, dtype=torch.float16)
    x[0, 0, 2, 3], x[0, 1, 0, 0], x[1, 2, 4, 4], x[1, 5, 4, 6] = torch.nan, torch.inf, -torch.inf, 65504.0
    for size in ((8, 15), (3, 4)):
        site = followed(x, size, [op("Cast", "y", "z", to=1)], last, mode=mode)
        alone = resized(x, size, mode=mode, last=last, target=GPU)
        want = run(alone, x, offered(TACTIC, alone).configs[0]).float()
        got = run(site, x, offered(TACTIC, site).configs[0])
        assert got.dtype == torch.float32
        assert not want.isfinite().all()
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.nan_to_num(), want.nan_to_num())


RESIDUAL = [op("Mul", "y c", "m"), op("Add", "m r", "a"), op("Sigmoid", "a", "z")]


@pytest.mark.parametrize("last", ["", "x y r z", "x y z", "r", "x r"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_what_follows(mode: str, dtype: torch.dtype, last: str) -> None:
    """Scaled by channel, added to a residual that lies as it wants, and squashed; up and down."""
    for channels, size in ((8, (10, 9)), (3, (3, 20)), (1, (4, 4))):
        tensors = {
            "x": image(2, channels, 5, 7, dtype=dtype), "c": image(channels, 1, 1, dtype=dtype),
            "r": image(2, channels, *size, dtype=dtype),
        }  # fmt: skip
        check_followed(followed(**tensors, size=size, ops=RESIDUAL, last=last, mode=mode), tensors)


@pytest.mark.parametrize("last", ["", "x y z"])
def test_what_follows_in_every_offered_cut(last: str) -> None:
    x, r = image(1, 8, 2, 5, dtype=torch.float16), image(1, 8, 16, 15, dtype=torch.float16)
    site = followed(x, (16, 15), [op("Add", "r y", "a"), op("Relu", "a", "z")], last, r=r)
    check_followed(site, {"x": x, "r": r}, configs=9)


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 1, 3, 5, 7), (1, 1, 1, 1), (3, 2, 1, 9)])
def test_what_follows_in_other_ranks_and_sizes_of_one(shape: tuple[int, ...]) -> None:
    x = image(*shape)
    for size in ((10,), (2, 11)):
        r = image(*shape[: -len(size)], *size)
        check_followed(followed(x, size, [op("Add", "y r", "z")], mode="linear", r=r), {"x": x, "r": r})


def test_other_values_than_the_image_are_read_too() -> None:
    """A table of the region that its launch keeps, and the image itself."""
    x = image(1, 4, 5, 7)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    site = resized(x, scales=(1.1, 1.1), target=GPU, **attrs)
    table = np.linspace(-1, 1, 35, dtype=np.float32).reshape(5, 7)
    ops = (*site.body.ops, op("Sub", "y x", "d"), op("Mul", "d t", "z"))
    body = Body(("x", "s"), ("z",), ops, constants={"t": table})
    specs = dict.fromkeys(("x", "y", "d", "z"), site.specs["y"]) | {"s": site.specs["s"]}
    site = replace(site, body=body, specs=specs | {"t": TensorSpec("float32", (5, 7))})
    offer = offered(TACTIC, site)
    assert offer.extents is not None
    assert offer.extents(offer.configs[0]) == {0: 4 * x.numel(), 2: 4 * x.numel()}
    got = run(site, x, offer.configs[0])
    want = (by_floor(ops[0], x, site.values["s"]) - x) * torch.from_numpy(table)
    assert ((got - want).abs() <= 64 * UNIT32 * 4 * x.abs().max()).all()


def without_values(site: Site) -> Site:
    return replace(site, values={})


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        (resized(image(), (5, 3), mode="linear", antialias=1, target=GPU), "5 positions"),
        (resized(image().to(torch.int32), (3, 4), mode="linear", target=GPU), "type int32"),
        (resized(image(), (4, 5, 7), mode="linear", target=GPU), "axes [1] of 4"),
        (resized(image(5, 7), (4, 5), mode="linear", target=GPU), "axes [0, 1] of 2"),
        (without_values(resized(image(), (4, 5), mode="linear", target=GPU)), "not known before the run"),
        (
            resized(image(), (5, 7), coordinate_transformation_mode="tf_crop_and_resize", target=GPU),
            "those of a crop",
        ),
        (resized(image(0, 3, 5, 7), (6, 6), mode="linear", target=GPU), "nothing is resized"),
    ],
)
def test_refuses(site: Site, reason: str) -> None:
    assert reason in str(why_not(TACTIC, site))


def test_refuses_other_regions_and_results() -> None:
    site = resized(image(), (4, 5), mode="linear", target=GPU)
    (node,) = site.body.ops
    specs = {**site.specs, "z": site.specs["y"], "r": site.specs["x"]}
    before = Body(site.body.inputs, ("y",), (op("Relu", "x", "r"), replace(node, inputs=("r", "", "", "s"))))
    assert "a value of the region" in str(why_not(TACTIC, replace(site, body=before, specs=specs)))
    assert "no Resize" in str(
        why_not(TACTIC, replace(site, body=Body(("x",), ("y",), (op("Relu", "x", "y"),))))
    )
    codes = followed(image().int(), (4, 5), [op("Abs", "y", "z")], mode="nearest")
    assert "Abs follows a Resize of int32" in str(why_not(TACTIC, codes))
    for wrong in (TensorSpec("float32", (2, 3, 4, 6)), TensorSpec("int8", (2, 3, 4, 5))):
        specs = {**site.specs, "y": wrong}
        assert "want float32[2, 3, 4, 5]" in str(why_not(TACTIC, replace(site, specs=specs)))
    shapes = {"x": (1, 2**16, 5, 7), "y": (1, 2**16, 200, 200)}
    specs = {n: replace(spec, shape=shapes.get(n, spec.shape)) for n, spec in site.specs.items()}
    large = replace(site, specs=specs, values={"s": np.array([200, 200])})
    assert "an image has 2621440000 elements" in str(why_not(TACTIC, large))


def test_machine_code_of_a_cast_behind() -> None:
    """DeepLabV3's last ops, from 64 x 64 to 512 x 512: wide stores of float32, no spills."""
    x = image(1, 21, 2, 2, dtype=torch.float16)
    site = followed(x, (16, 16), [op("Cast", "y", "z", to=1)], "x y")
    large = {"x": (4, 21, 64, 64), "y": (4, 21, 512, 512), "z": (4, 21, 512, 512)}
    specs = {n: replace(spec, shape=large.get(n, spec.shape)) for n, spec in site.specs.items()}
    offer = offered(TACTIC, replace(site, specs=specs, values={"s": np.array([512, 512])}))
    for compiled, code in machine_code(offer.kernels(offer.configs[0]), "sm_90"):
        assert "STG.E.128" in code
        assert not compiled.spills


@pytest.mark.parametrize("last", ["", "x y", "x"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_machine_code(mode: str, last: str) -> None:
    """Wide stores, no spills: SegFormer's decoder, from 16 x 16 to 128 x 128."""
    site = resized(image(1, 8, 2, 2), (16, 16), mode=mode, last=last, target=GPU)
    specs = {
        **site.specs,
        "x": replace(site.specs["x"], dtype="float16", shape=(4, 256, 16, 16)),
        "y": replace(site.specs["y"], dtype="float16", shape=(4, 256, 128, 128)),
    }
    values = {"s": np.array([128, 128])}
    offer = offered(TACTIC, replace(site, specs=specs, values=values))
    ((compiled, code),) = machine_code(offer.kernels(offer.configs[0]), "sm_90")
    assert "STG.E.128" in code
    assert "LDG.E.128" in code or not last, "columns of a contiguous image are picked out one by one"
    assert not compiled.spills
