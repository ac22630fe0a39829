"""`ridge profile --by layer` where an exporter numbers nodes and writes their modules beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest
import torch
from torch import nn

import ridgeline
from ridgeline.analyze.profile_groups import NO_LAYER, group_steps
from ridgeline.ir.provenance import SCOPES, layer_in
from ridgeline.plan.trace import Trace

Ridge = Callable[..., tuple[int, str, str]]
LAYERS = 6  # as many as groups are wanted


@pytest.mark.parametrize(
    ("scopes", "layer"),
    [
        ("['', 'model', 'model.layer.0', 'model.layer.0.dense', 'linear_4']", "model/layer.0/dense"),
        ("['', 'layer1', 'layer1.0', 'layer1.0.bn1', 'batch_norm']", "layer1/0/bn1"),
        ("['', 'bn', 'bn2', 'bn2.inner', 'add']", "bn/bn2/inner"),  # no module of the one before it
        ("['', 'add_1']", ""),
        ("['add_1']", ""),
        ("", ""),
        ("[", ""),
        ("['", ""),
        ("7", ""),
    ],
)
def test_scopes_are_read_as_a_path(scopes: str, layer: str) -> None:
    assert layer_in({SCOPES: scopes}) == layer
    assert not layer_in({"namespace": scopes})


def exported(path: Path) -> Path:
    """Nodes with numbers for names, as PyTorch's exporter writes them; the first is in no module."""
    lines = ["h0 = Mul (x, x)"]
    for i in range(LAYERS):
        lines += [f"a{i} = MatMul (h{i}, w)", f"h{i + 1} = Softmax (a{i})"]
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[8,16] x, float[16,16] w) '
        f"=> (float[8,16] h{LAYERS}) {{ {' '.join(lines)} }}"
    )
    for index, node in enumerate(model.graph.node):
        node.name = f"node_{node.op_type}_{index}"
        layer = (index - 1) // 2
        inside = f", 'encoder', 'encoder.{layer}', 'encoder.{layer}.part'" if index else ""
        node.metadata_props.add(key=SCOPES, value=f"[''{inside}, 'op_{index}']")
    onnx.save(model, path)
    return path


def test_steps_are_grouped_by_the_modules_that_the_exporter_names(ridge: Ridge, tmp_path: Path) -> None:
    path = exported(tmp_path / "model.onnx")
    engine = ridgeline.build(path, level=0, verify="off", without="ort")
    engine.save(tmp_path / "model.ridge")
    loaded = ridgeline.load(tmp_path / "model.ridge")
    trace = Trace.from_json(loaded.profile(rounds=2).to_json())
    rows = {row.name: row.steps for row in group_steps(trace, "layer")}
    assert rows.pop(NO_LAYER) == 1
    assert set(rows) == {f"encoder/{i}" for i in range(LAYERS)}
    status, out, _ = ridge("profile", tmp_path / "model.ridge", "--by", "layer", "--json")
    assert status == 0
    assert {"encoder/0", NO_LAYER} < {row["name"] for row in json.loads(out)["groups"]}


def test_nodes_inside_a_library_span_have_layers_too(tmp_path: Path) -> None:
    """One session of ONNX Runtime runs all of it; its own profiler tells its nodes apart."""
    engine = ridgeline.build(exported(tmp_path / "model.onnx"), verify="off", level=0)
    trace = engine.profile(rounds=2)
    assert [len(step.inside) > LAYERS for step in trace.steps] == [True], "one session"
    names = {row.name for row in group_steps(trace, "layer")}
    assert {f"encoder/{i}" for i in range(LAYERS)} <= names


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return made


def test_modules_of_pytorch_are_layers() -> None:
    """What PyTorch itself writes today."""
    net = nn.Sequential(*(Block() for _ in range(LAYERS))).eval()
    engine = ridgeline.build(net, torch.randn(2, 8), level=0, verify="off")
    found = set(engine.plan.layers.values())
    assert {f"module/{i}/{part}" for i in range(LAYERS) for part in ("up", "down")} <= found
