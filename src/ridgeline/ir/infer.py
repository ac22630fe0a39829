"""Settling: every shape, and every value that follows from shapes alone, before any work starts.

Given concrete input specs, walks a program once on the host. What cannot be settled depends on data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import onnx
import onnx_ir as ir
from onnx import shape_inference

from ridgeline.base.spec import Body, Op, TensorSpec
from ridgeline.errors import InputError, LimitError
from ridgeline.frontend.evaluator import Evaluator
from ridgeline.frontend.profiles import shapes_text
from ridgeline.frontend.types import ELEMENT_NAMES, ONNX_TYPES, is_non_tensor, tensor_type, type_text
from ridgeline.ir import loops
from ridgeline.ir.body import Program, Region, array_tensor, model_proto, node_proto
from ridgeline.ir.host_ops import HOST_OPS
from ridgeline.ir.op_given import MisfitError
from ridgeline.ir.op_row import Kind, Trait
from ridgeline.ir.ops import has, is_a, row_of
from ridgeline.ir.quant import dequantizes, quantizes
from ridgeline.options import DEFAULT_LIMITS, Limits

# more than any mask or index that shapes alone decide; computed once for each new set of shapes
HOST_NUMEL = 1 << 26
# what may be wrong with a node's inputs, what to do, and how ONNX's inference speaks of types
SHAPES = ("shapes", "give shapes that the model takes")
TYPES = ("element types", "ONNX does not have this op for these types: put a cast before it")
OF_TYPES = ("inconsistent type", "unsupported type")
LARGEST_SIZE = 2**63 - 1  # that ONNX's types can say


@dataclass
class Inferred:
    """What is known of a program at one set of input shapes. Names are the main graph's."""

    specs: dict[str, TensorSpec] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    folded_bytes: int = 0  # in the values that were computed here
    limits: Limits = DEFAULT_LIMITS
    given: str = ""  # the shapes of the inputs, in words

    def non_tensor_kind(self, name: str) -> str | None:
        """What a value is that is no tensor, or one of strings; None for all others."""
        if name in self.specs or name not in self.types:
            return None
        kind = type_text(self.types[name])
        return kind if is_non_tensor(kind) and kind != "undefined" else None

    def is_host(self, region: Region) -> bool:
        """Nothing is left to run: all that the region makes is known already."""
        return all(name in self.values for name in region.outputs)

    def is_non_tensor(self, region: Region) -> bool:
        """Some shape inside depends on data."""
        names = [region.outer(n) for n in region.body.outputs]
        names += [region.outer(n) for op in region.body.ops for n in op.outputs if n]
        return any(name not in self.specs for name in (*names, *(n for n in region.inputs if n)))


def infer(program: Program, inputs: Mapping[str, TensorSpec], weights: Mapping[str, TensorSpec],
           known: Mapping[str, np.ndarray], into: Inferred | None = None) -> Inferred:  # fmt: skip
    """Walk the program. `known` holds the small weights, whose values shape arithmetic may read.

    `into` is filled as far as the walk gets before it raises.
    """
    state = Inferred() if into is None else into
    state.limits, state.given = program.limits, shapes_text(inputs)
    for name, spec in (*weights.items(), *inputs.items()):
        require_plannable(spec, f"input {name!r}" if name in inputs else f"weight {name!r}", program.limits)
        _note(state, name, spec if spec.value is None else replace(spec, value=None))
    for name, kind in program.loose_inputs.items():
        sizes = [dim.dim_value for dim in kind.tensor_type.shape.dim]
        require_plannable(TensorSpec("string", tuple(sizes)), f"input {name!r}", program.limits)
        state.types[name] = kind
    state.values.update(known)
    state.values.update((n, settled_value(spec)) for n, spec in inputs.items() if spec.value is not None)
    for region in program.regions:
        _settle_ops(state, *program.flat_ops([region]), program.opset_imports)
    return state


def settle_body(
    body: Body, given: Mapping[str, TensorSpec], opset_imports: Mapping[str, int], limits: Limits,
    *, known: Mapping[str, np.ndarray] | None = None, into: Inferred | None = None,
) -> Inferred:  # fmt: skip
    """What is known of a subgraph that is given these inputs and captured values; `into` as in `settle`."""
    state = Inferred() if into is None else into
    state.limits = limits
    for name, spec in given.items():
        _note(state, name, spec)
    _settle_ops(state, body.ops, {**(known or {}), **body.constants}, opset_imports)
    return state


def _settle_ops(
    state: Inferred, ops: Sequence[Op], constants: Mapping[str, np.ndarray], opset_imports: Mapping[str, int]
) -> None:
    for name, array in constants.items():
        _know(state, name, array)
    for op in ops:
        settle_op(op, state, opset_imports)


def settled_value(spec: TensorSpec) -> np.ndarray:
    """What a shape tensor holds."""
    assert spec.value is not None, "only asked of specs that carry a value"
    return np.array(spec.value, spec.dtype).reshape(spec.shape)


def settle_op(op: Op, state: Inferred, opset_imports: Mapping[str, int]) -> None:
    """Add what is known of one op's outputs."""
    if op.op_type == "If" and not op.domain:
        _settle_if(op, state, opset_imports)
        return
    if op.op_type in ("Loop", "Scan") and not op.domain:
        _settle_cycle(op, state, opset_imports)
        return
    if is_a(op, Kind.CONTROL):
        return
    if has(op, Trait.NEVER_EMPTY) and op.inputs[0] in state.specs and not state.specs[op.inputs[0]].numel:
        raise _misfit(op, state, "a sequence without elements")
    own = _own_specs(op, state)
    if own is None:
        for name, kind in infer_types(op, state, opset_imports).items():
            state.types[name] = kind
            spec = spec_of(kind)
            if spec is not None:
                state.specs[name] = spec
    for name, spec in zip(op.outputs, own or (), strict=False):
        if name and spec is not None:
            _note(state, name, spec)
    for name in op.outputs:
        if name in state.specs:
            require_plannable(state.specs[name], f"{op.name or name} ({op.op_type})", state.limits)
    values = _evaluate(op, state, opset_imports)
    for name, array in zip(op.outputs, values, strict=False):
        if name:
            _know(state, name, array)


def _own_specs(op: Op, state: Inferred) -> Sequence[TensorSpec | None] | None:
    """What the op's row says of its outputs; None if ONNX's inference is to be asked."""
    rule = row_of(op).infer
    if rule is None:
        return None
    try:
        own = rule(op, [state.specs.get(n) for n in op.inputs], [state.values.get(n) for n in op.inputs])
    except MisfitError as misfit:
        raise _misfit(op, state, str(misfit)) from misfit
    largest = max((size for spec in own or () if spec is not None for size in spec.shape), default=0)
    if largest > LARGEST_SIZE:
        raise _misfit(op, state, f"a size of {largest}")
    return own


def _settle_if(op: Op, state: Inferred, opset_imports: Mapping[str, int]) -> None:
    """Outputs are settled when both branches agree on them, or when the condition is known."""
    condition = state.values.get(op.inputs[0])
    branches: list[Body] = [op.attrs["then_branch"], op.attrs["else_branch"]]
    if condition is not None:
        branches = [branches[0] if bool(condition.reshape(-1)[0]) else branches[1]]
    made: list[list[TensorSpec | None]] = []
    misfit: InputError | LimitError | None = None
    for branch in branches:
        inner = Inferred(dict(state.specs), dict(state.values), dict(state.types), given=state.given)
        try:
            settle_body(branch, {}, opset_imports, state.limits, into=inner)
        except (InputError, LimitError) as error:  # a branch that does not fit is one not to be taken
            misfit = error
            continue
        made.append([inner.specs.get(name) for name in branch.outputs])
    if misfit is not None and not made:
        raise misfit
    for name, *specs in zip(op.outputs, *made, strict=True):
        first = specs[0]
        if name and first is not None and all(spec == first for spec in specs):
            _note(state, name, first)


def _settle_cycle(op: Op, state: Inferred, opset_imports: Mapping[str, int]) -> None:
    """States that no trip changes the shape of keep it, however often the body runs; and what is stacked has
    a shape where the number of trips is known."""
    body: Body = op.attrs["body"]
    before = loops.first_specs(op, state.specs)
    while True:
        inner = Inferred(dict(state.specs), dict(state.values), dict(state.types), given=state.given)
        known = {n: spec for n, spec in zip(body.inputs, before, strict=True) if spec is not None}
        if op.op_type == "Loop" and body.inputs[1] in known:  # a trip begins only where the condition holds
            inner.values[body.inputs[1]] = np.full(known[body.inputs[1]].shape, True)
        try:
            settle_body(body, known, opset_imports, state.limits, into=inner)
        except (InputError, LimitError):  # there may be no trip at all
            return
        made = [inner.specs.get(name) for name in body.outputs]
        after = loops.kept_specs(op, before, made)
        if after == before:
            break
        before = after
    first, n_states = loops.first_state(op), loops.state_count(op)
    count = loops.trips(op, state.specs, state.values, inner.values.get(body.outputs[0]))
    stacked = loops.stacked_specs(op, made[loops.first_result(op) + n_states :], count)
    for name, spec in zip(op.outputs, (*before[first : first + n_states], *stacked), strict=False):
        if name and spec is not None:
            require_plannable(spec, f"{op.name or name} ({op.op_type})", state.limits)
            _note(state, name, spec)


def infer_types(op: Op, state: Inferred, opset_imports: Mapping[str, int]) -> dict[str, onnx.TypeProto]:
    """ONNX's own inference for one node, fed with concrete shapes and the values known so far."""
    version = opset_imports.get(op.domain)
    if version is None or not onnx.defs.has(op.op_type, max_inclusive_version=version, domain=op.domain):
        return {}
    schema = onnx.defs.get_schema(op.op_type, version, op.domain)
    reads = [n for n in op.inputs if n]
    types = {n: state.types[n] for n in reads if n in state.types}
    if len(types) < len(set(reads)):
        return {}
    data = {n: ir.serde.serialize_tensor(array_tensor(state.values[n])) for n in reads if n in state.values}
    imports = [onnx.OperatorSetIdProto(domain=d, version=v) for d, v in opset_imports.items()]
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, node_proto(op), types, data, opset_imports=imports
        )
    except (shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise _misfit(op, state, _first_line(error)) from error
    for name, kind in inferred.items():
        if any(dim.dim_value < 0 for dim in kind.tensor_type.shape.dim):
            raise _misfit(
                op, state, f"{name!r} would have {[d.dim_value for d in kind.tensor_type.shape.dim]}"
            )
    return dict(inferred)


def _misfit(op: Op, state: Inferred, problem: str) -> InputError:
    what, advice = TYPES if any(words in problem for words in OF_TYPES) else SHAPES
    if advice == SHAPES[1] and state.given:
        advice += f"; these were --shapes {state.given}"
    return InputError(
        f"the {what} do not fit at {op.name or op.outputs[0]} ({op.op_type})",
        rows=[f"{n}: {state.specs[n]}" for n in op.inputs if n in state.specs],
        got=problem,
        help=advice,
    )


def _evaluate(op: Op, state: Inferred, opset_imports: Mapping[str, int]) -> Sequence[np.ndarray]:
    """The op's values, when they follow from what is known and are small enough to be shape arithmetic."""
    if op.op_type == "Shape" and op.inputs[0] in state.specs:
        shape = np.array(state.specs[op.inputs[0]].shape, np.int64)
        return [shape[op.attrs.get("start", 0) : op.attrs.get("end")]]
    if op.op_type == "Size" and op.inputs[0] in state.specs:
        return [np.array(state.specs[op.inputs[0]].numel, np.int64)]
    is_computed = not is_a(op, Kind.RANDOM) and not has(op, Trait.WRONG_IN_REFERENCE)
    if not is_computed or any(n not in state.values for n in op.inputs if n):
        return []
    if quantizes(op) or dequantizes(op):
        return []  # levels are never shape arithmetic, and weights stay as small as they are
    made_bytes = sum(state.specs[n].nbytes for n in op.outputs if n in state.specs)
    if any(n not in state.specs or state.specs[n].numel > HOST_NUMEL for n in op.outputs if n):
        return []
    if state.folded_bytes + made_bytes > state.limits.folded_bytes:
        return []  # it then runs as a step instead
    state.folded_bytes += made_bytes
    arrays = [state.values[n] if n else None for n in op.inputs]
    quick = HOST_OPS.get(op.key)
    if quick is not None:
        try:
            made = quick(*arrays, **op.attrs)
        except (IndexError, TypeError, ValueError, MisfitError) as error:
            raise _misfit(op, state, _first_line(error)) from error
        return made if isinstance(made, (list, tuple)) else [np.asarray(made)]
    feeds = {n: a for n, a in zip(op.inputs, arrays, strict=True) if n}
    try:
        return [np.asarray(a) for a in evaluator_of(op, opset_imports).run(None, feeds)]
    except Exception:  # the reference lacks the op, the type or the attribute: it then runs as a step instead
        return []


def evaluator_of(op: Op, opset_imports: Mapping[str, int]) -> Evaluator:
    """Runs the op alone."""
    return _evaluator(node_proto(op).SerializeToString(), tuple(sorted(opset_imports.items())))


@lru_cache(maxsize=4096)
def _evaluator(node: bytes, opset_imports: tuple[tuple[str, int], ...]) -> Evaluator:
    proto = onnx.NodeProto.FromString(node)
    anything = onnx.TypeProto()
    model = model_proto(
        (),
        inputs={n: anything for n in dict.fromkeys(proto.input) if n},
        outputs={n: anything for n in proto.output if n},
        constants={},
        opset_imports=dict(opset_imports),
    )
    model.graph.node.append(proto)
    return Evaluator(model)


def _know(state: Inferred, name: str, array: np.ndarray) -> None:
    """Strings are never known beforehand: they lie in no planned memory, so a step must make them."""
    spec = TensorSpec(dtype_of(array), array.shape)
    if spec.dtype == "string":
        state.types[name] = type_proto(spec)
        return
    state.values[name] = array
    _note(state, name, spec)


def require_plannable(spec: TensorSpec, what: str, limits: Limits) -> None:
    """Sizes that memory can have, before anybody asks for it."""
    if any(size < 0 for size in spec.shape):
        raise InputError(f"{what} would have a negative size", got=str(spec), help=SHAPES[1])
    if spec.nbytes > limits.planned_bytes:
        raise LimitError(
            f"{what} is larger than its limit: {spec}",
            limit="planned_bytes", got=spec.nbytes, allowed=limits.planned_bytes,
        )  # fmt: skip


def _note(state: Inferred, name: str, spec: TensorSpec) -> None:
    state.specs[name] = spec
    state.types[name] = type_proto(spec)


def type_proto(spec: TensorSpec) -> onnx.TypeProto:
    return tensor_type(ONNX_TYPES[spec.dtype], spec.shape)


def spec_of(kind: onnx.TypeProto) -> TensorSpec | None:
    """None where the type is no tensor, or a dim is not settled."""
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    dtype = ELEMENT_NAMES.get(tensor.elem_type, "string")
    if is_non_tensor(dtype) or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return TensorSpec(dtype, tuple(d.dim_value for d in tensor.shape.dim))


def dtype_of(array: np.ndarray) -> str:
    """Our name of a numpy dtype; ml_dtypes' names are ours already."""
    return "string" if array.dtype.kind in "OUS" else str(array.dtype)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1][:300]
