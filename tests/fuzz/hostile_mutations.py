"""Changes that an attacker would make to a model or to an engine file: shapes, attributes, tactics, order.

Hashes are made again after every change: a file that only fails its checksum shows nothing.
"""

from __future__ import annotations

import hashlib
import json
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ridgeline.runtime.file import WEIGHTS

SIZES = (-1, 0, 1, 2, 3, 5, 7, 8, 16, 33, 64, 1000, 2**20, 2**31, 2**33, 2**62, -(2**40))
OPS = ("Add", "Mul", "MatMul", "Softmax", "LayerNormalization", "Conv", "Gemm", "PRelu", "Transpose", "Where",
       "Concat", "LSTM", "Attention", "ReduceSum", "Reshape", "Gather", "RMSNormalization")  # fmt: skip
TACTICS = ("cpp.pointwise", "cpp.reduce", "cpp.gemv", "cpp.gemm", "cpp.conv1x1", "cpp.depthwise",
           "cpp.conv_small", "cpp.conv_rows", "cpp.recurrent", "cpp.moves", "aten", "onednn.linear", "sdpa",
           "mkl.linear", "nobody")  # fmt: skip


def near(rng: random.Random, size: int) -> int:
    """Another size, mostly a likely one."""
    if rng.random() < 0.25:
        return rng.choice(SIZES)
    made = rng.choice((size + 1, max(size - 1, 0), size * 2, max(size // 2, 1), size + 7))
    return max(-(2**63), min(made, 2**63 - 1))


# models: each takes a graph and says what it did, or "" where it found nothing to change


def change_weight(graph: onnx.GraphProto, rng: random.Random) -> str:
    """Other dims, with as many numbers as they need."""
    if not graph.initializer:
        return ""
    tensor = rng.choice(list(graph.initializer))
    array = numpy_helper.to_array(tensor)
    shape = list(array.shape)
    way = rng.randrange(4)
    if way == 0 and shape:
        shape[rng.randrange(len(shape))] = max(near(rng, 3), 0) % 65
    elif way == 1:
        shape.insert(rng.randint(0, len(shape)), rng.choice((1, 2, 7)))
    elif way == 2 and shape:
        shape.pop(rng.randrange(len(shape)))
    else:
        rng.shuffle(shape)
    count = int(np.prod(shape, dtype=np.int64))
    if count > 1 << 20:
        return ""
    made = np.resize(array.reshape(-1) if array.size else np.zeros(1, array.dtype), count).reshape(shape)
    tensor.CopyFrom(numpy_helper.from_array(made, tensor.name))
    return f"weight {tensor.name} {list(array.shape)} -> {shape}"


def change_attribute(graph: onnx.GraphProto, rng: random.Random) -> str:
    nodes = [node for node in graph.node if node.attribute]
    if not nodes:
        return ""
    node = rng.choice(nodes)
    attribute = rng.choice(list(node.attribute))
    was = attribute.name
    if rng.random() < 0.25:
        node.attribute.remove(attribute)
        return f"{node.op_type}.{was} deleted"
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = near(rng, attribute.i)
        return f"{node.op_type}.{was} = {attribute.i}"
    if attribute.type == onnx.AttributeProto.INTS:
        numbers = list(attribute.ints)
        if numbers and rng.random() < 0.7:
            numbers[rng.randrange(len(numbers))] = near(rng, 2)
        else:
            numbers = numbers[:-1] if rng.random() < 0.5 else [*numbers, 1]
        attribute.ClearField("ints")
        attribute.ints.extend(numbers)
        return f"{node.op_type}.{was} = {numbers}"
    if attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = rng.choice((0.0, -1.0, float("inf"), float("nan"), 1e38))
        return f"{node.op_type}.{was} = {attribute.f}"
    if attribute.type == onnx.AttributeProto.STRING:
        attribute.s = rng.choice((b"reverse", b"bidirectional", b"forward", b"", b"\xff\xfe", b"SAME_UPPER"))
        return f"{node.op_type}.{was} = {attribute.s!r}"
    return ""


def add_attribute(graph: onnx.GraphProto, rng: random.Random) -> str:
    node = rng.choice(list(graph.node))
    name, value = rng.choice((
        ("axis", near(rng, 1)), ("group", near(rng, 2)), ("keepdims", 0), ("layout", 1), ("transA", 1),
        ("transB", 1), ("hidden_size", near(rng, 8)), ("q_num_heads", near(rng, 4)), ("allowzero", 1),
    ))  # fmt: skip
    if any(a.name == name for a in node.attribute):
        return ""
    node.attribute.add(name=name, type=onnx.AttributeProto.INT, i=value)
    return f"{node.op_type}.{name} = {value} added"


def swap_inputs(graph: onnx.GraphProto, rng: random.Random) -> str:
    node = rng.choice(list(graph.node))
    names = [v for n in graph.node for v in (*n.input, *n.output) if v]
    if not node.input:
        return ""
    place = rng.randrange(len(node.input))
    way = rng.randrange(4)
    if way == 0 and len(node.input) > 1:
        other = rng.randrange(len(node.input))
        node.input[place], node.input[other] = node.input[other], node.input[place]
    elif way == 1:
        node.input[place] = rng.choice(names)
    elif way == 2:
        node.input[place] = ""
    else:
        node.input.append(rng.choice(names))
    return f"{node.op_type} reads {list(node.input)}"


def change_dims(graph: onnx.GraphProto, rng: random.Random) -> str:
    ports = [p for p in (*graph.input, *graph.output, *graph.value_info) if p.type.HasField("tensor_type")]
    port = rng.choice(ports)
    dims = port.type.tensor_type.shape.dim
    if not dims:
        return ""
    dim = rng.choice(list(dims))
    size = near(rng, dim.dim_value or 3)
    dim.dim_value = size
    return f"{port.name} has a dim of {size}"


def change_op(graph: onnx.GraphProto, rng: random.Random) -> str:
    node = rng.choice(list(graph.node))
    if node.domain:
        return ""
    was, node.op_type = node.op_type, rng.choice(OPS)
    return f"{was} becomes {node.op_type}"


def reorder_nodes(graph: onnx.GraphProto, rng: random.Random) -> str:
    nodes = list(graph.node)
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)
    return "nodes in another order"


MODEL_CHANGES: tuple[Callable[[onnx.GraphProto, random.Random], str], ...] = (
    change_weight, change_weight, change_attribute, change_attribute, add_attribute, swap_inputs, change_dims,
    change_op, reorder_nodes,
)  # fmt: skip


def mutate_model(model: onnx.ModelProto, rng: random.Random) -> list[str]:
    done = [rng.choice(MODEL_CHANGES)(model.graph, rng) for _ in range(rng.randint(1, 3))]
    return [what for what in done if what]


# engine files


def change_plan(plan: Any, rng: random.Random) -> str:
    steps = plan.get("steps")
    if not isinstance(steps, list) or not steps or not all(isinstance(s, dict) for s in steps):
        return change_json(plan, rng)  # changed already
    step = rng.choice(steps)
    way = rng.randrange(7)
    if way == 0:
        step["tactic"] = rng.choice(TACTICS)
        return f"tactic {step['tactic']}"
    if way == 1:
        config = step.setdefault("config", {})
        key = rng.choice([*config, "sums", "panel", "rows", "threads"])
        config[key] = rng.choice((0, -1, 1, 3, 7, 300000, 2**31, 2**40, "x", None, True, [1]))
        return f"config {key} = {config[key]!r}"
    if way == 2:
        plan["steps"] = steps[::-1] if rng.random() < 0.5 else rng.sample(steps, len(steps))
        return "steps in another order"
    if way == 3:
        plan["steps"] = [*steps, step] if rng.random() < 0.5 else [s for s in steps if s is not step]
        return "a step twice, or none"
    if way == 4:
        for key in ("inputs", "outputs", "regions"):
            if isinstance(step.get(key), list):
                rng.shuffle(step[key])
        return "names of a step in another order"
    return change_json(plan, rng)


def change_json(node: Any, rng: random.Random) -> str:
    """Some leaf of the tree becomes something else."""
    path = ""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return ""
        key = rng.choice(keys)
        path += f"/{key}"
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.85:
            node = node[key]
            continue
        if isinstance(node[key], int) and not isinstance(node[key], bool):
            node[key] = near(rng, node[key])
        else:
            node[key] = rng.choice((None, -1, 2**40, "", "x", [], {}, 1.5, True, "\ud800"))
        return f"{path} = {node[key]!r}"


def mutate_engine(source: Path, target: Path, rng: random.Random) -> list[str]:
    """A copy of an engine file with a few changes, every hash made again."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    done = []
    for _ in range(rng.randint(1, 2)):
        if rng.random() < 0.55:
            plan = json.loads(members["plan.json"])
            done.append(change_plan(plan, rng))
            members["plan.json"] = json.dumps(plan).encode()
        else:
            done.append(_change_fused(members, rng))
    write_engine(target, members)
    return [what for what in done if what]


def _change_fused(members: dict[str, bytes], rng: random.Random) -> str:
    model = onnx.ModelProto.FromString(members["fused.onnx"])
    weights = read_weights(members[WEIGHTS])
    for tensor in model.graph.initializer:  # all of them inside, so that a change is one of the whole weight
        if tensor.external_data:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    graphs = [model.graph, *model.functions]
    change = rng.choice(MODEL_CHANGES)
    graph: Any = model.graph if change in (change_weight, change_dims) else rng.choice(graphs)
    what = change(graph, rng)
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    members["fused.onnx"] = model.SerializeToString(deterministic=True)
    members[WEIGHTS] = pack_weights(arrays)
    return what


def read_weights(content: bytes) -> dict[str, np.ndarray]:
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    kinds = {"F32": np.float32, "I64": np.int64, "I32": np.int32, "F64": np.float64, "BOOL": np.bool_}
    data = memoryview(content)[8 + size :]
    return {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], kinds[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def pack_weights(arrays: Mapping[str, np.ndarray]) -> bytes:
    kinds = {"float32": "F32", "int64": "I64", "int32": "I32", "float64": "F64", "bool": "BOOL"}
    entries, blob = {}, bytearray()
    for name, array in arrays.items():
        blob += b"\0" * (-len(blob) % 64)
        begin = len(blob)
        blob += array.tobytes()
        kind = kinds.get(str(array.dtype), "F32")
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, len(blob)]}
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + bytes(blob)


def write_engine(target: Path, members: Mapping[str, bytes]) -> None:
    manifest = json.loads(members["manifest.json"])
    manifest["sha256"] = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in members.items()
        if name != "manifest.json"
    }
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, json.dumps(manifest) if name == "manifest.json" else content)
