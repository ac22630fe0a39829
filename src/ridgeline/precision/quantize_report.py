"""What a quantisation decided, as rows: for the terminal and for JSON."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.precision.place import OperandRow
from ridgeline.precision.quantize import Quantized
from ridgeline.precision.smooth import Smoothed


@dataclass(frozen=True)
class CalibratedRow:
    """Tensors that share a scale, and the range that was found for them."""

    tensors: tuple[str, ...]
    low: float
    high: float
    observed_low: float
    observed_high: float
    method: str
    errors: dict[str, float]  # relative squared output error of the methods that were compared


@dataclass(frozen=True)
class OutputError:
    """The relative L2 error of one output on the worst of the rows that were judged."""

    output: str
    relative_l2: float


@dataclass(frozen=True)
class QuantizeReport:
    """How a model was quantised: what was decided for each operand, and how far the outputs moved."""

    format: str
    opset: int
    products: int  # convolutions and matrix products that were quantised
    of_products: int
    float_bytes: int
    quantized_bytes: int
    judged_rows: int
    held_out: bool  # calibration did not see the rows that were judged
    outputs: tuple[OutputError, ...]
    decisions: tuple[OperandRow, ...]
    ranges: tuple[CalibratedRow, ...]
    smoothed: tuple[Smoothed, ...]
    notes: tuple[str, ...]


def report_of(made: Quantized) -> QuantizeReport:
    done = {d.node for d in made.decisions if d.scheme != "float" and d.role in ("weight", "activation")}
    left = {d.node for d in made.decisions if d.scheme == "float" and d.role == "product"}
    ranges = []
    for group in made.groups:
        found = made.ranges[group.name]
        ends = (found.low, found.high, found.observed_low, found.observed_high)
        ranges.append(CalibratedRow(group.members, *ends, found.method, dict(found.errors)))
    return QuantizeReport(
        format=made.scheme.name,
        opset=int(made.model.opset_imports[""]),
        products=len(done),
        of_products=len(done | left),
        float_bytes=made.float_bytes,
        quantized_bytes=made.quantized_bytes,
        judged_rows=made.judged_rows,
        held_out=made.held_out,
        outputs=tuple(OutputError(name, error) for name, error in made.errors.items()),
        decisions=made.decisions,
        ranges=tuple(ranges),
        smoothed=made.smoothed,
        notes=made.notes,
    )
