"""Which dims of a module's tensors may change, in the form that `torch.export` takes, and their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir
from torch import Tensor
from torch.export import Dim

from ridgeline.errors import OptionError, did_you_mean
from ridgeline.frontend.torch_tree import flatten, holds_tensors
from ridgeline.options import MAX_DIM, DimRange, Profile

# axis -> a name, a named torch.export.Dim, or a hint such as Dim.AUTO
Axes: TypeAlias = dict[int, Any]
HINT = type(Dim.AUTO)
SYMBOL = re.compile(r"\b[A-Za-z_]\w*\b")
WANTED = '{"argument": {0: "batch", 1: "length"}}, or torch.export.Dim in place of the names'


def axes_of(arguments: Mapping[str, Any], dynamic_shapes: Any) -> list[Axes]:
    """One entry for each tensor of the call, in the order of its leaves."""
    if dynamic_shapes is None:
        return [{} for _ in _tensors(arguments)]
    if isinstance(dynamic_shapes, (tuple, list)):
        if len(dynamic_shapes) > len(arguments):
            raise OptionError(
                "dynamic_shapes has more entries than the call has arguments",
                got=str(len(dynamic_shapes)),
                want=f"at most {len(arguments)}: {', '.join(arguments)}",
            )
        dynamic_shapes = dict(zip(arguments, dynamic_shapes, strict=False))
    if not isinstance(dynamic_shapes, Mapping):
        raise OptionError("dynamic_shapes does not read", got=repr(dynamic_shapes), want=WANTED)
    for name in dynamic_shapes:
        if name not in arguments:
            raise OptionError(
                f"dynamic_shapes names {name!r}, which the call does not give",
                help=did_you_mean(str(name), list(arguments)),
            )
    dims: dict[str, Any] = {}
    made: list[Axes] = []
    for name, value in arguments.items():
        made += _per_tensor(value, dynamic_shapes.get(name), name, dims)
    return made


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, Tensor)]


def _per_tensor(value: Any, entry: Any, where: str, dims: dict[str, Any]) -> list[Axes]:
    """The entry of one argument for each of its tensors."""
    tensors = _tensors(value)
    if entry is None or not tensors:
        return [{} for _ in tensors]
    if isinstance(value, Tensor):
        return [_axes(value, entry, where, dims)]
    if isinstance(value, Mapping) and isinstance(entry, Mapping):
        parts = [(str(key), part, entry.get(key)) for key, part in value.items()]
    elif isinstance(entry, (tuple, list)):
        is_opened = holds_tensors(value) or not isinstance(value, (tuple, list))
        inside: Sequence[Any] = tensors if is_opened else value
        if len(entry) != len(inside):
            raise _misfit(where, entry, f"{len(inside)} entries")
        parts = [(str(i), part, entry[i]) for i, part in enumerate(inside)]
    else:
        raise _misfit(where, entry, f"an entry of the shape of the argument, a {type(value).__name__}")
    return [axes for key, part, inner in parts for axes in _per_tensor(part, inner, f"{where}.{key}", dims)]


def _axes(tensor: Tensor, entry: Any, where: str, dims: dict[str, Any]) -> Axes:
    if isinstance(entry, (tuple, list)) and len(entry) == tensor.ndim:
        entry = dict(enumerate(entry))
    if not isinstance(entry, Mapping):
        raise _misfit(where, entry, "{axis: name} or one entry for each axis")
    made = {}
    for axis, given in entry.items():
        if not isinstance(axis, int) or not -tensor.ndim <= axis < tensor.ndim:
            raise _misfit(where, entry, f"axes of {list(tensor.shape)}")
        dim = _dim(given, where, dims)
        if dim is not None:
            made[axis % tensor.ndim] = dim
    return made


def _dim(given: Any, where: str, dims: dict[str, Any]) -> Any:
    """One object for each name, because torch.export compares dims by identity.

    A string is a name and no more; the module may bound such a dim, as a table of positions does.
    """
    if given is None or isinstance(given, int):
        return None
    if isinstance(given, HINT):
        return given
    if isinstance(given, str):
        if not given.isidentifier():
            raise _misfit(where, given, "names made of letters, digits and underscores")
        return dims.setdefault(given, given)
    if isinstance(given, Dim):
        return dims.setdefault(given.__name__, given)
    raise _misfit(where, given, WANTED)


def _misfit(where: str, entry: Any, want: str) -> OptionError:
    return OptionError(f"dynamic_shapes of {where!r} does not read", got=repr(entry), want=want)


def to_export(axes: Axes) -> Axes:
    """The dims as torch.export takes them. A dim with only a name may have any size the module takes."""
    return {axis: Dim.DYNAMIC if isinstance(dim, str) else dim for axis, dim in axes.items()}


def name_dims(model: ir.Model, axes: Sequence[Axes]) -> None:
    """Give symbols the names that users gave them, else names after input and axis, in every shape."""
    names: dict[str, str] = {}
    for is_named in (True, False):
        for value, entry in zip(model.graph.inputs, axes, strict=True):
            for axis, size in enumerate(value.shape):
                if isinstance(size, int) or not SYMBOL.fullmatch(size.value or ""):
                    continue
                dim = entry.get(axis)
                if is_named and dim is not None and not isinstance(dim, HINT):
                    names.setdefault(size.value, dim if isinstance(dim, str) else dim.__name__)
                elif not is_named:
                    names.setdefault(size.value, f"{value.name}.{axis}")
    values = {id(v): v for node in model.graph for v in node.outputs}
    values |= {id(v): v for v in (*model.graph.inputs, *model.graph.outputs)}
    for value in values.values():
        if value.shape is not None and not value.shape.is_static():
            value.shape = ir.Shape([_renamed(size, names) for size in value.shape])


def _renamed(size: int | ir.SymbolicDim, names: Mapping[str, str]) -> int | str | None:
    if isinstance(size, int) or size.value is None:
        return size if isinstance(size, int) else None
    if size.value.isdecimal():  # the export fixed it
        return int(size.value)
    return SYMBOL.sub(lambda found: names.get(found[0], found[0]), str(size.value))


def bounded_profile(names: Sequence[str], tensors: Sequence[Tensor], axes: Sequence[Axes]) -> Profile:
    """Ranges by name, of dims that were given a largest size; one that is called as an input is left out."""
    made = {}
    for tensor, entry in zip(tensors, axes, strict=True):
        for axis, dim in entry.items():
            low, high = getattr(dim, "min", None), getattr(dim, "max", None)
            if isinstance(high, int) and isinstance(low, int) and dim.__name__.isidentifier():
                size = tensor.shape[axis]
                made[dim.__name__] = (DimRange(min(max(low, 1), size), size, min(high, MAX_DIM)),)
    return {name: ranges for name, ranges in made.items() if name not in names}


def refuse_example(example: Any, dynamic_shapes: Any) -> None:
    """Raise if a model that is no module comes with what modules need."""
    if example is not None or dynamic_shapes is not None:
        raise OptionError(
            "example_inputs and dynamic_shapes are for PyTorch modules",
            help="an ONNX model has its dims in the file: build(model, profiles=...) gives them sizes",
        )
