"""Small models, at least one for each family of kernels, that the hostile fuzzer starts from."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

HEAD = '<ir_version: 10, opset_import: ["" : 23]>\n'

# weights are given as name -> shape; everything else is ONNX text
GRAPHS: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "layer_norm": (
        "m (float[N, 40] x) => (float[N, 40] y) { y = LayerNormalization <axis = -1> (x, s, b) }",
        {"s": (40,), "b": (40,)},
    ),
    "rms_norm": (
        "m (float[3, 24] x) => (float[3, 24] y) { y = RMSNormalization <axis = -1> (x, s) }",
        {"s": (24,)},
    ),
    "instance_norm": (
        "m (float[2, 5, 6, 7] x) => (float[2, 5, 6, 7] y) { y = InstanceNormalization (x, s, b) }",
        {"s": (5,), "b": (5,)},
    ),
    "group_norm": (
        "m (float[2, 6, 4, 4] x) => (float[2, 6, 4, 4] y)"
        " { y = GroupNormalization <num_groups = 3> (x, s, b) }",
        {"s": (6,), "b": (6,)},
    ),
    "prelu": ("m (float[2, 5, 6] x) => (float[2, 5, 6] y) { y = PRelu (x, s) }", {"s": (5, 1)}),
    "pointwise": (
        "m (float[4, N] x, float[4, 1] z) => (float[4, N] y) { a = Add (x, b) c = Mul (a, z) y = Tanh (c) }",
        {"b": (4, 1)},
    ),
    "softmax": (
        "m (float[N, 9] x) => (float[N, 9] y) { a = Add (x, b) y = Softmax <axis = -1> (a) }",
        {"b": (9,)},
    ),
    "reduce": (
        "m (float[3, 4, 8] x) => (float[3, 4, 1] y)"
        " { a = Mul (x, b) t = Constant <value_ints = [-1]> () y = ReduceSum <keepdims = 1> (a, t) }",
        {"b": (4, 8)},
    ),
    "gemv": (
        "m (float[1, 33] x) => (float[1, 17] y) { a = MatMul (x, w) y = Add (a, b) }",
        {"w": (33, 17), "b": (17,)},
    ),
    "gemm": (
        "m (float[N, 20] x) => (float[N, 24] y) { a = Gemm <transB = 1> (x, w, b) y = Relu (a) }",
        {"w": (24, 20), "b": (24,)},
    ),
    "conv1x1": (
        "m (float[1, 8, 5, 6] x) => (float[1, 16, 3, 3] y) { y = Conv <strides = [2, 2]> (x, w, b) }",
        {"w": (16, 8, 1, 1), "b": (16,)},
    ),
    "conv_small": (
        "m (float[2, 3, 9, 9] x) => (float[2, 16, 5, 5] y)"
        " { a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w, b) y = Relu (a) }",
        {"w": (16, 3, 3, 3), "b": (16,)},
    ),
    "conv_rows": (
        "m (float[1, 12, 20] x) => (float[1, 10, 18] y) { y = Conv <dilations = [1]> (x, w) }",
        {"w": (10, 12, 3)},
    ),
    "depthwise": (
        "m (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)"
        " { a = Conv <pads = [1, 1, 1, 1], group = 16> (x, w) y = Clip (a, lo, hi) }",
        {"w": (16, 1, 3, 3), "lo": (), "hi": ()},
    ),
    "conv_transpose": (
        "m (float[1, 4, 5, 5] x) => (float[1, 6, 10, 10] y)"
        " { y = ConvTranspose <strides = [2, 2], kernel_shape = [2, 2]> (x, w) }",
        {"w": (4, 6, 2, 2)},
    ),
    "lstm": (
        "m (float[5, 2, 6] x) => (float[5, 1, 2, 8] y, float[1, 2, 8] h)"
        ' { y, h, c = LSTM <hidden_size = 8, direction = "forward"> (x, w, r, b) }',
        {"w": (1, 32, 6), "r": (1, 32, 8), "b": (1, 64)},
    ),
    "lstm_both": (
        "m (float[4, 3, 6] x, float[2, 3, 8] h0, float[2, 3, 8] c0) => (float[4, 2, 3, 8] y)"
        ' { y, h, c = LSTM <hidden_size = 8, direction = "bidirectional"> (x, w, r, b, , h0, c0) }',
        {"w": (2, 32, 6), "r": (2, 32, 8), "b": (2, 64)},
    ),
    "gru": (
        "m (float[4, 2, 5] x, int32[2] n) => (float[4, 1, 2, 7] y)"
        " { y, h = GRU <hidden_size = 7, linear_before_reset = 1> (x, w, r, b, n) }",
        {"w": (1, 21, 5), "r": (1, 21, 7), "b": (1, 42)},
    ),
    "rnn": (
        "m (float[4, 2, 5] x) => (float[4, 1, 2, 7] y) { y, h = RNN <hidden_size = 7> (x, w, r) }",
        {"w": (1, 7, 5), "r": (1, 7, 7)},
    ),
    "attention": (
        "m (float[2, 4, 6, 8] q, float[2, 4, 5, 8] k, float[2, 4, 5, 8] v) => (float[2, 4, 6, 8] y)"
        " { y = Attention (q, k, v, mask) }",
        {"mask": (6, 5)},
    ),
    "moves": (
        "m (float[2, 3, 8] x) => (float[2, 6, 4] y, float[2, 3, 12] p)"
        " { a, c = Split <axis = 2, num_outputs = 2> (x) y = Concat <axis = 1> (a, c)"
        " e = Constant <value_ints = [0, 0, 2, 0, 0, 2]> () p = Pad (x, e) }",
        {},
    ),
    "slices": (
        "m (float[6, 9] x) => (float[3, 4] y)"
        " { s = Constant <value_ints = [5, 1]> () e = Constant <value_ints = [-7, 9]> ()"
        " t = Constant <value_ints = [0, 1]> () k = Constant <value_ints = [-2, 2]> ()"
        " y = Slice (x, s, e, t, k) }",
        {},
    ),
    "gather": ("m (int64[3] i) => (float[3, 7] y) { y = Gather (w, i) }", {"w": (11, 7)}),
    "shuffle": (
        "m (float[1, 8, 3, 3] x) => (float[1, 2, 6, 6] y)"
        " { a = DepthToSpace <blocksize = 2> (x) y = Mul (a, s) }",
        {"s": (2, 1, 1)},
    ),
    "integers": (
        "m (int64[4, 5] x, int64[5] z) => (int64[4, 5] y) { a = Div (x, z) c = Mod (x, z) y = Add (a, c) }",
        {},
    ),
    "pools": (
        "m (float[1, 3, 8, 8] x) => (float[1, 3, 4, 4] y, float[1, 3, 1, 1] g)"
        " { y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) g = GlobalAveragePool (x) }",
        {},
    ),
    "layers": (
        "m (float[N, 16] x) => (float[N, 16] y)"
        " { a = MatMul (x, w) c = Add (a, b) d = Gelu (c) e = MatMul (d, v) f = Add (e, x)"
        " y = LayerNormalization <axis = -1> (f, s, t) }",
        {"w": (16, 32), "b": (32,), "v": (32, 16), "s": (16,), "t": (16,)},
    ),
}


def make_model(name: str) -> onnx.ModelProto:
    text, weights = GRAPHS[name]
    model = parser.parse_model(HEAD + text)
    rng = np.random.default_rng(len(name))
    for key, shape in weights.items():
        array = rng.normal(size=shape).astype(np.float32) * 0.3
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), key))
    return model
