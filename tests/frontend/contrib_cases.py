"""Ops that ONNX Runtime writes into files: name -> the opset beside them, and the graph in ONNX text."""

from __future__ import annotations

CASES: dict[str, tuple[int, str]] = {
    "fmm": (
        17,
        "(float[2,3,4,5] x, float[2,3,6,5] z) => (float[2,3,4,6] y) { y = "
        "com.microsoft.FusedMatMul<alpha=0.5,transB=1>(x,z) }",
    ),
    "fgemm": (
        17,
        "(float[3,4] x, float[5,4] w, float[5] b) => (float[3,5] y) { y = "
        'com.microsoft.FusedGemm<transB=1,alpha=0.7,beta=0.3,activation="LeakyRelu",'
        "activation_alpha=0.2>(x,w,b) "
        "}",
    ),
    "fgemm_alpha0": (
        17,
        "(float[3,4] x, float[4,5] w) => (float[3,5] y) { y = "
        'com.microsoft.FusedGemm<activation="LeakyRelu",activation_alpha=0.0>(x,w) }',
    ),
    "fconv": (
        17,
        "(float[1,3,6,6] x, float[4,3,3,3] w, float[4] b) => (float[1,4,6,6] y) { y = "
        'com.microsoft.FusedConv<pads=[1,1,1,1],kernel_shape=[3,3],activation="Clip",'
        "activation_params=[-0.5,1.0]>(x,w,b) "
        "}",
    ),
    "fconvadd": (
        17,
        "(float[1,3,6,6] x, float[4,3,3,3] w, float[4] b, float[1,4,6,6] z) => (float[1,4,6,6] y) { y "
        '= com.microsoft.FusedConv<pads=[1,1,1,1],kernel_shape=[3,3],activation="Relu">(x,w,b,z) }',
    ),
    "gelu": (
        17,
        "(float[3,4] x, float[4] b) => (float[3,4] y) { t = com.microsoft.Gelu(x) u = "
        "com.microsoft.BiasGelu(t,b) v = com.microsoft.FastGelu(u,b) w = com.microsoft.FastGelu(v) y "
        "= com.microsoft.QuickGelu(w) }",
    ),
    "skipln": (
        12,
        "(float[2,3,4] x, float[2,3,4] s, float[4] g, float[4] b, float[4] c) => (float[2,3,4] y, "
        "float[2,3,4] t) { y,m,i,t = com.microsoft.SkipLayerNormalization<epsilon=0.00001>(x,s,g,b,c) "
        "}",
    ),
    "skipsln": (
        17,
        "(float[2,3,4] x, float[2,3,4] s, float[4] g) => (float[2,3,4] y, float[2,3,4] t) { y,m,i,t = "
        "com.microsoft.SkipSimplifiedLayerNormalization<epsilon=0.00001>(x,s,g) }",
    ),
    "sln": (
        17,
        "(float[2,3,4] x, float[4] g) => (float[2,3,4] y) { y = "
        "SimplifiedLayerNormalization<axis=-1,epsilon=0.00001>(x,g) }",
    ),
    "sln2": (
        17,
        "(float[2,3,4] x, float[4] g) => (float[2,3,4] y, float[2,3,1] i) { y, i = "
        "SimplifiedLayerNormalization<axis=-1,epsilon=0.001>(x,g) }",
    ),
    "sln3": (
        17,
        "(float[2,3,4] x, float[3,4] g) => (float[2,3,4] y, float[2,1,1] i) { y, i = "
        "SimplifiedLayerNormalization<axis=1,epsilon=0.001>(x,g) }",
    ),
    "ln12": (
        12,
        "(float[2,3,4] x, float[4] g, float[4] b) => (float[2,3,4] y) { y = "
        "LayerNormalization<axis=-1,epsilon=0.00001>(x,g,b) }",
    ),
    "embed": (
        12,
        "(int32[2,5] ids, int32[2,5] seg, int32[2,5] mask, float[9,8] w, float[7,8] p, float[2,8] t, "
        "float[8] g, float[8] b) => (float[2,5,8] y, int32[2] m) { y,m = "
        "com.microsoft.EmbedLayerNormalization(ids,seg,w,p,t,g,b,mask) }",
    ),
    "embed_attn": (
        12,
        "(int32[2,5] ids, int32[2,5] mask, float[9,8] w, float[7,8] p, float[8] g, float[8] b, "
        "float[8,24] aw, float[24] ab) => (float[2,5,8] y) { e,m = "
        "com.microsoft.EmbedLayerNormalization(ids,,w,p,,g,b,mask) y = "
        "com.microsoft.Attention<num_heads=2>(e,aw,ab,m) }",
    ),
    "attn": (
        12,
        "(float[2,5,8] x, float[8,24] w, float[24] b, int32[2,5] mask) => (float[2,5,8] y) { y = "
        "com.microsoft.Attention<num_heads=2>(x,w,b,mask) }",
    ),
    "attn_causal": (
        12,
        "(float[2,5,8] x, float[8,24] w, float[24] b) => (float[2,5,8] y) { y = "
        "com.microsoft.Attention<num_heads=2,unidirectional=1>(x,w,b) }",
    ),
    "attn_past": (
        12,
        "(float[2,5,8] x, float[8,24] w, float[24] b, float[2,2,2,3,4] past) => (float[2,5,8] y, "
        "float[2,2,2,8,4] pr) { y,pr = "
        "com.microsoft.Attention<num_heads=2,unidirectional=1>(x,w,b,,past) }",
    ),
    "attn_sizes": (
        12,
        "(float[2,5,8] x, float[8,20] w, float[20] b) => (float[2,5,4] y) { y = "
        "com.microsoft.Attention<num_heads=2,qkv_hidden_sizes=[8,8,4]>(x,w,b) }",
    ),
    "mha": (
        17,
        "(float[2,5,8] q, float[2,6,8] k, float[2,6,8] v, float[24] b) => (float[2,5,8] y) { y = "
        "com.microsoft.MultiHeadAttention<num_heads=2>(q,k,v,b) }",
    ),
    "mha_bias_widths": (
        17,
        "(float[2,5,8] q, float[2,6,8] k, float[2,6,4] v, float[20] b) => (float[2,5,4] y) { y = "
        "com.microsoft.MultiHeadAttention<num_heads=2>(q,k,v,b) }",
    ),
    "mha_causal_keys": (
        17,
        "(float[2,3,8] q, float[2,5,8] k, float[2,5,8] v) => (float[2,3,8] y) { y = "
        "com.microsoft.MultiHeadAttention<num_heads=2,unidirectional=1>(q,k,v) }",
    ),
    "mha_negative": (
        17,
        "(float[2,5,8] q, float[2,6,8] k, float[2,6,8] v, int32[2,6] mask) => (float[2,5,8] y) "
        "<int32 two = {2}, int32 one = {1}> { t = Mul(mask, two) m = Sub(t, one) y = "
        "com.microsoft.MultiHeadAttention<num_heads=2>(q,k,v,,m) }",
    ),
    "mha_mask": (
        17,
        "(float[2,5,8] q, float[2,6,8] k, float[2,6,8] v, int32[2,6] mask, float[2,2,5,6] ab) => "
        "(float[2,5,8] y) { y = "
        "com.microsoft.MultiHeadAttention<num_heads=2,scale=0.3>(q,k,v,,mask,ab) }",
    ),
    "mha_past": (
        17,
        "(float[2,1,8] q, float[2,1,8] k, float[2,1,8] v, float[2,2,4,4] pk, float[2,2,4,4] pv) => "
        "(float[2,1,8] y, float[2,2,5,4] ok, float[2,2,5,4] ov) { y,ok,ov = "
        "com.microsoft.MultiHeadAttention<num_heads=2,unidirectional=1>(q,k,v,,,,pk,pv) }",
    ),
    "rot": (
        17,
        "(float[2,3,5,8] x, int64[2,5] p, float[9,4] c, float[9,4] s) => (float[2,3,5,8] y) { y = "
        "com.microsoft.RotaryEmbedding(x,p,c,s) }",
    ),
    "rot_heads": (
        17,
        "(float[2,5,8] x, int64[2,5] p, float[9,2] c, float[9,2] s) => (float[2,5,8] y) { y = "
        "com.microsoft.RotaryEmbedding(x,p,c,s) }",
    ),
    "rot1": (
        17,
        "(float[2,5,24] x, int64[1] p, float[9,4] c, float[9,4] s) => (float[2,5,24] y) { y = "
        "com.microsoft.RotaryEmbedding<interleaved=1,num_heads=3,rotary_embedding_dim=8>(x,p,c,s) }",
    ),
    "qadd": (
        13,
        "(float[2,3] x, float[2,3] z) => (float[2,3] y) <float s={0.02}, uint8 o={120}> { a = "
        "QuantizeLinear(x,s,o) b = QuantizeLinear(z,s,o) c = "
        "com.microsoft.QLinearAdd(a,s,o,b,s,o,s,o) d = com.microsoft.QLinearMul(c,s,o,b,s,o,s,o) e = "
        "com.microsoft.QLinearSigmoid(d,s,o,s,o) f = "
        "com.microsoft.QLinearLeakyRelu<alpha=0.2>(e,s,o,s,o) g = "
        "com.microsoft.QLinearConcat<axis=0>(s,o,f,s,o,a,s,o) h = "
        "com.microsoft.QLinearSoftmax<axis=-1,opset=13>(a,s,o,s,o) y = DequantizeLinear(h,s,o) }",
    ),
    "qcat": (
        13,
        "(float[2,3] x, float[2,3] z) => (float[4,3] y) <float s={0.02}, uint8 o={120}, float "
        "s2={0.03}, uint8 o2={110}> { a = QuantizeLinear(x,s,o) b = QuantizeLinear(z,s2,o2) g = "
        "com.microsoft.QLinearConcat<axis=0>(s2,o,a,s,o,b,s2,o2) y = DequantizeLinear(g,s2,o) }",
    ),
    "qpool": (
        13,
        "(float[1,2,4,4] x) => (float[1,2,1,1] y) <float s={0.02}, uint8 o={120}> { a = "
        "QuantizeLinear(x,s,o) b = "
        "com.microsoft.QLinearAveragePool<kernel_shape=[2,2],strides=[2,2]>(a,s,o,s,o) c = "
        "com.microsoft.QLinearGlobalAveragePool(b,s,o,s,o) y = DequantizeLinear(c,s,o) }",
    ),
    "qgemm": (
        13,
        "(float[3,4] x, float[5,4] w) => (float[3,5] y) <float s={0.02}, uint8 o={120}, float[5] "
        "ws={0.01,0.02,0.03,0.04,0.05}, int8[5] wo={0,0,0,0,0}, int32[5] b={100,-200,300,-400,500}> { "
        "a = QuantizeLinear(x,s,o) q = QuantizeLinear<axis=0>(w,ws,wo) y = "
        "com.microsoft.QGemm<transB=1>(a,s,o,q,ws,wo,b) }",
    ),
    "dqmm": (
        13,
        "(float[3,4] x, float[4,5] w, float[5] b) => (float[3,5] y) <float s={0.02}, uint8 o={120}> { "
        "q = QuantizeLinear(w,s,o) y = com.microsoft.DynamicQuantizeMatMul(x,q,s,o,b) }",
    ),
    "mmif": (
        13,
        "(float[3,4] x, float[4,5] w) => (float[3,5] y) <float s={0.02}, uint8 o={120}> { a = "
        "QuantizeLinear(x,s,o) q = QuantizeLinear(w,s,o) y = "
        "com.microsoft.MatMulIntegerToFloat(a,q,s,s,o,o) }",
    ),
    "msq": (
        13,
        "(float[3,4] x) => (float[3,4] y) <float s={0.0002}, uint16 o={32000}> { a = "
        "com.microsoft.QuantizeLinear(x,s,o) y = com.microsoft.DequantizeLinear(a,s,o) }",
    ),
    "nbits": (
        17,
        "(float[3,32] x, uint8[4,2,8] w, float[8] s) => (float[3,4] y) { y = "
        "com.microsoft.MatMulNBits<K=32,N=4,bits=4,block_size=16>(x,w,s) }",
    ),
    "inverse": (
        17,
        "(float[3,3] x) => (float[3,3] y) { y = com.microsoft.Inverse(x) }",
    ),
    "fmm_batch": (
        17,
        "(float[3,2,4,5] x, float[5,2,4,6] z) => (float[a,b,c,d] y) { y = "
        "com.microsoft.FusedMatMul<transBatchA=1,transBatchB=1>(x,z) }",
    ),
    "gqa": (
        17,
        "(float[1,4,32] q, float[1,4,16] k, float[1,4,16] v, float[1,2,8,8] pk, float[1,2,8,8] pv) => "
        "(float[1,4,32] y, float[1,2,8,8] ok, float[1,2,8,8] ov) <int32[1] sl={3}, int32[1] ts={4}> { "
        "y,ok,ov = com.microsoft.GroupQueryAttention<num_heads=4,kv_num_heads=2>(q,k,v,pk,pv,sl,ts) }",
    ),
}
