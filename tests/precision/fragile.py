"""Models that break in fp16 when everything is lowered: one for each way that is known."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

OPSET = 20
RNG = np.random.default_rng(5)


def model(text: str, opset: int = OPSET, **weights: np.ndarray) -> onnx.ModelProto:
    """A graph in ONNX text, with arrays as its weights."""
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return made


def weight(*shape: int, scale: float = 1.0) -> np.ndarray:
    made = np.random.default_rng(shape).standard_normal(shape) * scale / math.sqrt(shape[0])
    return np.asarray(made.astype(np.float32))


def layer_norm_overflow() -> onnx.ModelProto:
    """Squares of large activations, in a spelling that no rule knows as a norm."""
    return model(
        """g (float[N,64] x) => (float[N,32] y) {
            h = MatMul(x, w)
            p = Pow(h, two)
            v = ReduceMean(p, axis)
            s = Sqrt(v)
            n = Div(h, s)
            y = MatMul(n, u)
        }""",
        w=weight(64, 64, scale=900.0), u=weight(64, 32),
        two=np.array(2, np.float32), axis=np.array([-1], np.int64),
    )  # fmt: skip


def residual_stream() -> onnx.ModelProto:
    """Activations that grow past 65,504 along a residual stream, and are normalised at the end."""
    lines = ["g (float[N,64] x) => (float[N,64] y) {"]
    weights, value = {}, "x"
    for i in range(6):
        lines += [f"h{i} = MatMul({value}, w{i})", f"a{i} = Relu(h{i})", f"r{i} = Add({value}, a{i})"]
        weights[f"w{i}"] = weight(64, 64, scale=12.0)
        value = f"r{i}"
    lines += [f"y = LayerNormalization<axis = -1>({value}, g)", "}"]
    return model("\n".join(lines), **weights, g=np.ones(64, np.float32))


def many_keys() -> onnx.ModelProto:
    """A softmax over 65,536 keys, whose sum of exponentials no fp16 holds."""
    return model(
        """g (float[N,4,8] q) => (float[N,4,8] y) {
            kt = Transpose<perm = [1, 0]>(k)
            s = MatMul(q, kt)
            e = Exp(s)
            t = ReduceSum(e, axis)
            p = Div(e, t)
            y = MatMul(p, v)
        }""",
        k=weight(65536, 8, scale=20.0), v=weight(65536, 8, scale=256.0), axis=np.array([-1], np.int64),
    )  # fmt: skip


def running_sum() -> onnx.ModelProto:
    """A running sum whose differences are read: late steps are lost in half."""
    return model(
        """g (float[N,4000] x) => (float[N,3999] y) {
            a = Abs(x)
            c = CumSum(a, axis)
            late = Slice(c, one, end, one)
            early = Slice(c, zero, last, one)
            y = Sub(late, early)
        }""",
        axis=np.array(1, np.int64), one=np.array([1], np.int64), zero=np.array([0], np.int64),
        end=np.array([4000], np.int64), last=np.array([3999], np.int64),
    )  # fmt: skip


def exploding_logits() -> onnx.ModelProto:
    """Logits of tens of thousands, of which a softmax reads the differences."""
    return model(
        """g (float[N,64] x) => (float[N,16] y) {
            h = MatMul(x, w)
            l = Add(h, b)
            y = Softmax<axis = -1>(l)
        }""",
        w=weight(64, 16, scale=3.0), b=(50_000 + RNG.standard_normal(16)).astype(np.float32),
    )  # fmt: skip


def weight_norm() -> onnx.ModelProto:
    """Weights divided by their norm at run time, where squares of small weights vanish."""
    return model(
        """g (float[N,64] x) => (float[N,32] y) {
            h = MatMul(x, v)
            sq = Mul(h, h)
            t = ReduceSum(sq, axis)
            n = Sqrt(t)
            d = Div(h, n)
            y = MatMul(d, u)
        }""",
        v=weight(64, 64, scale=1e-4), u=weight(64, 32), axis=np.array([-1], np.int64),
    )  # fmt: skip


def variance_of_squares() -> onnx.ModelProto:
    """E[x²] − E[x]² far from zero."""
    return model(
        """g (float[N,256] x) => (float[N,256] y) {
            h = Add(x, off)
            sq = Mul(h, h)
            m2 = ReduceMean(sq, axis)
            m = ReduceMean(h, axis)
            mm = Mul(m, m)
            v = Sub(m2, mm)
            e = Add(v, eps)
            s = Sqrt(e)
            c = Sub(h, m)
            y = Div(c, s)
        }""",
        off=np.array(60, np.float32), eps=np.array(1e-3, np.float32), axis=np.array([-1], np.int64),
    )  # fmt: skip


def grid_coordinates() -> onnx.ModelProto:
    """An image read at coordinates that half types cannot tell apart."""
    ramp = np.linspace(-1, 1, 1024, dtype=np.float32)
    grid = np.stack(np.meshgrid(ramp, ramp[:2]), -1)[None].astype(np.float32)
    return model(
        """g (float[1,1,8,1024] x) => (float[1,1,2,1024] y) {
            moved = Add(grid, step)
            y = GridSample<align_corners = 1>(x, moved)
        }""",
        grid=grid, step=np.array(0.0003, np.float32),
    )  # fmt: skip


def subnormal_weights() -> onnx.ModelProto:
    """Weights below the smallest normal fp16, scaled up again behind the product."""
    return model(
        """g (float[N,64] x) => (float[N,32] y) {
            h = MatMul(x, w)
            s = Mul(h, big)
            y = Tanh(s)
        }""",
        w=weight(64, 32, scale=1e-7), big=np.array(1e7, np.float32),
    )  # fmt: skip


def sinkhorn() -> onnx.ModelProto:
    """Normalisation of rows and columns in the log domain, as SuperGlue matches points."""
    lines = ["g (float[N,24,32] a, float[N,24,32] b) => (float[N,24,24] y) {"]
    lines += ["bt = Transpose<perm = [0, 2, 1]>(b)", "s = MatMul(a, bt)", "z0 = Mul(s, sharp)"]
    value = "z0"
    for i in range(12):
        axis = "rows" if i % 2 else "columns"
        lines += [f"l{i} = ReduceLogSumExp({value}, {axis})", f"z{i + 1} = Sub({value}, l{i})"]
        value = f"z{i + 1}"
    lines += [f"y = Exp({value})", "}"]
    return model(
        "\n".join(lines), sharp=np.array(40, np.float32),
        rows=np.array([1], np.int64), columns=np.array([2], np.int64),
    )  # fmt: skip


def positions() -> onnx.ModelProto:
    """Angles of positions up to 8,000: a sine of a rounded angle is another number."""
    frequencies = (1.0 / 10000 ** (np.arange(16) / 16)).astype(np.float32)
    return model(
        """g (int64[N] p, float[N,16] x) => (float[N,16] y) {
            f = Cast<to = 1>(p)
            c = Unsqueeze(f, last)
            angle = Mul(c, w)
            s = Sin(angle)
            y = Mul(x, s)
        }""",
        w=frequencies, last=np.array([1], np.int64),
    )  # fmt: skip


def difference_of_large() -> onnx.ModelProto:
    """A distance by |a|² + |b|² − 2ab of points that lie near one another and far from zero."""
    return model(
        """g (float[N,16] x) => (float[N,8] y) {
            a = Add(x, off)
            aa = Mul(a, a)
            na = ReduceSum(aa, axis)
            ab = MatMul(a, bt)
            two = Mul(ab, minus)
            part = Add(na, two)
            y = Add(part, nb)
        }""",
        off=np.array(20, np.float32), axis=np.array([-1], np.int64), minus=np.array(-2, np.float32),
        bt=(20 + RNG.standard_normal((16, 8))).astype(np.float32),
        nb=np.full(8, 16 * 401, np.float32),
    )  # fmt: skip


FRAGILE = {
    made.__name__: made
    for made in (
        layer_norm_overflow, residual_stream, many_keys, running_sum, exploding_logits, weight_norm,
        variance_of_squares, grid_coordinates, subnormal_weights, sinkhorn, positions, difference_of_large,
    )
}  # fmt: skip


def samples(name: str, count: int = 6) -> list[dict[str, np.ndarray]]:
    """Inputs of one of these models."""
    rng = np.random.default_rng(8)
    graph = FRAGILE[name]().graph
    made = []
    for _ in range(count):
        feeds = {}
        for port in graph.input:
            kind = port.type.tensor_type
            shape = [dim.dim_value or 2 for dim in kind.shape.dim]
            if kind.elem_type == TensorProto.INT64:
                feeds[port.name] = rng.integers(0, 8000, shape)
            else:
                feeds[port.name] = rng.standard_normal(shape).astype(np.float32)
        made.append(feeds)
    return made
