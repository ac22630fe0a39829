"""Turns one call of a PyTorch module into an ONNX model, and records how tensors go in and come out.

`torch.export` traces the module inside a wrapper that takes and returns tensors. What is no tensor in the
call is fixed in the model; what is no computed tensor in the result is noted, and put back at each call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, Literal

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ridgeline.base.guards import Term
from ridgeline.base.library_math import library_math
from ridgeline.errors import InputError, OptionError, RidgelineError, UnsupportedError
from ridgeline.frontend.torch_dims import Axes, axes_of, bounded_profile, name_dims
from ridgeline.frontend.torch_export import (
    cast_outputs,
    quiet,
    rename_ports,
    said,
    to_onnx,
    trace,
    warn_if_untested,
)
from ridgeline.frontend.torch_guards import NOTHING_ASSUMED, Assumed, read_assumed
from ridgeline.frontend.torch_state import changed, lasting, own_values
from ridgeline.frontend.torch_tree import Tree, flatten, leaf_names, unflatten
from ridgeline.options import Profile

NUMBERS = {int: torch.int64, float: torch.float64, bool: torch.bool}


@dataclass(frozen=True)
class Part:
    """Where one leaf of a result comes from.

    made: the output of that name; number: the same, as a Python number; given: a tensor of the call, handed
    back; own: a weight of the module; constant: the value itself.
    """

    kind: Literal["made", "number", "given", "own", "constant"]
    source: Any


@dataclass(frozen=True)
class Call:
    """How a call's tensors are named as inputs, and how outputs become the module's result."""

    inputs: tuple[str, ...]
    parts: tuple[Part, ...]
    tree: Tree

    def result(
        self, made: Mapping[str, Tensor], given: Sequence[Tensor], own: Callable[[str], Tensor]
    ) -> Any:
        """What the module would have returned."""
        if self._is_lone:
            return made[self.parts[0].source]
        take: dict[str, Callable[[Any], Any]] = {
            "made": made.__getitem__,
            "number": lambda name: made[name].item(),
            "given": given.__getitem__,
            "own": own,
            "constant": lambda value: value,
        }
        return unflatten([take[part.kind](part.source) for part in self.parts], self.tree)

    @cached_property
    def _is_lone(self) -> bool:
        """True if the result is one tensor: the usual case, which needs no tree."""
        return self.tree == flatten(0)[1] and self.parts[0].kind == "made"

    def outputs_of(self, result: Any) -> dict[str, Tensor]:
        """The inverse of `result`: the outputs of the model for this result of the module."""
        made: dict[str, Tensor] = {}
        for part, leaf in zip(self.parts, flatten(result)[0], strict=True):
            if part.kind == "number":
                made[part.source] = _from_number(leaf)
            elif part.kind == "made":
                made.setdefault(part.source, leaf)
        return made


@dataclass(frozen=True)
class Sample:
    """A call whose result is known. It gives the planned shapes, and the build is compared with it."""

    feeds: Mapping[str, Tensor]
    # runs the module itself and returns the same outputs
    run: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    export_s: float
    assumed: Assumed = NOTHING_ASSUMED  # what the export assumed about sizes
    is_program: bool = False  # only the export is known, not the module
    guards: tuple[Term, ...] | None = None  # None: the module was not asked at other sizes yet

    def eager(self) -> dict[str, Tensor]:
        """The outputs of the module itself."""
        return self.eager_of(self.feeds)

    def eager_of(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its outputs for other inputs. On a GPU, PyTorch would round float32 convolutions to TF32."""
        with library_math():
            return self.run(feeds)

    def require_runs(self) -> None:
        """Raise if the module itself fails on the call. The tracer checks shapes, not types."""
        try:
            self.eager()
        except RidgelineError:
            raise
        except Exception as error:
            raise InputError(
                "the module does not run with these inputs",
                rows=[f"{name}: {str(t.dtype)[6:]}{list(t.shape)}" for name, t in self.feeds.items()],
                got=said(error),
            ) from error


@dataclass(frozen=True)
class Exported:
    """One call of a module as a model."""

    model: ir.Model
    call: Call | None  # None for an ExportedProgram, which is never called
    sample: Sample
    profile: Profile  # ranges of dims that have a largest size


@dataclass
class _Trace:
    """What tracing recorded about the result."""

    parts: list[Part] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)
    tree: Tree | None = None
    changed: list[str] = field(default_factory=list)  # attributes of the module that tracing it changed


class Flat(nn.Module):
    """A wrapper that takes tensors and returns tensors."""

    def __init__(self, module: nn.Module, call: Callable[[Sequence[Tensor]], Any]) -> None:
        super().__init__()
        self.module = module
        self.call = call
        self.taken: Sequence[str] = ()  # names of inputs; outputs get other names
        self.trace = _Trace()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        before = own_values(self.module, is_traced=True)
        value = self.call(tensors)
        self.trace.changed = changed(before, own_values(self.module, is_traced=True))
        leaves, tree = flatten(value)
        given = {id(tensor): i for i, tensor in enumerate(tensors)}
        own = {id(t): name for name, t in own_tensors(self.module)}
        made: dict[int, tuple[str, Tensor]] = {}
        parts = []
        for leaf, name in zip(leaves, _unique(leaf_names(value, ""), self.taken), strict=True):
            if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                made[id(leaf)] = (name, _as_tensor(leaf))
                parts.append(Part("number", name))
            elif not isinstance(leaf, Tensor):
                parts.append(Part("constant", leaf))
            elif id(leaf) in given:
                parts.append(Part("given", given[id(leaf)]))
            elif id(leaf) in own:
                parts.append(Part("own", own[id(leaf)]))
            else:
                parts.append(Part("made", made.setdefault(id(leaf), (name, leaf))[0]))
        self.trace.parts, self.trace.tree = parts, tree
        self.trace.names = [name for name, _ in made.values()]
        self.trace.dtypes = [tensor.dtype for _, tensor in made.values()]
        return tuple(tensor for _, tensor in made.values())


def own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def _as_tensor(number: Any) -> Tensor:
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return torch.full((), number, dtype=NUMBERS[kinds[type(number)]])


def _from_number(number: Any) -> Tensor:
    return torch.tensor(number, dtype=NUMBERS[type(number)])


def _unique(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """Unique names: a single result is called output, and no output has the name of an input."""
    made: list[str] = []
    for name in names:
        wanted = name if name and not name[0].isdigit() else f"output_{name}" if name else "output"
        wanted = f"{wanted}_out" if wanted in taken else wanted
        while wanted in made or wanted in taken:
            wanted += "_"
        made.append(wanted)
    return made


def resolved(tensor: Tensor) -> Tensor:
    """The tensor with conjugation and negation applied, which PyTorch may leave to the reader."""
    return tensor.resolve_conj().resolve_neg() if tensor.is_neg() or tensor.is_conj() else tensor


def home_of(source: nn.Module | ExportedProgram, tensors: Sequence[Tensor]) -> str:
    """The target of the device that holds the module."""
    buffers = source.buffers()
    return "cuda" if any(t.is_cuda for t in (*tensors, *source.parameters(), *buffers)) else "cpu"


def bind(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The call by argument names without defaults, so that equal calls are equal however they are written."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            "the module's forward does not take these arguments", got=str(error), want=str(signature)
        ) from error
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY or parameter.default is parameter.empty:
            continue
        if bound.arguments.get(name, parameter.empty) is parameter.default:
            del bound.arguments[name]
    return bound


def read_example(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as users write them: a tensor, a tuple of arguments, or arguments by name."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    if isinstance(example, Tensor):
        return (example,), {}
    raise InputError(
        "a module needs example inputs to be read",
        got=type(example).__name__,
        want="a tensor, a tuple of arguments, or a dict of arguments by name",
    )


def refuse_training(module: nn.Module) -> None:
    """Raise if a part of the module is in training mode, where dropout and batch statistics are active."""
    training = [name or type(module).__name__ for name, part in module.named_modules() if part.training]
    if training:
        raise UnsupportedError(
            "the module is in training mode", got=", ".join(training[:5]), help="call module.eval() first"
        )


def export(source: nn.Module | ExportedProgram, example: Any, dynamic_shapes: Any) -> Exported:
    """Export the module or program that `ridgeline.build` was given."""
    if isinstance(source, nn.Module):
        return export_module(source, *read_example(example), dynamic_shapes=dynamic_shapes)
    if example is not None or dynamic_shapes is not None:
        raise OptionError(
            "an ExportedProgram brings its own example inputs and dims",
            help="leave example_inputs and dynamic_shapes out, or hand in the module",
        )
    return export_program(source)


def export_module(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any = None,
    axes: Sequence[Axes] | None = None,
) -> Exported:
    """One call of a module as a model.

    `dynamic_shapes` as torch.export takes it, with strings for names; or `axes`, for each tensor of the call.
    """
    refuse_training(module)
    bound = bind(inspect.signature(module.forward), args, kwargs)
    arguments = dict(bound.arguments)
    leaves, tree = flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    names = leaf_names(arguments, "")
    refuse_complex([leaves[i] for i in places])
    fixed = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def call(tensors: Sequence[Tensor]) -> Any:
        filled = list(fixed)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        again = inspect.BoundArguments(bound.signature, unflatten(filled, tree))
        return module(*again.args, **again.kwargs)

    if axes is None:
        axes = axes_of(arguments, dynamic_shapes)
    exported = export_flat(Flat(module, call), [leaves[i] for i in places], [names[i] for i in places], axes)
    exported.model.graph.name = type(module).__name__
    return exported


def refuse_complex(tensors: Sequence[Tensor]) -> None:
    """Raise for complex tensors: torch's exporter would make them pairs of numbers."""
    found = next((t for t in tensors if t.is_complex()), None)
    if found is not None:
        raise UnsupportedError(
            "a module that takes complex tensors cannot be exported",
            got=f"{str(found.dtype).removeprefix('torch.')}{list(found.shape)}",
            want="real tensors",
            help="hand over torch.view_as_real(x), and make x of it inside the module",
        )


def export_program(program: ExportedProgram) -> Exported:
    """An ExportedProgram as a model, at its own example inputs."""
    start = perf_counter()
    warn_if_untested(torch.__version__)
    with quiet(), torch.no_grad():
        model = to_onnx(program)
    name_dims(model, [{} for _ in model.graph.inputs])
    leaves, tree = flatten(program.example_inputs)
    given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    refuse_complex(given)
    inputs = [str(value.name) for value in model.graph.inputs]
    names = [str(value.name) for value in model.graph.outputs]
    assumed = read_assumed(program, inputs, given, is_oblivious=False)

    def run(feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        ordered = iter(feeds[name] for name in inputs)
        filled = [next(ordered) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = unflatten(filled, tree)
        with torch.no_grad():
            made = flatten(program.module()(*args, **kwargs))[0]
        tensors = [_from_number(leaf) if type(leaf) in NUMBERS else leaf for leaf in made]
        tensors = [leaf for leaf in tensors if isinstance(leaf, Tensor)]
        if len(tensors) != len(names):
            raise UnsupportedError(
                "the program returns values that its ONNX model does not",
                got=f"{len(tensors)} tensors and numbers",
                want=f"{len(names)}: {', '.join(names)}",
                help="hand in the module, or return tensors only",
            )
        return dict(zip(names, tensors, strict=True))

    feeds = dict(zip(inputs, given, strict=True))
    sample = Sample(feeds, run, perf_counter() - start, assumed, is_program=True)
    return Exported(model, None, sample, {})


def export_flat(
    flat: Flat, tensors: Sequence[Tensor], names: Sequence[str], axes: Sequence[Axes]
) -> Exported:
    """The wrapped module as a model with named inputs and outputs."""
    start = perf_counter()
    warn_if_untested(torch.__version__)
    inputs = flat.taken = _unique(names)
    given = [resolved(tensor.detach()) for tensor in tensors]
    with quiet(), torch.no_grad():
        program, is_oblivious = trace(flat, given, axes)
        assumed = read_assumed(program, inputs, given, is_oblivious=is_oblivious)
        model = to_onnx(program, inputs)
    noted = flat.trace
    assert noted.tree is not None, "a module that was traced has been run"
    if not noted.names:
        raise UnsupportedError(
            "the module computes nothing: its result is made of its inputs, weights and constants"
        )
    cast_outputs(model, noted.dtypes)
    rename_ports(model, inputs, noted.names)
    name_dims(model, axes)

    call = Call(tuple(inputs), tuple(noted.parts), noted.tree)

    def run(feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            given = [feeds[name] for name in inputs]
            return call.outputs_of(lasting(flat.module, lambda: flat.call(given)))

    sample = Sample(dict(zip(inputs, given, strict=True)), run, perf_counter() - start, assumed)
    if noted.changed:
        sample.require_runs()  # a second call shows whether what the trace recorded holds for every call
    return Exported(model, call, sample, bounded_profile(inputs, given, axes))
