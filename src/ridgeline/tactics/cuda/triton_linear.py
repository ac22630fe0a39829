"""Matrix products by our own Triton kernels: constant weights packed once, or two activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device
from ridgeline.base.spec import ITEM_BITS, Config, Op, Site, TensorSpec
from ridgeline.kernels.triton.products import GEMV_ROWS, FewRows, Product, Tile, pack_weight, row_stride
from ridgeline.kernels.triton.ranking import rank_gemv
from ridgeline.kernels.triton.text import power_of_two
from ridgeline.tactics.cuda.triton_product import (
    GRID_LIMIT,
    Reading,
    TritonProduct,
    precision_of,
    require_dtype,
)
from ridgeline.tactics.predict import few_rows_us
from ridgeline.tactics.read.epilogue import find_anchor, is_constant

# B batches, M rows, K summed over, N columns


class TritonGemm(TritonProduct):
    """epilogue(x · W) on tensor cores; the sum over K is split where tiles are too few to fill the GPU."""

    name = "triton.gemm"

    def read(self, site: Site) -> Reading:
        anchor, x, w = _read_operands(site)
        if is_constant(site, anchor.inputs[1]):
            return _read_weight(site, anchor, x, w, Product)
        return _read_activations(site, anchor, x, w)


class TritonGemv(TritonProduct):
    """epilogue(x · W) of a few rows: the weight streams by once, multiplied on plain cores."""

    name = "triton.gemv"

    def read(self, site: Site) -> Reading:
        anchor, x, w = _read_operands(site)
        if not is_constant(site, anchor.inputs[1]):
            raise RefusedError(f"{anchor.inputs[1]!r} changes between runs, want a constant weight")
        reading = _read_weight(site, anchor, x, w, FewRows)
        if reading.problem.extent > GEMV_ROWS:
            raise RefusedError(f"{reading.problem.extent} rows, want at most {GEMV_ROWS}")
        return reading

    def cuts(self, site: Site, problem: Any) -> Sequence[Tile]:
        return rank_gemv(problem, site.target.arch)

    def predict_us(self, site: Site, problem: Any, config: Config, device: Device) -> float:
        return few_rows_us(site, device)

    def cut_of(self, problem: Any, config: Config) -> Tile:
        tile: Tile = super().cut_of(problem, config)
        # one program has all rows: of a larger batch there are more than were planned for
        return replace(tile, bm=max(tile.bm, power_of_two(problem.extent)))


def _read_operands(site: Site) -> tuple[Op, TensorSpec, TensorSpec]:
    """The product of the region and its two operands."""
    anchor = find_anchor(site.body, ("MatMul", "Gemm"))
    data, weight = anchor.inputs[:2]
    if data not in site.body.inputs:
        raise RefusedError(f"{data!r} is not an input of the region")
    x, w = site.specs[data], site.specs[weight]
    require_dtype(x.dtype, w.dtype)
    if not x.shape or len(w.shape) < 2:
        raise RefusedError(f"operands have {len(x.shape)} and {len(w.shape)} axes, want rows and a matrix")
    if not x.numel or not w.numel:
        raise RefusedError("a tensor is empty")
    if anchor.attrs.get("transA", 0) or x.layout != "contiguous":
        raise RefusedError("rows of x are not contiguous")
    return anchor, x, w


def _read_weight(site: Site, anchor: Op, x: TensorSpec, w: TensorSpec, kind: type[Product]) -> Reading:
    """All rows of x with one constant matrix."""
    if math.prod(w.shape[:-2]) != 1 or len(w.shape) > max(len(x.shape), 2):
        raise RefusedError(f"weight has shape {list(w.shape)}, want one matrix")
    is_transposed = bool(anchor.attrs.get("transB", 0))
    depth, columns = w.shape[-1:-3:-1] if is_transposed else w.shape[-2:]
    stride = row_stride(depth, ITEM_BITS[w.dtype] // 8)
    rows = x.numel // depth
    return Reading(
        anchor,
        kind(rows, columns, depth, x.dtype, (0, depth, 1), (0, stride, 1), precision=precision_of(anchor)),
        x=site.body.inputs.index(anchor.inputs[0]), weight=anchor.inputs[1],
        pack=partial(_pack, is_transposed=is_transposed), columns_axis=-1,
    )  # fmt: skip


def _pack(stored: Tensor, *, is_transposed: bool) -> Tensor:
    matrix = stored.reshape(stored.shape[-2:])
    return pack_weight(matrix if is_transposed else matrix.t())


def _read_activations(site: Site, anchor: Op, x: TensorSpec, w: TensorSpec) -> Reading:
    """Two inputs of the region, matrix by matrix."""
    name = anchor.inputs[1]
    if name not in site.body.inputs:
        raise RefusedError(f"{name!r} is not an input of the region")
    if w.layout != "contiguous" or len(x.shape) < 2:
        raise RefusedError("matrices of an operand are not contiguous")
    is_transposed = bool(anchor.attrs.get("transB", 0))
    depth, columns = w.shape[-1:-3:-1] if is_transposed else w.shape[-2:]
    inner = (depth, 1) if is_transposed else (1, columns)
    rows, x_batches, w_batches = x.shape[-2], math.prod(x.shape[:-2]), math.prod(w.shape[:-2])
    if w_batches == 1:  # one matrix for all rows
        rows, strides, batch = x.numel // depth, ((0, depth, 1), (0, *inner)), 1
    elif x_batches != 1 and _batches(x) != _batches(w):
        raise RefusedError(f"batches {list(x.shape[:-2])} and {list(w.shape[:-2])} broadcast in part")
    else:
        x_step = rows * depth if x_batches > 1 else 0
        strides, batch = ((x_step, depth, 1), (depth * columns, *inner)), w_batches
    if batch > GRID_LIMIT:
        raise RefusedError(f"{batch} matrices, a grid has {GRID_LIMIT}")
    problem = Product(
        rows, columns, depth, x.dtype, *strides, batch=batch, has_weight=False, precision=precision_of(anchor)
    )
    slot = site.body.inputs.index(anchor.inputs[0])
    return Reading(anchor, problem, x=slot, weight=name, pack=None, columns_axis=-1)


def _batches(spec: TensorSpec) -> tuple[int, ...]:
    """Batch sizes without leading ones."""
    sizes = spec.shape[:-2]
    return sizes[next((i for i, size in enumerate(sizes) if size != 1), len(sizes)) :]
