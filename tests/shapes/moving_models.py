"""Models whose shapes move: a detector with NonMaxSuppression, decoders in a Loop, a Scan."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort

import ridgeline

HEAD = '<ir_version: 10, opset_import: ["": 20]>'


def model_of(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    onnx.checker.check_model(model)
    return model


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def own(model: onnx.ModelProto, **options: object) -> ridgeline.Engine:
    """Our own kernels, new shapes planned before they run."""
    given = {"level": 0, "verify": "off", "without": ("ort",), "new_shapes": "wait", **options}
    return ridgeline.build(model, **given)  # type: ignore[arg-type]


def close(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].shape == array.shape, name
        scale = float(np.abs(array).max(initial=0)) if array.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(got[name], array, rtol=0, atol=256 * 2.0**-23 * scale, err_msg=name)


def detector() -> onnx.ModelProto:
    """YOLO-style: a strided backbone, boxes on a grid that shape arithmetic makes, NMS, rows picked out."""
    text = """detector (float[1,3,H,W] image)
        => (float[K,4] boxes_out, float[K] scores_out, int64[K] classes_out) {
      c1 = Conv <kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]> (image, w1, b1)
      s1 = Sigmoid (c1)  a1 = Mul (c1, s1)
      c2 = Conv <kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]> (a1, w2, b2)
      s2 = Sigmoid (c2)  a2 = Mul (c2, s2)
      r1 = Conv <kernel_shape = [1,1]> (a2, w3, b3)  s3 = Sigmoid (r1)  a3 = Mul (r1, s3)  r2 = Add (a2, a3)
      head = Conv <kernel_shape = [1,1]> (r2, w4, b4)
      shape = Shape (head)
      hi = Constant <value_int = 2> ()  wi = Constant <value_int = 3> ()
      gh = Gather (shape, hi)  gw = Gather (shape, wi)
      zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()
      ys = Range (zero, gh, one)  xs = Range (zero, gw, one)
      ysf = Cast <to = 1> (ys)  xsf = Cast <to = 1> (xs)
      last = Constant <value_ints = [1]> ()  first = Constant <value_ints = [0]> ()
      ycol = Unsqueeze (ysf, last)  xrow = Unsqueeze (xsf, first)
      h1 = Unsqueeze (gh, first)  w1s = Unsqueeze (gw, first)  grid = Concat <axis = 0> (h1, w1s)
      yg = Expand (ycol, grid)  xg = Expand (xrow, grid)
      flat = Constant <value_ints = [-1]> ()
      yf = Reshape (yg, flat)  xf = Reshape (xg, flat)
      yrow = Unsqueeze (yf, first)  xrow2 = Unsqueeze (xf, first)
      centers = Concat <axis = 0> (yrow, xrow2)
      cell = Transpose <perm = [1, 0]> (centers)
      sizes = Constant <value_ints = [1, 8, -1]> ()
      pred8 = Reshape (head, sizes)
      pred = Transpose <perm = [0, 2, 1]> (pred8)
      parts = Constant <value_ints = [2, 2, 4]> ()
      off, ext, logits = Split <axis = 2> (pred, parts)
      offs = Sigmoid (off)  mid = Add (offs, cell)
      exts = Exp (ext)  half = Constant <value_float = 0.5> ()  hext = Mul (exts, half)
      low = Sub (mid, hext)  high = Add (mid, hext)
      boxes = Concat <axis = 2> (low, high)
      probs = Sigmoid (logits)
      scores = Transpose <perm = [0, 2, 1]> (probs)
      most = Constant <value_ints = [20]> ()
      iou = Constant <value_floats = [0.3]> ()  floor = Constant <value_floats = [0.4]> ()
      picked = NonMaxSuppression (boxes, scores, most, iou, floor)
      ci = Constant <value_ints = [1]> ()  bi = Constant <value_ints = [2]> ()
      cls = Gather <axis = 1> (picked, ci)  row = Gather <axis = 1> (picked, bi)
      classes_out = Squeeze (cls, last)
      rows = Squeeze (row, last)
      all_boxes = Squeeze (boxes, first)
      boxes_out = Gather <axis = 0> (all_boxes, rows)
      scores_all = Squeeze (scores, first)
      where = Concat <axis = 1> (cls, row)
      scores_out = GatherND (scores_all, where)
    }"""
    return model_of(
        text,
        w1=rand(8, 3, 3, 3, seed=1, scale=0.3), b1=rand(8, seed=2, scale=0.1),
        w2=rand(16, 8, 3, 3, seed=3, scale=0.2), b2=rand(16, seed=4, scale=0.1),
        w3=rand(16, 16, 1, 1, seed=5, scale=0.2), b3=rand(16, seed=6, scale=0.1),
        w4=rand(8, 16, 1, 1, seed=7, scale=0.8), b4=rand(8, seed=8, scale=0.1),
    )  # fmt: skip


DIM, VOCAB = 16, 32


def decoder(*, growing: bool) -> onnx.ModelProto:
    """Greedy decoding in a Loop: embed the last token, attend over the prompt (and over what was said)."""
    grow = "kv2 = Concat <axis = 0> (kv, e)" if growing else "kv2 = Identity (kv)"
    text = f"""greedy (float[S,16] memory, int64 start, int64 steps) => (int64 last, int64[K] tokens) {{
      going = Constant <value = bool {{1}}> ()
      mask = MatMul (memory, wm)
      last, kv_out, tokens = Loop (steps, going, start, mask) <body =
        step (int64 i, bool go, int64 token, float[T,16] kv)
            => (bool on, int64 next, float[T2,16] kv2, int64 said) {{
          first = Constant <value_ints = [0]> ()
          e1 = Gather (table, token)
          e = Unsqueeze (e1, first)
          q = MatMul (e, wq)
          kt = Transpose <perm = [1, 0]> (kv)
          s = MatMul (q, kt)
          scale = Constant <value_float = 0.25> ()
          ss = Mul (s, scale)
          p = Softmax <axis = -1> (ss)
          o = MatMul (p, kv)
          h = Add (o, e)
          h2 = MatMul (h, w1)
          h3 = Relu (h2)
          h4 = MatMul (h3, w2)
          r = Add (h, h4)
          logits = MatMul (r, wo)
          best = ArgMax <axis = 1, keepdims = 0> (logits)
          next = Squeeze (best)
          said = Identity (next)
          {grow}
          stop = Constant <value_int = -1> ()
          is_stop = Equal (next, stop)
          on = Not (is_stop)
        }} >
    }}"""
    return model_of(
        text,
        table=rand(VOCAB, DIM, seed=1), wm=rand(DIM, DIM, seed=2, scale=0.3),
        wq=rand(DIM, DIM, seed=3, scale=0.3), w1=rand(DIM, 64, seed=4, scale=0.3),
        w2=rand(64, DIM, seed=5, scale=0.3), wo=rand(DIM, VOCAB, seed=6),
    )  # fmt: skip
