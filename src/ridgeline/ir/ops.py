"""The op table: what each op is, in one row (`op_row.OpRow`), by op type, or `domain::OpType` outside ONNX.

Passes, inference, validation, padding, the cost model and the floor ask this table (`row_of`, `is_a`, `has`)
instead of keeping lists of op names. Columns that hold functions stand in modules of their own: `op_rules*`
(`check` and `infer`), `op_flops` (`flops`).

An op from outside is one call: `add_row(OpRow(domain="my.ops", op_type="Scale", kind=Kind.POINTWISE, flops=3,
check=..., has_floor=True))`. Its types and shapes come from the schema that is registered with ONNX, or from
`infer`; its function over torch tensors is entered with `kernels.floor.registry.floor("my.ops::Scale")`, and
that asks for the row. `check` raises `MisfitError` if operands contradict one another. `drop_row` takes a row
from outside away again.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Protocol

from ridgeline.frontend.functions import plain_domain
from ridgeline.ir.op_flops import flops_of
from ridgeline.ir.op_row import Kind, OpRow, Trait
from ridgeline.ir.op_rules import INFER_RULES, rule_of

# every op that PyTorch runs for us; the functions are in `kernels/floor`
_FLOOR = """
Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization
Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast CastLike
CausalConvWithState Ceil Celu CenterCropPad Clip Col2Im Compress Concat ConcatFromSequence Constant
ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv DepthToSpace
DequantizeLinear Det Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor
GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater
GreaterOrEqual GridSample GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity
InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual LinearAttention Log
LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool MaxRoiPool MaxUnpool Mean
MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul Multinomial Neg NegativeLogLikelihoodLoss
NonMaxSuppression NonZero Not OneHot Optional OptionalGetElement OptionalHasElement Or PRelu Pad Pow
QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN RandomNormal RandomNormalLike RandomUniform
RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding
Round STFT Scatter ScatterElements ScatterND Selu SequenceAt SequenceConstruct SequenceEmpty SequenceErase
SequenceInsert SequenceLength Shape Shrink Sigmoid Sign SimplifiedLayerNormalization Sin Sinh Size Slice
Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze Sub Sum
SwiGLU Swish Tan Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Upsample Where
Xor com.microsoft::BiasGelu com.microsoft::DequantizeLinear com.microsoft::FastGelu com.microsoft::FusedConv
com.microsoft::FusedMatMul com.microsoft::Gelu com.microsoft::QuantizeLinear com.microsoft::QuickGelu
com.microsoft::SkipLayerNormalization com.microsoft::SkipSimplifiedLayerNormalization
"""
_WITHOUT_FLOOR = "If Loop Scan SequenceMap StringSplit"
_POINTWISE = """
Add Sub Mul Div Pow Sqrt Reciprocal Neg Abs Exp Log Erf Tanh Sigmoid Relu LeakyRelu PRelu Clip HardSigmoid
HardSwish Gelu Swish Softplus Softsign Elu Selu Celu Mish ThresholdedRelu Min Max Mean Sum Where Equal Greater
Less GreaterOrEqual LessOrEqual And Or Not Xor Cast Floor Ceil Round Sign IsNaN IsInf Sin Cos Tan Identity
QuantizeLinear DequantizeLinear
"""
_VIEWS = "Reshape Squeeze Unsqueeze Flatten Identity"
_KINDS = {
    Kind.POINTWISE: _POINTWISE,
    Kind.PRODUCT: "Conv ConvTranspose Gemm MatMul Attention",
    Kind.ROW: """
        Softmax LogSoftmax LayerNormalization RMSNormalization GroupNormalization InstanceNormalization
        LpNormalization ReduceMean ReduceSum ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceProd ReduceSumSquare
        ReduceLogSum ReduceLogSumExp GlobalAveragePool GlobalMaxPool""",
    Kind.VIEW: _VIEWS,
    Kind.MOVEMENT: f"{_VIEWS} Transpose Split Slice Concat Expand Gather Pad Tile",
    Kind.CONTROL: "If Loop Scan SequenceMap",
    Kind.RANDOM: """
        RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli Dropout""",
}
_TRAITS = {
    Trait.COMMUTATIVE: "Add Mul And Or Xor Max Min Equal",
    Trait.KEEPS_LAYOUT: f"""{_POINTWISE}
        MaxPool AveragePool Resize Concat BatchNormalization GlobalAveragePool GlobalMaxPool Pad Split
        Upsample LRN InstanceNormalization GroupNormalization""",
    Trait.SHAPE_ARITHMETIC: """
        Identity Cast Concat Gather Slice Squeeze Unsqueeze Reshape Add Sub Mul Div Mod Min Max Neg Abs Where
        Equal Less Greater ReduceProd ReduceSum Split""",
    Trait.MAY_RETURN_INPUT: "Cast Identity Sum Mean Max Min Clip",
    # LpNormalization takes no absolute values, LRN runs along the batch, MaxPool ignores pads that differ,
    # Unique always sorts, BatchNormalization is that of opset 14, ConvTranspose ignores groups, GlobalMaxPool
    # takes images only
    Trait.WRONG_IN_REFERENCE: """
        LpNormalization LRN MaxPool Unique BatchNormalization ConvTranspose GlobalMaxPool""",
    Trait.NEVER_EMPTY: "LSTM GRU",
    Trait.SIZED_BY_DATA: "NonZero NonMaxSuppression Unique Compress StringSplit",
    Trait.STRIDED: f"{_VIEWS} Transpose Slice",
    Trait.REPEATS: "Loop Scan SequenceMap",
    Trait.READS_NARROW: "Cast CastLike BitCast QuantizeLinear DequantizeLinear",
}
_SHAPE_OPERANDS = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Slice": (1, 2, 3, 4),
    "Pad": (1, 3), "Resize": (3,), "Range": (0, 1, 2), "TopK": (1,), "Split": (1,), "Squeeze": (1,),
    "Unsqueeze": (1,), "OneHot": (1,), "CenterCropPad": (1,), "AffineGrid": (1,), "Col2Im": (1, 2),
}  # fmt: skip
_HOST_INPUTS = {
    **_SHAPE_OPERANDS,
    "Pad": (1, 2, 3), "Resize": (1, 2, 3), "Upsample": (1,), "Trilu": (1,), "CumSum": (1,), "CumProd": (1,),
    "Dropout": (1, 2), "MaxUnpool": (2,), "DFT": (1, 2), "STFT": (1, 3), "HannWindow": (0,),
    "HammingWindow": (0,), "BlackmanWindow": (0,), "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4), "Pow": (1,), "Clip": (1, 2), "If": (0,), "Loop": (0, 1),
    **{name: (1,) for name in _FLOOR.split() if name.startswith("Reduce")},
}  # fmt: skip


def _rows() -> dict[str, OpRow]:
    floor = _FLOOR.split()
    kinds = {kind: set(names.split()) for kind, names in _KINDS.items()}
    traits = {trait: set(names.split()) for trait, names in _TRAITS.items()}
    rows = {}
    for key in (*floor, *_WITHOUT_FLOOR.split()):
        domain, _, op_type = key.rpartition("::")
        kind = reduce(or_, (kind for kind, keys in kinds.items() if key in keys), Kind.OTHER)
        rows[key] = OpRow(
            op_type=op_type, domain=domain, kind=kind,
            traits=reduce(or_, (trait for trait, keys in traits.items() if key in keys), Trait.NONE),
            check=rule_of(key, kind), infer=INFER_RULES.get(key), flops=flops_of(op_type, kind),
            shape_operands=_SHAPE_OPERANDS.get(key, ()), host_inputs=_HOST_INPUTS.get(key, ()),
            has_floor=key in floor,
        )  # fmt: skip
    return rows


OPS = _rows()
_BUILT_IN = frozenset(OPS)
_UNKNOWN = OpRow(op_type="")


class _Named(Protocol):
    """An `Op`, or a node of onnx_ir."""

    @property
    def op_type(self) -> str: ...
    @property
    def domain(self) -> str: ...


def row_of(op: _Named) -> OpRow:
    """The op's row; for an op that is not in the table, one that claims nothing."""
    domain = plain_domain(op.domain)
    return OPS.get(f"{domain}::{op.op_type}" if domain else op.op_type, _UNKNOWN)


def is_a(op: _Named, kind: Kind) -> bool:
    """Whether the op is of one of these kinds."""
    return bool(row_of(op).kind & kind)


def has(op: _Named, trait: Trait) -> bool:
    return bool(row_of(op).traits & trait)


def of_kind(kind: Kind) -> frozenset[str]:
    """The keys of all ops of one of these kinds."""
    return frozenset(key for key, row in OPS.items() if row.kind & kind)


def with_trait(trait: Trait) -> frozenset[str]:
    return frozenset(key for key, row in OPS.items() if row.traits & trait)


def add_row(row: OpRow) -> None:
    """Enter an op from outside; `ValueError` if the table has it already or it is in ONNX's own domain."""
    if not plain_domain(row.domain):
        raise ValueError(f"{row.op_type}: an op from outside needs a domain of its own")
    if row.key in OPS:
        raise ValueError(f"{row.key} is in the op table already")
    OPS[row.key] = row


def drop_row(key: str) -> None:
    """Take away a row that `add_row` entered."""
    if key in _BUILT_IN:
        raise ValueError(f"{key} is an op of our own")
    del OPS[key]
