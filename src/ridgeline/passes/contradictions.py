"""Nodes of a model file that no input shapes can make fit, and values that are declared otherwise than made.

Works on the file's own nodes, so that what is said names them. `ridge lint` lists what is found here; a build
asks only when it failed: ONNX's inference is sometimes wrong, and a model that runs is not refused for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import onnx
import onnx_ir as ir
from onnx.numpy_helper import to_array

from ridgeline.base.spec import Op
from ridgeline.errors import BuildError, InputError, ModelError, first_line
from ridgeline.frontend.from_onnx import SMALL_NUMEL
from ridgeline.frontend.functions import node_label, plain_domain
from ridgeline.frontend.types import port_text, tensor_type, type_text
from ridgeline.ir.body import attr_value
from ridgeline.ir.op_given import Given, MisfitError, NotKnownError, Shape
from ridgeline.ir.ops import row_of

# before it some ops have attributes where our rules look for inputs
RULED_OPSET = 13
# for open dims: what goes wrong in the same words at all of them has nothing to do with them
TRIED_SIZES = (1, 2, 60)

Types: TypeAlias = Mapping[str, onnx.TypeProto]
Tensors: TypeAlias = Mapping[str, onnx.TensorProto]


@dataclass(frozen=True)
class Contradiction:
    """What a node is given, or declared to make, and what it wants, or makes."""

    where: str
    what: str
    got: str
    want: str
    declared: str = ""  # the value whose declaration is wrong; "" where the node's inputs are
    is_type: bool = False  # its type is, not only its dims


def contradictions(proto: onnx.ModelProto) -> Iterator[Contradiction]:
    """Type and shape inference, node by node, so that one wrong node does not hide the next."""
    types: dict[str, onnx.TypeProto] = {p.name: p.type for p in proto.graph.input}
    values: dict[str, onnx.TensorProto] = {}
    for tensor in proto.graph.initializer:
        types[tensor.name] = tensor_type(tensor.data_type, tensor.dims)
        if math.prod(tensor.dims) <= SMALL_NUMEL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            values[tensor.name] = tensor
    declared = {p.name: p.type for p in (*proto.graph.output, *proto.graph.value_info)}
    versions = {plain_domain(entry.domain): entry.version for entry in proto.opset_import}
    for node in proto.graph.node:
        version = versions.get(plain_domain(node.domain), 0)
        if not version or not onnx.defs.has(node.op_type, version, plain_domain(node.domain)):
            continue
        if any(name not in types for name in node.input if name):
            continue
        # elsewhere what the node makes stays unknown here: a declaration may come from the same inference
        is_inferred = row_of(node).infer is None
        where = f"{node.op_type} {node_label(node)!r}"
        made: Types = {}
        try:
            _apply_own_rule(node, types, values, version)
            if is_inferred:
                made = _inferred(node, types, values, versions, proto.ir_version)
        except Exception as error:
            yield Contradiction(
                where, f"its inputs do not fit together: {_reason(error)}",
                got=", ".join(port_text(types[n]) for n in node.input if n),
                want=f"inputs that {node.op_type} takes",
            )  # fmt: skip
        for name in node.output if is_inferred else ():
            if name in declared and name in made:
                yield from _misdeclared(where, name, declared[name], made[name])
            known = made.get(name) or declared.get(name)
            if known is not None and "undefined" not in type_text(known):
                types[name] = known
        if node.op_type == "Constant" and not plain_domain(node.domain):
            values.update((node.output[0], a.t) for a in node.attribute if a.name == "value")


@contextmanager
def explaining_contradictions(proto: onnx.ModelProto, name: str) -> Iterator[None]:
    """Where the block finds no shapes that fit and the model contradicts itself, raise that instead."""
    try:
        yield
    except (BuildError, InputError) as error:
        found = [each for each in contradictions(proto) if not each.declared]
        if not found:
            raise
        first = found[0]
        raise ModelError(
            f"{name!r} contradicts itself, whatever the shapes of its inputs: {first.where}: {first.what}",
            rows=[f"also {each.where}: {each.what}" for each in found[1:]],
            got=first.got,
            want=first.want,
            help="export it again, or mend the node; ridge lint MODEL lists all that is wrong with it",
        ) from error


def _inferred(
    node: onnx.NodeProto, types: Types, values: Tensors, versions: Mapping[str, int], ir_version: int
) -> dict[str, onnx.TypeProto]:
    schema = onnx.defs.get_schema(
        node.op_type, versions[plain_domain(node.domain)], plain_domain(node.domain)
    )
    imports = [onnx.OperatorSetIdProto(domain=d, version=v) for d, v in versions.items()]
    return dict(
        onnx.shape_inference.infer_node_outputs(
            schema, node, {n: types[n] for n in node.input if n},
            {n: values[n] for n in node.input if n in values}, opset_imports=imports,
            ir_version=ir_version or 8,
        )
    )  # fmt: skip


def _apply_own_rule(node: onnx.NodeProto, types: Types, values: Tensors, version: int) -> None:
    """Raise `MisfitError` where our own rule refuses the node at any size of its open dims."""
    rule = row_of(node).check
    if rule is None or version < RULED_OPSET:
        return
    kinds = [types[n].tensor_type if n else None for n in node.input]
    if any(kind is not None and not kind.HasField("shape") for kind in kinds):
        return
    attrs = {a.name: attr_value(ir.serde.deserialize_attribute(a)) for a in node.attribute}
    op = Op(node.op_type, tuple(node.input), tuple(node.output), attrs)
    known = {i: _integers(values[n]) for i, n in enumerate(node.input) if n in values}
    listed = {i: found for i, found in known.items() if found is not None}
    if node.op_type == "Reshape" and 1 in listed and kinds[0] is not None:
        _require_reshape(_dims(kinds[0]), listed[1], bool(attrs.get("allowzero", 0)))
    problems: list[str] = []
    for size in TRIED_SIZES:
        shapes = tuple(None if kind is None else _shape_at(kind, size) for kind in kinds)
        try:
            rule(Given(op, shapes, (None,) * len(node.output), listed))
        except MisfitError as misfit:
            problems.append(str(misfit))
        except NotKnownError:
            return
        else:
            return
    if len(set(problems)) == 1:
        raise MisfitError(problems[0])


def _require_reshape(dims: Sequence[int | str], target: Shape, keeps_zero: bool) -> None:
    """Open dims that stand on both sides say nothing; what is left must be as many items."""
    after = [dims[i] if n == 0 and not keeps_zero and i < len(dims) else n for i, n in enumerate(target)]
    names = Counter(d for d in dims if isinstance(d, str)), Counter(d for d in after if isinstance(d, str))
    before, left = (math.prod(d for d in side if isinstance(d, int)) for side in (dims, after))
    if -1 not in after and names[0] == names[1] and before != left:
        raise MisfitError(f"[{', '.join(map(str, dims))}] does not have as many items as {list(target)}")


def _dims(kind: onnx.TypeProto.Tensor) -> list[int | str]:
    """Open dims, -1 among them, by their names; those without one are told apart."""
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or f"?{axis}"
        for axis, d in enumerate(kind.shape.dim)
    ]


def _shape_at(kind: onnx.TypeProto.Tensor, size: int) -> Shape:
    return tuple(d if isinstance(d, int) else size for d in _dims(kind))


def _integers(tensor: onnx.TensorProto) -> Shape | None:
    if tensor.data_type not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64) or len(tensor.dims) > 1:
        return None
    return tuple(int(n) for n in to_array(tensor).reshape(-1))


def _misdeclared(
    where: str, name: str, declared: onnx.TypeProto, made: onnx.TypeProto
) -> Iterator[Contradiction]:
    """Where both know, and what they know differs."""
    kinds = {type_text(declared), type_text(made)}
    is_type = "undefined" not in kinds and len(kinds) == 2
    a, b = declared.tensor_type, made.tensor_type
    if is_type or (a.HasField("shape") and b.HasField("shape") and not _may_be_same(_dims(a), _dims(b))):
        yield Contradiction(
            where, f"{name!r} is declared as something else than it is",
            got=port_text(declared), want=port_text(made), declared=name, is_type=is_type,
        )  # fmt: skip


def _may_be_same(one: Sequence[int | str], other: Sequence[int | str]) -> bool:
    return len(one) == len(other) and all(
        a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(one, other, strict=True)
    )


def _reason(error: Exception) -> str:
    """Without the kind of error that ONNX's inference puts first."""
    text = first_line(error)
    return text.partition("] ")[2] if text.startswith("[") and not isinstance(error, MisfitError) else text
