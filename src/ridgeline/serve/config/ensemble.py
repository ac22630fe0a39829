"""The steps of an ensemble: each tensor comes from one place, and no steps wait for each other."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ridgeline.serve.config.text import Problems, shortened
from ridgeline.serve.spec import Ensemble, EnsembleStep, TensorSpec, is_model_name

MOST_STEPS = 256
_INPUT = -1  # where an ensemble's own inputs come from


def read_ensemble(given: Any, name: str, problems: Problems) -> Ensemble:
    steps = []
    if not 1 <= len(given.step) <= MOST_STEPS:
        problems.add("ensemble_scheduling.step", f"{len(given.step)} steps", f"1 to {MOST_STEPS}")
    for at, each in enumerate(given.step[:MOST_STEPS]):
        place = f"ensemble_scheduling.step[{at}]"
        if not is_model_name(each.model_name) or each.model_name == name:
            problems.add(f"{place}.model_name", repr(each.model_name), "the name of another model")
        if each.model_version < -1:
            problems.add(f"{place}.model_version", each.model_version, "a version, or -1 for the newest")
        for maps in ("input_map", "output_map"):
            pairs = getattr(each, maps)
            if not pairs or any(not key or not value for key, value in pairs.items()):
                problems.add(
                    f"{place}.{maps}",
                    "no pairs" if not pairs else "an empty name",
                    "pairs of the step's tensor (key) and the ensemble's (value)",
                )
        steps.append(
            EnsembleStep(
                each.model_name,
                str(each.model_version) if each.model_version > 0 else "",
                dict(sorted(each.input_map.items())),
                dict(sorted(each.output_map.items())),
            )
        )
    return Ensemble(tuple(steps), given.max_inflight_requests)


def check_ensemble(
    ensemble: Ensemble, inputs: list[TensorSpec], outputs: list[TensorSpec], problems: Problems
) -> list[str]:
    """Notes on inputs that nobody reads. Whether tensors fit the models is seen as it is loaded."""
    for port in (*inputs, *outputs):
        if port.reshape is not None:
            problems.add(f"tensor {port.name!r}", "reshape", "it in the configuration of the step's model")
    made = {port.name: _INPUT for port in inputs}
    for at, step in enumerate(ensemble.steps):
        for tensor in step.output_map.values():
            place = f"ensemble_scheduling.step[{at}].output_map"
            if tensor in made:
                source = (
                    "an input of the ensemble" if made[tensor] == _INPUT else f"made by step {made[tensor]}"
                )
                problems.add(place, f"{tensor!r}, which is {source}", "a tensor that nothing else makes")
            else:
                made[tensor] = at
    read: set[str] = {port.name for port in outputs}
    for at, step in enumerate(ensemble.steps):
        for own, tensor in step.input_map.items():
            read.add(tensor)
            if tensor not in made:
                problems.add(
                    f"ensemble_scheduling.step[{at}].input_map",
                    f"{own!r} from {tensor!r}",
                    f"an input of the ensemble, or what a step makes: {shortened(', '.join(made))}",
                )
    for port in outputs:
        if made.get(port.name, _INPUT) == _INPUT:
            problems.add(f"output {port.name!r}", "made by no step", "a value of some step's output_map")
    if circle := _circle(ensemble, made):
        problems.add("ensemble_scheduling", f"steps that wait for each other: {circle}", "steps in an order")
    return [f"input {port.name!r} is read by no step" for port in inputs if port.name not in read]


def _circle(ensemble: Ensemble, made: Mapping[str, int]) -> str:
    waits = {
        at: {made[tensor] for tensor in step.input_map.values() if made.get(tensor, _INPUT) != _INPUT}
        for at, step in enumerate(ensemble.steps)
    }
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        return " → ".join(f"{at} ({ensemble.steps[at].model})" for at in error.args[1])
    return ""
