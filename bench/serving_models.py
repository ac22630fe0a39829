"""The models of `serving_peers.py` as ONNX files, with a request and ONNX Runtime's answer to it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.compose
import onnx.parser
import onnxruntime

from bench.zoo import MODELS, export_minilm

MLP_SIZES = (256, 512, 512, 256, 10)
TOKENS = 32  # of a sentence
VOCABULARY = 30522
POOL = """<ir_version: 9, opset_import: ["": 18]>
pool (float[batch, seq, 384] hidden) => (float[batch, 384] sentence) <int64[1] tokens = {1}>
{ sentence = ReduceMean <keepdims = 0> (hidden, tokens) }"""


@dataclass(frozen=True)
class Subject:
    """A model, the request that all servers get, and what a server has to keep."""

    name: str
    path: Path
    row: dict[str, np.ndarray]  # one row of each input
    expected: np.ndarray
    bound_us: float  # of the 99th percentile
    max_batch: int
    profile: str  # what our engine is built for


def mlp(folder: Path) -> Subject:
    path = folder / f"mlp-{'-'.join(map(str, MLP_SIZES))}.onnx"
    rng = np.random.default_rng(0)
    if not path.exists():
        layers = [*enumerate(pairwise(MLP_SIZES))]
        weights = ", ".join(f"float[{a}, {b}] w{i}, float[{b}] b{i}" for i, (a, b) in layers)
        nodes, last = [], "x"
        for i, _ in layers:
            nodes.append(f"g{i} = Gemm ({last}, w{i}, b{i})")
            last = f"g{i}"
            if i < len(layers) - 1:
                nodes.append(f"r{i} = Relu (g{i})")
                last = f"r{i}"
        text = f"""<ir_version: 9, opset_import: ["": 18]>
mlp (float[N, {MLP_SIZES[0]}] x, {weights}) => (float[N, {MLP_SIZES[-1]}] output)
{{ {" ".join(nodes)} output = Identity ({last}) }}"""
        model = onnx.parser.parse_model(text)
        del model.graph.input[1:]
        for i, (a, b) in layers:
            for name, array in (
                (f"w{i}", rng.normal(size=(a, b), scale=a**-0.5)),
                (f"b{i}", rng.normal(size=b)),
            ):
                model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString())
    row = {"x": rng.normal(size=(1, MLP_SIZES[0])).astype(np.float32)}
    return Subject("mlp", path, row, _answer(path, row), 20e3, 64, f"x=1..16..64x{MLP_SIZES[0]}")


def minilm(folder: Path) -> Subject:
    """A trained model for sentences; its answer is the mean over the tokens: 1.5 KB, not 49."""
    path = folder / "minilm-embedding.onnx"
    if not path.exists():
        model = onnx.load(export_minilm(18, folder=MODELS))
        pool = onnx.parser.parse_model(POOL)
        pool.ir_version = model.ir_version
        model = onnx.compose.merge_models(model, pool, io_map=[(model.graph.output[0].name, "hidden")])
        onnx.save(model, path)
    ids = np.random.default_rng(0).integers(1000, VOCABULARY, (1, TOKENS))
    row = {"input_ids": ids, "attention_mask": np.ones((1, TOKENS), np.int64)}
    profile = f"input_ids=1..8..32x{TOKENS} attention_mask=1..8..32x{TOKENS}"
    return Subject("minilm", path, row, _answer(path, row), 500e3, 32, profile)


SUBJECTS = {"mlp": mlp, "minilm": minilm}


def _answer(path: Path, row: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, row)
    return np.asarray(output)
