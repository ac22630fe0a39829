"""A case: one op with attributes and inputs of special values, as a model of its own or beside others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

FLOATS = ("float32", "float64", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED


@dataclass(frozen=True, eq=False)
class Case:
    """One op; inputs are arrays, None where absent. Those in `fixed` are part of the model."""

    family: str
    op: str
    what: str  # the values or sizes it is about
    inputs: tuple[np.ndarray | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    fixed: frozenset[int] = frozenset()
    n_outputs: int = 1
    opset: int = 21

    @property
    def name(self) -> str:
        first = next(x for x in self.inputs if x is not None)
        options = " ".join(f"{k}={_text(v)}" for k, v in self.attrs.items())
        return " ".join(filter(None, (self.op, str(first.dtype), options, self.what)))

    @property
    def moving(self) -> list[int]:
        """Inputs with an open first dimension: the first one and those of as many rows."""
        arrays = {i: x for i, x in enumerate(self.inputs) if x is not None and x.ndim and i not in self.fixed}
        rows = {i: len(x) for i, x in arrays.items()}
        return [i for i in arrays if rows[i] == rows[next(iter(arrays))]]

    @property
    def rows(self) -> int:
        first = self.inputs[self.moving[0]]
        assert first is not None, "only inputs that are there move"
        return len(first)

    def with_rows(self, rows: str) -> Case:
        """The case at other sizes: `more` has the first row once again (or rows of ones where there are
        none), `none` has no rows."""
        inputs = list(self.inputs)
        for i in self.moving:
            x = inputs[i]
            assert x is not None, "only inputs that are there move"
            more = x[:1] if len(x) else np.ones((2, *x.shape[1:]), x.dtype)
            inputs[i] = np.concatenate([x, more]) if rows == "more" else x[:0]
        return Case(
            self.family, self.op, f"{self.what}, {rows} rows", tuple(inputs), self.attrs, self.fixed,
            self.n_outputs, self.opset,
        )  # fmt: skip


def _text(value: Any) -> str:
    return (
        ",".join(map(str, value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )


def element_type(dtype: np.dtype) -> ir.DataType:
    return ir.DataType.from_numpy(dtype)


def numpy_type(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def make_model(cases: Sequence[Case], kinds: Sequence[Sequence[tuple[np.dtype, int]]]) -> onnx.ModelProto:
    """Independent nodes in one graph; `kinds` are the types and ranks of each case's outputs."""
    inputs, outputs, nodes, held = [], [], [], []
    for number, (case, made) in enumerate(zip(cases, kinds, strict=True)):
        values: list[ir.Value | None] = []
        for place, x in enumerate(case.inputs):
            if x is None:
                values.append(None)
                continue
            dims: list[int | str] = list(x.shape)
            if place in case.moving:
                dims[0] = f"N{number}"
            value = ir.Value(
                name=f"x{number}_{place}", type=ir.TensorType(element_type(x.dtype)), shape=ir.Shape(dims)
            )
            if place in case.fixed:
                value.const_value = ir.tensor(x, name=value.name)
                held.append(value)
            else:
                inputs.append(value)
            values.append(value)
        ends = [
            ir.Value(
                name=f"y{number}_{place}",
                type=ir.TensorType(element_type(dtype)),
                shape=ir.Shape([f"y{number}_{place}_{axis}" for axis in range(rank)]),
            )
            for place, (dtype, rank) in enumerate(made)
        ]
        nodes.append(ir.node(case.op, values, dict(case.attrs), outputs=ends))
        outputs += ends
    opset = cases[0].opset
    graph = ir.Graph(inputs, outputs, nodes=nodes, initializers=held, opset_imports={"": opset}, name="cases")
    return ir.to_proto(ir.Model(graph, ir_version=10 if opset < 23 else 11))


def feeds_of(cases: Sequence[Case]) -> dict[str, np.ndarray]:
    return {
        f"x{number}_{place}": x
        for number, case in enumerate(cases)
        for place, x in enumerate(case.inputs)
        if x is not None and place not in case.fixed
    }
