"""Torch modules in half precision as graphs and as regions for a GPU, for the tests of whole networks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch import nn

from ridgeline.base.spec import Target, TensorSpec
from ridgeline.frontend.from_onnx import load
from ridgeline.frontend.torch_export import kept_translations
from ridgeline.ir.body import read_program
from ridgeline.ir.infer import Inferred, infer
from ridgeline.ir.layout import assign_layouts
from ridgeline.ir.sites import make_site
from ridgeline.ir.views import views_of
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.partition import partition
from ridgeline.passes.pipeline import canonicalise

CUDA = Target("cuda", "sm_90")
KINDS = {ir.DataType.FLOAT16: "float16", ir.DataType.FLOAT: "float32", ir.DataType.INT64: "int64"}


def export_half(
    model: nn.Module, inputs: Mapping[str, torch.Tensor], opset: int, *, dynamic_shapes: Any = None
) -> onnx.ModelProto:
    """Biases are random: zeros would fold away."""
    for key, weight in model.named_parameters():
        if key.endswith("bias"):
            nn.init.normal_(weight, std=0.1)
    given = tuple(t.half() if t.is_floating_point() else t for t in inputs.values())
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), kept_translations():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.half().eval(),
            given,
            input_names=list(inputs),
            opset_version=opset,
            dynamo=True,
            verbose=False,
            dynamic_shapes=dynamic_shapes,
        )
    logging.disable(logging.NOTSET)
    assert program is not None, "the dynamo exporter hands its program out"
    return program.model_proto


def fused(proto: onnx.ModelProto, batch: int = 2) -> tuple[ir.Model, Inferred]:
    """The regions a GPU would get, at one batch."""
    model = load(proto).model
    canonicalise(model, target=CUDA)
    _fuse(model, _settled(model, batch))
    return model, _settled(model, batch)


def _fuse(model: ir.Model, inferred: Inferred) -> None:
    partition(model, inferred, target=CUDA)
    remove_unused(model)


def _settled(model: ir.Model, batch: int) -> Inferred:
    inputs = {
        str(v.name): TensorSpec(KINDS[v.dtype], tuple(d if isinstance(d, int) else batch for d in v.shape))
        for v in model.graph.inputs
    }
    arrays = {str(n): v.const_value.numpy() for n, v in model.graph.initializers.items()}
    weights = {n: TensorSpec(str(a.dtype), a.shape) for n, a in arrays.items()}
    program = read_program(model)
    inferred = infer(program, inputs, weights, {n: a for n, a in arrays.items() if a.size <= 64})
    assign_layouts(program, inferred)
    return inferred


def regions(model: ir.Model, inferred: Inferred) -> list[str]:
    """The ops of each region that runs on the device and is no view."""
    program = read_program(model)
    sites = [make_site(program, r, inferred, CUDA) for r in program.regions if not inferred.is_host(r)]
    return [" ".join(op.op_type for op in site.body.ops) for site in sites if not views_of(site)]


def half_feeds(model: ir.Model, batch: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {str(v.name): [d if isinstance(d, int) else batch for d in v.shape] for v in model.graph.inputs}
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
