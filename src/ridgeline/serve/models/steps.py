"""Whether the steps of an ensemble have the tensors that it maps to them, of types that agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ridgeline.serve.config.text import Problems
from ridgeline.serve.errors import RequestError
from ridgeline.serve.spec import EnsembleStep, ModelSpec, TensorSpec


def check_steps(spec: ModelSpec, spec_of: Callable[[str, str], ModelSpec]) -> None:
    """`ConfigError` lists what does not fit. A model that is not served now is looked at when it answers."""
    assert spec.ensemble is not None, "its platform says so"
    problems = Problems()
    types = {port.name: port.datatype for port in (*spec.inputs, *spec.outputs)}
    for at, step in enumerate(spec.ensemble.steps):
        place = f"ensemble_scheduling.step[{at}]"
        try:
            found = spec_of(step.model, step.version)
        except RequestError:
            continue
        _check_map(f"{place}.input_map", step.input_map, found.inputs, types, problems)
        _check_map(f"{place}.output_map", step.output_map, found.outputs, types, problems)
        _check_whole(f"{place}.input_map", step, found, problems)
    problems.raise_any("config.pbtxt")


def _check_map(
    place: str,
    pairs: Mapping[str, str],
    ports: Sequence[TensorSpec],
    types: dict[str, str],
    problems: Problems,
) -> None:
    by_name = {port.name: port for port in ports}
    for own, tensor in pairs.items():
        if own not in by_name:
            problems.add(place, f"key {own!r}", f"a tensor of the step's model: {', '.join(by_name)}")
            continue
        datatype = by_name[own].datatype
        known = types.setdefault(tensor, datatype)
        if known != datatype:
            problems.add(place, f"{tensor!r} for {own!r}, which is {datatype}", f"a tensor of type {known}")


def _check_whole(place: str, step: EnsembleStep, found: ModelSpec, problems: Problems) -> None:
    for port in found.inputs:
        if port.name not in step.input_map and not port.is_optional:
            problems.add(place, f"nothing for {port.name!r}", f"every input of {step.model!r}")
