"""Addresses of a warp, computed from machine code: of instructions written here, and of compiled kernels."""

from __future__ import annotations

import pytest

from ridgeline.kernels.triton.sass import disassemble, read_instructions
from ridgeline.kernels.triton.sass_lanes import LARGE, Access, accesses, place_arguments
from ridgeline.kernels.triton.sass_mix import count, inner_loops
from ridgeline.plugins.gpu_tactics import has_nvrtc, nvrtc_cubin

ARCH = "sm_90"
# thread number in R0, the first argument in R2
START = ("S2R R0, SR_TID.X", "LDC.64 R2, c[0x0][0x210]")


def sass(*lines: str) -> str:
    return "\n".join(f"        /*{16 * i:04x}*/    {line} ;" for i, line in enumerate(lines))


def seen(*lines: str, types: tuple[str, ...] = ("*fp32", "i32")) -> list[Access]:
    return accesses(read_instructions(sass(*START, *lines)), arch=ARCH, types=types)


def test_arguments_lie_where_a_launch_puts_them() -> None:
    placed = place_arguments(ARCH, ("*fp32", "i32", "*fp16", "fp32", "i64"))
    assert {at for at, word in placed.items() if word.from_size} == {0x218, 0x230}
    assert placed[0x218].lanes[0] == LARGE
    assert 0x210 in placed
    assert 0x220 in placed
    assert 0x228 not in placed, "a float is no address"
    assert place_arguments("sm_80", ("*fp32",)).keys() == {0x160, 0x164}


@pytest.mark.parametrize(
    ("lines", "sectors"),
    [
        (("IMAD.WIDE R4, R0, 0x4, R2",), 4),  # neighbours
        (("IMAD.WIDE R4, R0, 0x80, R2",), 32),  # a sector each
        (("IMAD.SHL.U32 R1, R0, 0x8, RZ", "IADD3 R4, P0, R1, R2, RZ"), 8),
        (("LEA R4, P0, R0, R2, 0x5",), 32),
        (("LOP3.LUT R1, R0, 0x1c, RZ, 0xc0, !PT", "IMAD.WIDE.U32 R4, R1, 0x8, R2"), 8),
        (("SHF.R.U32.HI R1, RZ, 0x2, R0", "IMAD.WIDE R4, R1, 0x20, R2"), 8),
        (("SGXT.U32 R1, R0, 0x1", "IMAD.WIDE R4, R1, 0x100, R2"), 2),
        (("PRMT R1, R0, 0x7770, RZ", "IMAD.WIDE R4, R1, 0x20, R2"), 32),  # the lowest byte
        (("ISETP.LT.AND P1, PT, R0, 0x10, PT", "SEL R1, R0, RZ, P1", "IMAD.WIDE R4, R1, 0x20, R2"), 16),
        (("VIMNMX R1, R0, 0x7, PT", "IMAD.WIDE R4, R1, 0x20, R2"), 8),
        (
            ("HFMA2.MMA R1, -RZ, RZ, 0, 1.9073486328125e-06", "IMAD R1, R1, R0, RZ", "IADD3 R4, R1, R2, RZ"),
            32,
        ),
        # a clamp at a size, which is large
        (("LDC R6, c[0x0][0x218]", "VIMNMX R1, R0, R6, PT", "IMAD.WIDE R4, R1, 0x4, R2"), 4),
    ],
)
def test_sectors_of_a_load(lines: tuple[str, ...], sectors: int) -> None:
    (access,) = seen(*lines, "LDG.E R8, desc[UR4][R4.64]")
    assert access.transactions == sectors


@pytest.mark.parametrize(
    "lines",
    [
        ("LDG.E R1, desc[UR4][R2.64]", "IMAD.WIDE R4, R1, 0x4, R2"),  # a gather
        ("LDC R6, c[0x0][0x218]", "IMAD R1, R0, R6, RZ", "IADD3 R4, R1, R2, RZ"),  # a stride of the caller's
        ("FFMA R4, R1, R1, R1",),
        ("MUFU.EX2 R4, R0",),
    ],
)
def test_what_cannot_be_known_is_left_out(lines: tuple[str, ...]) -> None:
    found = seen(*lines, "LDG.E R8, desc[UR4][R4.64+0x10]")
    assert [access.instruction.operands[-1] for access in found if "0x10" in access.instruction.text] == []


def test_lanes_that_are_switched_off_do_not_count() -> None:
    lines = ("ISETP.LT.AND P1, PT, R0, 0x8, PT", "IMAD.WIDE R4, R0, 0x80, R2")
    (access,) = seen(*lines, "@P1 LDG.E R8, desc[UR4][R4.64]")
    assert access.transactions == 8
    assert seen(*lines, "@!PT LDS RZ, [RZ]") == []


@pytest.mark.parametrize(
    ("address", "access", "passes", "least"),
    [
        ("IMAD.SHL.U32 R5, R0, 0x4, RZ", "LDS R8, [R5]", 1, 1),
        ("IMAD.SHL.U32 R5, R0, 0x8, RZ", "LDS R8, [R5+0x100]", 2, 1),
        ("IMAD.SHL.U32 R5, R0, 0x80, RZ", "LDS R8, [R5]", 32, 1),
        ("IMAD R5, R0, 0x84, RZ", "LDS R8, [R5]", 1, 1),  # padded
        ("IMAD.MOV.U32 R5, RZ, RZ, RZ", "LDS R8, [R5]", 1, 1),  # all read one word
        ("IMAD.SHL.U32 R5, R0, 0x10, RZ", "LDS.128 R8, [R5]", 4, 4),
        ("IMAD.SHL.U32 R5, R0, 0x20, RZ", "STS.128 [R5], R8", 8, 4),
        ("IMAD.SHL.U32 R5, R0, 0x2, RZ", "LDS.U16 R8, [R5]", 1, 1),
        ("IMAD.SHL.U32 R5, R0, 0x10, RZ", "LDSM.16.M88.4 R8, [R5]", 4, 4),
        ("IMAD.SHL.U32 R5, R0, 0x80, RZ", "LDSM.16.M88.4 R8, [R5]", 32, 4),
        ("IMAD.SHL.U32 R5, R0, 0x80, RZ", "LDSM.16.M88 R8, [R5]", 8, 1),
    ],
)
def test_passes_over_shared_memory(address: str, access: str, passes: int, least: int) -> None:
    (found,) = seen(address, access)
    assert (found.transactions, found.least) == (passes, least)


def test_loops_and_kinds_are_counted() -> None:
    text = "\n".join(
        [
            sass("S2R R0, SR_TID.X"), ".L_x_0:", "        /*0010*/ HMMA.16816.F32 R4, R4, R8, R4 ;",
            "        /*0020*/ IMAD.MOV.U32 R9, RZ, RZ, R8 ;", "        /*0030*/ IMAD R9, R9, R9, RZ ;",
            "        /*0040*/ @P0 BRA `(.L_x_0) ;", "        /*0050*/ EXIT ;", ".L_x_1:",
            "        /*0060*/ BRA `(.L_x_1);", "        /*0070*/ NOP;",
        ]
    )  # fmt: skip
    code = read_instructions(text)
    assert [(loop.first, loop.last) for loop in inner_loops(code)] == [(0x10, 0x40)]
    mix = count(code)
    assert (mix.total, mix.tensor_core, mix.move, mix.integer, mix.control) == (7, 1, 2, 1, 3)


TRANSPOSE = """
extern "C" __global__ void transpose(const float* x, float* y) {
    __shared__ float tile[32][WIDTH];
    for (int row = 0; row < 32; row++) tile[row][threadIdx.x] = x[row * 32 + threadIdx.x];
    __syncthreads();
    for (int row = 0; row < 32; row++) y[row * 32 + threadIdx.x] = tile[threadIdx.x][row];
}
"""


@pytest.mark.skipif(not has_nvrtc(), reason="cuda-core is not installed, which brings NVRTC")
@pytest.mark.parametrize(("width", "has_conflicts"), [(32, True), (33, False)])
def test_a_transpose_conflicts_unless_its_rows_are_padded(width: int, has_conflicts: bool) -> None:
    text = disassemble(nvrtc_cubin(f"#define WIDTH {width}\n{TRANSPOSE}", ARCH))
    assert text is not None
    found = accesses(read_instructions(text), arch=ARCH, types=("*u8", "*u8"))
    loads = [access for access in found if access.instruction.opcode == "LDS"]
    assert loads
    assert any(access.excess >= 2 for access in loads) == has_conflicts
    assert all(access.excess == 1 for access in found if access.space == "global")
