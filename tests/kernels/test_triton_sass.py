"""What disassembly shows, on lines as the disassembler writes them."""

from __future__ import annotations

from ridgeline.kernels.triton.sass import Evidence, read_evidence, read_instructions

LINES = """
	code for sm_90a
		Function : gemm
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                          /* 0x00000a00ff017b82 */
                                                                                   /* 0x000e220000000800 */
        /*0010*/              @!P0 LDG.E.64 R4, desc[UR6][R2.64] ;                 /* 0x0000000602048981 */
        /*0020*/                   LDGSTS.E.BYPASS.128 [R9], desc[UR6][R4.64] ;    /* 0x0000000004097fae */
        /*0030*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8], R24, gsb0 ; /* 0x00e00000081879f0 */
        /*0040*/              @P1  STG.E.U16 desc[UR6][R2.64], R7 ;                /* 0x0000000702007986 */
        /*0050*/                   STG.E desc[UR6][R2.64], R7 ;                    /* 0x0000000702007986 */
        /*0060*/                   STL [R1], R7 ;                                  /* 0x0000000701007387 */
        /*0070*/              @UP0 LDL.64 R7, [R1] ;                               /* 0x0000000001077983 */
"""


def test_evidence_is_read_from_opcodes_and_their_modifiers() -> None:
    assert read_evidence(read_instructions(LINES)) == Evidence(
        instructions=8,
        tensor_core="HGMMA",
        load="LDGSTS.E.BYPASS.128",
        store="STG.E",
        load_bits=128,
        store_bits=32,
        local=2,
    )


def test_nothing_to_see() -> None:
    assert read_evidence(()) == Evidence(0, "", "", "", 0, 0, 0)
