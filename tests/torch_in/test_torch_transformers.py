"""Hugging Face's BERT, GPT-2 and ViT with random weights, by both doors; plain modules are asked the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_modules import QUICK, assert_agrees, ids

import ridgeline
import ridgeline.torch_in.register

transformers = pytest.importorskip("transformers")
WORDS = 50
SMALL = {"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 96, "num_hidden_layers": 2}
TEXT = {0: "batch", 1: "length"}


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(vocab_size=WORDS, **SMALL))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=48, n_head=3, vocab_size=WORDS, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2Model(config)


def vit() -> nn.Module:
    return transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **SMALL))


def text(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": ids(batch, length, WORDS)}


def masked(batch: int, length: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length // 2 :] = 0
    return {**text(batch, length), "attention_mask": mask}


def image(batch: int, _: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


Inputs = Callable[[int, int], dict[str, Tensor]]
CASES = [
    pytest.param(bert, masked, {"input_ids": TEXT, "attention_mask": TEXT}, id="bert"),
    pytest.param(gpt2, text, {"input_ids": TEXT}, id="gpt2"),
    pytest.param(vit, image, {"pixel_values": {0: "batch"}}, id="vit"),
]


class WithHead(nn.Module):
    """A model of the library, a graph break, and a head of one's own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.head = model, nn.Linear(48, 5)

    def forward(self, **inputs: Tensor) -> dict[str, Any]:
        out = self.model(**inputs)
        torch._dynamo.graph_break()
        return {"logits": self.head(out.last_hidden_state), "out": out}


@pytest.mark.parametrize(("make", "inputs", "dims"), CASES)
def test_ridgeline_compile(make: Callable[[], nn.Module], inputs: Inputs, dims: Any) -> None:
    torch.manual_seed(3)
    module = make().requires_grad_(False).eval()
    compiled = ridgeline.compile(module, inputs(2, 16), dynamic_shapes=dims, **QUICK)
    for shape in ((2, 16), (3, 9)):
        given = inputs(*shape)
        got = compiled(**given)
        assert type(got) is type(module(**given))
        assert_agrees(got, module, (), given)
    (engine,) = compiled.engines
    assert engine.report.verified
    assert [port.dims[: len(dims[port.name])] for port in engine.inputs] == [
        tuple(dims[port.name].values()) for port in engine.inputs
    ]


@pytest.mark.parametrize(("make", "inputs", "dims"), CASES)
def test_torch_compile_with_a_graph_break(make: Callable[[], nn.Module], inputs: Inputs, dims: Any) -> None:
    torch.manual_seed(3)
    torch._dynamo.reset()
    module = WithHead(make()).eval()
    engines: list[ridgeline.Engine] = []
    run = torch.compile(module, backend="ridgeline", options={**QUICK, "on_engine": engines.append})
    given = inputs(2, 16)
    with torch.no_grad():
        assert_agrees(run(**given), module, (), given)
    assert len(engines) == 2
    assert all(engine.report.verified for engine in engines)
