"""`ridge kernels` on kernels with one fault each: that fault is found, and one without it is not blamed."""

from __future__ import annotations

import dataclasses

import pytest

from ridgeline.analyze.kernel_findings import KernelFindings, examine_code
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.kernels.triton.sass import disassemble, read_instructions, resource_usage
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
    return examine_code(read_instructions(text), arch=made.arch, types=made.types, ops=ops)


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


def cuda(body: str, *, head: str = "") -> Compiled:
    source = f'extern "C" __global__ void {head} k(const float* x, float* y, long long n) {{ {body} }}'
    cubin = nvrtc_cubin(source, ARCH)
    registers, spills = resource_usage(cubin)
    return Compiled("k", ARCH, cubin, 0, 8, False, 3, ("*u8", "*u8", "i64"), registers, spills, 0.0, "")


INDEX = "int i = blockIdx.x * 256 + threadIdx.x;"


@needs_nvrtc
@pytest.mark.parametrize(
    ("body", "expected"),
    [
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
    ],
)
def test_one_fault_in_cuda_is_found_alone(body: str, expected: set[str]) -> None:
    assert names(look(cuda(body))) == expected


@needs_nvrtc
def test_a_product_without_tensor_cores_is_noted() -> None:
    made = cuda(f"{INDEX} float s = 0; for (int k = 0; k < 4; k++) s += x[k] * x[i]; y[i] = s;")
    assert "no tensor cores" in names(look(made, ("MatMul",)))
    assert "no tensor cores" not in names(look(made, ("Relu",)))
