"""What ops are, for fusion: pointwise, rows (norms, softmax, reductions), products, views, movement."""

from __future__ import annotations

POINTWISE = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Neg", "Abs", "Exp", "Log", "Erf", "Tanh",
    "Sigmoid", "Relu", "LeakyRelu", "PRelu", "Clip", "HardSigmoid", "HardSwish", "Gelu", "Swish",
    "Softplus", "Softsign", "Elu", "Selu", "Celu", "Mish", "ThresholdedRelu", "Min", "Max", "Mean", "Sum",
    "Where", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Not", "Xor",
    "Cast", "Floor", "Ceil", "Round", "Sign", "IsNaN", "IsInf", "Sin", "Cos", "Tan", "Identity",
})  # fmt: skip
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Attention"})
ROWS = frozenset({
    "Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "GroupNormalization",
    "InstanceNormalization", "LpNormalization", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin",
    "ReduceL1", "ReduceL2", "ReduceProd", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
    "GlobalAveragePool", "GlobalMaxPool",
})  # fmt: skip
# output shares the input's memory when that lies contiguously
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
MOVEMENT = VIEWS | {"Transpose", "Split", "Slice", "Concat", "Expand", "Gather", "Pad", "Tile"}
# ops whose rank-4 result lies as their input lies
KEEPS_LAYOUT = POINTWISE | {
    "MaxPool", "AveragePool", "Resize", "Concat", "BatchNormalization", "GlobalAveragePool",
    "GlobalMaxPool", "Pad", "Split", "Upsample", "LRN", "InstanceNormalization", "GroupNormalization",
}  # fmt: skip
