"""Half-precision transformers as their library exports them: the regions of a layer, and the same results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from half_exports import export_half, fused, regions
from text_graphs import assert_same, run
from torch import nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

SMALL = {"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 96, "num_hidden_layers": 2}


class _LastState(nn.Module):
    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True))).last_hidden_state


def _bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    model = transformers.BertModel(transformers.BertConfig(vocab_size=50, **SMALL), add_pooling_layer=False)
    mask = torch.ones(2, 16, dtype=torch.int64)
    return model, {"input_ids": torch.randint(0, 50, (2, 16)), "attention_mask": mask}


def _gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.GPT2Config(use_cache=False, n_layer=2, n_embd=48, n_head=3, vocab_size=50)
    return transformers.GPT2Model(config), {"input_ids": torch.randint(0, 50, (2, 16))}


def _vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ViTConfig(image_size=32, patch_size=8, **SMALL)
    model = transformers.ViTModel(config, add_pooling_layer=False)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32).half()}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "vit": _vit,
}


@cache
def exported(name: str, opset: int) -> onnx.ModelProto:
    """In half precision, at any batch."""
    torch.manual_seed(3)
    model, inputs = MODELS[name]()
    # one entry, since the module takes its inputs as one list
    dims = (tuple({0: torch.export.Dim("batch")} for _ in inputs),)
    return export_half(_LastState(model, *inputs), inputs, opset, dynamic_shapes=dims)


PRODUCTS = ["MatMul Add", "Split Attention", "MatMul Add Add", "LayerNormalization", "MatMul Add Gelu"]
# what keeps an exporter's guard against NaN weights; it is part of the attention kernel
GUARD = " Mul ReduceSum IsNaN Where"
LAYER = [*PRODUCTS, "MatMul Add Add", "LayerNormalization"]
HEADS = {
    "bert": ["Gather Add Add LayerNormalization", "MASK"],
    "gpt2": ["Gather Add LayerNormalization"],
    "vit": ["Conv", "Pad Add LayerNormalization"],
}


# an export takes seconds, so each model has the form that is furthest from the ops it becomes
@pytest.mark.parametrize(("name", "opset"), [("bert", 18), ("bert", 23), ("gpt2", 18), ("vit", 18)])
def test_a_layer_is_seven_regions(name: str, opset: int) -> None:
    model, inferred = fused(exported(name, opset))
    found = [ops.replace(GUARD, "") for ops in regions(model, inferred)]
    masks = [ops for ops in found if ops in ("Equal Not", "Equal Not Where")]
    assert len(masks) == (1 if name == "bert" else 0), "a mask is made once, not once a layer"
    head = [ops for ops in HEADS[name] if ops != "MASK"]
    assert [ops for ops in found if ops not in masks] == [*head, *LAYER, *LAYER]


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("batch", [1, 3])
def test_the_fused_graph_computes_the_same_at_any_batch(name: str, batch: int) -> None:
    proto = exported(name, 18)
    model, _ = fused(proto)
    rng = np.random.default_rng(5)
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.inputs:
        shape = [d if isinstance(d, int) else batch for d in value.shape]
        if value.name == "attention_mask":
            feeds[value.name] = (np.arange(shape[1]) < rng.integers(4, shape[1], (batch, 1))).astype(np.int64)
        elif value.dtype == ir.DataType.INT64:
            feeds[value.name] = rng.integers(0, 50, shape)
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float16)
    # two layers of float16 roundings, taken in another order
    assert_same(run(ir.from_proto(proto), feeds), run(model, feeds), roundings=8)


def test_gpt2_attention_counts_its_mask_out() -> None:
    model, _ = fused(exported("gpt2", 18))
    attention = [n for f in model.functions.values() for n in f if n.op_type == "Attention"]
    assert [node.attributes["is_causal"].as_int() for node in attention] == [1]
    assert len(attention[0].inputs) == 3
