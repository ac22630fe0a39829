"""The module itself as a witness: an engine made from PyTorch is compared with it, not only its export."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ridgeline.divergence import first_divergence
from ridgeline.errors import VerifyError
from ridgeline.frontend.from_torch import Sample
from ridgeline.kernels.elements import as_numpy
from ridgeline.plan.report import Check
from ridgeline.reference import Reference
from ridgeline.runtime.engine import Engine
from ridgeline.verify import compare, require

EXPORT = "example inputs: exported graph against the module in PyTorch"
ENGINE = "example inputs: engine against the module in PyTorch"


def check_sample(engine: Engine, reference: Reference, sample: Sample, *, runs_here: bool) -> list[Check]:
    """Rows for the example inputs: the export, and the engine where it runs, against the module.

    The tolerance is that of the exported model: the module rounds as often as its graph does.
    """
    feeds, eager = arrays(sample.feeds), arrays(sample.eager())
    want = reference.run(feeds)
    limits = reference.tolerance(feeds, want)
    shapes = ", ".join(f"{name}[{'x'.join(map(str, array.shape))}]" for name, array in feeds.items())
    rows = compare(EXPORT, want, eager, limits, shapes)
    wrong = [row for row in rows if not row.passed]
    if wrong:
        raise VerifyError(
            "the exported graph does not compute what the module computes",
            rows=[f"{r.output} off {r.max_error:.3g}, tolerance {r.tolerance:.3g} {r.note}" for r in wrong],
            help="this is the exporter's, not the engine's: is the module deterministic? try another PyTorch",
        )
    if runs_here:
        rows += compare(ENGINE, engine.run(feeds), eager, limits, shapes)
        if not all(row.passed for row in rows):
            require(rows, where=first_divergence(engine, feeds))
    return rows


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """As engine and reference take them."""
    return {name: as_numpy(tensor.detach().cpu().contiguous()) for name, tensor in tensors.items()}
