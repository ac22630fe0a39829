"""A decoder of a language model on a machine, from its configuration: prefill and decode, by operator.

A bound, not a forecast of one engine: every operator at the rate of memory or of arithmetic that the machine
reaches. It says which of the two limits, how the key-value cache grows, and how many tokens a second there
can be at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.base.ceilings import Ceilings
from ridgeline.base.spec import ITEM_BITS
from ridgeline.base.typed_json import parse_json
from ridgeline.errors import OptionError, TargetError, first_line

# B batch, S tokens of the prompt, T tokens in the cache, E width, F hidden width, H heads, G key-value heads

# layers of these have two products, up and down, and no gate
PLAIN_ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "relu", "quick_gelu")
PLAIN_TYPES = ("starcoder2",)  # they name Gemma's activation, and have no gate
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
WEIGHT_TYPES = ("float16", "bfloat16", "float32", "float8_e4m3fn", "int8", "int4")


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder, as Hugging Face's config.json names them."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    vocabulary: int
    dtype: str  # of activations and cache
    weight_dtype: str
    is_gated: bool = True
    is_tied: bool = False

    @property
    def weight_bits(self) -> int:
        return 4 if self.weight_dtype == "int4" else ITEM_BITS[self.weight_dtype]

    @property
    def layer_weights(self) -> int:
        """Numbers in one layer's products."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        return attention + (3 if self.is_gated else 2) * self.width * self.hidden

    @property
    def parameters(self) -> int:
        tables = self.vocabulary * self.width * (1 if self.is_tied else 2)
        return self.layers * (self.layer_weights + 2 * self.width) + tables + self.width

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.weight_bits // 8

    @property
    def cache_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_width * ITEM_BITS[self.dtype] // 8


@dataclass(frozen=True)
class Operator:
    """One operator of all layers, in one phase."""

    phase: str  # prefill | decode
    name: str
    flops: float
    bytes: float
    us: float
    bound: str  # compute | memory

    @property
    def intensity(self) -> float:
        """Flops for each byte."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class LlmPrediction:
    """One decoder at one batch and length on one machine."""

    model: str
    target: str
    title: str
    source: str
    batch: int
    prompt: int
    context: int
    parameters: int
    weight_bytes: int
    cache_bytes: int
    memory_bytes: int | None
    ridge: float  # flops for each byte at which memory and arithmetic take equally long
    operators: tuple[Operator, ...]
    what_if: dict[str, float] = field(default_factory=dict)  # figures that were multiplied

    def phase_us(self, phase: str) -> float:
        return math.fsum(op.us for op in self.operators if op.phase == phase)

    @property
    def prefill_us(self) -> float:
        return self.phase_us("prefill")

    @property
    def decode_us(self) -> float:
        """One token for every sequence of the batch."""
        return self.phase_us("decode")

    @property
    def prefill_tokens_per_s(self) -> float:
        return 1e6 * self.batch * self.prompt / self.prefill_us

    @property
    def decode_tokens_per_s(self) -> float:
        return 1e6 * self.batch / self.decode_us

    @property
    def largest_batch(self) -> int | None:
        """Sequences of this context that fit beside the weights."""
        if self.memory_bytes is None:
            return None
        each = self.cache_bytes / self.batch
        return max(0, int((self.memory_bytes - self.weight_bytes) / each))


def predict_llm(
    decoder: Decoder, ceilings: Ceilings, *, batch: int = 1, prompt: int = 512, context: int | None = None
) -> LlmPrediction:
    """Prefill of `prompt` tokens, and one step of decoding behind `context` tokens (else the prompt's)."""
    if math.isnan(ceilings.flops_per_us(decoder.dtype)):
        raise TargetError(
            f"nothing is known of products in {decoder.dtype} on {ceilings.name}",
            got=", ".join((*ceilings.peak_flops, *ceilings.flops)),
            want="the rate of that type in [stated.tflops] or [measured.tflops]",
            help="name another --target, or add the figure to a target file",
        )
    seen = prompt if context is None else context
    if seen < prompt:
        raise OptionError(
            "the cache holds the prompt, and what was made after it",
            got=f"{seen} tokens in the cache behind a prompt of {prompt}",
            want=f"--context {prompt} or more",
        )
    operators = [
        *_phase(decoder, ceilings, "prefill", batch, prompt, prompt, is_causal=True),
        *_phase(decoder, ceilings, "decode", batch, 1, seen, is_causal=False),
    ]
    return LlmPrediction(
        model=decoder.name,
        target=ceilings.name,
        title=ceilings.title,
        source=ceilings.source,
        batch=batch,
        prompt=prompt,
        context=seen,
        parameters=decoder.parameters,
        weight_bytes=decoder.weight_bytes,
        cache_bytes=batch * seen * decoder.cache_bytes_per_token,
        memory_bytes=ceilings.memory_bytes,
        ridge=ceilings.flops_per_us(decoder.dtype) / ceilings.memory_bytes_per_us,
        operators=tuple(operators),
    )


def _phase(
    decoder: Decoder, ceilings: Ceilings, phase: str, batch: int, queries: int, keys: int, *, is_causal: bool
) -> list[Operator]:
    """Parameters: what a phase is."""
    item, weight = ITEM_BITS[decoder.dtype] / 8, decoder.weight_bits / 8
    rows, layers = batch * queries, decoder.layers
    q, kv = decoder.heads * decoder.head_width, decoder.kv_heads * decoder.head_width

    def product(name: str, given: int, made: int, times: int = layers) -> Operator:
        flops = 2.0 * rows * given * made * times
        moved = times * (given * made * weight + rows * (given + made) * item)
        return _operator(phase, name, flops, moved, decoder.dtype, ceilings)

    scores = batch * decoder.heads * queries * keys * (0.5 if is_causal else 1.0)
    moved = layers * item * (2 * rows * q + 2 * batch * keys * kv)
    attention = _operator(
        phase, "attention", 4.0 * layers * scores * decoder.head_width, moved, decoder.dtype, ceilings
    )
    norms = _operator(
        phase, "norms", 2.0 * layers * rows * decoder.width * 5, 4.0 * layers * rows * decoder.width * item,
        "float32", ceilings,
    )  # fmt: skip
    up = 2 * decoder.hidden if decoder.is_gated else decoder.hidden
    # logits are wanted for the last token of each sequence only
    head_rows, head = batch, decoder.width * decoder.vocabulary
    logits = _operator(
        phase, "logits", 2.0 * head_rows * head, head * weight + head_rows * decoder.vocabulary * item,
        decoder.dtype, ceilings,
    )  # fmt: skip
    return [
        product("q, k, v", decoder.width, q + 2 * kv), attention, product("output", q, decoder.width),
        product("gate, up" if decoder.is_gated else "up", decoder.width, up),
        product("down", decoder.hidden, decoder.width), norms, logits,
    ]  # fmt: skip


def _operator(phase: str, name: str, flops: float, moved: float, dtype: str, ceilings: Ceilings) -> Operator:
    """Parameters: what an operator does, and on what."""
    moving_us, computing_us = moved / ceilings.memory_bytes_per_us, flops / ceilings.flops_per_us(dtype)
    # of norms, whose type has no rate on some machines, memory alone is still a bound
    computing_us = 0.0 if math.isnan(computing_us) else computing_us
    bound = "compute" if computing_us > moving_us else "memory"
    return Operator(phase, name, flops, moved, max(moving_us, computing_us), bound)


def read_decoder(path: Path, weight_dtype: str | None = None) -> Decoder:
    """The sizes in a config.json of Hugging Face; `OptionError` names what is missing."""
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{str(path)!r} does not read as a configuration", got=first_line(error)) from error
    sizes = raw.get("text_config", raw) if isinstance(raw, dict) else {}
    if not isinstance(sizes, dict):
        raise OptionError(f"{str(path)!r} has no usable text_config", got=str(sizes)[:80], want="an object")
    width = _size(sizes, path, "hidden_size", "n_embd", "d_model")
    heads = _size(sizes, path, "num_attention_heads", "n_head")
    if heads > width and "head_dim" not in sizes:
        raise OptionError(
            f"{str(path)!r} has more heads than columns",
            got=f"{heads} heads, a width of {width}",
            want="head_dim, or a width that the heads can share",
        )
    dtype = str(sizes.get("torch_dtype") or sizes.get("dtype") or "float16")
    stored = weight_dtype or dtype
    if experts := next((name for name in EXPERTS if (sizes.get(name) or 0) not in (0, 1)), ""):
        raise OptionError(
            "a mixture of experts is not predicted: which weights a token reads depends on it",
            got=f"{experts} = {str(sizes[experts])[:20]}",
            want="the configuration of a dense decoder",
        )
    if stored not in WEIGHT_TYPES or dtype not in ITEM_BITS:
        raise OptionError("weights of this type are not known", got=stored, want=", ".join(WEIGHT_TYPES))
    return Decoder(
        name=str(sizes.get("_name_or_path") or raw.get("model_type") or path.parent.name or path.stem),
        layers=_size(sizes, path, "num_hidden_layers", "n_layer"),
        width=width,
        heads=heads,
        kv_heads=_size(sizes, path, "num_key_value_heads", default=heads),
        head_width=_size(sizes, path, "head_dim", default=width // heads),
        hidden=_size(sizes, path, "intermediate_size", "n_inner", "ffn_dim", default=4 * width),
        vocabulary=_size(sizes, path, "vocab_size"),
        dtype=dtype,
        weight_dtype=stored,
        is_gated=_is_gated(sizes),
        is_tied=bool(sizes.get("tie_word_embeddings", False)),
    )


def _is_gated(sizes: Mapping[str, Any]) -> bool:
    """Whether gate, up and down are three products. Configurations leave out what is their type's default."""
    names = ("hidden_act", "hidden_activation", "activation_function")
    stated = next((str(sizes[name]).lower() for name in names if sizes.get(name)), "")
    if sizes.get("model_type") in PLAIN_TYPES:
        return False
    return stated not in PLAIN_ACTIVATIONS if stated else "intermediate_size" in sizes


def _size(sizes: Mapping[str, Any], path: Path, *names: str, default: int | None = None) -> int:
    for name in names:
        value = sizes.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
        if value is not None:
            raise OptionError(
                f"{str(path)!r} has no usable {name}", got=str(value)[:80], want="a size above 0"
            )
    if default is None:
        raise OptionError(
            f"{str(path)!r} is not the configuration of a decoder",
            got=f"no {' or '.join(names)}",
            want="config.json of a language model, as Hugging Face writes it",
        )
    return default
