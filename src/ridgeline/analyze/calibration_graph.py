"""A graph in the making, for the networks of a calibration."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser

OPSET = 23
HALF, SINGLE = "float16", "float"
DRAWN = 1 << 16
NUMPY = {HALF: np.float16, SINGLE: np.float32}


@dataclass
class Graph:
    """A graph in the making: lines of ONNX text, weights with their values, inputs and outputs."""

    name: str
    dtype: str
    lines: list[str] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # one draw for all: weights of a large graph would take longer to draw than to multiply
        self._drawn = np.random.default_rng(0).standard_normal(DRAWN, dtype=np.float32)

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(f"{self.dtype}[{','.join(map(str, shape))}] {name}")
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Random values that keep activations at about one."""
        summed = float(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
        spread = summed**-0.5 if scale is None else scale
        # no two weights are the same: what is the same is computed once
        shifted = np.roll(self._drawn, len(self.weights)) * spread
        return self.constant(np.resize(shifted.astype(NUMPY[self.dtype]), shape))

    def constant(self, values: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = values
        return name

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        made = f"v{len(self.lines)}"
        given = ", ".join(f"{name} = {_attribute(value)}" for name, value in attributes.items())
        marked = f" <{given}>" if given else ""
        self.lines.append(f"{made} = {op_type}{marked} ({', '.join(inputs)})")
        return made

    def output(self, name: str, rank: int) -> None:
        dims = ",".join(f"d{len(self.outputs)}_{axis}" for axis in range(rank))
        self.outputs.append(f"{self.dtype}[{dims}] {name}")

    def model(self) -> onnx.ModelProto:
        text = (
            f'<ir_version: 10, opset_import: ["": {OPSET}]> {self.name} '
            f"({', '.join(self.inputs)}) => ({', '.join(self.outputs)}) {{ {' '.join(self.lines)} }}"
        )
        model = onnx.parser.parse_model(text)
        for name, values in self.weights.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
        return model


def _attribute(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, (tuple, list)) else str(value)
