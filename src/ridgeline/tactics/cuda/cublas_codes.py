"""Products of int8 and float8 codes through cuBLASLt; scales and all that follows are one generated kernel.

The library knows one scale for each operand. So it makes bare sums, int32 or float32, unless two such scales
are all there is to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Body, Config, Op, Site, TensorSpec
from ridgeline.frontend.types import ONNX_TYPES
from ridgeline.tactics.base import Call, Footprint, Launch, Offer, Refused
from ridgeline.tactics.cuda.cublas import Rest, after_library, read_rest
from ridgeline.tactics.cuda.own_kernels import KernelTactic
from ridgeline.tactics.cuda.read_codes import is_settled, require_codes, settled_value
from ridgeline.tactics.cuda.triton_quant import (
    FAST_DEPTH,
    centred_codes,
    has_zero,
    require_types,
    row_scale_dim,
)
from ridgeline.tactics.predict import cublas_us
from ridgeline.tactics.read.epilogue import find_anchor
from ridgeline.tactics.shared_copies import shared_copy

RAW = "library.sums"
# of the library: rows of 16 bytes, and for integers at least 17 rows of x
MULTIPLE, INTEGER_ROWS = 16, 17


@dataclass(frozen=True)
class _Product:
    """y[M, N] = scales · x[M, K] · w[K, N] of codes."""

    site: Site
    anchor: Op
    slot: int
    scales: tuple[str, str]
    is_nk: bool
    is_integer: bool
    are_scalars: bool  # one constant scale for each operand
    rest: Rest

    @property
    def is_whole(self) -> bool:
        return self.rest.site is None


class CublasCodes(KernelTactic):
    """epilogue(scales · Σ codes · codes) by cuBLASLt and a generated kernel."""

    name = "cublas.codes"
    reads_levels = True

    def offer(self, site: Site) -> Offer | Refused:
        product, depth = self._read(site)
        spec = site.specs[product.anchor.outputs[0]]
        columns = spec.shape[-1]
        scratch = 0 if product.is_whole else 4 * spec.numel
        footprint = Footprint(True, packed_bytes=columns * depth, scratch_bytes=scratch)
        return Offer(
            [{}]
            if product.is_integer
            else [{"is_fast": fast} for fast in (False, True)[: 1 + (depth <= FAST_DEPTH)]],
            bind=partial(_bind, product),
            kernels=product.rest.kernels,
            footprint=lambda config: footprint,
            predict_us=lambda config, device: cublas_us(site, depth, product.rest.site, device),
            compiles=not product.is_whole,
        )

    def _read(self, site: Site) -> tuple[_Product, int]:
        anchor = find_anchor(site.body, ("MatMul", "Gemm"))
        x, w = require_codes(site, anchor, 0), require_codes(site, anchor, 1)
        require_types(x, w)
        is_integer = x.dtype == "int8"
        if x.name not in site.body.inputs or not is_settled(site, w.name) or len(w.spec.shape) != 2:
            raise RefusedError("want codes of rows, and of one constant matrix")
        if x.dtype == "uint8" or has_zero(site, x):
            raise RefusedError("the library has no zero points")
        if not is_integer and not site.target.has_float8:
            raise RefusedError(f"{site.target.arch} has no tensor cores for {x.dtype}")
        if anchor.attrs.get("transA", 0) or x.is_transposed or float(anchor.attrs.get("alpha", 1.0)) != 1.0:
            raise RefusedError("rows of x are not contiguous, or the product has a factor")
        is_nk = bool(anchor.attrs.get("transB", 0)) != w.is_transposed
        columns, depth = w.spec.shape if is_nk else w.spec.shape[::-1]
        if w.block or w.axis not in (None, 0 if is_nk else 1) or row_scale_dim(x) is not None:
            raise RefusedError("want one scale for x, and one for the weight or for each of its columns")
        rows = x.spec.numel // depth
        if depth % MULTIPLE or columns % MULTIPLE or (is_integer and rows < INTEGER_ROWS):
            raise RefusedError(f"{rows} rows, {columns} columns and sums of {depth} do not suit the library")
        are_scalars = (
            x.axis is None and w.axis is None and all(is_settled(site, s) for s in (x.scale, w.scale))
        )
        rest = _rest(site, anchor, (x.scale, w.scale), is_integer=is_integer, are_scalars=are_scalars)
        slot = site.body.inputs.index(x.name)
        made = read_rest(rest, self.store)
        return _Product(site, anchor, slot, (x.scale, w.scale), is_nk, is_integer, are_scalars, made), depth


def _rest(
    site: Site, anchor: Op, scales: Sequence[str], *, is_integer: bool, are_scalars: bool
) -> Site | None:
    """What follows the sums: their scales, the anchor's own bias, and the rest of the region."""
    body, value = site.body, anchor.outputs[0]
    shape = site.specs[value].shape
    needed = {value}
    for op in reversed(body.ops):
        if needed & set(op.outputs):
            needed |= set(op.inputs)
    ops = [op for op in body.ops if not needed & set(op.outputs)]
    bias = anchor.inputs[2] if len(anchor.inputs) > 2 else ""
    if bias and (float(anchor.attrs.get("beta", 1.0)) != 1.0 or body.producer(bias) is not None):
        raise RefusedError(f"C {bias!r} has a factor, or is made inside the region")
    if not ops and not bias and not is_integer and are_scalars and site.specs[value].dtype != "float32":
        return None
    steps = [Op("Cast", (RAW,), (f"{RAW}.0",), {"to": ONNX_TYPES["float32"]})]
    steps += [Op("Mul", (f"{RAW}.{i}", scale), (f"{RAW}.{i + 1}",)) for i, scale in enumerate(scales)]
    steps += [Op("Add", (steps[-1].outputs[0], bias), (f"{RAW}.biased",))] if bias else []
    steps.append(Op("Identity", steps[-1].outputs, (value,)))
    ops = [*steps, *ops]
    made = {name for op in ops for name in op.outputs}
    free = dict.fromkeys(n for op in ops for n in op.inputs if n and n not in made and n != RAW)
    inputs = [name for name in free if name in body.inputs]
    inside = [name for name in free if name not in body.inputs and name not in body.constants]
    if inside or not made >= set(body.outputs):
        raise RefusedError(f"{(inside or ['an output'])[0]} is made before the product and needed after it")
    specs = dict(site.specs) | {op.outputs[0]: TensorSpec("float32", shape) for op in steps[:-1]}
    specs[RAW] = TensorSpec("int32" if is_integer else "float32", shape)
    constants = {name: array for name, array in body.constants.items() if name in free}
    return Site(
        Body((RAW, *inputs), body.outputs, tuple(ops), constants), specs,
        frozenset(name for name in inputs if name in site.weights),
        {name: v for name, v in site.values.items() if name in inputs}, site.target, site.name,
        power_scales=site.power_scales & set(inputs),
    )  # fmt: skip


def _bind(product: _Product, config: Config, weights: Mapping[str, Tensor]) -> Launch:
    site = product.site
    w = require_codes(site, product.anchor, 1)
    codes = centred_codes(site, weights, w).to("cuda")
    # [K, N] with columns one after the other: what the library wants of 8 bits
    weight = shared_copy((codes if product.is_nk else codes.t()).contiguous().t(), *weights.values())
    scales = [torch.ones((), device="cuda")] * 2
    if product.is_whole:
        scales = [
            settled_value(site, weights, name).to("cuda").float().reshape(()) for name in product.scales
        ]
    fill = _fill(product, weight, scales, is_fast=bool(config.get("is_fast", False)))
    packed = weight.nbytes
    if product.rest.site is None:
        return Launch(fill, writes_out=True, packed_bytes=packed)
    return after_library(site, product.rest.site, fill, product.rest.bind(weights), packed_bytes=packed)


def _fill(product: _Product, weight: Tensor, scales: Sequence[Tensor], *, is_fast: bool) -> Call:
    depth, columns = weight.shape

    def fill(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        x, y = inputs[product.slot].view(-1, depth), outputs[0].view(-1, columns)
        if product.is_integer:
            torch._int_mm(x, weight, out=y)
        else:
            torch.ops.aten._scaled_mm.out(
                x, weight, scales[0], scales[1], None, None, y.dtype, is_fast, out=y
            )

    return fill
