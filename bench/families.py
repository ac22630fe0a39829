"""Seven transformers families with small random weights, as modules and as ONNX exports.

Needs `transformers`, which is no dependency of the package: callers look for it first.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from bench.zoo import MODELS
from ridgeline.frontend.torch_export import kept_translations

EXPORTS = MODELS / "exports"
OPSETS = (18, 20, 23, 24)
ATTENTIONS = ("sdpa", "eager")
SHAPES = ((2, 16), (3, 10))  # batch and sequence; the first is what is exported and planned with
WORDS, PAD = 50, 0
MOST = {"batch": 4, "seq": 24, "dec": 12}
WIDTHS = {"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 96}
TOKENS = {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")}
IMAGE = {"pixel_values": ("batch", 3, 32, 32)}
SPEECH = {"input_features": ("batch", 20, 60)}
DECODED = {"decoder_input_ids": ("batch", "dec")}
Dims = Mapping[str, tuple[str | int, ...]]


@dataclass(frozen=True)
class Family:
    """How to make a model for an attention implementation, what it eats and what of its results counts."""

    make: Callable[[str, int], nn.Module]
    inputs: Dims
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Export:
    """One spelling of one family."""

    family: str
    attention: str
    opset: int
    exporter: str = "dynamo"
    layers: int = 2

    @property
    def name(self) -> str:
        return f"{self.family}_{self.attention}_{self.opset}_{self.exporter}"


class Called(nn.Module):
    """A model called by position, its results in a tuple: exporters then name them as they are told."""

    def __init__(self, model: nn.Module, family: Family) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs = model, tuple(family.inputs), family.outputs

    def forward(self, *given: Tensor) -> tuple[Any, ...]:
        made = self.model(**dict(zip(self.inputs, given, strict=True)), return_dict=True)
        return tuple(made[name] for name in self.outputs)


def _bert(attention: str, layers: int) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS, num_hidden_layers=layers, attn_implementation=attention, **WIDTHS
    )
    return transformers.BertModel(config)


def _gpt2(attention: str, layers: int) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_layer=layers, n_embd=48, n_head=3, use_cache=False, attn_implementation=attention
    )
    return transformers.GPT2LMHeadModel(config)


def _llama(attention: str, layers: int) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, use_cache=False, attn_implementation=attention,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _vit(attention: str, layers: int) -> nn.Module:
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, num_hidden_layers=layers, attn_implementation=attention, **WIDTHS
    )
    return transformers.ViTModel(config)


def _t5(attention: str, layers: int) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=48, d_kv=16, d_ff=96, num_layers=layers, num_heads=3, use_cache=False,
        feed_forward_proj="gated-gelu", attn_implementation=attention,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def _whisper(attention: str, layers: int) -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=20, d_model=48, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=96, decoder_ffn_dim=96,
        max_source_positions=30, max_target_positions=32, use_cache=False, attn_implementation=attention,
        pad_token_id=PAD, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def _clip(attention: str, layers: int) -> nn.Module:
    sizes = {**WIDTHS, "num_hidden_layers": layers}
    text = {"vocab_size": WORDS, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1,
            "pad_token_id": PAD, **sizes}  # fmt: skip
    image = {"image_size": 32, "patch_size": 8, **sizes}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=image, projection_dim=32, attn_implementation=attention
    )
    return transformers.CLIPModel(config)


HIDDEN = ("last_hidden_state", "pooler_output")
FAMILIES: dict[str, Family] = {
    "bert": Family(_bert, TOKENS, HIDDEN),
    "gpt2": Family(_gpt2, TOKENS, ("logits",)),
    "llama": Family(_llama, TOKENS, ("logits",)),
    "vit": Family(_vit, IMAGE, HIDDEN),
    "t5": Family(_t5, {**TOKENS, **DECODED}, ("logits",)),
    "whisper": Family(_whisper, {**SPEECH, **DECODED}, ("logits",)),
    "clip": Family(_clip, {**TOKENS, **IMAGE}, ("logits_per_text", "text_embeds", "image_embeds")),
}


def module(export: Export) -> Called:
    """The family's model, seeded. Biases are random too: zeros would fold away."""
    family = FAMILIES[export.family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = family.make(export.attention, export.layers).eval().requires_grad_(False)
        for name, weight in made.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(weight, std=0.1).requires_grad_(False)
    return Called(made, family).eval()


def sizes(shape: tuple[int, int]) -> dict[str, int]:
    return {"batch": shape[0], "seq": shape[1], "dec": shape[1] // 2}


def feeds(export: Export, shape: tuple[int, int]) -> dict[str, Tensor]:
    """Seeded inputs; the first row of a mask ends in padding."""
    made = {}
    size = sizes(shape)
    chance = torch.Generator().manual_seed(sum(shape))
    for name, dims in FAMILIES[export.family].inputs.items():
        wanted = [size[dim] if isinstance(dim, str) else dim for dim in dims]
        if name == "attention_mask":
            made[name] = torch.ones(wanted, dtype=torch.int64)
            made[name][0, -2:] = 0
        elif name.endswith("ids"):
            made[name] = torch.randint(3, WORDS, wanted, generator=chance)
        else:
            made[name] = torch.randn(wanted, generator=chance)
    return made


def profile(export: Export) -> dict[str, list[str]]:
    """Planned at the first shape, open to smaller and larger ones."""
    size = sizes(SHAPES[0])
    return {
        name: [f"1..{size[d]}..{MOST[d]}" if isinstance(d, str) else str(d) for d in dims]
        for name, dims in FAMILIES[export.family].inputs.items()
    }


def write(export: Export, folder: Path = EXPORTS) -> Path:
    """The export as a file, made unless it is there already; the exporters' talk goes nowhere."""
    path = folder / f"{export.name}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    half_done = path.with_suffix(".part")
    logging.disable(logging.WARNING)
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    try:
        with warnings.catch_warnings(), quiet[0], quiet[1]:
            warnings.simplefilter("ignore")
            _write(export, half_done, module(export))
    finally:
        logging.disable(logging.NOTSET)
    half_done.rename(path)
    return path


def _write(export: Export, path: Path, made: Called) -> None:
    given, family = feeds(export, SHAPES[0]), FAMILIES[export.family]
    open_dims = {
        n: {i: d for i, d in enumerate(dims) if isinstance(d, str)} for n, dims in family.inputs.items()
    }
    more: dict[str, Any] = {"dynamic_axes": open_dims, "dynamo": False}
    if export.exporter == "dynamo":
        named = {dim: torch.export.Dim(dim, max=4 * most) for dim, most in MOST.items()}
        shapes = tuple({i: named[d] for i, d in dims.items()} for dims in open_dims.values())
        more = {"dynamic_shapes": (shapes,), "dynamo": True, "verbose": False, "external_data": False}
    with kept_translations():
        torch.onnx.export(
            made, tuple(given.values()), path,
            input_names=list(given), output_names=list(family.outputs), opset_version=export.opset, **more,
        )  # fmt: skip


def all_exports(families: Sequence[str] = tuple(FAMILIES)) -> list[Export]:
    """Every family in both attentions at all opsets, and as TorchScript spelled it where that still works."""
    made = [Export(f, a, o) for f in families for a in ATTENTIONS for o in OPSETS]
    # TorchScript has no aten::diff, which Whisper needs for its positions
    return made + [Export(f, a, 18, "script") for f in families for a in ATTENTIONS if f != "whisper"]
