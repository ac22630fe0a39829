"""Every tactic there is, in order of preference when times are equal. A new one is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.errors import OptionError, did_you_mean
from ridgeline.kernels.triton.compiler import COMPILED_HERE, KernelStore
from ridgeline.options import DEFAULT_LIMITS, Limits
from ridgeline.tactics.aten import Aten
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cpu.conv_gemm import ConvAsGemm
from ridgeline.tactics.cpu.cpp import CppGemm, CppGemv, CppMoves, CppPointwise, CppReduce
from ridgeline.tactics.cpu.cpp_conv import CppConv1x1, CppConvRows, CppConvSmall, CppDepthwise
from ridgeline.tactics.cpu.cpp_levels import CppDynamicLevels, CppLevels, CppNarrowWeight, CppPool
from ridgeline.tactics.cpu.cpp_recurrent import CppRecurrent
from ridgeline.tactics.cpu.cpp_resize import CppResize
from ridgeline.tactics.cpu.mkl_linear import AtenLinear, MklLinear
from ridgeline.tactics.cpu.onednn_conv import OneDnnConv, OneDnnConvTranspose
from ridgeline.tactics.cpu.onednn_linear import OneDnnLinear
from ridgeline.tactics.cpu.ort import Ort
from ridgeline.tactics.cpu.sdpa import AttentionBmm, Sdpa
from ridgeline.tactics.cuda.cublas import Cublas
from ridgeline.tactics.cuda.cublas_codes import CublasCodes
from ridgeline.tactics.cuda.cublas_float8 import CublasFloat8
from ridgeline.tactics.cuda.cublas_lt import CublasLt
from ridgeline.tactics.cuda.cudnn_conv import CudnnConv
from ridgeline.tactics.cuda.sdpa import CudaSdpa
from ridgeline.tactics.cuda.triton_attention import TritonAttention
from ridgeline.tactics.cuda.triton_code_attention import TritonCodeAttention
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise, TritonRows
from ridgeline.tactics.cuda.triton_conv import TritonConv, TritonConv1x1, TritonDepthwise
from ridgeline.tactics.cuda.triton_linear import TritonGemm, TritonGemv
from ridgeline.tactics.cuda.triton_normed import TritonNormedGemm
from ridgeline.tactics.cuda.triton_pool import TritonPool
from ridgeline.tactics.cuda.triton_prologue import TritonPrologueGemm
from ridgeline.tactics.cuda.triton_quant import TritonCodeConv, TritonCodeGemm
from ridgeline.tactics.cuda.triton_resize import TritonResize
from ridgeline.tactics.cuda.triton_weight_only import TritonWeightOnly

# tactics that plugins brought, by name; `plugins.register` fills it
PLUGIN_TACTICS: dict[str, Callable[[KernelStore], Tactic]] = {}


@dataclass(frozen=True)
class TacticOptions:
    """What tactics are made with."""

    opset_imports: Mapping[str, int]
    limits: Limits = DEFAULT_LIMITS
    fixed_shapes: bool = False  # no input can ever have another size
    deterministic: bool = False
    store: KernelStore = COMPILED_HERE  # kernels that may be used


def cpu_tactics(options: TacticOptions) -> tuple[Tactic, ...]:
    return (
        *(CppLevels(), CppNarrowWeight()),
        *(CppGemv(), CppGemm(), CppConv1x1(), CppDepthwise(), CppConvSmall(), CppConvRows()),
        *(AtenLinear(), MklLinear(), OneDnnLinear()),
        *(ConvAsGemm(), OneDnnConv(), OneDnnConvTranspose()),
        *(Sdpa(), AttentionBmm()),
        *(CppPointwise(), CppReduce(), CppRecurrent(), CppMoves()),
        *(CppPool(), CppResize(), CppDynamicLevels()),
        Aten(options.opset_imports, options.limits),
        Ort(
            options.opset_imports,
            options.limits,
            fixed_shapes=options.fixed_shapes,
            deterministic=options.deterministic,
        ),
    )


def cuda_tactics(options: TacticOptions) -> tuple[Tactic, ...]:
    products = (
        TritonGemv,
        TritonGemm,
        TritonNormedGemm,
        TritonPrologueGemm,
        TritonCodeGemm,
        TritonWeightOnly,
        TritonConv1x1,
        TritonConv,
        TritonCodeConv,
        TritonDepthwise,
        CublasFloat8,
        CublasCodes,
        CublasLt,
        Cublas,
        CudnnConv,
    )
    return (
        *(
            kind(store=options.store)
            for kind in (*products, TritonAttention, TritonCodeAttention, TritonPool, TritonResize)
        ),
        CudaSdpa(),
        *(kind(store=options.store) for kind in (TritonPointwise, TritonRows)),
        Aten(options.opset_imports, options.limits),
    )


def plugin_tactics(store: KernelStore) -> tuple[Tactic, ...]:
    """Those of plugins, which come before our own."""
    return tuple(make(store) for make in PLUGIN_TACTICS.values())


def leave_out(tactics: Sequence[Tactic], names: Sequence[str]) -> tuple[Tactic, ...]:
    """All but those named, by full name or by family (`ort`, `cpp`, `onednn`). The floor always stays."""
    families = sorted(
        {part for t in tactics for part in (t.name, t.name.split(".")[0])}
        - {t.name for t in tactics if t.is_floor}
    )
    for name in names:
        if name not in families:
            raise OptionError(f"there is no tactic {name!r} to leave out", help=did_you_mean(name, families))
    return tuple(t for t in tactics if t.name not in names and t.name.split(".")[0] not in names)
