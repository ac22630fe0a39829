"""Products and convolutions for Triton kernels: interpreter runs, meanings in float64, machine code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from interpreted import interpret
from ridgeline.base.spec import EPSILON, Body, Config, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.kernels.triton.products import Problem
from ridgeline.kernels.triton.sass import tool
from ridgeline.kernels.triton.source import Generated, Kernel
from ridgeline.tactics.cuda.triton_product import TritonProduct

GPU = Target("cuda", "sm_90")
UNIT32 = 2.0**-24  # half the distance from 1 to the next float32

# y = max(acc + bias, 0) into rows of {columns}; what a generated epilogue looks like, written by hand
BIAS_RELU = """
import triton
import triton.language as tl


@triton.jit
def epilogue(acc, m, n, mask, pointers):
    bias = tl.load(pointers[0] + n, mask=n < {columns}, other=0.0).to(tl.float32)
    y = tl.maximum(acc + bias, 0.0)
    tl.store(pointers[1] + m * {columns} + n, y.to(pointers[1].dtype.element_ty), mask=mask)
"""


@dataclass(frozen=True)
class BiasRelu:
    """A tail as the kernels take it."""

    columns: int
    kind: str = "fp16"

    @property
    def function(self) -> Generated:
        return Generated("epilogue", BIAS_RELU.format(columns=self.columns))

    @property
    def types(self) -> tuple[str, str]:
        return f"*{self.kind}", f"*{self.kind}"


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype)


def run_twice(problem: Problem, cut: Any, x: Tensor, packed: Tensor, bias: Tensor, y: Tensor) -> None:
    """Fill y, poisoned with NaN as the scratch is; then again over the scratch as the first run left it."""
    kind = {torch.float16: "fp16", torch.float32: "fp32"}[x.dtype]
    kernel = problem.describe(cut, BiasRelu(y.shape[-1], kind), pdl=False)
    scratch = problem.scratch(cut, "cpu")
    seen = []
    for _ in range(2):
        y.fill_(torch.nan)
        for memory in scratch[:1]:
            memory.fill_(torch.nan)
        interpret(kernel, problem.grid(cut), [x, packed, *scratch, bias, y, problem.extent])
        assert not any(counters.any() for counters in scratch[1:]), "a counter was left behind"
        seen.append(y.clone())
    assert torch.equal(seen[0], seen[1]), "a second run differs"


def require_close(y: Tensor, want: Tensor, magnitude: Tensor, *, terms: int) -> None:
    """Within the rounding of a float32 sum of `terms` products of that magnitude, then of the type of y."""
    half = EPSILON[str(y.dtype).removeprefix("torch.")] / 2
    bound = (terms + 8) * UNIT32 * magnitude + half * want.abs() + 2.0**-24
    off = torch.where(y.double() == want, 0.0, (y.double() - want).abs())
    assert not torch.isnan(y).any(), "something was not written"
    assert torch.equal(y.isinf(), want.isinf()), "an infinity is missing, or elsewhere"
    assert (off <= bound).all(), f"off by {off.max():.3g}, {(off / bound).max():.2f} times the bound"


# regions


def op(op_type: str, inputs: str, output: str, **attrs: Any) -> Op:
    return Op(op_type, tuple("" if n == "-" else n for n in inputs.split()), (output,), attrs)


def make_site(
    tensors: Mapping[str, Tensor], ops: Sequence[Op], *, weights: str = "", channels_last: str = "",
    target: Target = GPU,
) -> tuple[Site, dict[str, Tensor]]:  # fmt: skip
    """The site of these ops over these inputs, y its output, and the value of every name in float64."""
    body = Body(tuple(tensors), ("y",), tuple(ops))
    values = {name: tensor.double() for name, tensor in tensors.items()}
    for node in ops:
        values[node.outputs[0]] = MEANING[node.op_type](*(values[n] for n in node.inputs if n), **node.attrs)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    last = channels_last.split()
    specs = {
        name: TensorSpec(dtype, tuple(v.shape), "channels_last" if name in last else "contiguous")
        for name, v in values.items()
    }
    return Site(body, specs, frozenset(weights.split()), {}, target), values


def _conv(x: Tensor, w: Tensor, b: Tensor | None = None, *, strides=(1, 1), pads=(0, 0, 0, 0),
          dilations=(1, 1), group=1) -> Tensor:  # fmt: skip
    half = len(pads) // 2
    sides = [side for axis in reversed(range(half)) for side in (pads[axis], pads[axis + half])]
    function = F.conv1d if x.dim() == 3 else F.conv2d
    return function(F.pad(x, sides), w, b, tuple(strides)[:half], 0, tuple(dilations)[:half], group)


MEANING = {
    "MatMul": torch.matmul,
    "Gemm": lambda a, b, c=None, *, alpha=1.0, beta=1.0, transB=0: (
        alpha * a @ (b.mT if transB else b) + (0 if c is None else beta * c)
    ),
    "Conv": _conv,
    "Add": torch.add,
    "Mul": torch.mul,
    "Div": torch.div,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "HardSwish": F.hardswish,
}


def run_tactic(tactic: TritonProduct, site: Site, config: Config, tensors: Mapping[str, Tensor]) -> Tensor:
    """The tactic's kernel with the tactic's arguments, in the interpreter; y is poisoned before."""
    placed = [_as_spec(tensors[name], site.specs[name]) for name in site.body.inputs]
    weights = {n: t for n, t in zip(site.body.inputs, placed, strict=True) if n in site.weights}
    found = tactic.product(site)
    cut = tactic.cut_of(found.reading.problem, config)
    operands = found.operands(cut, weights, device="cpu")
    y = torch.empty_strided(site.outputs[0].shape, site.outputs[0].strides, dtype=placed[0].dtype)
    y.fill_(torch.nan)
    unread = [t if i in operands.reads else None for i, t in enumerate(placed)]
    arguments = operands.arguments(unread, [y])
    interpret(for_interpreter(found.kernel(cut)), operands.grid, arguments)
    return y


def _as_spec(tensor: Tensor, spec: TensorSpec) -> Tensor:
    return torch.empty_strided(tensor.shape, spec.strides, dtype=tensor.dtype).copy_(tensor)


def for_interpreter(kernel: Kernel) -> Kernel:
    """The same kernel without the things that only a GPU has."""
    off = {"PDL": False, "PREFETCH": False, "PACKED": False, "WAITS": False}
    constants = tuple((name, off.get(name, value)) for name, value in kernel.constants)
    return replace(kernel, constants=constants)


# machine code


def machine_code(kernels: Sequence[Kernel], arch: str) -> list[tuple[Compiled, str]]:
    """What was compiled, and its instructions."""
    made = compile_kernels(kernels, arch)
    for compiled in made:
        assert isinstance(compiled, Compiled), str(compiled)
    return [(compiled, _disassemble(compiled.cubin)) for compiled in made]


def require_good_code(kernels: Sequence[Kernel], arch: str) -> None:
    """No spills, wide loads, and the next kernel let in where the architecture can."""
    for compiled, code in machine_code(kernels, arch):
        assert not compiled.spills
        assert compiled.registers <= 255
        assert ".128" in code, "loads are narrow"
        if arch == "sm_90":
            require_dependent_launch(code)


def _disassemble(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [tool("nvdisasm"), "-c", file.name], capture_output=True, text=True, check=True
        ).stdout


def require_dependent_launch(code: str) -> None:
    """Writes nothing before the kernels ahead have ended, and lets the next one start only then."""
    wait, start = code.index("ACQBULK"), code.index("PREEXIT")
    writes = [found.start() for found in re.finditer(r"\b(STG|ATOMG?|RED)\b", code)]
    assert wait < writes[0], "it writes before it waits"
    assert wait < start < writes[0], "the next kernel starts too early or too late"
