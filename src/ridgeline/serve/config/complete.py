"""A configuration beside what an engine says of itself: contradictions are told, what is open is filled in.

A config.pbtxt may leave everything open. Then a first dim with one name over all inputs and outputs is the
batch, and requests are batched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.errors import did_you_mean
from ridgeline.serve.config.config import Configured
from ridgeline.serve.config.sizes import check_sizes
from ridgeline.serve.config.text import Problems
from ridgeline.serve.hosts.hosting import Dims, PortInfo
from ridgeline.serve.spec import ModelSpec, TensorSpec

DEFAULT_BATCH = 8
# a first dim of such a name is not taken for a batch: rows of two requests would become one sequence
_NO_BATCH = ("seq", "len", "time", "token", "frame", "height", "width")


def complete(
    configured: Configured,
    inputs: Sequence[PortInfo],
    outputs: Sequence[PortInfo],
    *,
    largest_batch: int | None = None,
) -> Configured:
    """`largest_batch`: what the engine was built for, where that is known."""
    problems, notes = Problems(), list(configured.notes)
    spec = configured.spec
    max_batch_size = spec.max_batch_size
    if configured.is_batch_open:
        max_batch_size, note = _open_batch(spec, inputs, outputs, largest_batch or DEFAULT_BATCH)
        notes += [note] if note else []
    elif largest_batch is not None and max_batch_size > largest_batch:
        problems.add("max_batch_size", max_batch_size, f"at most {largest_batch}, the engine's own")
    if max_batch_size:
        _check_batch_dims(max_batch_size, (*inputs, *outputs), problems)
    spec = replace(
        spec,
        max_batch_size=max_batch_size,
        batching=replace(spec.batching, max_batch=max(1, max_batch_size)),
    )
    if not spec.preprocess:
        spec = replace(spec, inputs=_merged("input", spec.inputs, inputs, spec.has_batch, problems))
    if not spec.postprocess:
        merged = _merged("output", spec.outputs, outputs, spec.has_batch, problems)
        told = {port.name for port in spec.outputs}  # the others are the engine's, and not served
        spec = replace(spec, outputs=tuple(port for port in merged if not told or port.name in told))
    check_sizes(spec, problems)
    problems.raise_any(configured.source)
    return replace(configured, spec=spec, notes=tuple(notes), is_batch_open=False)


def _open_batch(
    spec: ModelSpec, inputs: Sequence[PortInfo], outputs: Sequence[PortInfo], largest: int
) -> tuple[int, str]:
    """The largest batch, 0 for none, and why there is none where one might have been meant."""
    ports = (*inputs, *outputs)
    if not inputs or not outputs or not all(port.dims for port in ports):
        return 0, ""
    told = {port.name: port for port in (*spec.inputs, *spec.outputs) if port.dims}
    missing = {len(port.dims) - _rank(told[port.name]) for port in ports if port.name in told}
    firsts = [port.dims[0] for port in ports]
    if missing == {1} and not any(_is_fixed(first) for first in firsts):
        return largest, ""  # dims were told without the batch
    if missing or any(_is_fixed(first) for first in firsts):
        return 0, ""
    names = list(dict.fromkeys(str(first) for first in firsts))
    if len(names) > 1:
        return (
            0,
            f"no batching: the first dims are {', '.join(names)}; max_batch_size says if that is a batch",
        )
    if any(word in names[0].lower() for word in _NO_BATCH) or any(
        names[0] in port.dims[1:] for port in ports
    ):
        return 0, f"no batching: the first dim is {names[0]!r}; max_batch_size says if that is a batch"
    return largest, ""


def _rank(port: TensorSpec) -> int:
    return len(port.dims if port.reshape is None else port.reshape)


def _is_fixed(dim: int | str) -> bool:
    return isinstance(dim, int) and dim >= 0


def _check_batch_dims(max_batch_size: int, ports: Sequence[PortInfo], problems: Problems) -> None:
    for port in ports:
        if not port.dims or _is_fixed(port.dims[0]):
            problems.add(
                "max_batch_size",
                f"{max_batch_size} with {port.name!r} {_shape(port.dims)}",
                "0, or a model whose first dims may be of any size",
            )


def _merged(
    kind: str, told: Sequence[TensorSpec], ports: Sequence[PortInfo], has_batch: bool, problems: Problems
) -> tuple[TensorSpec, ...]:
    known = {port.name: port for port in ports}
    merged = []
    for each in told:
        port = known.get(each.name)
        if port is None:
            want = f"an {kind} of the engine; {did_you_mean(each.name, list(known))}"
            problems.add(f"{kind} {each.name!r}", "a name that the engine does not have", want)
        else:
            merged.append(_compared(f"{kind} {each.name!r}", each, port, has_batch, problems))
    names = {each.name for each in told}
    merged += [
        _compared("", TensorSpec(p.name, "", ()), p, has_batch, problems)
        for p in ports
        if p.name not in names
    ]
    return tuple(merged)


def _compared(
    place: str, told: TensorSpec, port: PortInfo, has_batch: bool, problems: Problems
) -> TensorSpec:
    row: Dims = port.dims[1:] if has_batch else port.dims
    sizes = tuple(int(dim) if _is_fixed(dim) else -1 for dim in row)
    names = tuple(dim if isinstance(dim, str) else "" for dim in row)
    if told.datatype and told.datatype != port.datatype:
        problems.add(f"{place}.data_type", told.datatype, f"{port.datatype}, as the engine has it")
    given = told.dims if told.reshape is None else told.reshape
    if not told.dims and told.reshape is None:
        return replace(told, datatype=port.datatype, dims=sizes, names=names)
    if len(given) != len(sizes) or any(size not in (-1, dim) for dim, size in zip(given, sizes, strict=True)):
        whose = "the engine's" + (" without the batch" if has_batch else "")
        problems.add(
            f"{place}.{'dims' if told.reshape is None else 'reshape'}",
            _shape(given),
            f"{_shape(row)}, {whose}",
        )
        return replace(told, datatype=port.datatype)
    if told.reshape is not None:
        return replace(told, datatype=port.datatype)
    kept = tuple(name if dim == -1 else "" for dim, name in zip(told.dims, names, strict=True))
    return replace(told, datatype=port.datatype, names=kept)


def _shape(dims: Dims) -> str:
    return "[" + ", ".join(str(dim) for dim in dims) + "]"
