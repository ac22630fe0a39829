"""One half-precision network with ten faults in it, each of which can be mended by itself.

A fault is a branch of its own: the same work as a modeller might have written it, and as it should be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser

HEAD = '<ir_version: 11, opset_import: ["": 23]>'


@dataclass(frozen=True)
class Branch:
    """A piece of the network: its ports as ONNX text has them, its nodes and its weights."""

    inputs: str
    outputs: str
    nodes: str
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """What a finding is expected for, the node it names, and the branch without the fault."""

    kind: str
    node: str
    planted: Branch
    mended: Branch


def half(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.05).astype(np.float16)


def network(branches: Sequence[Branch]) -> onnx.ModelProto:
    """All branches side by side in one model."""
    inputs, outputs = (", ".join(getattr(b, side) for b in branches) for side in ("inputs", "outputs"))
    text = f"{HEAD} net ({inputs}) => ({outputs}) {{ {' '.join(b.nodes for b in branches)} }}"
    model = onnx.parser.parse_model(text)
    for branch in branches:
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(array, name) for name, array in branch.weights.items()
        )
    return model


def planted(mended: Collection[str] = ()) -> onnx.ModelProto:
    """The network with its faults, but for those that are mended."""
    return network([fault.mended if fault.kind in mended else fault.planted for fault in FAULTS])


def _product() -> Fault:
    """A hidden size of 1021: rows of the activation start anywhere."""

    def branch(depth: int) -> Branch:
        return Branch(
            f"float16[2048,{depth}] ali_x", "float16[2048,1024] ali_y", "ali_y = MatMul (ali_x, ali_w)",
            {"ali_w": half(depth, 1024)},
        )  # fmt: skip

    return Fault("alignment", "ali_y", branch(1021), branch(1024))


def _channels() -> Fault:
    """A convolution of 61 channels."""

    def branch(channels: int) -> Branch:
        return Branch(
            "float16[1,8,56,56] cha_x", "float16[1,8,56,56] cha_y",
            """cha_a = Conv (cha_x, cha_v) cha_r = Relu (cha_a)
            cha_c = Conv <pads = [1, 1, 1, 1]> (cha_r, cha_w) cha_y = Conv (cha_c, cha_u)""",
            {
                "cha_v": half(channels, 8, 1, 1), "cha_w": half(channels, channels, 3, 3),
                "cha_u": half(8, channels, 1, 1),
            },
        )  # fmt: skip

    return Fault("channels", "cha_c", branch(61), branch(64))


def _residual() -> Fault:
    """A position table's projection is made once and added to every image of the batch."""
    weights = {"res_w": half(64, 512)}
    nodes = "res_p = MatMul (res_x, res_w) res_s = Add (res_p, res_r) res_y = Relu (res_s)"
    ports = ("float16[8,256,512] res_r", "float16[8,256,512] res_y")
    return Fault(
        "broadcast_residual", "res_s",
        Branch(f"float16[1,256,64] res_x, {ports[0]}", ports[1], nodes, weights),
        Branch(f"float16[8,256,64] res_x, {ports[0]}", ports[1], nodes, weights),
    )  # fmt: skip


def _attention() -> Fault:
    """Scores in float32, because somebody wrote .float() around them."""
    shape = "float16[1,4,64,64]"
    ports = (f"{shape} att_q, {shape} att_k, {shape} att_v", f"{shape} att_y")
    turn = "Transpose <perm = [0, 1, 3, 2]>"
    return Fault(
        "precision_island", "att_s",
        Branch(*ports, f"""att_qf = Cast <to = 1> (att_q) att_kf = Cast <to = 1> (att_k)
            att_t = {turn} (att_kf) att_s = MatMul (att_qf, att_t) att_p = Softmax <axis = -1> (att_s)
            att_h = Cast <to = 10> (att_p) att_y = MatMul (att_h, att_v)"""),
        Branch(*ports, f"""att_t = {turn} (att_k) att_s = MatMul (att_q, att_t)
            att_p = Softmax <axis = -1> (att_s) att_y = MatMul (att_p, att_v)"""),
    )  # fmt: skip


def _gather() -> Fault:
    """Classes that a product makes and a Gather picks out of its last axis."""
    picked, weight = np.random.default_rng(0).permutation(1024)[:128], half(64, 1024)
    ports = ("float16[4096,64] gat_x", "float16[4096,128] gat_y")
    return Fault(
        "gather_axis", "gat_y",
        Branch(*ports, "gat_a = MatMul (gat_x, gat_w) gat_y = Gather <axis = -1> (gat_a, gat_i)",
               {"gat_w": weight, "gat_i": picked}),
        Branch(*ports, "gat_y = MatMul (gat_x, gat_w)", {"gat_w": np.ascontiguousarray(weight[:, picked])}),
    )  # fmt: skip


def _levels() -> Fault:
    """Numbers are quantised for a softmax, which computes with numbers."""
    scale = {"qdq_s": np.float16(0.02), "qdq_z": np.int8(0)}
    ports = ("float16[2048,1024] qdq_x", "float16[2048,1024] qdq_y")
    return Fault(
        "unfused_qdq", "qdq_q",
        Branch(*ports, """qdq_q = QuantizeLinear (qdq_x, qdq_s, qdq_z)
            qdq_d = DequantizeLinear (qdq_q, qdq_s, qdq_z) qdq_y = Softmax <axis = -1> (qdq_d)""", scale),
        Branch(*ports, "qdq_y = Softmax <axis = -1> (qdq_x)"),
    )  # fmt: skip


def _transposes() -> Fault:
    """Channels are turned to the front for a scale that could be turned instead."""
    ports = ("float16[4,256,128] lay_x", "float16[4,256,128] lay_y")
    scale, turn = half(128, 1), "Transpose <perm = [0, 2, 1]>"
    return Fault(
        "layout", "lay_t",
        Branch(*ports, f"""lay_t = {turn} (lay_x) lay_m = Mul (lay_t, lay_c) lay_g = Sigmoid (lay_m)
            lay_y = {turn} (lay_g)""", {"lay_c": scale}),
        Branch(*ports, "lay_m = Mul (lay_x, lay_c) lay_y = Sigmoid (lay_m)", {"lay_c": scale.reshape(128)}),
    )  # fmt: skip


def _tiny() -> Fault:
    """Experts one by one, each with an input of its own."""
    count = 4
    arrays = [half(64, 64, seed=i) for i in range(count)]
    return Fault(
        "tiny_kernels", "tin_y0",
        Branch(
            ", ".join(f"float16[32,64] tin_x{i}" for i in range(count)),
            ", ".join(f"float16[32,64] tin_y{i}" for i in range(count)),
            " ".join(f"tin_y{i} = MatMul (tin_x{i}, tin_w{i})" for i in range(count)),
            {f"tin_w{i}": array for i, array in enumerate(arrays)},
        ),
        Branch(f"float16[{count},32,64] tin_x", f"float16[{count},32,64] tin_y",
               "tin_y = MatMul (tin_x, tin_w)", {"tin_w": np.stack(arrays)}),
    )  # fmt: skip


def _sinh() -> Fault:
    ports = ("float16[256,256] flo_x", "float16[256,256] flo_y")
    return Fault(
        "floor_op", "flo_y",
        Branch(*ports, "flo_y = Sinh (flo_x)"),
        Branch(*ports, """flo_e = Exp (flo_x) flo_n = Neg (flo_x) flo_f = Exp (flo_n)
            flo_s = Sub (flo_e, flo_f) flo_y = Mul (flo_s, flo_h)""", {"flo_h": np.float16(0.5)}),
    )  # fmt: skip


def _top_one() -> Fault:
    ports = ("float16[64,1024] top_x", "float16[64,1] top_y")
    return Fault(
        "topk", "top_y",
        Branch(*ports, "top_y, top_i = TopK <axis = -1> (top_x, top_k)", {"top_k": np.array([1])}),
        Branch(*ports, "top_y = ReduceMax <keepdims = 1> (top_x, top_a)", {"top_a": np.array([-1])}),
    )  # fmt: skip


def _output() -> Fault:
    """A value in the middle of a chain is returned as well, left over from debugging."""
    weights = {"out_w": half(64, 1024), "out_b": half(1024)}
    nodes = "out_a = MatMul (out_x, out_w) out_s = Add (out_a, out_b) out_y = Relu (out_s)"
    given, made = "float16[1024,64] out_x", "float16[1024,1024] out_y"
    return Fault(
        "kept_output", "out_a",
        Branch(given, f"{made}, float16[1024,1024] out_a", nodes, weights),
        Branch(given, made, nodes, weights),
    )  # fmt: skip


def _twice() -> Fault:
    """One sum written twice, its operands the other way round."""
    shape = "float16[256,256]"
    given, made = f"{shape} dup_x, {shape} dup_z", f"{shape} dup_y, {shape} dup_u"
    return Fault(
        "duplicate", "dup_b",
        Branch(given, made, """dup_a = Add (dup_x, dup_z) dup_b = Add (dup_z, dup_x)
            dup_y = Softmax <axis = -1> (dup_a) dup_u = Softmax <axis = -1> (dup_b)"""),
        Branch(given, f"{shape} dup_y", "dup_a = Add (dup_x, dup_z) dup_y = Softmax <axis = -1> (dup_a)"),
    )  # fmt: skip


FAULTS = (
    _product(), _channels(), _residual(), _attention(), _gather(), _levels(), _transposes(), _tiny(), _sinh(),
    _output(),
)  # fmt: skip
OTHERS = (_top_one(), _twice())
