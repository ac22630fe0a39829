"""Quantised ops of com.microsoft: what they round and where, as standard ops in ONNX text."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ridgeline.frontend.contrib_call import Call, Definition

INTEGERS = (ir.DataType.UINT8, ir.DataType.INT8)


def _real(call: Call, name: str) -> str:
    """A quantised input as real numbers, `<name>_real`; its zero point may be absent."""
    return f"{name}_real = DequantizeLinear({call.reads(name, f'{name}_scale', maybe=(f'{name}_zero',))})"


def _rounded(call: Call, like: str) -> str:
    """`y_real` rounded to the output's integers: the type of its zero point, else that of an input."""
    if call.has("y_zero"):
        return "y = QuantizeLinear(y_real, y_scale, y_zero)"
    kind = call.dtype(like)
    call.require(kind in INTEGERS)
    return f"y = QuantizeLinear<output_dtype = {kind}>(y_real, y_scale)"


def _between(text: Callable[[Call], str], *operands: str) -> Callable[[Call], str]:
    """Operands as real numbers, then `text`, which computes `y_real`, then the rounding."""
    return lambda call: " ".join(
        [*(_real(call, n) for n in operands), text(call), _rounded(call, operands[0])]
    )


def _plain(op: str, *operands: str) -> Callable[[Call], str]:
    return lambda call: f"y_real = {op}({', '.join(f'{n}_real' for n in operands)})"


def _leaky_relu(call: Call) -> str:
    return f"y_real = LeakyRelu<alpha = {call.get('alpha', 0.01):.9e}>(x_real)"


def _softmax(call: Call) -> str:
    axis = call.get("axis", -1)
    call.require(call.get("opset", 13) >= 13 or axis == -1 or axis + 1 == call.rank("x"))
    return f"y_real = Softmax<axis = {axis}>(x_real)"


def _global_pool(call: Call) -> str:
    call.require(not call.get("channels_last", 0))
    return "y_real = GlobalAveragePool(x_real)"


def _average_pool(call: Call) -> str:
    call.require(not call.get("channels_last", 0))
    attrs = [f"{key} = {list(call.get(key))}" for key in ("kernel_shape", "pads", "strides") if call.get(key)]
    attrs += [f"{key} = {call.get(key, 0)}" for key in ("ceil_mode", "count_include_pad")]
    attrs.append(f'auto_pad = "{call.get("auto_pad", "NOTSET")}"')
    return f"y_real = AveragePool<{', '.join(attrs)}>(x_real)"


def _concat(call: Call) -> str:
    """The output's scale first, then each input with its own."""
    count = sum(name.startswith("part") for name in call.given) // 3
    parts = [
        f"real{i} = DequantizeLinear({call.reads(maybe=[f'part{3 * i + j}' for j in range(3)])})"
        for i in range(count)
    ]
    joined = ", ".join(f"real{i}" for i in range(count))
    made = f"y_real = Concat<axis = {call.get('axis')}>({joined})"
    return " ".join([*parts, made, _rounded(call, "part0")])


def _gemm(call: Call) -> str:
    if call.has("bias"):  # integers in units of both scales
        bias = (
            "bias_float = Cast<to = 1>(bias) unit = Mul(a_scale, b_scale) bias_real = Mul(bias_float, unit) "
        )
        reads = "a_real, b_real, bias_real"
    else:
        bias, reads = "", "a_real, b_real"
    axis = 0 if call.get("transB", 0) else 1  # the columns of the product
    second = f"b_real = DequantizeLinear<axis = {axis}>({call.reads('b', 'b_scale', maybe=('b_zero',))})"
    alpha = call.get("alpha", 1.0)
    attrs = f"alpha = {alpha:.9e}, beta = {alpha:.9e}"
    attrs += f", transA = {call.get('transA', 0)}, transB = {call.get('transB', 0)}"
    last = _rounded(call, "a") if call.has("y_scale") else "y = Identity(y_real)"
    return f"{_real(call, 'a')} {second} {bias}y_real = Gemm<{attrs}>({reads}) {last}"


def _scaled(call: Call, product: str) -> str:
    """An integer product in real numbers, with its bias."""
    text = f"{product} wide = Cast<to = 1>(whole) unit = Mul(a_scale, b_scale) real = Mul(wide, unit)"
    return f"{text} y = {call.plus('real', 'bias')}"


def _matmul_integer_to_float(call: Call) -> str:
    return _scaled(call, f"whole = MatMulInteger({call.reads('a', 'b', maybe=('a_zero', 'b_zero'))})")


def _dynamic_quantize_matmul(call: Call) -> str:
    first = "a, a_scale, a_zero = DynamicQuantizeLinear(x)"
    return _scaled(
        call, f"{first} whole = MatMulInteger({call.reads('a', 'b', 'a_zero', maybe=('b_zero',))})"
    )


_UNARY = ("x", "x_scale", "x_zero", "y_scale", "y_zero")
_BINARY = ("a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero")
DEFINITIONS = {
    "QLinearAdd": Definition(_BINARY, ("y",), _between(_plain("Add", "a", "b"), "a", "b")),
    "QLinearMul": Definition(_BINARY, ("y",), _between(_plain("Mul", "a", "b"), "a", "b")),
    "QLinearSigmoid": Definition(_UNARY, ("y",), _between(_plain("Sigmoid", "x"), "x")),
    "QLinearLeakyRelu": Definition(_UNARY, ("y",), _between(_leaky_relu, "x")),
    "QLinearSoftmax": Definition(_UNARY, ("y",), _between(_softmax, "x")),
    "QLinearGlobalAveragePool": Definition(_UNARY, ("y",), _between(_global_pool, "x")),
    "QLinearAveragePool": Definition(_UNARY, ("y",), _between(_average_pool, "x")),
    "QLinearConcat": Definition(("y_scale", "y_zero", "part*"), ("y",), _concat),
    "QGemm": Definition(
        ("a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "bias", "y_scale", "y_zero"), ("y",), _gemm
    ),
    "MatMulIntegerToFloat": Definition(
        ("a", "b", "a_scale", "b_scale", "a_zero", "b_zero", "bias"), ("y",), _matmul_integer_to_float
    ),
    "DynamicQuantizeMatMul": Definition(
        ("x", "b", "b_scale", "b_zero", "bias"), ("y",), _dynamic_quantize_matmul
    ),
}  # fmt: skip
