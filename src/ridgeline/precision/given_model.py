"""What a user gives to `ridgeline.quantize`: ONNX in any form, or a PyTorch module with example inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from ridgeline.frontend.from_onnx import Source, load
from ridgeline.frontend.from_torch import Sample, export
from ridgeline.frontend.torch_dims import refuse_example
from ridgeline.frontend.torch_export import as_source
from ridgeline.options import Limits, Options
from ridgeline.precision.original import Original
from ridgeline.verify.module import check_export


@dataclass(frozen=True)
class GivenModel:
    """A source to load, and the call that it was exported from, if it was."""

    source: Source
    limits: Limits
    sample: Sample | None = None

    def has_independent_rows(self) -> bool:
        return self.original().has_independent_rows()

    def original(self) -> Original:
        return Original(load(self.source, self.limits), Options(limits=self.limits), self.sample)


@contextmanager
def given_model(
    source: Source | nn.Module | ExportedProgram, example: Any, dynamic_shapes: Any, limits: Limits
) -> Iterator[GivenModel]:
    """The model; a module is exported, and its export compared with it. Large weights lie in a folder."""
    if not isinstance(source, (nn.Module, ExportedProgram)):
        refuse_example(example, dynamic_shapes)
        yield GivenModel(source, limits)
        return
    exported = export(source, example, dynamic_shapes)
    with as_source(exported.model) as found:
        made = GivenModel(found, limits, exported.sample)
        check_export(made.original().reference, exported.sample)
        yield made
