"""Makes a repository of small models, requests for them, and what `Engine.run` answers: python THIS FOLDER.

Run with the interpreter that has ridgeline. The clients' own has not: it reads the .npy files.
"""

from __future__ import annotations

import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

import ridgeline
from ridgeline.base.spec import TensorSpec

MODELS = {
    # a row of it does not depend on the rows beside it, so results keep their bits in every batch
    "affine": """<ir_version: 9, opset_import: ["": 18]>
affine (float[N, 4] x) => (float[N, 4] y) <float two = {2.5}> { h = Mul (x, two) y = Relu (h) }""",
    "types": """<ir_version: 9, opset_import: ["": 18]>
types (int64[N, 3] a, bool[N, 3] m, uint8[N, 3] b, double[N, 3] d, int8[N, 3] e, int32[N, 3] i)
  => (int64[N, 3] a2, bool[N, 3] m2, uint8[N, 3] b2, double[N, 3] d2, int8[N, 3] e2, int32[N, 3] i2)
{ n = Neg (a) a2 = Where (m, a, n) m2 = Not (m) b2 = Add (b, b) d2 = Neg (d) e2 = Neg (e) i2 = Neg (i) }""",
    "half": """<ir_version: 9, opset_import: ["": 18]>
half (float16[N, 4] x, bfloat16[N, 4] w) => (float16[N, 4] y, bfloat16[N, 4] v)
{ y = Neg (x) v = Neg (w) }""",
    "fixed": """<ir_version: 9, opset_import: ["": 18]>
fixed (float[2, 3] x) => (float[2, 3] y) { y = Neg (x) }""",
}
MLP = (16, 32, 32, 10)
CONFIGS = {
    "affine": "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 100 }\n",
    "mlp": """max_batch_size: 8
output { name: "y" data_type: TYPE_FP32 dims: 10 label_filename: "labels.txt" }
""",
    "types": "max_batch_size: 8\n",
    "half": "max_batch_size: 8\n",
    "fixed": "max_batch_size: 0\n",
    "pair": """platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "affine" model_version: -1
    input_map { key: "x" value: "IN" } output_map { key: "y" value: "middle" } }
  step { model_name: "affine" model_version: -1
    input_map { key: "x" value: "middle" } output_map { key: "y" value: "OUT" } }
}
""",
}
LABELS = [f"class {i}" for i in range(MLP[-1])]


def main(folder: Path) -> None:
    requests: list[dict[str, object]] = []
    made = {name: onnx.parser.parse_model(text) for name, text in MODELS.items()} | {"mlp": mlp()}
    for name, model in made.items():
        ranges = {} if name == "fixed" else {"profiles": {"N": "1..4..8"}}
        engine = ridgeline.build(model, level=0, threads=1, verify="off", **ranges)
        place = folder / "models" / name / "1"
        place.mkdir(parents=True)
        engine.save(place / "model.ridge")
        sizes = (2,) if name == "fixed" else (1, 2, 7)
        requests += [write_request(folder, name, engine, rows) for rows in sizes]
    shutil.copytree(folder / "models" / "affine" / "1", folder / "models" / "affine" / "2")
    (folder / "models" / "pair" / "1").mkdir(parents=True)
    for name, config in CONFIGS.items():
        (folder / "models" / name / "config.pbtxt").write_text(config, encoding="utf-8")
    (folder / "models" / "mlp" / "labels.txt").write_text("\n".join(LABELS), encoding="utf-8")
    (folder / "requests.json").write_text(json.dumps(requests), encoding="utf-8")


def mlp() -> onnx.ModelProto:
    """Sums over many terms: its bits change with the smallest difference in how a batch is run."""
    rng = np.random.default_rng(4)
    nodes, weights, last = [], [], "x"
    for i, (a, b) in enumerate(pairwise(MLP)):
        weights.append(f"float[{a}, {b}] w{i}")
        nodes.append(f"h{i} = MatMul ({last}, w{i}) r{i} = Relu (h{i})")
        last = f"r{i}"
    text = f"""<ir_version: 9, opset_import: ["": 18]>
mlp (float[N, {MLP[0]}] x, {", ".join(weights)}) => (float[N, {MLP[-1]}] y)
{{ {" ".join(nodes)} y = Identity ({last}) }}"""
    model = onnx.parser.parse_model(text)
    for i, (a, b) in enumerate(pairwise(MLP)):
        weight = onnx.numpy_helper.from_array(rng.normal(size=(a, b), scale=0.4).astype(np.float32), f"w{i}")
        model.graph.initializer.append(weight)
        del model.graph.input[1]
    return model


def write_request(folder: Path, name: str, engine: ridgeline.Engine, rows: int) -> dict[str, object]:
    """Arrays for one request and the engine's own answer; bfloat16 as its bits, which numpy can write."""
    inputs = draw(engine, rows)
    told: dict[str, object] = {"model": name, "rows": rows}
    for kind, arrays in (("inputs", inputs), ("outputs", engine.run(inputs))):
        files = {}
        for key, array in arrays.items():
            is_brain = str(array.dtype) == "bfloat16"
            files[key] = f"{name}-{rows}-{kind}-{key}{'.bf16' if is_brain else ''}.npy"
            np.save(folder / files[key], array.view(np.uint16) if is_brain else array, allow_pickle=False)
        told[kind] = files
    return told


def draw(engine: ridgeline.Engine, rows: int) -> dict[str, np.ndarray]:
    planned = engine.plan.planned_shapes
    shapes = {
        port.name: TensorSpec(planned[port.name].dtype, tuple(rows if d == "N" else d for d in port.dims))
        for port in engine.plan.inputs
    }
    return engine.example_inputs(seed=rows, shapes=shapes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
