"""Dependent launch in every kind of kernel: before it has waited, a kernel touches nothing but constants.

The rule is checked on PTX: every path from the entry up to the wait is walked, and every address traced back
to the arguments it is made of.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch
from cpp_cases import random
from normed_cases import span
from product_cases import make_site as product_site
from product_cases import op
from prologue_cases import SCALED, convolution
from resize_cases import resized
from triton_cases import GPU, make_site

from offers import offered, stages_of
from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cuda.triton_attention import TritonAttention
from ridgeline.tactics.cuda.triton_codegen import GeneratedTriton, TritonPointwise, TritonRows
from ridgeline.tactics.cuda.triton_conv import TritonConv, TritonConv1x1, TritonDepthwise
from ridgeline.tactics.cuda.triton_linear import TritonGemm, TritonGemv
from ridgeline.tactics.cuda.triton_normed import TritonNormedGemm
from ridgeline.tactics.cuda.triton_pool import TritonPool
from ridgeline.tactics.cuda.triton_prologue import TritonPrologueGemm
from ridgeline.tactics.cuda.triton_resize import TritonResize

HALF = torch.float16
# the interpreter is on in this process, where nothing can be compiled then
TABLES = frozenset(f"{name}_ptr" for name in ("starts", "lines", "line_shares", "columns", "column_shares"))
PACKED = frozenset({"columns_ptr", "affine_ptr"})
LOWER = """
import json, os, sys
sys.path[:0] = {paths!r}
os.environ.pop("TRITON_INTERPRET", None)
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.worker import lower_here
kernels = [Kernel.from_json(text) for text in json.load(sys.stdin)]
texts = [lower_here(kernel, "sm_90").asm["ptx"] for kernel in kernels]
sys.__stdout__.write(json.dumps(texts))
"""


def half(*shape: int) -> torch.Tensor:
    return random(*shape, dtype=HALF)


def pointwise() -> Site:
    inputs = {"x": half(64, 768), "r": half(64, 768), "b": half(768)}
    ops = [Op("Add", ("x", "b"), ("y",)), Op("Gelu", ("y",), ("g",)), Op("Add", ("g", "r"), ("z",))]
    return make_site(ops, inputs, ["z"], weights=["b"])


def transposed() -> Site:
    return make_site([Op("Relu", ("x",), ("z",))], {"x": half(2, 64, 16, 16)}, ["z"], last=["z"])


def gathered() -> Site:
    inputs = {"t": half(90, 64), "i": torch.zeros(3, 8, dtype=torch.int64), "p": half(8, 64)}
    ops = [Op("Gather", ("t", "i"), ("g",)), Op("Add", ("g", "p"), ("z",))]
    return make_site(ops, inputs, ["z"], weights=["t"])


def normed() -> Site:
    inputs = {"x": half(128, 768), "r": half(128, 768), "g": half(768), "b": half(768)}
    ops = [Op("Add", ("x", "r"), ("s",)), Op("LayerNormalization", ("s", "g", "b"), ("y",))]
    return make_site(ops, inputs, ["s", "y"], weights=["g", "b"])


def long_rows() -> Site:
    return make_site([Op("Softmax", ("x",), ("y",))], {"x": half(4, 70000)}, ["y"])


def linear(rows: int, depth: int = 512) -> Site:
    tensors = {"x": half(rows, depth), "w": half(depth, 256), "b": half(256), "r": half(rows, 256)}
    ops = [op("MatMul", "x w", "p"), op("Add", "p b", "q"), op("Add", "q r", "y")]
    return product_site(tensors, ops, weights="w b")[0]


def two_activations() -> Site:
    tensors = {"x": half(4, 64, 96), "v": half(4, 96, 64)}
    return product_site(tensors, [op("MatMul", "x v", "y")])[0]


def conv(kernel: int, *, channels: int = 64, group: int = 1, last: str = "x c y") -> Site:
    tensors = {
        "x": half(1, channels, 14, 14),
        "w": half(64, channels // group, kernel, kernel),
        "b": half(64),
    }
    pads = (kernel // 2,) * 4
    ops = [op("Conv", "x w b", "c", pads=pads, group=group), op("Relu", "c", "y")]
    return product_site(tensors, ops, weights="w b", channels_last=last)[0]


def attention(length: int, *, is_masked: bool = False) -> Site:
    shapes = dict.fromkeys("qkvy", (1, 4, length, 64))
    inputs = ("q", "k", "v", "m") if is_masked else ("q", "k", "v")
    specs = {name: TensorSpec("float16", shape) for name, shape in shapes.items()}
    specs["m"] = TensorSpec("float16", (1, 1, length, length))
    return Site(Body(inputs, ("y",), (Op("Attention", inputs, ("y",)),)), specs, frozenset(), {}, GPU)


def pooled() -> Site:
    inputs = {"x": half(1, 64, 14, 14), "s": half(64, 1, 1)}
    window = Op("AveragePool", ("x",), ("p",), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)})
    return make_site([window, Op("Mul", ("p", "s"), ("y",))], inputs, ["y"], last="xpy", weights=["s"])


CASES: dict[str, tuple[Tactic, Site]] = {
    "pointwise": (TritonPointwise(), pointwise()),
    "transpose": (TritonPointwise(), transposed()),
    "gather": (TritonPointwise(), gathered()),
    "whole rows": (TritonRows(), normed()),
    "long rows": (TritonRows(), long_rows()),
    "gemm": (TritonGemm(), linear(64)),
    "gemm, few tiles": (TritonGemm(), linear(32, 4096)),
    "gemm of activations": (TritonGemm(), two_activations()),
    "gemv": (TritonGemv(), linear(2)),
    "a norm and a gemm": (TritonNormedGemm(), span(128, 256, 512, is_shared=True)[0]),
    "a scale and a conv": (TritonPrologueGemm(), convolution(SCALED, (16, 14, 14, 480, 80))[0]),
    "conv": (TritonConv(), conv(3)),
    "conv of an NCHW image": (TritonConv(), conv(7, channels=3, last="c y")),
    "conv of narrow groups": (TritonConv(), conv(3, group=16)),
    "conv 1x1": (TritonConv1x1(), conv(1)),
    "depthwise": (TritonDepthwise(), conv(3, group=64)),
    "resize": (TritonResize(), resized(half(1, 8, 4, 4), (8, 8), mode="linear", target=GPU)),
    "pool": (TritonPool(), pooled()),
    "depthwise, line by line": (TritonDepthwise(), conv(7, group=64)),
    "attention, short": (TritonAttention(), attention(64)),
    "attention, long and masked": (TritonAttention(), attention(512, is_masked=True)),
}


def kernels_of(tactic: Tactic, site: Site) -> list[tuple[Kernel, frozenset[str]]]:
    """Of the first and the last config, each with the arguments that are constants."""
    configs = offered(tactic, site).configs
    made = []
    for config in configs[:: max(1, len(configs) - 1)]:
        if isinstance(tactic, GeneratedTriton):
            stages = stages_of(tactic, site, config)
            slots = stages.pointers.inputs
            count = len(slots) + len(stages.pointers.extras)
            fixed = [
                n
                for n, i in zip(stages.pointers.names, slots, strict=False)
                if site.body.inputs[i] in site.weights
            ]
            fixed += stages.pointers.names[len(slots) : count]
            made += [(stage.kernel, frozenset(fixed)) for stage in stages.launches]
        else:
            (kernel,) = offered(tactic, site).kernels(config)
            tables = TABLES if isinstance(tactic, TritonResize) else frozenset()
            packed = PACKED if isinstance(tactic, TritonNormedGemm) else frozenset()
            made.append((kernel, tables | packed | frozenset({"w_ptr"} if "w" in site.weights else ())))
    return made


def ptx_of(kernels: Sequence[Kernel]) -> list[str]:
    """Of each kernel, for sm_90."""
    done = subprocess.run(
        [sys.executable, "-c", LOWER.format(paths=[path for path in sys.path if path])],
        capture_output=True, text=True, check=True,
        input=json.dumps([kernel.to_json() for kernel in kernels]),
    )  # fmt: skip
    return [str(text) for text in json.loads(done.stdout)]


@cache
def lowered() -> dict[str, list[tuple[Kernel, frozenset[str], str]]]:
    jobs = [(name, *made) for name, case in CASES.items() for made in kernels_of(*case)]
    texts = ptx_of([kernel for _, kernel, _ in jobs])
    found: dict[str, list[tuple[Kernel, frozenset[str], str]]] = {}
    for (name, kernel, fixed), text in zip(jobs, texts, strict=True):
        found.setdefault(name, []).append((kernel, fixed, text))
    return found


@pytest.mark.parametrize("name", CASES)
def test_nothing_but_constants_is_touched_before_the_wait(name: str) -> None:
    for kernel, fixed, text in lowered()[name]:
        code = instructions(text)
        assert any("launch_dependents" in line for line in code), "the next kernel never starts"
        sources = origins(code, arguments(kernel))
        for line in before_the_wait(code):
            assert not re.search(r"\b(st|red|atom)\.", line) or ".shared" in line, f"writes early: {line}"
            if reads_global(line):
                touched = sources.get(address(line), frozenset())
                assert touched, f"reads from nowhere: {line}"
                assert touched <= fixed, f"reads {set(touched - fixed)} early: {line}"


def test_the_check_would_see_a_write() -> None:
    """Kernels that break the rule, in the words of PTX."""
    load = ".entry k(\n{\nld.param.b64 %rd1, [k_param_0];\nadd.s64 %rd2, %rd1, 8;\n"
    late = instructions(load + "griddepcontrol.wait;\nld.global.b32 %r1, [%rd2];\nret;\n}")
    assert not any(reads_global(line) for line in before_the_wait(late))
    early = instructions(
        load + "@%p1 bra $L1;\ngriddepcontrol.wait;\n$L1:\nst.global.b32 [%rd2], %r1;\nret;\n}"
    )
    assert any(line.startswith("st.global") for line in before_the_wait(early)), "a path around the wait"
    assert origins(early, ["x_ptr"])["%rd2"] == {"x_ptr"}


def arguments(kernel: Kernel) -> list[str]:
    """Names of what a launch passes, in the order of the kernel's parameters; tuples share one."""
    return [
        name for name, kind in kernel.signature if kind != "constexpr"
        for _ in (kind if isinstance(kind, tuple) else (kind,))
    ]  # fmt: skip


def instructions(ptx: str) -> list[str]:
    """One instruction or label a line, comments gone."""
    body = ptx.split(".entry", 1)[1].split("{", 1)[1]
    body = re.sub(r"//.*|^\s*\.(loc|file|section).*", "", body, flags=re.MULTILINE)
    body = re.sub(r"^\s*(\$\w+):", r"\1:;", body, flags=re.MULTILINE)
    return [line for part in body.split(";") if (line := " ".join(part.split()).lstrip("{} "))]


def before_the_wait(code: Sequence[str]) -> Iterator[str]:
    """Every instruction that some path from the entry meets before it waits."""
    labels = {line[:-1]: i for i, line in enumerate(code) if line.endswith(":")}
    seen: set[int] = set()
    todo = [0]
    while todo:
        i = todo.pop()
        if i in seen or i >= len(code):
            continue
        seen.add(i)
        line = code[i]
        if "griddepcontrol.wait" in line or re.match(r"(ret|exit|trap)\b", line):
            continue
        yield line
        jump = re.search(r"\bbra(?:\.uni)? (\$\w+)", line)
        if jump is not None:
            todo.append(labels[jump[1]])
        if jump is None or line.startswith("@"):
            todo.append(i + 1)


def reads_global(line: str) -> bool:
    return bool(
        re.search(r"\b(ld\.global|ld\.volatile\.global|prefetch\.global|cp\.async\.\w+\.shared)", line)
    )


def address(line: str) -> str:
    """The register that holds a global address: the last in brackets."""
    found = re.findall(r"\[\s*(%\w+)", line)
    return str(found[-1])


def origins(code: Sequence[str], names: Sequence[str]) -> dict[str, frozenset[str]]:
    """For every register the pointer arguments that its value is made of."""
    made_of: dict[str, set[str]] = {}
    for line in code:
        plain = re.sub(r"^@!?%\w+ ", "", line)
        if plain.endswith(":") or plain.startswith(("st.", "red.", "bra", "bar", ".")):
            continue
        operands = plain.partition(" ")[2]
        target, _, rest = operands.partition("}, ") if operands.startswith("{") else operands.partition(",")
        sources = set(re.findall(r"%\w+", rest))
        sources |= {f"param {i}" for i in re.findall(r"_param_(\d+)\b", rest)}
        for register in re.findall(r"%\w+", target):
            made_of.setdefault(register, set()).update(sources)
    return {
        register: _closure(register, made_of, names) for register in made_of if register.startswith("%rd")
    }


def _closure(register: str, made_of: dict[str, set[str]], names: Sequence[str]) -> frozenset[str]:
    seen: set[str] = set()
    todo = [register]
    while todo:
        item = todo.pop()
        if item not in seen:
            seen.add(item)
            todo += made_of.get(item, ())
    numbers = [int(item.split()[1]) for item in seen if item.startswith("param ")]
    return frozenset(name for i in numbers if i < len(names) and is_pointer(name := names[i]))


def is_pointer(name: str) -> bool:
    """Sizes and strides are arguments too."""
    return name.endswith("_ptr") or name == "pointers" or bool(re.fullmatch(r"[a-z]\d+", name))
