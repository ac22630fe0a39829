"""One graph for each rewrite rule, where it fires: what `test_rule_outcomes.py` runs at special values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """ONNX text; inputs that are weights become constants, named dims get these sizes."""

    body: str
    weights: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = (("B", 3),)
    judge: str = "onnxruntime"  # or "reference", where onnxruntime lacks what the rule writes
    # of no rows at all; "" where neither runs the model or what the rule writes
    judge_of_nothing: str = "reference"
    differs_at: tuple[str, ...] = ()


def _pointwise(lines: str) -> Example:
    return Example(f"""g (float[B,5] x) => (float[B,5] y)
        <float half = {{0.5}}, float one = {{1.0}}, float three = {{3.0}}, float zero = {{0.0}},
        float six = {{6.0}}, float root = {{1.4142135}}, float cubic = {{0.044715}},
        float slope = {{0.7978846}}, float four = {{4.0}}, int64[1] last = {{-1}}, float eps = {{1e-5}},
        float[5] w = {{1.0, 2.0, 3.0, -4.0, 5.0}}> {{
        {lines}
    }}""")


def _heads(lines: str, more: str = "", consts: str = "") -> Example:
    body = f"""g (float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v{more}) => (float[B,2,S,4] y)
        <float part = {{0.5}}, float zero = {{0.0}}{consts}> {{ {lines} }}"""
    return Example(body, sizes=(("B", 2), ("S", 3), ("T", 5)))


def _levels(lines: str, *, made: str = "float[B,6] y", zero: str = "z") -> Example:
    return Example(f"""g (float[B,6] x) => ({made})
        <float s = {{0.5}}, int8 z = {{3}}, int8 zero = {{0}}, int8 least = {{-128}}, float low = {{-70.0}},
        float high = {{64.0}}> {{
        q = QuantizeLinear(x, s, {zero})
        {lines}
    }}""")


def _dynamic(product: str, weight: str, x: str, y: str) -> Example:
    return Example(
        f"""g ({x}) => ({y})
        <{weight} = {{127, -128, 5, -7, 100, 33, -60, 1}}, float ws = {{0.01}}, int8 wz = {{3}}> {{
        q, s, z = DynamicQuantizeLinear(x)
        {product}
        f = Cast<to = 1>(i)
        u = Mul(s, ws)
        y = Mul(f, u)
    }}""",
        judge_of_nothing="",
    )


_GATE = "a = Add(x, three)\n c = Clip(a, zero, six)\n"
_SCORES = "kt = Transpose<perm = [0, 1, 3, 2]>(k)\n s = MatMul(q, kt)\n d = Mul(s, part)\n"
_CONV = "float[B,2,4,4] x, float[3,2,3,3] w, float[3] b"
_BN = "float[3] gamma, float[3] beta, float[3] mean"
_NORM = "d = Sub(x, mu)\n sq = Mul(d, d)\n var = ReduceMean(sq, last)\n g = Add(var, eps)\n s = Sqrt(g)\n"
_ROTARY = "float[B,2,S,4] x, float[1,1,S,4] cos0, float[1,1,S,4] sin0"
_HALVES = """i0 = Constant<value = int64[1] {0}>()
    i2 = Constant<value = int64[1] {2}>()
    i4 = Constant<value = int64[1] {4}>()
    i3 = Constant<value = int64[1] {3}>()
    front = Slice(x, i0, i2, i3)
    back = Slice(x, i2, i4, i3)
"""
_SMALL = (("B", 2), ("S", 3))

EXAMPLES: dict[str, Example] = {
    "GeluErf": _pointwise(
        "s = Div(x, root)\n e = Erf(s)\n c = Add(e, one)\n h = Mul(x, half)\n y = Mul(h, c)"
    ),
    "GeluTanh": _pointwise(
        "p = Pow(x, three)\n q = Mul(cubic, p)\n a = Add(x, q)\n s = Mul(a, slope)\n t = Tanh(s)\n"
        "c = Add(t, one)\n h = Mul(x, half)\n y = Mul(h, c)"
    ),
    "HardSwish": _pointwise(_GATE + "d = Div(c, six)\n y = Mul(x, d)"),
    "HardSigmoid": _pointwise(_GATE + "y = Div(c, six)"),
    "SpelledSwish": Example(
        "g (float[B,5] x) => (float[B,5] y) { y = Swish<alpha = 1.5>(x) }", judge="reference"
    ),
    "ClipFromMinMax": _pointwise("a = Max(x, zero)\n y = Min(a, six)"),
    "SoftmaxFromExp": _pointwise(
        "m = ReduceMax(x, last)\n d = Sub(x, m)\n e = Exp(d)\n s = ReduceSum(e, last)\n y = Div(e, s)"
    ),
    "FlatSoftmax": Example(
        "g (float[B,4,5] x) => (float[B,4,5] y) { s = Shape(x) f = Flatten<axis = 2>(x) p = Softmax(f)"
        " y = Reshape(p, s) }",
        judge_of_nothing="onnxruntime",
    ),
    "GlobalAverage": Example(
        "g (float[B,2,3,4] x) => (float[B,2,1,1] y) <int64[2] a = {2, 3}> { y = ReduceMean(x, a) }",
        judge_of_nothing="",
    ),
    "DivByPowerOfTwo": _pointwise("y = Div(x, four)"),
    "LayerNorm": _pointwise(
        "mu = ReduceMean(x, last)\n" + _NORM + "n = Div(d, s)\n m = Mul(n, w)\n y = Add(m, w)"
    ),
    "LayerNormByMoments": _pointwise(
        "mu = ReduceMean(x, last)\n" + _NORM + "i = Reciprocal(s)\n c = Mul(i, w)\n xs = Mul(x, c)\n"
        "ms = Mul(mu, c)\n h = Sub(w, ms)\n y = Add(xs, h)"
    ),
    "RMSNorm": _pointwise(
        "sq = Mul(x, x)\n v = ReduceMean(sq, last)\n g = Add(v, eps)\n s = Sqrt(g)\n"
        "n = Div(x, s)\n y = Mul(n, w)"
    ),
    "GroupNorm": Example("""g (float[B,4,3,3] x) => (float[B,4,3,3] y)
        <float[2] ones = {1.0, 1.0}, float[2] zeros = {0.0, 0.0}, int64[3] groups = {0, 2, -1},
        float[4,1,1] w = {1.0, 2.0, -1.0, 0.5}, float[4,1,1] b = {0.0, 1.0, 2.0, 3.0}> {
        sh = Shape(x) r = Reshape(x, groups) n = InstanceNormalization(r, ones, zeros) t = Reshape(n, sh)
        m = Mul(t, w) y = Add(m, b) }""",
        # as ONNX spells the op out, it subtracts the square of the mean from the mean of squares
        judge_of_nothing="", differs_at=("squares that overflow",)),
    "HalfSoftmax": Example(
        "g (float16[B,5] x) => (float16[B,5] y) { w = Cast<to = 1>(x) s = Softmax(w) y = Cast<to = 10>(s) }"
    ),
    "HalfNorm": Example("""g (float16[B,4] x) => (float16[B,4] y) <float[4] w = {1.0, 2.0, 0.5, -1.0}> {
        f = Cast<to = 1>(x) n = RMSNormalization(f, w) y = Cast<to = 10>(n) }"""),
    "FlatLinear": Example("""g (float[B,3,4] x, float[4,6] w, float[6] b) => (float[B,3,6] y)
        <int64[2] flat = {-1, 4}, int64[3] back = {-1, 3, 6}> {
        r = Reshape(x, flat) p = MatMul(r, w) l = Add(p, b) y = Reshape(l, back) }""", ("w", "b")),
    "FlatTranspose": Example("""g (float[B,2,3,4] x) => (float[B,2,4,3] y)
        <int64[3] flat = {-1, 3, 4}, int64[4] back = {-1, 2, 4, 3}> {
        r = Reshape(x, flat) t = Transpose<perm = [0, 2, 1]>(r) y = Reshape(t, back) }"""),
    "LinearOverHeads": Example("""g (float[B,3,2,4] x, float[8,6] w) => (float[B,3,6] y)
        <int64[2] flat = {-1, 8}, int64[3] back = {-1, 3, 6}> {
        r = Reshape(x, flat) p = MatMul(r, w) y = Reshape(p, back) }""", ("w",)),
    "IndexedByPosition": Example("""g (float[3] x) => (float[1,3] y)
        <int64[1,3,1] at = {0, 1, 2}> { y = GatherND(x, at) }"""),
    "EinsumLinear": Example("""g (float[B,3,4] x, float[4,2,5] w) => (float[B,3,2,5] y) {
        y = Einsum<equation = "abc,cde->abde">(x, w) }""", ("w",)),
    "EinsumProduct": Example("""g (float[B,3,4] x, float[B,5,4] z) => (float[B,3,5] y) {
        y = Einsum<equation = "abc,adc->abd">(x, z) }"""),
    "LinearThenRows": Example("""g (float[B,3,4] x, float[4,6] w) => (float[3,B,2,3] y)
        <int64[4] n = {0, 0, 2, 3}> {
        t = Transpose<perm = [1, 0, 2]>(x) l = MatMul(t, w) h = Reshape(l, n) y = Relu(h) }""", ("w",)),
    "RowsThenLinear": Example("""g (float[B,12] x, float[4,6] w) => (float[3,B,6] y)
        <int64[3] n = {0, 3, 4}> {
        t = Reshape(x, n) l = MatMul(t, w) s = Transpose<perm = [1, 0, 2]>(l) y = Relu(s) }""", ("w",)),
    "TurnedHalves": Example(f"""g ({_ROTARY}) => (float[B,2,S,4] y) {{
        {_HALVES} c = Slice(cos0, i0, i2, i3) cos = Concat<axis = 3>(c, c)
        e = Slice(sin0, i0, i2, i3) sin = Concat<axis = 3>(e, e)
        n = Neg(back) turned = Concat<axis = 3>(n, front)
        a = Mul(x, cos) b = Mul(turned, sin) y = Add(a, b) }}""", sizes=_SMALL, judge="reference"),
    "TurnedPairs": Example(f"""g ({_ROTARY.replace("S,4] cos0", "S,2] cos").replace("S,4] sin0", "S,2] sin")})
        => (float[B,2,S,4] y) {{ {_HALVES}
        a = Mul(front, cos) b = Mul(back, sin) left = Sub(a, b) c = Mul(back, cos) e = Mul(front, sin)
        right = Add(c, e) y = Concat<axis = 3>(left, right) }}""", sizes=_SMALL, judge="reference"),
    "PartlyTurned": Example(f"""g (float[B,2,S,4] x, float[B,S,1] cos, float[B,S,1] sin)
        => (float[B,2,S,4] y) {{ {_HALVES} r = RotaryEmbedding(front, cos, sin)
        y = Concat<axis = 3>(r, back) }}""", sizes=_SMALL, judge="reference"),
    "SpelledRotary": Example("""g (float[B,2,S,4] x, float[B,S,2] cos, float[B,S,2] sin)
        => (float[B,2,S,4] y) { y = RotaryEmbedding(x, cos, sin) }""", sizes=_SMALL, judge="reference"),
    "MaskOfWindows": Example("""g (float[6,2,4,3] x, float[1,3,1,4,3] m) => (float[6,2,4,3] y)
        <int64[5] n = {-1, 3, 2, 4, 3}, int64[4] back = {-1, 2, 4, 3}> {
        s = Reshape(x, n) a = Add(s, m) y = Reshape(a, back) }""", ("m",)),
    "SoftmaxAttention": _heads(
        _SCORES + "a = Add(d, m)\n p = Softmax(a)\n y = MatMul(p, v)", ", float[B,1,S,T] m"
    ),
    "PackedHeads": Example("""g (float[B,3,24] x) => (float[B,2,3,4] y)
        <int64[5] n = {0, 3, 3, 2, 4}, int64 one = {1}> {
        r = Reshape(x, n) t = Transpose<perm = [2, 0, 3, 1, 4]>(r) y = Gather<axis = 0>(t, one) }"""),
    "AttentionOverColumns": Example("""g (float[B,3,8] q, float[B,5,8] k, float[B,5,8] v) => (float[B,3,8] y)
        <int64[4] n = {0, 0, 2, 4}, int64[3] back = {0, 0, 8}> {
        a = Reshape(q, n) b = Reshape(k, n) c = Reshape(v, n) d = Transpose<perm = [0, 2, 1, 3]>(a)
        e = Transpose<perm = [0, 2, 1, 3]>(b) f = Transpose<perm = [0, 2, 1, 3]>(c)
        o = Attention(d, e, f) t = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(t, back) }""",
        judge_of_nothing=""),
    "ScaledQueries": Example("""g (float[B,3,8] x, float[B,2,5,4] k, float[B,2,5,4] v) => (float[B,2,3,4] y)
        <int64[4] n = {0, 0, 2, 4}, float part = {0.25}> {
        q = Mul(x, part) r = Reshape(q, n) t = Transpose<perm = [0, 2, 1, 3]>(r) y = Attention(t, k, v) }"""),
    "CausalMask": Example("""g (float[B,2,3,4] q, float[B,2,3,4] k, float[B,2,3,4] v) => (float[B,2,3,4] y)
        <bool[3,3] m = {1, 0, 0, 1, 1, 0, 1, 1, 1}> { y = Attention(q, k, v, m) }"""),
    "BooleanMask": _heads(
        "low = Div(minus, zero)\n m = Where(ok, zero, low)\n y = Attention(q, k, v, m)", ", bool[B,1,S,T] ok",
        ", float minus = {-1.0}",
    ),
    "SpreadPadding": Example("""g (int64[B,1,1,4] x) => (bool[B,1,3,4] y) <int64[4] n = {1, 1, 3, 1}> {
        c = Cast<to = 9>(x) y = Expand(c, n) }"""),
    "MeanOfImage": Example("""g (float[B,2,3,4] x) => (float[B,2] y) {
        m = GlobalAveragePool(x) y = Flatten(m) }""", judge_of_nothing=""),
    "PatchesToRows": Example(f"""g ({_CONV}) => (float[B,4,3] y) <int64[3] n = {{0, 3, 4}}> {{
        c = Conv(x, w, b) r = Reshape(c, n) y = Transpose<perm = [0, 2, 1]>(r) }}""", ("w", "b")),
    "RowsToImage": Example("""g (float[B,4,3] x, float[2,3,1,1] w) => (float[B,2,2,2] y)
        <int64[4] n = {0, 3, 2, 2}> {
        t = Transpose<perm = [0, 2, 1]>(x) r = Reshape(t, n) y = Conv(r, w) }""", ("w",)),
    "TokenInFront": Example("""g (float[B,3,4] x, float[1,1,4] w, float[1,4,4] p) => (float[B,4,4] y)
        <int64[2] rest = {1, 4}> {
        n = Shape<start = 0, end = 1>(x) sh = Concat<axis = 0>(n, rest) k = Expand(w, sh)
        c = Concat<axis = 1>(k, x) y = Add(c, p) }""", ("w", "p")),
    "BatchNormIntoWeights": Example(f"""g ({_CONV}, {_BN}) => (float[B,3,2,2] y)
        <float[3] var = {{1.0, 2.0, 0.5}}> {{
        c = Conv(x, w, b) y = BatchNormalization(c, gamma, beta, mean, var) }}""",
        ("w", "b", "gamma", "beta", "mean")),
    "BatchNormAlone": Example(f"""g (float[B,3,2,2] x, {_BN}) => (float[B,3,2,2] y)
        <float[3] var = {{1.0, 2.0, 0.5}}> {{ y = BatchNormalization(x, gamma, beta, mean, var) }}""",
        ("gamma", "beta", "mean")),
    "ScaleIntoConv": Example(f"""g ({_CONV}, float[3,1,1] s) => (float[B,3,2,2] y) {{
        c = Conv(x, w, b) y = Mul(c, s) }}""", ("w", "b", "s")),
    "ShiftIntoConv": Example(f"""g ({_CONV}, float[3,1,1] s) => (float[B,3,2,2] y) {{
        c = Conv(x, w, b) y = Add(c, s) }}""", ("w", "b", "s")),
    "PadIntoWindow": Example(f"""g ({_CONV}) => (float[B,3,4,4] y)
        <int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}> {{ p = Pad(x, pads) y = Conv(p, w, b) }}""", ("w", "b")),
    "NoZeroPoint": _levels("y = DequantizeLinear(q, s, zero)", zero="zero"),
    "SignedWeights": Example("""g (float[B,3] x) => (float[B,2] y)
        <uint8[3,2] w = {0, 255, 128, 127, 129, 7}, float[2] s = {0.5, 0.25}, uint8[2] z = {128, 128}> {
        v = DequantizeLinear<axis = 1>(w, s, z) y = MatMul(x, v) }"""),
    "LevelsAgain": _levels("d = DequantizeLinear(q, s, z)\n p = QuantizeLinear(d, s, z)\n"
        "y = DequantizeLinear(p, s, z)"),
    "DequantizeLate": _levels("d = DequantizeLinear(q, s, z)\n y = Transpose(d)", made="float[6,B] y"),
    "QuantizeEarly": _levels(
        "d = Neg(x)\n t = Transpose(d)\n y = QuantizeLinear(t, s, z)", made="int8[6,B] y"),
    "DequantizeBehindConcat": _levels(
        "d = DequantizeLinear(q, s, z)\n n = Neg(x)\n p = QuantizeLinear(n, s, z)\n"
        "e = DequantizeLinear(p, s, z)\n y = Concat<axis = 1>(d, e, d)", made="float[B,18] y"),
    "QuantizeBeforeConcat": _levels(
        "d = Neg(x)\n t = Concat<axis = -1>(d, x)\n y = QuantizeLinear(t, s, z)", made="int8[B,12] y"),
    "ReluOfLevels": _levels("d = DequantizeLinear(q, s, least)\n y = Relu(d)", zero="least"),
    "ReluIntoLevels": _levels("r = Relu(x)\n y = QuantizeLinear(r, s, least)", made="int8[B,6] y"),
    "ClipIntoLevels": _levels("r = Clip(x, low, high)\n y = QuantizeLinear(r, s, z)", made="int8[B,6] y"),
    "QLinearConvAsConv": Example("""g (float[B,2,3,3] x) => (uint8[B,3,3,3] y)
        <float s = {0.05}, uint8 z = {131}, int8[3,2,1,1] w = {127, -128, 5, -7, 100, 33},
        float[3] ws = {0.01, 0.02, 0.007}, int8[3] wz = {0, 3, -1}, float ys = {0.1}, uint8 yz = {7},
        int32[3] b = {300, -5000, 17}> {
        q = QuantizeLinear(x, s, z)
        y = QLinearConv(q, s, z, w, ws, wz, ys, yz, b) }""", judge="reference", judge_of_nothing=""),
    "QLinearMatMulAsMatMul": Example("""g (float[B,3] x) => (int8[B,2] y)
        <float s = {0.05}, int8 z = {-7}, int8[3,2] w = {127, -128, 5, -7, 100, 33},
        float[2] ws = {0.01, 0.02}, int8[2] wz = {0, 3}, float ys = {0.1}, int8 yz = {7}> {
        q = QuantizeLinear(x, s, z)
        y = QLinearMatMul(q, s, z, w, ws, wz, ys, yz) }"""),
    "IntegerMatMul": _dynamic(
        "i = MatMulInteger(q, w, z, wz)", "int8[4,2] w", "float[B,4] x", "float[B,2] y"),
    "IntegerConv": _dynamic("i = ConvInteger<pads = [1, 1, 1, 1]>(q, w, z, wz)", "int8[2,1,2,2] w",
        "float[B,1,3,3] x", "float[B,2,4,4] y"),
}  # fmt: skip
