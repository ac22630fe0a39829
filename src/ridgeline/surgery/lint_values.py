"""Lint rules on values: types and shapes that do not fit, implausible or unreadable weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from ridgeline.errors import first_line
from ridgeline.frontend.from_onnx import all_tensors
from ridgeline.frontend.tensor_data import data_problem, external_problem
from ridgeline.frontend.types import port_text
from ridgeline.passes.contradictions import contradictions
from ridgeline.surgery.graph import label
from ridgeline.surgery.problem import Problem, Rule, Subject

LARGE_CONSTANT = 1 << 20
LARGE_INTEGERS = 1 << 16
# the smallest normal number of each float type
TINY = {
    onnx.TensorProto.FLOAT: 2.0**-126, onnx.TensorProto.BFLOAT16: 2.0**-126,
    onnx.TensorProto.DOUBLE: 2.0**-1022, onnx.TensorProto.FLOAT16: 2.0**-14,
}  # fmt: skip


def inference(subject: Subject) -> Iterator[Problem]:
    """Nodes whose inputs cannot fit, and values that are declared otherwise than they are made.

    Of what is declared, a build believes the types of outputs only.
    """
    outputs = {p.name for p in subject.proto.graph.output}
    for found in contradictions(subject.proto):
        is_ignored = found.declared and not (found.is_type and found.declared in outputs)
        help = (
            "the build goes by what the node makes; other runtimes may refuse the file" if is_ignored else ""
        )
        yield Problem(
            "warning" if is_ignored else "error", "types", found.where, found.what,
            got=found.got, want=found.want, help=help,
        )  # fmt: skip


def weights(subject: Subject) -> Iterator[Problem]:
    """Tensors that cannot be read, and values that training does not produce."""
    folder = subject.graph.folder
    for tensor in subject.proto.graph.sparse_initializer:
        yield Problem(
            "error", "sparse", tensor.values.name, "sparse weights are not read", help="store them dense"
        )
    for tensor in all_tensors(subject.proto):
        name = tensor.name or "a constant without a name"
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            problem = data_problem(tensor) or external_problem(tensor, folder)
            if problem:
                yield Problem(
                    "error", "external data", name, problem,
                    want="a file beside the model, or in a folder below it",
                )  # fmt: skip
                continue
        try:
            array = to_array(tensor, str(folder or ""))
        except Exception as error:
            yield Problem("error", "tensor", name, "the tensor does not read", got=first_line(error))
            continue
        if tensor.data_type in TINY:
            yield from _odd_floats(name, tensor.data_type, array)
        elif tensor.data_type == onnx.TensorProto.INT64 and array.size >= LARGE_INTEGERS:
            yield from _wide_integers(name, array)


def _wide_integers(name: str, array: np.ndarray) -> Iterator[Problem]:
    if array.min() >= -(2**31) and array.max() < 2**31:
        yield Problem(
            "note", "int64", name, "a large int64 table whose values fit int32",
            got=f"{array.nbytes >> 10} KiB", want=f"{array.nbytes >> 11} KiB",
        )  # fmt: skip


def _odd_floats(name: str, kind: int, array: np.ndarray) -> Iterator[Problem]:
    wide = array.astype(np.float32) if array.dtype.kind != "f" else array
    missing = int(np.isnan(wide).sum())
    if missing:
        yield Problem(
            "error", "NaN", name, "the weight holds NaN", got=f"{missing} of {array.size} elements",
            help="the training run or the export went wrong before this file was written",
        )  # fmt: skip
    endless = int(np.isinf(wide).sum())
    if endless and array.size > 1:
        yield Problem(
            "warning", "infinity", name, "the weight holds infinities",
            got=f"{endless} of {array.size} elements",
            help="fine in a mask that is added before a Softmax; elsewhere NaN is near",
        )  # fmt: skip
    small = int(((wide != 0) & (np.abs(wide) < TINY[kind])).sum())
    if small:
        yield Problem(
            "warning", "denormals", name, "numbers below the smallest normal one: slow, or flushed to zero",
            got=f"{small} of {array.size} elements", help="set them to zero",
        )  # fmt: skip


def constants(subject: Subject) -> Iterator[Problem]:
    """Large tensors written into nodes, where tools cannot map or share them."""
    for _, node in subject.all_nodes:
        for attr in node.attribute:
            nbytes = attr.t.ByteSize() if attr.HasField("t") else 0
            if nbytes >= LARGE_CONSTANT:
                yield Problem(
                    "note", "constant", label(node), "a large tensor stands in a node",
                    got=f"{nbytes >> 20} MiB", want="an initializer",
                )  # fmt: skip


def double_precision(subject: Subject) -> Iterator[Problem]:
    """float64 is seldom intended: one Cast or one Python number in the exporter causes it."""
    doubles = [
        name for name, kind in subject.graph.types.items()
        if kind.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    ]  # fmt: skip
    if doubles:
        yield Problem(
            "note", "float64", doubles[0], "values are float64: twice the memory, a fraction of the speed",
            got=f"{len(doubles)} values", help="export in float32, unless this is meant",
        )  # fmt: skip


def dims(subject: Subject) -> Iterator[Problem]:
    """Open dims need names, so that equal ones are recognised and profiles can name them."""
    for name, port in subject.graph.inputs.items():
        tensor = port.type.tensor_type
        if port.type.WhichOneof("value") != "tensor_type" or tensor.elem_type == onnx.TensorProto.STRING:
            yield Problem("note", "input", name, "not a tensor of numbers", got=port_text(port.type))
            continue
        if not tensor.HasField("shape"):
            yield Problem("warning", "dims", name, "not even the rank of this input is declared")
            continue
        open_dims = [
            i
            for i, d in enumerate(tensor.shape.dim)
            if not d.HasField("dim_value") and d.dim_param in ("", "?")
        ]
        if open_dims:
            yield Problem(
                "warning", "dims", name, f"dim {', '.join(map(str, open_dims))} has no size and no name",
                got=port_text(port.type), want="a name for each size that may change",
                help="name it at export, as dynamic_axes or dynamic_shapes do",
            )  # fmt: skip


def training(subject: Subject) -> Iterator[Problem]:
    """Ops left in training mode: their results are random, or they change state that is lost."""
    fixed = {t.name: t for t in subject.proto.graph.initializer}
    for _, node in subject.all_nodes:
        mode = next((a.i for a in node.attribute if a.name == "training_mode"), 0)
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in fixed:
            mode = int(to_array(fixed[node.input[2]]).any())
        if mode:
            yield Problem(
                "warning", "training", label(node), "the node is in training mode",
                want="inference mode", help="call model.eval() before the export",
            )  # fmt: skip


VALUES: tuple[Rule, ...] = (inference, weights, constants, double_precision, dims, training)
