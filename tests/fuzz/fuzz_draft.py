"""A random graph in the making: values with what the onnx reference says they are, node after node.

Every node is run by the reference as soon as it is drawn; one it does not take is drawn again. Recipes (see
`fuzz_recipes_*.py`) say what an op's inputs and attributes may be; this file knows nothing of single ops.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from fuzz_mended import MENDED
from onnx.reference import ReferenceEvaluator

FLOATS = ("float32", "float16", "float64", "bfloat16")
INTS = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
ELEMENT_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
# how often a type is drawn where several are allowed: what real models hold, and a little of the rest
WEIGHTS = {
    "float32": 30, "float16": 5, "float64": 4, "bfloat16": 2, "int64": 8, "int32": 5, "bool": 3, "uint8": 2,
    "int8": 2,
}  # fmt: skip
LARGEST = 3000  # elements of one value
SIZES = (1, 2, 3, 3, 4, 4, 5, 7, 8)


class NotDrawnError(Exception):
    """This choice leads nowhere: draw another."""


@dataclass(frozen=True)
class Node:
    """What a recipe makes: an op, the names it reads, its attributes, and how many results are named."""

    op: str
    inputs: Sequence[str]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1


class Draft:
    """The graph so far, and the dice."""

    def __init__(self, seed: int, opset: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.values: dict[str, np.ndarray] = {}
        self.inputs: list[str] = []
        self.constants: list[str] = []
        self.nodes: list[onnx.NodeProto] = []

    # dice

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def int(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(self.rng.integers(low, high + 1))

    def dtype(self, allowed: Sequence[str]) -> str:
        weights = np.array([WEIGHTS.get(name, 0.5) for name in allowed])
        return str(self.rng.choice(list(allowed), p=weights / weights.sum()))

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        # rank 0 is a corner, not the rule
        rank = self.int(max(low, 1) if self.chance(0.9) and high else low, high)
        return tuple(self.pick(SIZES) for _ in range(rank))

    def axis(self, rank: int) -> int:
        if not rank:
            raise NotDrawnError
        return self.int(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        """Some of them, each once, from either end."""
        count = self.int(1, rank) if rank else 0
        chosen = self.rng.permutation(rank)[:count]
        return [int(a) - rank if self.chance(0.3) else int(a) for a in chosen]

    def array(self, dtype: str, shape: Sequence[int]) -> np.ndarray:
        """Typed random values; floats of several magnitudes, integers small enough to stay exact."""
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype in INTS:
            low = 0 if dtype.startswith("u") else -6
            return self.rng.integers(low, 7, shape).astype(dtype)
        scale = self.pick((0.1, 1.0, 1.0, 1.0, 3.0))
        made = self.rng.standard_normal(shape) * scale
        if self.chance(0.1):
            made = np.round(made)  # ties and exact zeros
        return np.asarray(made).astype(numpy_type(dtype))

    # values

    def add(self, array: np.ndarray, *, constant: float = 0.5) -> str:
        """A new input of the graph, or with that chance an initializer."""
        name = f"x{len(self.values)}"
        self.values[name] = np.asarray(array)
        (self.constants if self.chance(constant) else self.inputs).append(name)
        return name

    def const(self, value: Any, dtype: str = "int64") -> str:
        """Shapes, axes and the like: nearly always constants, as in real models."""
        return self.add(np.asarray(value, numpy_type(dtype)), constant=0.97)

    def fresh(self, dtype: str, shape: Sequence[int]) -> str:
        return self.add(self.array(dtype, shape))

    def some(self, allowed: Sequence[str], low: int = 0, high: int = 4) -> str:
        """A value of one of these types with that rank: one there is, the latest preferred, or a new one."""
        known = [
            name
            for name, array in self.values.items()
            if str(array.dtype) in allowed and low <= array.ndim <= high and array.size
        ]
        if known and self.chance(0.8):
            return known[-1] if self.chance(0.6) else str(self.pick(known))
        dtype = self.dtype([name for name in allowed if name in ELEMENT_TYPES])
        return self.fresh(dtype, self.shape(low, high))

    def ordered(self, allowed: Sequence[str], low: int = 0, high: int = 4) -> str:
        """As `some`, without NaN: whether that is larger than a number, or smaller, is nobody's promise."""
        name = self.some(allowed, low, high)
        if str(self.values[name].dtype) in FLOATS and np.isnan(self.values[name].astype(np.float64)).any():
            raise NotDrawnError
        return name

    def image(self, allowed: Sequence[str] = FLOATS, low: int = 3, high: int = 5) -> str:
        return self.some(allowed, low, high)

    def like(self, name: str) -> str:
        """Another value of the same type that broadcasts with it."""
        array = self.values[name]
        known = [
            other
            for other, a in self.values.items()
            if other != name and a.dtype == array.dtype and broadcasts(a.shape, array.shape)
        ]
        if known and self.chance(0.5):
            return str(self.pick(known))
        kept = array.shape[self.int(0, array.ndim) :] if self.chance(0.4) else array.shape
        shape = [1 if self.chance(0.2) else size for size in kept]
        if self.chance(0.15) and len(shape) < 4:
            shape = [self.pick(SIZES[:5]), *[1] * (array.ndim - len(shape)), *shape]
        return self.fresh(str(array.dtype), shape)

    def of(self, name: str) -> np.ndarray:
        return self.values[name]

    def type_of(self, name: str) -> str:
        return str(self.values[name].dtype)

    def allowed(self, op: str, at: int = 0) -> list[str]:
        """Element types the schema of this opset allows for one input, of those we can draw."""
        schema = onnx.defs.get_schema(op, self.opset)
        kinds = schema.inputs[min(at, len(schema.inputs) - 1)].types
        names = {"tensor(float)": "float32", "tensor(double)": "float64"}
        listed = {names.get(kind, kind[7:-1]) for kind in kinds if kind.startswith("tensor(")}
        return [name for name in ELEMENT_TYPES if name in listed]

    # nodes

    def append(self, node: Node) -> None:
        """Run the node as the reference does, and keep it with its results."""
        outputs = [f"v{len(self.nodes)}_{i}" for i in range(node.outputs)]
        proto = onnx.NodeProto(op_type=node.op, input=node.inputs, output=outputs, name=f"n{len(self.nodes)}")
        proto.attribute.extend(attribute(name, value) for name, value in node.attrs.items())
        made = self.run([proto], outputs)
        for array in made:
            if not isinstance(array, np.ndarray | np.generic) or np.size(array) > LARGEST:
                raise NotDrawnError
            if str(array.dtype) not in ELEMENT_TYPES:
                raise NotDrawnError
        self.nodes.append(proto)
        self.values.update((name, np.asarray(a)) for name, a in zip(outputs, made, strict=True))

    def run(self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[Any]:
        model = self.model(nodes, outputs, declared=list(self.values))
        try:
            # a node whose types or shapes do not fit is not legal, whatever the evaluator makes of it
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return list(ReferenceEvaluator(model, new_ops=MENDED).run(None, dict(self.values)))
        except Exception as error:
            raise NotDrawnError(f"{nodes[-1].op_type}: {error}") from error

    def model(
        self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], declared: Sequence[str]
    ) -> onnx.ModelProto:
        model = onnx.ModelProto(ir_version=10, opset_import=[onnx.OperatorSetIdProto(version=self.opset)])
        model.graph.name = "fuzz"
        model.graph.node.extend(nodes)
        for name in declared:
            array = self.values[name]
            model.graph.input.append(port(name, ELEMENT_TYPES[str(array.dtype)], array.shape))
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        return model


def port(name: str, element_type: int, dims: Sequence[int | str] | None) -> onnx.ValueInfoProto:
    made = onnx.ValueInfoProto(name=name)
    made.type.tensor_type.elem_type = element_type
    if dims is not None:
        made.type.tensor_type.shape.SetInParent()
        for dim in dims:
            added = made.type.tensor_type.shape.dim.add()
            if isinstance(dim, str):
                added.dim_param = dim
            else:
                added.dim_value = dim
    return made


def attribute(name: str, value: Any) -> onnx.AttributeProto:
    kinds = onnx.AttributeProto
    if isinstance(value, onnx.GraphProto):
        return onnx.AttributeProto(name=name, type=kinds.GRAPH, g=value)
    if isinstance(value, onnx.TensorProto):
        return onnx.AttributeProto(name=name, type=kinds.TENSOR, t=value)
    if isinstance(value, str):
        return onnx.AttributeProto(name=name, type=kinds.STRING, s=value.encode())
    if isinstance(value, float):
        return onnx.AttributeProto(name=name, type=kinds.FLOAT, f=value)
    if isinstance(value, int):
        return onnx.AttributeProto(name=name, type=kinds.INT, i=value)
    if value and isinstance(value[0], str):
        return onnx.AttributeProto(name=name, type=kinds.STRINGS, strings=[s.encode() for s in value])
    if value and isinstance(value[0], float):
        return onnx.AttributeProto(name=name, type=kinds.FLOATS, floats=value)
    return onnx.AttributeProto(name=name, type=kinds.INTS, ints=value)


def numpy_type(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(tuple(one), tuple(other))) <= LARGEST
    except ValueError:
        return False
