"""Generated epilogues: a kernel hands over its sums, and the rest of a region is made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from cpp_cases import close, empty, random
from torch import Tensor
from triton_cases import disassembled, evaluate, make_site

from interpreted import interpret
from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.triton.compiler import compile_kernel
from ridgeline.kernels.triton.epilogue import Epilogue, make_epilogue
from ridgeline.kernels.triton.source import Kernel

# stands for a product: sums come from memory, rows by columns
HOST = """
import triton
import triton.language as tl


@triton.jit
def host(sums, pointers, rows, columns, EPILOGUE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    m = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    n = (tl.program_id(1) * BN + tl.arange(0, BN))[None, :]
    mask = (m < rows) & (n < columns)
    acc = tl.load(sums + m * columns + n, mask=mask, other=float("nan"))
    EPILOGUE(acc, m, n, mask, pointers)
"""


def host(epilogue: Epilogue, tile: tuple[int, int]) -> Kernel:
    constants = (("EPILOGUE", epilogue.function), ("BM", tile[0]), ("BN", tile[1]))
    signature = (
        ("sums", "*fp32"), ("pointers", epilogue.types), ("rows", "i32"), ("columns", "i32"),
        *((name, "constexpr") for name, _ in constants),
    )  # fmt: skip
    return Kernel("host", "", signature, constants, text=HOST)


@dataclass(frozen=True)
class Case:
    """A region around its first op, whose columns lie on `axis`."""

    inputs: Mapping[str, Tensor]
    ops: Sequence[Op]
    outputs: Sequence[str] = ("z",)
    axis: int = -1
    last: Sequence[str] = ()
    constants: Mapping[str, np.ndarray] | None = None

    def site(self) -> Site:
        return make_site(self.ops, self.inputs, self.outputs, last=self.last, constants=self.constants)


def run(case: Case, tile: tuple[int, int] = (16, 16)) -> None:
    """The region with the anchor's sums found by torch, everything else by the epilogue."""
    site, anchor = case.site(), case.ops[0]
    epilogue = make_epilogue(site, anchor.outputs[0], case.axis)
    sums = bare_product(anchor, case.inputs).movedim(case.axis, -1)
    columns = sums.shape[-1]
    sums = sums.reshape(-1, columns).contiguous().float()
    outputs = [empty(spec) for spec in site.outputs]
    constants = [torch.from_numpy(array) for array in epilogue.extras]
    pointers = epilogue.pointers(list(case.inputs.values()), constants, outputs)
    grid = (-(-sums.shape[0] // tile[0]), -(-columns // tile[1]))
    interpret(host(epilogue, tile), grid, [sums, *pointers, sums.shape[0], columns])
    plain = evaluate(site.body, case.inputs)
    doubles = {n: t.double() if t.is_floating_point() else t for n, t in case.inputs.items()}
    exact = evaluate(site.body, doubles)
    for name, got in zip(site.body.outputs, outputs, strict=True):
        close(got, plain[name], exact[name])


def bare_product(anchor: Op, inputs: Mapping[str, Tensor]) -> Tensor:
    """The anchor without alpha, beta and bias."""
    x, w = (inputs[name].double() for name in anchor.inputs[:2])
    if anchor.op_type == "Conv":
        return torch.nn.functional.conv2d(x, w)
    return x @ (w.T if anchor.attrs.get("transB") else w)


def image(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed).contiguous(memory_format=torch.channels_last)


X, W = random(2, 5, 24), random(24, 20, seed=1)
PRODUCT = Op("MatMul", ("x", "w"), ("a",))
CONV = Op("Conv", ("x", "w", "b"), ("a",))
CASES = {
    "nothing": Case({"x": X, "w": W}, [Op("MatMul", ("x", "w"), ("z",))]),
    "bias and gelu": Case(
        {"x": X, "w": W, "b": random(20, seed=2)},
        [PRODUCT, Op("Add", ("a", "b"), ("c",)), Op("Gelu", ("c",), ("z",))],
    ),
    "residual that broadcasts among rows, two outputs": Case(
        {"x": X, "w": W, "r": random(5, 20, seed=2), "s": random(2, 1, 1, seed=3)},
        [PRODUCT, Op("Add", ("a", "r"), ("c",)), Op("Mul", ("c", "s"), ("d",)), Op("Relu", ("d",), ("z",))],
        outputs=("c", "z"),
    ),
    "alpha, beta and bias": Case(
        {"x": X[0], "w": W.T.contiguous(), "b": random(20, seed=2)},
        [Op("Gemm", ("x", "w", "b"), ("a",), {"alpha": 0.5, "beta": 2.0, "transB": 1}),
         Op("Sigmoid", ("a",), ("z",))],
    ),
    "one column": Case(
        {"x": X[0], "w": W[:, :1].contiguous(), "b": random(1, seed=2)},
        [PRODUCT, Op("Add", ("a", "b"), ("z",))],
    ),
    "heads apart": Case(
        {"x": X, "w": W, "b": random(20, seed=2)},
        [PRODUCT, Op("Add", ("a", "b"), ("c",)), Op("Reshape", ("c", "s"), ("d",)),
         Op("Transpose", ("d",), ("z",), {"perm": (0, 2, 1, 3)})],
        constants={"s": np.array([2, 5, 4, 5])},
    ),
    "constant of the region": Case(
        {"x": X, "w": W}, [PRODUCT, Op("Mul", ("a", "k"), ("z",))],
        constants={"k": random(20, seed=5).numpy()},
    ),
    **{
        f"gathered for {name}": Case(
            {"x": X, "w": W, "t": random(7, seed=2), "i": torch.arange(math.prod(shape)).reshape(shape) % 7},
            [PRODUCT, Op("Gather", ("t", "i"), ("g",)), Op("Add", ("a", "g"), ("z",))],
        )
        for name, shape in {"all": (1,), "columns": (20,), "rows": (5, 1), "each": (5, 20)}.items()
    },
    "image, channels last": Case(
        {"x": image(2, 8, 3, 4), "w": random(12, 8, 1, 1, seed=1), "b": random(12, seed=2),
         "r": image(2, 12, 3, 4, seed=3)},
        [CONV, Op("Add", ("a", "r"), ("c",)), Op("Relu", ("c",), ("z",))],
        axis=1, last=("x", "a", "c", "r", "z"),
    ),
    "image, contiguous": Case(
        {"x": image(2, 8, 3, 4), "w": random(12, 8, 1, 1, seed=1), "b": random(12, seed=2),
         "s": random(2, 12, 1, 1, seed=3)},
        [CONV, Op("Swish", ("a",), ("c",)), Op("Mul", ("c", "s"), ("z",))], axis=1, last=("x",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_epilogues(name: str) -> None:
    run(CASES[name])


def test_half_precision_is_computed_in_single() -> None:
    half = torch.float16
    inputs = {
        "x": random(9, 16, dtype=half),
        "w": random(16, 24, seed=1, dtype=half),
        "b": random(24, dtype=half),
    }
    run(Case(inputs, [PRODUCT, Op("Add", ("a", "b"), ("c",)), Op("Tanh", ("c",), ("z",))]))


def test_it_says_what_it_reads() -> None:
    site = CASES["bias and gelu"].site()
    epilogue = make_epilogue(site, "a", -1)
    assert epilogue.inputs == (2,)
    assert epilogue.types == ("*fp32", "*fp32")
    assert epilogue.pointers(["x", "w", "b"], [], ["z"]) == ["b", "z"]


def test_refusals() -> None:
    inputs = {"x": X, "w": W}

    def why(ops: Sequence[Op], anchor: str, constants: Mapping[str, np.ndarray] | None = None) -> str:
        with pytest.raises(RefusedError) as found:
            make_epilogue(Case(inputs, ops, constants=constants).site(), anchor, -1)
        return str(found.value)

    before = [Op("Relu", ("x",), ("h",)), Op("MatMul", ("h", "w"), ("z",))]
    assert why(before, "z") == "Relu comes before the MatMul"
    rows = [PRODUCT, Op("Softmax", ("a",), ("z",))]
    assert why(rows, "a") == "op Softmax is neither pointwise nor a reduction known here"
    larger = [PRODUCT, Op("Expand", ("a", "s"), ("z",))]
    assert why(larger, "a", {"s": np.array([3, 2, 5, 20])}) == "an output is larger than the product"
    cut = [PRODUCT, Op("Slice", ("a", "b", "e", "d"), ("z",))]
    bounds = {"b": np.array([0]), "e": np.array([7]), "d": np.array([2])}
    assert why(cut, "a", bounds) == "items of a product are moved"


def test_machine_code_is_wide_and_does_not_spill() -> None:
    half = torch.float16
    inputs = {"x": random(64, 64, dtype=half), "w": random(64, 64, dtype=half), "b": random(64, dtype=half),
              "r": random(64, 64, dtype=half)}  # fmt: skip
    ops = [PRODUCT, Op("Add", ("a", "b"), ("c",)), Op("Gelu", ("c",), ("g",)), Op("Add", ("g", "r"), ("z",))]
    epilogue = make_epilogue(Case(inputs, ops).site(), "a", -1)
    compiled = compile_kernel(host(epilogue, (64, 64)), "sm_90")
    assert compiled.spills == 0
    # the host's own sums end wherever its arguments say, so only the epilogue's accesses can be wide
    assert "LDG.E" in disassembled(compiled)
