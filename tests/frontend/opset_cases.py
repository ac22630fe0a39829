"""Graphs whose meaning changed between opsets: name -> the opsets to read it at, and its ONNX text."""

from __future__ import annotations

REDUCTIONS = (
    "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip

CASES: dict[str, tuple[tuple[int, ...], str]] = {
    "softmax_axis1": (
        (7, 12),
        "(float[2,3,4,5] x) => (float[2,3,4,5] y) { y = Softmax<axis=1>(x) }",
    ),
    "softmax_default": (
        (7, 12),
        "(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }",
    ),
    "softmax_dyn1": (
        (7, 12),
        "(float[N,3,S] x) => (float[N,3,S] y) { y = Softmax<axis=1>(x) }",
    ),
    "logsoftmax": (
        (7, 12),
        "(float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax<axis=1>(x) }",
    ),
    "hardmax": (
        (7, 12),
        "(float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax<axis=1>(x) }",
    ),
    "slice": (
        (7, 9),
        "(float[4,5,6] x) => (float[a,b,c] y) { y = Slice<axes=[1,2],starts=[1,-3],ends=[4,100]>(x) }",
    ),
    "slice10": (
        (10, 11, 12),
        "(float[4,5,6] x) => (float[a,b,c] y) <int64[2] s={1,-1}, int64[2] e={4,0}, int64[2] "
        "ax={1,2}, int64[2] st={1,-2}> { y = Slice(x,s,e,ax,st) }",
    ),
    "upsample_attr": (
        (7, 8),
        "(float[1,2,3,4] x) => (float[1,2,6,8] y) { y = "
        'Upsample<mode="nearest",scales=[1.0,1.0,2.0,2.0]>(x) }',
    ),
    "upsample_attr_lin": (
        (7, 8),
        "(float[1,2,3,4] x) => (float[1,2,6,8] y) { y = "
        'Upsample<mode="linear",scales=[1.0,1.0,2.0,2.0]>(x) }',
    ),
    "upsample_in": (
        (9,),
        "(float[1,2,3,4] x) => (float[1,2,6,8] y) <float[4] s={1.0,1.0,2.0,2.0}> { y = "
        'Upsample<mode="linear">(x,s) }',
    ),
    "upsample_in_n": (
        (9,),
        "(float[1,2,3,4] x) => (float[1,2,6,8] y) <float[4] s={1.0,1.0,2.0,2.0}> { y = Upsample(x,s) }",
    ),
    "upsample_frac": (
        (9,),
        "(float[1,2,3,4] x) => (float[1,2,4,6] y) <float[4] s={1.0,1.0,1.5,1.5}> { y = Upsample(x,s) }",
    ),
    "resize10": (
        (10,),
        "(float[1,2,4,6] x) => (float[a,b,c,d] y) <float[4] s={1.0,1.0,0.6,1.7}> { y = Resize(x,s) }",
    ),
    "resize10down": (
        (10,),
        "(float[1,2,4,6] x) => (float[a,b,c,d] y) <float[4] s={1.0,1.0,0.6,0.7}> { y = Resize(x,s) }",
    ),
    "resize10up": (
        (10,),
        "(float[1,2,4,6] x) => (float[a,b,c,d] y) <float[4] s={1.0,1.0,1.6,1.7}> { y = Resize(x,s) }",
    ),
    "resize10lin": (
        (10,),
        "(float[1,2,4,6] x) => (float[a,b,c,d] y) <float[4] s={1.0,1.0,0.6,1.7}> { y = "
        'Resize<mode="linear">(x,s) }',
    ),
    "resize11": (
        (11, 12),
        "(float[1,2,4,6] x) => (float[a,b,c,d] y) <float[0] roi={}, float[4] s={1.0,1.0,0.6,1.7}> { y "
        '= Resize<mode="cubic">(x,roi,s) }',
    ),
    "resize11tf": (
        (11, 12),
        "(float[1,2,4,6] x) => (float[a,b,c,d] y) <float[0] roi={}, float[4] s={1.0,1.0,1.5,1.5}> { y "
        "= "
        'Resize<mode="nearest",coordinate_transformation_mode="tf_half_pixel_for_nn",'
        'nearest_mode="floor">(x,roi,s) '
        "}",
    ),
    "pad2": (
        (7, 9, 10),
        "(float[2,3,4,5] x) => (float[a,b,c,d] y) { y = Pad<pads=[0,0,1,2,0,0,2,1],value=0.5>(x) }",
    ),
    "pad2r": (
        (7, 9, 10),
        '(float[2,3,4,5] x) => (float[a,b,c,d] y) { y = Pad<pads=[0,0,1,2,0,0,2,1],mode="reflect">(x) }',
    ),
    "pad2e": (
        (7, 9, 10),
        '(float[2,3,4,5] x) => (float[a,b,c,d] y) { y = Pad<pads=[0,0,1,2,0,0,2,-1],mode="edge">(x) }',
    ),
    "clip6": (
        (7, 9, 10),
        "(float[3,4] x) => (float[3,4] y) { y = Clip<min=-0.3,max=0.4>(x) }",
    ),
    "clip6min": (
        (7, 9, 10),
        "(float[3,4] x) => (float[3,4] y) { y = Clip<min=-0.3>(x) }",
    ),
    "clip6none": (
        (7, 9, 10),
        "(float[3,4] x) => (float[3,4] y) { y = Clip(x) }",
    ),
    "dropout7": (
        (7, 11),
        "(float[3,4] x) => (float[3,4] y) { z = Dropout<ratio=0.3>(x) y = Relu(z) }",
    ),
    "batchnorm": (
        (7, 14),
        "(float[2,3,4,4] x) => (float[2,3,4,4] y) <float[3] s={1.0,2.0,0.5}, float[3] "
        "b={0.1,0.2,0.3}, float[3] m={0.0,0.5,1.0}, float[3] v={1.0,2.0,3.0}> { y = "
        "BatchNormalization<epsilon=0.001>(x,s,b,m,v) }",
    ),
    "split2": (
        (7, 12),
        "(float[6,4] x) => (float[2,4] a, float[4,4] b) { a,b = Split<axis=0,split=[2,4]>(x) }",
    ),
    "split2eq": (
        (7, 17),
        "(float[6,4] x) => (float[6,2] a, float[6,2] b) { a,b = Split<axis=1>(x) }",
    ),
    "squeeze": (
        (7, 12),
        "(float[1,3,1,4] x) => (float[3,4] y) { y = Squeeze<axes=[0,2]>(x) }",
    ),
    "squeeze_none": (
        (7, 12),
        "(float[1,3,1,4] x) => (float[3,4] y) { y = Squeeze(x) }",
    ),
    "squeeze_neg": (
        (11, 12),
        "(float[1,3,1,4] x) => (float[1,3,4] y) { y = Squeeze<axes=[-2]>(x) }",
    ),
    "unsqueeze": (
        (7, 12),
        "(float[3,4] x) => (float[1,3,4,1] y) { y = Unsqueeze<axes=[0,3]>(x) }",
    ),
    "reducesum": (
        (7, 12),
        "(float[2,3,4] x) => (float[2,1,4] y) { y = ReduceSum<axes=[1]>(x) }",
    ),
    "reducesum_all": (
        (7, 12),
        "(float[2,3,4] x) => (float y) { y = ReduceSum<keepdims=0>(x) }",
    ),
    "topk1": (
        (7, 9),
        "(float[3,6] x) => (float[3,2] v, int64[3,2] i) { v,i = TopK<k=2,axis=1>(x) }",
    ),
    "topk10": (
        (10,),
        "(float[3,6] x) => (float[3,2] v, int64[3,2] i) <int64[1] k={2}> { v,i = TopK<axis=-1>(x,k) }",
    ),
    "topk11": (
        (11,),
        "(float[3,6] x) => (float[3,2] v, int64[3,2] i) <int64[1] k={2}> { v,i = "
        "TopK<axis=-1,largest=0>(x,k) }",
    ),
    "scatter9": (
        (9, 10),
        "(float[3,3] x) => (float[3,3] y) <int64[2,3] i={1,0,2,0,2,1}, float[2,3] "
        "u={1.0,1.1,1.2,2.0,2.1,2.2}> { y = Scatter<axis=0>(x,i,u) }",
    ),
    "gather": (
        (7, 12),
        "(float[5,3] x) => (float[2,3] y) <int64[2] i={4,0}> { y = Gather(x,i) }",
    ),
    "cast": (
        (7, 18),
        "(float[3,4] x) => (int32[3,4] y) { z = Mul(x,x) y = Cast<to=6>(z) }",
    ),
    "maxpool": (
        (7, 12),
        "(float[1,2,6,6] x) => (float[a,b,c,d] y) { y = "
        "MaxPool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(x) }",
    ),
    "maxpool_same": (
        (7, 12),
        "(float[1,2,6,7] x) => (float[a,b,c,d] y) { y = "
        'MaxPool<kernel_shape=[3,3],strides=[2,2],auto_pad="SAME_LOWER">(x) }',
    ),
    "avgpool": (
        (7, 19),
        "(float[1,2,6,6] x) => (float[a,b,c,d] y) { y = "
        "AveragePool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(x) }",
    ),
    "avgpool_ceil": (
        (10, 19),
        "(float[1,2,7,7] x) => (float[a,b,c,d] y) { y = "
        "AveragePool<kernel_shape=[3,3],strides=[2,2],ceil_mode=1,count_include_pad=1,pads=[0,0,1,1]>(x) "
        "}",
    ),
    "flatten": (
        (7, 12),
        "(float[2,3,4] x) => (float[6,4] y) { y = Flatten<axis=2>(x) }",
    ),
    "gemm7": (
        (7, 11),
        "(float[3,4] x) => (float[3,2] y) <float[4,2] w={1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0}, float[2] "
        "b={0.5,0.6}> { y = Gemm<alpha=0.5,beta=2.0>(x,w,b) }",
    ),
    "prelu7": (
        (7, 9, 15),
        "(float[2,3,4] x) => (float[2,3,4] y) <float[3,1] s={0.1,0.2,0.3}> { y = PRelu(x,s) }",
    ),
    "reshape5": (
        (7, 13),
        "(float[2,3,4] x) => (float[a,b] y) <int64[2] s={0,-1}> { y = Reshape(x,s) }",
    ),
    "argmax": (
        (7, 12),
        "(float[3,4] x) => (int64[3,1] y) { y = ArgMax<axis=1>(x) }",
    ),
    "onehot": (
        (9, 10, 11),
        "(float[3] x) => (float[3,5] y) <int64 d={5}, float[2] v={0.0,1.0}> { z = Abs(x) i = "
        "Cast<to=7>(z) y = OneHot(i,d,v) }",
    ),
    "lstm7": (
        (7, 13),
        "(float[5,2,3] x, float[1,16,3] w, float[1,16,4] r) => (float[5,1,2,4] y, float[1,2,4] h) { "
        "y,h = LSTM<hidden_size=4>(x,w,r) }",
    ),
    "gru7": (
        (7, 13),
        "(float[5,2,3] x, float[2,12,3] w, float[2,12,4] r) => (float[5,2,2,4] y, float[2,2,4] h) { "
        'y,h = GRU<hidden_size=4,direction="bidirectional",linear_before_reset=1>(x,w,r) }',
    ),
    "rnn7": (
        (7, 13),
        "(float[5,2,3] x, float[1,4,3] w, float[1,4,4] r) => (float[5,1,2,4] y, float[1,2,4] h) { y,h "
        "= RNN<hidden_size=4>(x,w,r) }",
    ),
    "instnorm": (
        (7, 21),
        "(float[2,3,4] x) => (float[2,3,4] y) <float[3] s={1.0,2.0,0.5}, float[3] b={0.1,0.2,0.3}> { "
        "y = InstanceNormalization(x,s,b) }",
    ),
    "groupnorm18": (
        (18, 20),
        "(float[2,4,5] x) => (float[2,4,5] y) <float[2] s={1.0,2.0}, float[2] b={0.1,0.2}> { y = "
        "GroupNormalization<num_groups=2>(x,s,b) }",
    ),
    "gridsample16": (
        (16, 17, 19),
        "(float[1,2,4,5] x, float[1,3,3,2] g) => (float[1,2,3,3] y) { y = "
        'GridSample<mode="bilinear",align_corners=1>(x,g) }',
    ),
    "gridsample16c": (
        (16, 17, 19),
        "(float[1,2,4,5] x, float[1,3,3,2] g) => (float[1,2,3,3] y) { y = "
        'GridSample<mode="bicubic",padding_mode="border">(x,g) }',
    ),
    "layernorm": (
        (17, 18),
        "(float[2,3,4] x) => (float[2,3,4] y) <float[4] s={1.0,2.0,0.5,1.0}, float[4] "
        "b={0.1,0.2,0.3,0.0}> { y = LayerNormalization(x,s,b) }",
    ),
    "dft17": (
        (17, 19),
        "(float[1,8,2] x) => (float[1,8,2] y) { y = DFT<axis=1>(x) }",
    ),
    "dft17r": (
        (17, 19),
        "(float[1,8,1] x) => (float[1,5,2] y) { y = DFT<axis=1,onesided=1>(x) }",
    ),
    "equal7": (
        (7, 11, 13),
        "(float[3] x, float[3] z) => (bool[3] y) { a=Cast<to=6>(x) b=Cast<to=6>(z) y = Equal(a,b) }",
    ),
    "quant10": (
        (10, 19),
        "(float[3,4] x) => (float[3,4] y) <float s={0.05}, uint8 z={120}> { q = QuantizeLinear(x,s,z) "
        "y = DequantizeLinear(q,s,z) }",
    ),
    "nms10": (
        (10,),
        "(float[1,6,4] x, float[1,1,6] sc) => (int64[a,3] y) <int64 m={3}, float t={0.5}, float "
        "st={0.1}> { b=Abs(x) y = NonMaxSuppression(b,sc,m,t,st) }",
    ),
    "sum_mean": (
        (8, 13),
        "(float[3,4] x, float[1,4] z) => (float[3,4] y) { a = Sum(x,z) b = Mean(a,x) c = Max(b,z) y = "
        "Min(c,x) }",
    ),
    "if_old": (
        (7, 12),
        "(float[2,3,4] x, float[1] c) => (float[2,4] y) <float[1] zero={0.0}> { d = Greater(c,zero) y "
        "= If(d) <then_branch = t () => (float[2,4] o) { o = ReduceSum<axes=[1],keepdims=0>(x) }, "
        "else_branch = e () => (float[2,4] o2) { m = ReduceMax<axes=[1],keepdims=1>(x) o2 = "
        "Squeeze<axes=[1]>(m) }> }",
    ),
    "loop_old": (
        (7, 9, 10),
        "(float[3,4] x) => (float[3,4] y, float[a,1,3,4] s) <int64 n={3}, bool c={1}> { y,s = "
        "Loop(n,c,x) <body = b (int64 i, bool ci, float[3,4] v) => (bool co, float[3,4] w, "
        "float[1,3,4] u) { co = Identity(ci) k = Clip<min=-0.5,max=0.9>(v) w = Add(k,x) u = "
        "Unsqueeze<axes=[0]>(w) }> }",
    ),
    "scan9": (
        (9, 11, 16),
        "(float[2] i, float[5,2] x) => (float[2] f, float[5,2] y) { f,y = Scan(i,x) "
        "<num_scan_inputs=1, body = b (float[2] s, float[2] v) => (float[2] t, float[2] u) { t = "
        "Add(s,v) u = Relu(t) }> }",
    ),
    "upsample_dyn": (
        (9,),
        "(float[1,2,H,W] x) => (float[a,b,c,d] y) { sh = Shape(x) st = Slice<starts=[2],ends=[4]>(sh) "
        "f = Cast<to=1>(st) t = Constant<value=float[2]{2.0,2.0}>() m = Mul(f,t) n = Div(m,f) o = "
        "Constant<value=float[2]{1.0,1.0}>() s = Concat<axis=0>(o,n) y = Upsample(x,s) }",
    ),
    "convtranspose": (
        (7, 11),
        "(float[1,2,4,4] x, float[2,3,3,3] w) => (float[a,b,c,d] y) { y = "
        "ConvTranspose<strides=[2,2],output_padding=[1,1],pads=[1,1,1,1]>(x,w) }",
    ),
    "cumsum": (
        (11, 14),
        "(float[3,4] x) => (float[3,4] y) <int32 a={1}> { y = CumSum<reverse=1>(x,a) }",
    ),
    "eyelike_nonzero": (
        (9, 13),
        "(float[3,4] x) => (float[3,4] y, int64[2,n] z) { y = EyeLike(x) z = NonZero(y) }",
    ),
    "maxunpool": (
        (9, 11),
        "(float[1,1,4,4] x) => (float[1,1,4,4] y) { v,i = "
        "MaxPool<kernel_shape=[2,2],strides=[2,2]>(x) y = "
        "MaxUnpool<kernel_shape=[2,2],strides=[2,2]>(v,i) }",
    ),
    "expand8": (
        (8, 13),
        "(float[3,1] x) => (float[2,3,4] y) <int64[3] s={2,3,4}> { y = Expand(x,s) }",
    ),
    "roialign10": (
        (10, 16),
        "(float[1,2,8,8] x, float[2,4] r) => (float[a,b,c,d] y) <int64[2] i={0,0}> { q=Abs(r) "
        "k=Constant<value=float[4]{0.0,0.0,5.0,5.0}>() b=Add(q,k) y = "
        "RoiAlign<output_height=2,output_width=2,sampling_ratio=2>(x,b,i) }",
    ),
    "if_inner": (
        (9, 10, 11, 12),
        "(float[2,3,4,4] x, float[1] c) => (float[2,3,4,4] y) <float[1] zero={0.0}> { d = "
        "Greater(c,zero) y = If(d) <then_branch = t () => (float[2,3,4,4] o) { h = Hardmax<axis=1>(x) "
        "o = Add(h,x) }, else_branch = e () => (float[2,3,4,4] o2) { o2 = Softmax<axis=1>(x) }> }",
    ),
    "if_resize": (
        (10,),
        "(float[1,1,4,4] x, float[1] c) => (float[a,b,d,e] y) <float[1] zero={0.0}, float[4] "
        "s={1.0,1.0,1.5,1.5}> { d = Greater(c,zero) y = If(d) <then_branch = t () => (float[a,b,d,e] "
        'o) { o = Resize<mode="linear">(x,s) }, else_branch = e () => (float[a,b,d,e] o2) { o2 = '
        "Resize(x,s) }> }",
    ),
    "hardmax2": (
        (7, 12),
        "(float[2,N,4] x) => (float[2,N,4] y) { z = Hardmax<axis=2>(x) y = Add(z,x) }",
    ),
    "scan8": (
        (8,),
        "(float[3,2] i, float[3,5,2] x) => (float[3,2] f, float[3,5,1,2] y) { f,y = Scan(,i,x) "
        "<num_scan_inputs=1, body = b (float[2] s, float[2] v) => (float[2] t, float[1,2] u) { t = "
        "Add(s,v) r = Clip<min=0.0>(t) u = Unsqueeze<axes=[0]>(r) }> }",
    ),
    "scan8rev": (
        (8,),
        "(float[3,2] i, float[3,5,2] x) => (float[3,2] f, float[3,5,2] y) { f,y = Scan(,i,x) "
        "<num_scan_inputs=1, directions=[1], body = b (float[2] s, float[2] v) => (float[2] t, "
        "float[2] u) { t = Add(s,v) u = Relu(t) }> }",
    ),
    **{
        kind.lower(): (
            (7, 17),
            f"(float[2,3,4] x) => (float[2,4] y) {{ z = Abs(x) y = {kind}<axes=[1],keepdims=0>(z) }}",
        )
        for kind in REDUCTIONS
    },
}
