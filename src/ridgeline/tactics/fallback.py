"""One op, run by the first who has it: PyTorch, then ONNX Runtime, then the onnx reference evaluator.

So an op is unsupported only if nobody has it. The slower two say so in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from ridgeline.errors import BuildError, first_line
from ridgeline.kernels.floor import FLOOR, call_floor
from ridgeline.passes.body import model_proto
from ridgeline.passes.settle import ONNX_TYPES
from ridgeline.spec import Body, Op, TensorSpec

Values = Sequence[Tensor | None]
RunOp = Callable[[Values], Sequence[Any]]
CONTROL = frozenset({"If", "Loop", "Scan"})

TORCH_DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32",
        "uint16", "uint8", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
        "float8_e4m3fnuz", "float8_e5m2fnuz",
    )
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def to_torch(array: np.ndarray) -> Tensor:
    """A tensor of its own memory; numpy's view of bfloat16 and friends is by bits."""
    name = str(array.dtype)
    array = np.array(array, order="C", copy=True)
    if array.dtype.kind in "fiubc":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(TORCH_DTYPES[name])


def to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().contiguous().numpy()


def why_slow(op: Op, specs: Mapping[str, TensorSpec]) -> str | None:
    """Why PyTorch does not run this op; None when it does."""
    if op.op_type in CONTROL and not op.domain:
        return None
    entry = FLOOR.get(op.key)
    if entry is None:
        return f"PyTorch has no {op.key}"
    return entry.why_not(op, specs) if entry.why_not is not None else None


def runner(
    op: Op, specs: Mapping[str, TensorSpec], opset_imports: Mapping[str, int], device: str = "cpu"
) -> tuple[RunOp, str]:
    """How to run `op`, and a note when it is a slow way."""
    if op.op_type == "If" and not op.domain:
        raise AssertionError("control flow is run by the body that holds it")
    reason = why_slow(op, specs)
    if reason is None:
        return (_DeviceOp(op, device) if device != "cpu" else lambda values: call_floor(op, values)), ""
    session = _OrtOp(op, opset_imports)
    run: RunOp = session
    if device != "cpu":
        run = lambda values: [v if v is None else v.to(device) for v in session(values)]  # noqa: E731
    return run, f"{op.op_type} at {op.name or op.outputs[0]}: {reason}; run by {session.who}"


class _DeviceOp:
    """A floor op on a GPU; on the host from the first time on that PyTorch has no kernel for its types."""

    def __init__(self, op: Op, device: str) -> None:
        self.op, self.device = op, device
        self.is_missing = False

    def __call__(self, values: Values) -> Sequence[Any]:
        if not self.is_missing:
            try:
                return call_floor(self.op, values)
            except RuntimeError as error:  # NotImplementedError is one
                if not isinstance(error, NotImplementedError) and "not implemented for" not in str(error):
                    raise
                self.is_missing = True
        with torch.device("cpu"):
            made = call_floor(self.op, [v if v is None else v.cpu() for v in values])
        return [v if v is None else v.to(self.device) for v in made]


class _OrtOp:
    """An op as a session of its own, made when the types of its inputs are first seen."""

    def __init__(self, op: Op, opset_imports: Mapping[str, int]) -> None:
        self.op, self.opset_imports = op, opset_imports
        self.sessions: dict[tuple[str, ...], Any] = {}
        self.who = "ONNX Runtime, one op at a time"

    def __call__(self, values: Values) -> Sequence[Tensor]:
        arrays = {n: to_numpy(v) for n, v in zip(self.op.inputs, values, strict=True) if n and v is not None}
        key = tuple(DTYPE_NAMES[v.dtype] if v is not None else "" for v in values)
        run = self.sessions.get(key)
        if run is None:
            run = self.sessions[key] = self._open(dict(zip(self.op.inputs, key, strict=True)))
        made = dict(zip((n for n in self.op.outputs if n), run(arrays), strict=True))
        return [to_torch(np.asarray(made[n])) if n else None for n in self.op.outputs]  # type: ignore[misc]

    def _open(self, dtypes: Mapping[str, str]) -> Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]:
        model = model_proto(
            [self.op],
            inputs={name: _type(dtype) for name, dtype in dtypes.items() if name},
            outputs={name: onnx.TypeProto() for name in self.op.outputs if name},
            constants={},
            opset_imports=self.opset_imports,
        )
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        except Exception as first:
            try:
                evaluator = ReferenceEvaluator(model)
            except Exception as second:
                raise BuildError(
                    f"nobody runs {self.op.key} at {self.op.name or self.op.outputs[0]}",
                    rows=[f"ONNX Runtime: {first_line(first)}", f"onnx reference: {first_line(second)}"],
                ) from second
            self.who = "the onnx reference evaluator, in Python"
            return lambda feeds: evaluator.run(None, dict(feeds))
        return lambda feeds: session.run(None, dict(feeds))


def _type(dtype: str) -> onnx.TypeProto:
    kind = onnx.TypeProto()
    kind.tensor_type.elem_type = ONNX_TYPES[dtype]
    return kind


def constant_tensors(body: Body) -> dict[str, Tensor]:
    return {name: to_torch(array) for name, array in body.constants.items()}
