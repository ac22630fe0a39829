"""QuantizeLinear and DequantizeLinear in scalar steps, with one scale, one per channel, or one per block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op
from ridgeline.kernels.scalar.axes import ONE
from ridgeline.kernels.scalar.lowering import Lowering, Val, reshaped
from ridgeline.kernels.scalar.program import FLOAT8_LARGEST, compute_dtype

# the ends of the integer types that have a C type of their own
LEVELS = {
    "int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535),
}  # fmt: skip
FLOAT32 = 1  # as ONNX counts element types


def dequantize(low: Lowering, op: Op) -> Sequence[Val]:
    """(x - zero) * scale, computed in float32."""
    made, whole = _dequantized(low, op, "")
    return [_as_whole(low, low.cast(made, low.site.specs[op.outputs[0]].dtype), whole)]


def dequantize_for_sums(low: Lowering, op: Op) -> Sequence[Val]:
    """`dequantize` without the rounding to a half type: what is added to a sum stays in float32."""
    made, whole = _dequantized(low, op, "rl_number({0})")
    dtype = compute_dtype(low.site.specs[op.outputs[0]].dtype)
    return [_as_whole(low, low.cast(made, dtype), whole)]


def _dequantized(low: Lowering, op: Op, bytes_to_float: str) -> tuple[Val, tuple[int, ...] | None]:
    x, scale, zero, whole = _operands(low, op)
    is_mapped = bytes_to_float and x.dtype in ("int8", "uint8")
    wide = low.map(bytes_to_float, x, dtype="float32") if is_mapped else low.cast(x, "float32")
    if zero is not None:
        wide = low.map("{0} - {1}", wide, low.cast(zero, "float32"))
    return low.map("{0} * {1}", wide, low.cast(scale, "float32")), whole


def quantize(low: Lowering, op: Op) -> Sequence[Val]:
    """x / scale rounded to the nearest, ties to even, + zero, saturated; NaN becomes the least level."""
    x, scale, zero, whole = _operands(low, op)
    dtype = _levels_of(low, op)
    quotient = _quotient(low, op, "rl_levels", x, scale)
    if dtype in FLOAT8_LARGEST:
        return [_as_whole(low, to_float8(low, op, quotient, dtype), whole)]
    return [_as_whole(low, _codes(low, quotient, zero, dtype), whole)]


def quantize_sums(low: Lowering, op: Op) -> Sequence[Val]:
    """`quantize` of values that depend on the order of a sum: the quotient may be off in its last bits."""
    dtype = _levels_of(low, op)
    relu = low.site.body.producer(op.inputs[0])
    # sums of codes are finite, and a Relu of a number is a matter of where its levels begin
    is_relu = relu is not None and relu.op_type == "Relu" and dtype in LEVELS and _reads_codes(low)
    source = replace(op, inputs=(relu.inputs[0], *op.inputs[1:])) if relu is not None and is_relu else op
    x, scale, zero, whole = _operands(low, source)
    if zero is None and dtype in LEVELS and op.inputs[1] not in low.site.power_scales:
        least, most = LEVELS[dtype]
        ends = (low.constant(float(end), "float32") for end in (0 if is_relu else least, most))
        given = (low.cast(x, "float32"), low.cast(scale, "float32"), *ends)
        level = low.map("rl_codes_of_sums({0}, {1}, {2}, {3})", *given, dtype="int32")
        return [_as_whole(low, low.cast(level, dtype), whole)]
    if dtype not in FLOAT8_LARGEST:
        return quantize(low, op)
    quotient = _quotient(low, op, "rl_over_sums", x, scale)
    return [_as_whole(low, to_float8(low, op, quotient, dtype), whole)]


def _levels_of(low: Lowering, op: Op) -> str:
    """The dtype of the levels."""
    if int(op.attrs.get("precision", 0)) not in (0, FLOAT32):
        raise RefusedError("it divides in another type than float32")
    dtype = low.site.specs[op.outputs[0]].dtype
    if dtype not in FLOAT8_LARGEST and dtype not in LEVELS:
        raise RefusedError(f"levels are {dtype}, which has no type in generated kernels")
    return dtype


def _reads_codes(low: Lowering) -> bool:
    """Whether all that changes between runs is integers."""
    site = low.site
    return all(name in site.weights or site.specs[name].dtype in LEVELS for name in site.body.inputs)


def _quotient(low: Lowering, op: Op, divide: str, x: Val, scale: Val) -> Val:
    if op.inputs[1] in low.site.power_scales:
        divide = "rl_over_power"
    return low.map(f"{divide}({{0}}, {{1}})", low.cast(x, "float32"), low.cast(scale, "float32"))


def _codes(low: Lowering, quotient: Val, zero: Val | None, dtype: str) -> Val:
    zero = low.constant(0.0, "float32") if zero is None else low.cast(zero, "float32")
    ends = (low.constant(float(end), "float32") for end in LEVELS[dtype])
    return low.cast(low.map("rl_codes({0}, {1}, {2}, {3})", quotient, zero, *ends, dtype="int32"), dtype)


def to_float8(low: Lowering, op: Op, val: Val, dtype: str) -> Val:
    """A float32 value rounded to the nearest of a float8 type, ties to even, saturated; a NaN stays."""
    if not int(op.attrs.get("saturate", 1)):
        raise RefusedError(f"{op.op_type} to float8 without saturation")
    most = low.constant(FLOAT8_LARGEST[dtype], "float32")
    return low.cast(low.map("rl_for_float8({0}, {1})", val, most), dtype)


def _operands(low: Lowering, op: Op) -> tuple[Val, Val, Val | None, tuple[int, ...] | None]:
    """x, scale and zero point side by side, and the shape of x where it was cut into blocks for that."""
    x, scale = (low.value(name) for name in op.inputs[:2])
    zero = low.value(op.inputs[2]) if len(op.inputs) > 2 and op.inputs[2] else None
    if zero is not None and (low.scalar(zero) == 0.0 or zero.dtype == "float32"):
        zero = None  # those of float8 types are zero
    for name in op.inputs:
        if name and low.site.specs[name].dtype == "float64":
            raise RefusedError("scales in double")
    block = int(op.attrs.get("block_size", 0))
    axis = int(op.attrs.get("axis", 1))
    if block and _numel(scale) > 1:
        axis %= len(x.shape)
        if x.shape[axis] % block:
            raise RefusedError(f"the last block of {block} is not whole in {x.shape[axis]}")
        cut = (*x.shape[:axis], x.shape[axis] // block, block, *x.shape[axis + 1 :])
        blocks = (*cut[: axis + 1], 1, *cut[axis + 2 :])
        spread = None if zero is None else reshaped(low, zero, blocks)
        return reshaped(low, x, cut), reshaped(low, scale, blocks), spread, x.shape
    return x, _along(scale, x, axis), None if zero is None else _along(zero, x, axis), None


def _numel(val: Val) -> int:
    count = 1
    for size in val.shape:
        count *= size
    return count


def _along(val: Val, x: Val, axis: int) -> Val:
    """[C] as channels of x along `axis`; one number as a scalar."""
    if _numel(val) == 1:
        return replace(val, shape=(), axes=())
    after = len(x.shape) - 1 - axis % len(x.shape)
    return replace(val, shape=(*val.shape, *(1,) * after), axes=(*val.axes, *(ONE,) * after))


def _as_whole(low: Lowering, val: Val, shape: tuple[int, ...] | None) -> Val:
    return val if shape is None else reshaped(low, val, shape)
