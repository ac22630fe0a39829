"""Attention that reads codes of 8 bits as they are, or makes them of its result, in our own kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import ITEM_BITS, Op, Site
from ridgeline.kernels.triton.quant_products import CODE_TYPES
from ridgeline.tactics.base import Footprint, Launch, Offer
from ridgeline.tactics.cuda.own_kernels import KernelTactic, launcher_of
from ridgeline.tactics.cuda.read_codes import is_settled, known_number, settled_value
from ridgeline.tactics.cuda.triton_attention import (
    TYPES,
    Blocks,
    CodeTypes,
    arguments,
    extents,
    grid_of,
    kernel_of,
    predict_attention_us,
    rank_blocks,
    require_addressable,
)
from ridgeline.tactics.read.attention import AttentionSite, read_attention
from ridgeline.tactics.read.epilogue import find_anchor, spec_of
from ridgeline.tactics.staging import staged_launch

READ = ("int8", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class CodeAttention:
    """softmax(scale · q kᵀ + mask) v of codes or numbers, into codes or numbers."""

    site: Site
    attention: AttentionSite
    types: CodeTypes
    scales: tuple[str, ...]  # of q, k, v and the result; "": numbers

    def bind_scales(self, weights: Mapping[str, Tensor], device: str) -> Tensor:
        """As the kernel takes them: of q kᵀ, of v, and of the result."""
        given = [
            settled_value(self.site, weights, name).float().reshape(()).to(device)
            if name
            else torch.ones((), device=device)
            for name in self.scales
        ]
        return torch.stack([given[0] * given[1], *given[2:]])

    def extents(self) -> dict[int, int]:
        """Bytes that the kernel touches, by argument."""
        found, count = {}, len(self.site.body.inputs)
        half = ITEM_BITS[self.attention.dtype] // 8
        slots = {operand.slot for operand in self.attention.operands if self.scales[0]}
        for argument, size in extents(self.attention, count).items():
            is_codes = argument in slots or (argument == count and self.types.made in CODE_TYPES.values())
            found[argument] = size // half if is_codes else size
        return found


class TritonCodeAttention(KernelTactic):
    """y = softmax(scale · q kᵀ + mask) v with codes in one kernel; scores and sums are float32."""

    name = "triton.qattention"
    reads_levels = True

    def offer(self, site: Site) -> Offer:
        self.require_kernels(site, of_tiles=True)
        found = read_code_attention(site)
        attention = found.attention
        return Offer(
            [blocks.config() for blocks in rank_blocks(attention, site.target)],
            bind=lambda config, weights: self._bind(found, Blocks.of(config), weights),
            kernels=lambda config: [kernel_of(attention, Blocks.of(config), site.target, found.types)],
            footprint=lambda config: Footprint(writes_out=True, packed_bytes=12),
            extents=lambda config: found.extents(),
            predict_us=partial(predict_attention_us, attention),
            compiles=True,
        )

    def _bind(self, found: CodeAttention, blocks: Blocks, weights: Mapping[str, Tensor]) -> Launch:
        site, attention = found.site, found.attention
        kernel = kernel_of(attention, blocks, site.target, found.types)
        launcher, grid = launcher_of(kernel, site, self.store), grid_of(attention, blocks)
        slots = {operand.slot for operand in (*attention.operands, attention.mask) if operand is not None}
        scales = found.bind_scales(weights, "cuda")

        def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
            return launcher.freeze(grid, arguments(attention, inputs, outputs, scales))

        return staged_launch(freeze, site, slots, packed_bytes=scales.nbytes, reads=frozenset(slots))


def read_code_attention(site: Site) -> CodeAttention:
    """The attention of the region: each operand behind a DequantizeLinear, or the result quantised."""
    anchor = find_anchor(site.body, ("Attention",))
    quantizer = _quantizer(site)
    is_of_codes = quantizer is None or any(op.key == "DequantizeLinear" for op in site.body.ops)
    dequantizers = [_dequantizer(site, name) for name in anchor.inputs[:3]] if is_of_codes else []
    dtypes = {spec_of(site, op.inputs[0]).dtype for op in dequantizers}
    if len(dtypes) > 1 or not dtypes <= set(READ):
        raise RefusedError(f"codes are {', '.join(sorted(dtypes))}, want one of {', '.join(READ)}")
    for op in (*dequantizers, *([quantizer] if quantizer else [])):
        _require_one_scale(site, op)
    plain = _of_numbers(site, dequantizers, quantizer)
    attention = read_attention(plain)
    if attention.dtype not in ("float16", "bfloat16", "float32"):
        raise RefusedError(f"numbers are {attention.dtype}")
    require_addressable(attention)
    read, made = dtypes.pop() if dtypes else attention.dtype, site.outputs[0].dtype
    if quantizer is not None and (made not in READ or (is_of_codes and made != read)):
        raise RefusedError(f"operands are {read}, and the result {made}")
    kinds = TYPES | CODE_TYPES
    scales = [op.inputs[1] for op in dequantizers] or ["", "", ""]
    scales.append(quantizer.inputs[1] if quantizer else "")
    return CodeAttention(site, attention, CodeTypes(kinds[read], kinds[made]), tuple(scales))


def _dequantizer(site: Site, name: str) -> Op:
    """The op that makes numbers of an operand's codes; only views lie between it and the attention."""
    op = site.body.producer(name)
    while op is not None and op.key != "DequantizeLinear":
        op = site.body.producer(op.inputs[0])
    if op is None:
        raise RefusedError(f"{name!r} is not dequantised inside the region")
    return op


def _quantizer(site: Site) -> Op | None:
    """The op that makes codes of the result; views may lie before it and behind it."""
    found = [op for op in site.body.ops if op.key == "QuantizeLinear"]
    if len(found) > 1 or (found and len(site.body.consumers(found[0].inputs[0])) != 1):
        raise RefusedError("numbers are quantised that others read too")
    return found[0] if found else None


def _require_one_scale(site: Site, op: Op) -> None:
    if spec_of(site, op.inputs[1]).numel != 1 or not is_settled(site, op.inputs[1]):
        raise RefusedError(f"{op.op_type} of {op.inputs[0]!r} has several scales, or one that changes")
    if len(op.inputs) > 2 and op.inputs[2] and known_number(site, op.inputs[2]) != 0.0:
        raise RefusedError(f"the zero point {op.inputs[2]!r} is not known to be zero")
    if not int(op.attrs.get("saturate", 1)):
        raise RefusedError(f"{op.op_type} without saturation")


def _of_numbers(site: Site, dequantizers: Sequence[Op], quantizer: Op | None) -> Site:
    """The site as if it read and made numbers: for what it says of views, sizes and masks."""
    like = dequantizers[0].outputs[0] if dequantizers else find_anchor(site.body, ("Attention",)).inputs[0]
    numbers = site.specs[like].dtype
    left_out = [*dequantizers, *([quantizer] if quantizer else [])]
    renamed = {op.outputs[0]: op.inputs[0] for op in left_out}
    ops = tuple(
        replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs))
        for op in site.body.ops
        if not any(op is other for other in left_out)
    )
    outputs = tuple(renamed.get(name, name) for name in site.body.outputs)
    specs = {
        name: replace(spec, dtype=numbers) if spec.dtype in READ else spec
        for name, spec in site.specs.items()
    }
    if quantizer is not None:
        specs[outputs[0]] = replace(specs[outputs[0]], layout=site.outputs[0].layout)
    return replace(site, body=replace(site.body, ops=ops, outputs=outputs), specs=specs)
