"""`ridge kernels` on kernels with one fault each: that fault is found, and one without it is not blamed."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from ridgeline.analyze.kernel_findings import KernelFindings, examine_code
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.kernels.triton.sass import disassemble, read_instructions, resource_usage, static_shared
from ridgeline.kernels.triton.source import Kernel
from ridgeline.plugins.gpu_tactics import has_nvrtc, nvrtc_cubin

ARCH = "sm_90"
needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="cuda-core is not installed, which brings NVRTC")
COPY = """
import triton
import triton.language as tl

@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i) * 2)

@triton.jit
def spill(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x_ptr + i)
    b = tl.load(x_ptr + i + BLOCK)
    c = tl.load(x_ptr + i + 2 * BLOCK)
    tl.store(y_ptr + i, a * b)
    tl.store(y_ptr + i + BLOCK, b * c)
    tl.store(y_ptr + i + 2 * BLOCK, a * c)
"""


def triton_kernel(function: str, block: int, kind: str, registers: int = 0) -> Kernel:
    signature = (("x_ptr", kind), ("y_ptr", kind), ("n", "i32"), ("BLOCK", "constexpr"))
    return Kernel(function, "", signature, (("BLOCK", block),), text=COPY, num_warps=4, registers=registers)


def look(made: Compiled, ops: tuple[str, ...] = ()) -> KernelFindings:
    text = disassemble(made.cubin)
    assert text is not None
    return examine_code(read_instructions(text, made.name), arch=made.arch, types=made.types, ops=ops)


def names(findings: KernelFindings) -> set[str]:
    return {finding.name for finding in findings.found}


def test_triton_kernels_with_narrow_wide_and_spilling_code() -> None:
    wanted = [
        triton_kernel("copy", 128, "*fp16"),  # one element a thread
        triton_kernel("copy", 1024, "*fp16"),  # eight
        triton_kernel("spill", 4096, "*fp32", registers=32),
    ]
    made = compile_kernels(wanted, ARCH)
    assert all(isinstance(each, Compiled) for each in made), made
    narrow, wide, spilling = (each for each in made if isinstance(each, Compiled))

    found = look(narrow)
    assert names(found) == {"narrow loads", "narrow stores"}
    assert (found.accesses, found.accesses_known) == (2, 2)
    (load, _) = found.found
    assert "move 2 bytes a thread" in load.what
    assert ".U16" in load.evidence[0]
    assert load.evidence[0].startswith("generated.py:8"), "the line of the load"

    assert names(look(wide)) == set()

    assert spilling.spills > 0
    assert "local memory" in names(look(spilling))
    (local,) = [finding for finding in look(spilling).found if finding.name == "local memory"]
    assert any("STL" in line or "LDL" in line for line in local.evidence)
    assert dataclasses.asdict(local)["severity"] == "slow"


INDEX = "int i = blockIdx.x * 256 + threadIdx.x;"
CASES: list[tuple[str, set[str]]] = [
    (f"{INDEX} y[i] = x[i] * 2;", set()),
    (f"{INDEX} ((float4*)y)[i] = ((const float4*)x)[i];", set()),
    (f"{INDEX} y[i] = x[i * 8];", {"not coalesced"}),
    (f"{INDEX} y[i * 32] = x[i];", {"not coalesced"}),
    # eight loads by which a thread reads its own sector: nothing of it is lost
    (
        f"{INDEX} float s = 0; for (int k = 0; k < 8; k++) s += ((const volatile float*)x)[i * 8 + k];"
        " y[i] = s;",
        set(),
    ),
    # all lanes read the same few numbers, each of another sector
    (f"{INDEX} float s = 0; for (int k = 0; k < 8; k++) s += x[k * 64]; y[i] = s;", set()),
    (f"{INDEX} y[i] = x[i * n];", set()),  # the stride is the caller's, and may be 1
    (
        f"{INDEX} float s = 0;\n#pragma unroll 1\n"
        "for (int k = 0; k < n; k++) s += x[i + k * 4096]; y[i] = s;",
        {"scalar loads in a loop"},
    ),
    (
        f"{INDEX} __shared__ float t[256 * 8]; for (int k = 0; k < 8; k++) t[threadIdx.x * 8 + k] = x[i];"
        " __syncthreads(); y[i] = t[threadIdx.x];",
        {"bank conflicts"},
    ),
]
PRODUCT = f"{INDEX} float s = 0; for (int k = 0; k < 4; k++) s += x[k] * x[i]; y[i] = s;"


@cache
def cuda_kernels() -> tuple[bytes, str]:
    """All of them in one piece of machine code, and its disassembly: each takes a second."""
    bodies = [*(body for body, _ in CASES), PRODUCT]
    head = 'extern "C" __global__ void'
    source = "\n".join(
        f"{head} k{n}(const float* x, float* y, long long n) {{ {body} }}" for n, body in enumerate(bodies)
    )
    cubin = nvrtc_cubin(source, ARCH)
    return cubin, disassemble(cubin) or ""


def look_at_cuda(number: int, ops: tuple[str, ...] = ()) -> KernelFindings:
    code = read_instructions(cuda_kernels()[1], f"k{number}")
    assert code
    return examine_code(code, arch=ARCH, types=("*u8", "*u8", "i64"), ops=ops)


@needs_nvrtc
@pytest.mark.parametrize("number", range(len(CASES)))
def test_one_fault_in_cuda_is_found_alone(number: int) -> None:
    body, expected = CASES[number]
    assert names(look_at_cuda(number)) == expected, body


@needs_nvrtc
def test_a_product_without_tensor_cores_is_noted() -> None:
    assert "no tensor cores" in names(look_at_cuda(len(CASES), ("MatMul",)))
    assert "no tensor cores" not in names(look_at_cuda(len(CASES), ("Relu",)))


@needs_nvrtc
def test_resources_are_those_of_the_function_asked_for() -> None:
    cubin, _ = cuda_kernels()
    (with_shared,) = [n for n, (body, _) in enumerate(CASES) if "__shared__" in body]
    assert static_shared(cubin, ARCH, f"k{with_shared}") == 256 * 8 * 4
    assert static_shared(cubin, ARCH, "k0") == 0
    assert resource_usage(cubin, "k0")[0] > 0
