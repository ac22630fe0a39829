"""What a step mostly is and which type it computes in, as a plan tells it. Traces say the same of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.base.spec import EPSILON, Body, Op
from ridgeline.ir.body_class import body_class
from ridgeline.plan.plan import Step

PRODUCTS = ("product", "convolution", "attention", "recurrent", "library span")
CODES = ("int8", "uint8", "float8", "int4", "uint4", "float4", "int2", "uint2")


def class_of(step: Step) -> str:
    """The class of its ops; several regions that a library runs are its span."""
    if len(step.regions) > 1 and not step.kernels:
        return "library span"
    return ops_class(step.op_types)


def ops_class(op_types: Sequence[str]) -> str:
    """The class of a region with these ops."""
    return body_class(Body((), (), tuple(Op(op_type, (), ()) for op_type in op_types)))


def precision_of(
    step: Step, op_class: str, types: Mapping[str, str], weights: Mapping[str, Sequence[str]]
) -> str:
    """The type of codes that a product reads; else of its first float output, else of its first output."""
    read = weights.get(step.name, ())
    if op_class in PRODUCTS:
        codes = [kind for kind in read if kind.startswith(CODES)]
        if codes:
            return codes[0]
    made = [types[name] for name in (*step.outputs, *step.inputs) if name in types]
    floats = [kind for kind in (*made, *read) if kind in EPSILON]
    return (floats or made or ["unknown"])[0]
