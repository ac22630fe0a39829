"""A norm of rows and the product that reads it as one Triton kernel: a span of two regions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device
from ridgeline.base.spec import Config, Op, Site
from ridgeline.kernels.triton.epilogue import make_epilogue
from ridgeline.kernels.triton.normed_products import NormedProduct, NormTail, rank_normed
from ridgeline.kernels.triton.products import TYPES, Tile, row_stride
from ridgeline.tactics.base import PairOps
from ridgeline.tactics.cuda.triton_product import ProductSite, Reading, TritonProduct
from ridgeline.tactics.predict import normed_product_us
from ridgeline.tactics.read.epilogue import constant_tensors, find_anchor, is_constant, spec_of

NORMS = {"LayerNormalization": True, "RMSNormalization": False}  # whether the mean is taken off
HALVES = ("float16", "bfloat16")
# with more rows a norm's own launch is a small part of it and the product, which sums its rows anew in every
# column tile: 256 rows of 768 in 36 tiles of columns are 7 million items, a µs of all processors
MOST_ROWS = 512
MOST_DEPTH = 8192  # tiles that a program sums: a row this long is worth a kernel of its own


@dataclass(frozen=True)
class NormSite:
    """The first op of a span, read; everything but the norm is `rest`, in which its result is an input."""

    op: Op
    x: str
    gamma: str
    beta: str
    depth: int
    rest: Site
    tail_outputs: tuple[int, ...]  # of the span, that the rest makes
    normed: int | None  # the place of the normed rows, where others read them too


class TritonNormedGemm(TritonProduct):
    """epilogue(norm(x) · W): rows are summed while they are multiplied, and normed afterwards."""

    name = "triton.normed_gemm"
    pair_ops = PairOps(tuple(NORMS), ("MatMul", "Gemm"))

    def product(self, site: Site) -> ProductSite:
        norm = read_norm(site)
        anchor, problem = _read_product(site, norm)
        tail = _tail(site, norm, anchor)
        reading = Reading(
            anchor, problem, x=site.body.inputs.index(norm.x), weight=anchor.inputs[1], pack=None,
            columns_axis=-1, prepare=partial(_prepare, site, norm, anchor, problem),
            prepared_bytes=problem.prepared_bytes,
        )  # fmt: skip
        return ProductSite(site, reading, tail)

    def cuts(self, site: Site, problem: Any) -> Sequence[Tile]:
        return rank_normed(problem, site.target.arch)

    def predict_us(self, site: Site, problem: Any, config: Config, device: Device) -> float:
        return normed_product_us(site, problem, self.cut_of(problem, config), device)


def read_norm(site: Site) -> NormSite:
    """The norm that the span begins with, or `RefusedError`."""
    op = find_anchor(site.body, tuple(NORMS))
    x, gamma, beta = (*op.inputs, "", "")[:3]
    if x not in site.body.inputs:
        maker = site.body.producer(x)
        raise RefusedError(f"{maker.op_type if maker else 'a constant'} comes before the {op.op_type}")
    spec, depth = site.specs[x], site.specs[x].shape[-1] if site.specs[x].shape else 0
    if spec.dtype not in HALVES or spec.layout != "contiguous":
        raise RefusedError(f"rows are {spec}, want contiguous {' or '.join(HALVES)}")
    axis = int(op.attrs.get("axis", -1))
    if axis % max(len(spec.shape), 1) != len(spec.shape) - 1 or int(op.attrs.get("stash_type", 1)) != 1:
        raise RefusedError(f"{op.op_type} is not over the last axis in float32")
    if any(name in site.specs and site.body.consumers(name) for name in op.outputs[1:]) or any(
        name in site.body.outputs for name in op.outputs[1:]
    ):
        raise RefusedError("the mean or the deviation is read by others")
    for name in filter(None, (gamma, beta)):
        if not is_constant(site, name) or spec_of(site, name).shape != (depth,):
            raise RefusedError(f"{name!r} of the {op.op_type} is not a constant of {depth} columns")
    made, outputs = op.outputs[0], site.body.outputs
    tail = tuple(place for place, name in enumerate(outputs) if name != made)
    body = replace(
        site.body,
        inputs=(*site.body.inputs, made),
        outputs=tuple(outputs[place] for place in tail),
        ops=tuple(each for each in site.body.ops if each is not op),
    )
    normed = outputs.index(made) if made in outputs else None
    return NormSite(op, x, gamma, beta, depth, replace(site, body=body), tail, normed)


def _read_product(site: Site, norm: NormSite) -> tuple[Op, NormedProduct]:
    anchor = find_anchor(site.body, ("MatMul", "Gemm"))
    data, weight = anchor.inputs[:2]
    if data != norm.op.outputs[0]:
        raise RefusedError(f"the {anchor.op_type} does not multiply what the {norm.op.op_type} makes")
    if any(norm.op.outputs[0] in op.inputs for op in site.body.ops if op is not anchor):
        raise RefusedError("another op of the span reads the normed rows")
    if not is_constant(site, weight) or anchor.attrs.get("transA", 0):
        raise RefusedError(f"weight {weight!r} changes between runs, or x is transposed")
    x, w = site.specs[norm.x], spec_of(site, weight)
    if w.dtype != x.dtype:
        raise RefusedError(f"operands are {x.dtype} and {w.dtype}, want one type")
    if not x.numel or not w.numel:
        raise RefusedError("a tensor is empty")
    if len(w.shape) < 2 or math.prod(w.shape[:-2]) != 1 or len(w.shape) > max(len(x.shape), 2):
        raise RefusedError(f"weight has shape {list(w.shape)}, want one matrix")
    rows = x.numel // norm.depth
    if rows > MOST_ROWS or norm.depth > MOST_DEPTH:
        raise RefusedError(f"{rows} rows of {norm.depth}, want at most {MOST_ROWS} of {MOST_DEPTH}")
    columns = w.shape[-2] if anchor.attrs.get("transB", 0) else w.shape[-1]
    stride = row_stride(norm.depth, 2)
    return anchor, NormedProduct(
        rows, columns, norm.depth, x.dtype, (0, norm.depth, 1), (0, stride, 1),
        epsilon=float(norm.op.attrs.get("epsilon", 1e-5)), is_centred=NORMS[norm.op.op_type],
    )  # fmt: skip


def _tail(site: Site, norm: NormSite, anchor: Op) -> NormTail:
    """The epilogue of the product alone, with its arguments where the span has them."""
    alone = make_epilogue(norm.rest, anchor.outputs[0], -1)
    inputs = len(site.body.inputs)
    extents = {
        argument if argument < inputs else inputs + norm.tail_outputs[argument - inputs - 1]: touched
        for argument, touched in alone.extents.items()
        if argument != inputs
    }
    types = alone.types
    if norm.normed is not None:
        spec = site.specs[norm.op.outputs[0]]
        types = (*types, f"*{TYPES[spec.dtype]}")
        extents[inputs + norm.normed] = spec.nbytes
    return NormTail(
        alone.function, types, alone.inputs, alone.extras, extents, norm.tail_outputs, norm.normed
    )


def _prepare(
    site: Site, norm: NormSite, anchor: Op, problem: NormedProduct, weights: Mapping[str, Tensor], device: str
) -> list[Tensor | int]:
    constants = constant_tensors(site, weights)
    stored = constants[anchor.inputs[1]].detach().to(device)
    matrix = stored.reshape(stored.shape[-2:])
    weight_nk = matrix if anchor.attrs.get("transB", 0) else matrix.t()
    gamma = constants[norm.gamma].detach().to(device)
    beta = constants[norm.beta].detach().to(device) if norm.beta else None
    return list(problem.pack(weight_nk, gamma, beta))
