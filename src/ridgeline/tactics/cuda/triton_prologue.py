"""Pointwise ops and the product that reads what they make as one Triton kernel: a span of two regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device
from ridgeline.base.spec import Config, Op, Site
from ridgeline.ir.work import body_flops
from ridgeline.kernels.scalar.anchor import Dequantized
from ridgeline.kernels.scalar.ops import POINTWISE
from ridgeline.kernels.triton.epilogue import make_epilogue
from ridgeline.kernels.triton.products import Product, Tile
from ridgeline.kernels.triton.prologue import make_prologue, surround
from ridgeline.kernels.triton.prologue_products import PrologueProduct, rank_prologue
from ridgeline.tactics.base import PairOps
from ridgeline.tactics.cuda.triton_conv import TritonConv1x1
from ridgeline.tactics.cuda.triton_linear import TritonGemm
from ridgeline.tactics.cuda.triton_product import ProductSite, TritonProduct
from ridgeline.tactics.predict import prologue_product_us
from ridgeline.tactics.read.epilogue import find_anchor

PRODUCTS = ("Conv", "MatMul", "Gemm")


class TritonPrologueGemm(TritonProduct):
    """epilogue(prologue(x) · W): x is computed tile by tile as it is multiplied, and goes to no memory."""

    name = "triton.prologue_gemm"
    pair_ops = PairOps(tuple(POINTWISE), PRODUCTS, is_all_of_first=True)

    def product(self, site: Site) -> ProductSite:
        anchor = find_anchor(site.body, PRODUCTS)
        before = read_before(site, anchor)
        made = anchor.inputs[0]
        values = frozenset(name for op in before.body.ops for name in op.outputs)
        # the product alone, as if x were there
        ops = tuple(op for op in site.body.ops if values.isdisjoint(op.outputs))
        body = replace(site.body, inputs=(*site.body.inputs, made), ops=ops)
        kind = TritonConv1x1 if anchor.op_type == "Conv" else TritonGemm
        alone = kind(store=self.store).read(replace(site, body=body))
        problem = alone.problem
        if not isinstance(problem, Product) or not problem.has_weight:
            raise RefusedError(f"weight {anchor.inputs[1]!r} changes between runs")
        if problem.batch != 1:
            raise RefusedError("channels of x do not lie together")
        tail = make_epilogue(site, anchor.outputs[0], alone.columns_axis, Dequantized(values))
        depths_axis = alone.columns_axis % len(site.specs[made].shape)
        prologue = make_prologue(before, depths_axis, len(tail.types))
        given = {field.name: getattr(problem, field.name) for field in fields(problem)}
        flops = body_flops(before.body, before.specs) / site.specs[made].numel
        problem = PrologueProduct(**given, wholes=prologue.wholes, spans=prologue.spans, item_flops=flops)
        reading = replace(alone, problem=problem, x=prologue.x)
        return ProductSite(site, reading, surround(prologue, tail))

    def cuts(self, site: Site, problem: Any) -> Sequence[Tile]:
        return rank_prologue(problem, site.target.arch)

    def predict_us(self, site: Site, problem: Any, config: Config, device: Device) -> float:
        return prologue_product_us(site, problem, self.cut_of(problem, config), device)


def read_before(site: Site, anchor: Op) -> Site:
    """The ops that make the data of the product, as a site of their own with that one output."""
    body, made = site.body, anchor.inputs[0]
    wanted, before, after = {made}, [], []
    for op in reversed(body.ops):
        if wanted.isdisjoint(op.outputs):
            after.append(op)
        else:
            before.append(op)
            wanted.update(op.inputs)
    if not before:
        raise RefusedError(f"nothing comes before the {anchor.op_type}")
    values = {name for op in before for name in op.outputs}
    read = [name for op in after for name in op.inputs] + list(body.outputs)
    if [name for name in read if name in values] != [made]:
        raise RefusedError(f"others read what comes before the {anchor.op_type}")
    return replace(site, body=replace(body, outputs=(made,), ops=tuple(reversed(before))))
