"""The cases of `quant_gpu`: one product each, in every precision that can compute it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.frontend.types import ONNX_TYPES
from ridgeline.kernels.elements import TORCH_DTYPES
from ridgeline.kernels.floor.sub_byte import closed, opened

Data = Mapping[str, Tensor]
# a call, and what it computed
Library = Callable[[Data], tuple[Callable[[], object], Callable[[], Tensor]]]
HALF_ERROR = 2.0**-10  # relative L2 error of half results with float32 sums
FLOAT8_SUMS = 2.0**-5  # of sums that Hopper's tensor cores keep in 14 bits


@dataclass(frozen=True)
class Rival:
    """One precision of a case: a region for our tactics, or a library's way."""

    name: str
    site: Site | None
    names: tuple[str, ...]  # operands, as `Case.make` calls them
    weight_names: tuple[str, ...]
    weight_bytes: int
    library: Library | None = None
    most_error: float = HALF_ERROR
    want: str = "want"  # what it should compute, in float64, as `Case.make` calls it
    unit: str = ""  # the scale of its result, if that is codes
    is_base: bool = False  # others are compared with it
    most: int = 12  # of the offered kernels that are timed
    is_wide: bool = False  # kernels that are not offered are timed too

    def inputs(self, data: Data) -> dict[str, Tensor]:
        return {inner: data[outer] for inner, outer in self._pairs if inner not in self.weight_names}

    def weights(self, data: Data) -> dict[str, Tensor]:
        return {inner: data[outer] for inner, outer in self._pairs if inner in self.weight_names}

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        """`x:x8` in `names` is the case's x8 under the name x."""
        return [(name.split(":")[0], name.split(":")[-1]) for name in self.names]


@dataclass(frozen=True)
class Case:
    """A product of certain sizes. Every rival computes it from operands of its own, which `make` returns."""

    name: str
    rows: int
    flops: float
    rivals: tuple[Rival, ...]
    make: Callable[[], dict[str, Tensor]]
    is_cold: bool = False
    count: int = 1  # how many of this kind a model has


def cases_of(family: str, target: Target) -> list[Case]:
    return FAMILIES[family](target)


def site_of(
    target: Target, ops: list[Op], specs: Mapping[str, TensorSpec], inputs: str, weights: str
) -> Site:
    body = Body(tuple(inputs.split()), ("y",), tuple(ops))
    return Site(body, specs, frozenset(weights.split()), {}, target)


def op(op_type: str, inputs: str, output: str, **attrs: Any) -> Op:
    return Op(op_type, tuple(inputs.split()), (output,), attrs)


# products of codes


def gemm_cases(target: Target) -> list[Case]:
    sizes = (
        (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 14336), (4096, 3072, 768), (4096, 768, 3072),
        (6304, 2304, 768),
    )  # fmt: skip
    return [gemm_case(target, *size, is_wide=size in sizes[:2]) for size in sizes]


def gemm_case(target: Target, m: int, n: int, k: int, *, is_wide: bool) -> Case:
    def codes_site(dtype: str) -> Site:
        half = {"a": (m, k), "b": (k, n), "y": (m, n), "xs": (), "ws": (n,)}
        specs = {name: TensorSpec("float16", shape) for name, shape in half.items()}
        specs |= {"x": TensorSpec(dtype, (m, k)), "w": TensorSpec(dtype, (k, n))}
        ops = [
            op("DequantizeLinear", "x xs", "a"), op("DequantizeLinear", "w ws", "b", axis=1),
            op("MatMul", "a b", "y"),
        ]  # fmt: skip
        return site_of(target, ops, specs, "x xs w ws", "xs w ws")

    specs = {
        name: TensorSpec("float16", shape) for name, shape in (("x", (m, k)), ("w", (k, n)), ("y", (m, n)))
    }
    plain = site_of(target, [op("MatMul", "x w", "y")], specs, "x w", "w")

    def make() -> dict[str, Tensor]:
        data = {"x": torch.randn(m, k, device="cuda").half(), "w": torch.randn(k, n, device="cuda").half()}
        data["want"] = data["x"].double() @ data["w"].double()
        for mark, dtype, most in (("8", torch.float8_e4m3fn, 448.0), ("i", torch.int8, 127.0)):
            xs, ws = (data["x"].abs().amax() / most).half(), (data["w"].abs().amax(0) / most).half()
            x, w = ((v.float() / s.float()).clamp(-most, most) for v, s in ((data["x"], xs), (data["w"], ws)))
            x, w = ((v.round() if mark == "i" else v).to(dtype) for v in (x, w))
            data |= {f"x{mark}": x, f"w{mark}": w, f"x{mark}s": xs, f"w{mark}s": ws}
            data[f"want{mark}"] = (x.double() @ w.double()) * (xs.double() * ws.double())
        return data

    def codes(label: str, mark: str, site: Site | None = None, **more: Any) -> Rival:
        names = tuple(name.format(mark) for name in ("x:x{0}", "xs:x{0}s", "w:w{0}", "ws:w{0}s"))
        return Rival(label, site, names, ("xs", "w", "ws"), n * k, want=f"want{mark}", **more)

    rivals = (
        Rival("fp16", plain, ("x", "w"), ("w",), 2 * n * k, is_base=True),
        Rival("cublas fp16", None, ("x", "w"), ("w",), 2 * n * k, library=_mm),
        codes("fp8", "8", codes_site("float8_e4m3fn"), most_error=FLOAT8_SUMS, is_wide=is_wide),
        codes("int8", "i", codes_site("int8"), is_wide=is_wide),
        codes("cublaslt fp8 fast", "8", library=partial(_scaled_mm, fast=True), most_error=FLOAT8_SUMS),
        codes("cublaslt fp8 exact", "8", library=partial(_scaled_mm, fast=False), most_error=FLOAT8_SUMS),
        codes("cublaslt int8", "i", library=_int_mm),
    )
    return Case(f"gemm {m}x{n}x{k}", m, 2.0 * m * n * k, rivals, make)


def _mm(data: Data) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    y = torch.empty(len(data["x"]), data["w"].shape[1], dtype=torch.float16, device="cuda")
    weight = data["w"].t().contiguous().t()
    return lambda: torch.mm(data["x"], weight, out=y), lambda: y


def _scaled_mm(data: Data, *, fast: bool) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    """One scale for all; per-column scales are applied to the checked result alone."""
    weight = data["w"].t().contiguous().t()
    one, scale = torch.ones((), device="cuda"), data["xs"].float()
    made: list[Tensor] = []

    def call() -> None:
        made[:] = [
            torch._scaled_mm(
                data["x"], weight, scale_a=scale, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
            )
        ]

    return call, lambda: made[0].double() * data["ws"].double()


def _int_mm(data: Data) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    weight = data["w"].t().contiguous().t()
    y = torch.empty(len(data["x"]), weight.shape[1], dtype=torch.int32, device="cuda")
    return (
        lambda: torch._int_mm(data["x"], weight, out=y),
        lambda: y.double() * data["xs"].double() * data["ws"].double(),
    )


# weights of 8 and 4 bits

STORED = {  # format: dtype, block, dtype of its scales, zero points, bits of one number with its scale
    "int4 b128": ("int4", 128, "float16", False, 4.125),
    "int4 b32": ("int4", 32, "float16", False, 4.5),
    "int4 b128 zp": ("int4", 128, "float16", True, 4.25),
    "int8": ("int8", 0, "float16", False, 8.0),
    "fp8": ("float8_e4m3fn", 0, "float16", False, 8.0),
    "nvfp4": ("float4_e2m1fn", 16, "float8_e4m3fn", False, 4.5),
    "mxfp8": ("float8_e4m3fn", 32, "float8_e8m0fnu", False, 8.25),
}


def weight_only_cases(target: Target) -> list[Case]:
    first = [weight_only_case(target, m, 14336, 4096, STORED) for m in (1, 4, 16, 64)]
    return [*first, *(weight_only_case(target, m, 4096, 14336, ["int4 b128", "int8"]) for m in (1, 16))]


def weight_only_case(target: Target, m: int, n: int, k: int, formats: Iterable[str]) -> Case:
    half = partial(TensorSpec, "float16")
    base = {"x": half((m, k)), "w": half((k, n)), "y": half((m, n))}
    plain = site_of(target, [op("MatMul", "x w", "y")], base, "x w", "w")
    rivals = [
        Rival("fp16", plain, ("x", "w"), ("w",), 2 * n * k, is_base=True),
        Rival("cublas fp16", None, ("x", "w"), ("w",), 2 * n * k, library=_mm),
    ]
    for name in formats:
        dtype, block, scale, has_zero, bits = STORED[name]
        stored = {"x": half((m, k)), "w": TensorSpec(dtype, (k, n)), "y": half((m, n)), "b": half((k, n))}
        scales = (k // block, n) if block else (n,)
        stored["s"] = TensorSpec(scale, scales)
        attrs = {"axis": 0, "block_size": block} if block else {"axis": 1}
        ops, names = [], ["x", f"w:{name}.w", f"s:{name}.s"]
        if scale == "float8_e4m3fn":
            stored |= {"u": half(scales), "t": half(())}
            ops.append(op("DequantizeLinear", "s t", "u"))
            names.append(f"t:{name}.t")
        if has_zero:
            stored["z"] = TensorSpec(dtype, scales)
            names.append(f"z:{name}.z")
        used = "u" if scale == "float8_e4m3fn" else "s"
        ops += [
            op("DequantizeLinear", f"w {used} z" if has_zero else f"w {used}", "b", **attrs),
            op("MatMul", "x b", "y"),
        ]
        weights = [each.split(":")[0] for each in names[1:]]
        site = site_of(target, ops, stored, " ".join(["x", *weights]), " ".join(weights))
        size = round(n * k * bits / 8)
        rivals.append(Rival(
                f"w {name}", site, tuple(names), tuple(weights), size, want=f"{name}.want",
                most=8 if name == "int4 b128" else 4, is_wide=name == "int4 b128" and m in (1, 16),
            ))  # fmt: skip

    name, make = f"weight_only {k}x{n} M={m}", partial(_stored_data, m, n, k, tuple(formats))
    return Case(name, m, 2.0 * m * n * k, tuple(rivals), make, is_cold=True)


def _stored_data(m: int, n: int, k: int, formats: Iterable[str]) -> dict[str, Tensor]:
    """Random codes, scales and zero points of every format, and the product that they stand for."""
    x, w = (torch.randn(shape, device="cuda").div(8).half() for shape in ((m, k), (k, n)))
    data = {"x": x, "w": w, "want": x.double() @ w.double()}
    for name in formats:
        dtype, block, scale, has_zero, _ = STORED[name]
        shape = (k // block, n) if block else (n,)
        if dtype in ("int4", "int8"):
            most = 8 if dtype == "int4" else 128
            numbers = torch.randint(-most, most, (k, n), device="cuda", dtype=torch.int8)
        else:
            numbers = torch.randn(k, n, device="cuda") * 2
        is_narrow = dtype in ("int4", "float4_e2m1fn")
        codes = closed(numbers, TORCH_DTYPES[dtype]) if is_narrow else numbers.to(TORCH_DTYPES[dtype])
        scales = _scales(shape, scale)
        data |= {f"{name}.w": codes, f"{name}.s": scales}
        whole = scales.float()
        if scale == "float8_e4m3fn":
            data[f"{name}.t"] = torch.tensor(0.01, device="cuda").half()
            whole = whole * data[f"{name}.t"].float()
        numbers = opened(codes).float()
        if has_zero:
            zeros = torch.randint(-8, 8, shape, device="cuda", dtype=torch.int8)
            data[f"{name}.z"] = closed(zeros, TORCH_DTYPES[dtype])
            numbers = numbers - zeros.float().repeat_interleave(block, 0)
        numbers = numbers * (whole.repeat_interleave(block, 0) if block else whole)
        data[f"{name}.want"] = x.double() @ numbers.double()
    return data


def _scales(shape: tuple[int, ...], dtype: str) -> Tensor:
    if dtype == "float8_e8m0fnu":
        exponents = torch.randint(118, 126, shape, device="cuda", dtype=torch.uint8)
        return exponents.view(torch.float8_e8m0fnu)
    return ((torch.rand(shape, device="cuda") + 0.5) / 32).to(TORCH_DTYPES[dtype])


# convolutions of ResNet-50 at a batch of 32, codes in and out

CONVOLUTIONS = (  # channels read, channels made, kernel, stride, size, how many of this kind the model has
    (64, 64, 3, 1, 56, 3), (64, 256, 1, 1, 56, 4), (256, 64, 1, 1, 56, 2), (128, 128, 3, 1, 28, 4),
    (128, 512, 1, 1, 28, 4), (512, 128, 1, 1, 28, 4), (256, 512, 1, 2, 56, 1), (256, 256, 3, 1, 14, 6),
    (256, 1024, 1, 1, 14, 6), (1024, 256, 1, 1, 14, 6), (512, 512, 3, 1, 7, 3), (512, 2048, 1, 1, 7, 3),
    (3, 64, 7, 2, 224, 1),
)  # fmt: skip


IMAGE_CHANNELS = 3  # of a user's image, whose channels are planes


def conv_cases(target: Target) -> list[Case]:
    """As the model has them: those that make four times the channels add a residual, which is codes too."""
    return [replace(conv_case(target, 32, shape[:5]), count=shape[5]) for shape in CONVOLUTIONS]


def conv_case(target: Target, batch: int, shape: tuple[int, ...]) -> Case:
    """Convolution, bias, residual and relu."""
    channels, columns, kernel, stride, size = shape
    pad, made = kernel // 2, (size - 1) // stride + 1
    has_residual = columns == 4 * channels
    x, w, y = (batch, channels, size, size), (columns, channels, kernel, kernel), (batch, columns, made, made)
    attrs = {"strides": (stride, stride), "pads": (pad,) * 4}
    shapes = {"x": x, "a": x, "w": w, "b": w, "c": (columns,), "p": y, "o": y, "d": y, "q": y, "r": y, "y": y}
    scalars = {"xs": (), "ws": (columns,), "os": (), "ys": ()}
    last = "q" if has_residual else "p"

    def specs(dtype: str) -> dict[str, TensorSpec]:
        layouts = dict.fromkeys("podqry" if channels == IMAGE_CHANNELS else "xapodqry", "channels_last")
        kinds = dict.fromkeys("xwoy", dtype) | dict.fromkeys(scalars, "float32")
        return {
            name: TensorSpec(kinds.get(name, "float16"), shape, layouts.get(name, "contiguous"))  # type: ignore[arg-type]
            for name, shape in (shapes | scalars).items()
        }

    def site(dtype: str) -> Site:
        added = [op("DequantizeLinear", "o os", "d"), op("Add", "p d", "q")] if has_residual else []
        ops = [
            op("DequantizeLinear", "x xs", "a"), op("DequantizeLinear", "w ws", "b", axis=0),
            op("Conv", "a b c", "p", **attrs), *added, op("Relu", last, "r"),
            op("QuantizeLinear", "r ys", "y", output_dtype=ONNX_TYPES[dtype]),
        ]  # fmt: skip
        more = "o os " if has_residual else ""
        weights = f"xs w ws c ys {'os' if has_residual else ''}"
        made = site_of(target, ops, specs(dtype), f"x xs w ws c {more}ys", weights)
        return made if dtype == "int8" else replace(made, power_scales=frozenset({"xs", "os", "ys"}))

    plain_ops = [op("Conv", "x w c", "p", **attrs), *([op("Add", "p o", "q")] if has_residual else [])]
    plain = site_of(
        target, [*plain_ops, op("Relu", last, "y")], specs("float16"), f"x w c{' o' * has_residual}", "w c"
    )
    names = ("x", "w", "c", "o") if has_residual else ("x", "w", "c")
    library = partial(_cudnn, stride=stride, pad=pad)
    rivals = (
        Rival("fp16", plain, names, ("w", "c"), 2 * math.prod(w), is_base=True, most=5),
        Rival("cudnn fp16", None, names, ("w", "c"), 2 * math.prod(w), library=library),
        _conv_codes("fp8", "8", site("float8_e4m3fn"), math.prod(w), 0.06),
        _conv_codes("int8", "i", site("int8"), math.prod(w), 0.03),
    )  # fmt: skip
    name = f"conv b{batch} {channels}>{columns} {kernel}x{kernel}s{stride} {size}{' + o' * has_residual}"
    make = partial(_conv_data, (x, w, y), stride, pad, has_residual=has_residual)
    return Case(name, math.prod(y) // columns, 2.0 * math.prod(y) * math.prod(w[1:]), rivals, make)


def _conv_codes(label: str, mark: str, site: Site, weight_bytes: int, error: float) -> Rival:
    names = tuple(n if n == "c" else f"{n}:{n[0]}{mark}{n[1:]}" for n in site.body.inputs)
    weights = tuple(n for n in site.body.inputs if n not in ("x", "o"))
    return Rival(
        label, site, names, weights, weight_bytes, most_error=error, want=f"want{mark}", unit=f"y{mark}s",
        is_wide=True, most=5,
    )  # fmt: skip


def _conv_data(
    shapes: tuple[tuple[int, ...], ...], stride: int, pad: int, *, has_residual: bool
) -> dict[str, Tensor]:
    """Operands in half and as codes, and what each of them makes. float8 scales are powers of two."""
    x, w, y = shapes
    data = {n: torch.randn(size, device="cuda").half() for n, size in (("x", x), ("o", y), ("w", w))}
    lasts = "o" if x[1] == IMAGE_CHANNELS else "xo"
    data |= {n: data[n].relu().to(memory_format=torch.channels_last) for n in lasts}
    data |= {"w": data["w"] / math.sqrt(math.prod(w[1:])), "c": torch.randn(w[0], device="cuda").half()}

    def exact(a: Tensor, b: Tensor, o: Tensor) -> Tensor:
        made = torch.conv2d(a.float(), b.float(), data["c"].float(), stride, pad)
        return (made + o.float() if has_residual else made).relu().double()

    data["want"] = exact(data["x"], data["w"], data["o"])
    for mark, dtype, most in (("8", torch.float8_e4m3fn, 448.0), ("i", torch.int8, 127.0)):

        def scale(tensor: Tensor, most: float = most, mark: str = mark) -> Tensor:
            each = tensor.float() / most
            return torch.exp2(each.log2().ceil()) if mark == "8" else each

        scales = {n: scale(data[n].abs().amax()) for n in "xo"} | {
            "w": scale(data["w"].abs().amax((1, 2, 3)))
        }
        numbers = []
        for name in "xwo":
            per = scales[name].float()[:, None, None, None] if name == "w" else scales[name].float()
            levels = (data[name].float() / per).clamp(-most, most)
            codes = (levels.round() if mark == "i" else levels).to(dtype)
            numbers.append(codes.float() * per)
            data |= {f"{name}{mark}": codes, f"{name}{mark}s": scales[name]}
        data[f"want{mark}"] = exact(*numbers)
        data[f"y{mark}s"] = scale(data[f"want{mark}"].max())
    return data


def _cudnn(data: Data, *, stride: int, pad: int) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    weight = data["w"].to(memory_format=torch.channels_last)
    sizes = (stride, stride), (pad, pad), (1, 1), 1
    made: list[Tensor] = []

    def call() -> None:
        if "o" in data:
            made[:] = [torch.cudnn_convolution_add_relu(data["x"], weight, data["o"], 1.0, data["c"], *sizes)]
        else:
            made[:] = [torch.cudnn_convolution_relu(data["x"], weight, data["c"], *sizes)]

    return call, lambda: made[0]


FAMILIES: dict[str, Callable[[Target], list[Case]]] = {
    "gemm": gemm_cases, "weight_only": weight_only_cases, "conv": conv_cases,
}  # fmt: skip
