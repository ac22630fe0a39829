"""What becomes of each field of Triton's ModelConfig: honoured, told as not honoured, or refused.

A path stands for all that is below it, and is in one of the three tables. Parts of a map's values are
written as those of a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from ridgeline.serve.config.text import Problems

HONOURED = (
    "name", "platform", "backend", "runtime", "max_batch_size", "version_policy", "default_model_filename",
    "metric_tags", "parameters", "dynamic_batching", "model_warmup",
    "input.name", "input.data_type", "input.dims", "input.reshape", "input.optional",
    "output.name", "output.data_type", "output.dims", "output.reshape", "output.label_filename",
    "instance_group.name", "instance_group.count", "instance_group.kind", "instance_group.gpus",
    "ensemble_scheduling.step.model_name", "ensemble_scheduling.step.model_version",
    "ensemble_scheduling.step.input_map", "ensemble_scheduling.step.output_map",
    "ensemble_scheduling.max_inflight_requests",
)  # fmt: skip
# results stay what they are; what the field is for does not happen, or happens anyway
NOTED = {
    "input.format": "the order of dims is the engine's",
    "instance_group.rate_limiter": "an instance that is free takes a batch at once",
    "instance_group.profile": "each batch runs in the profile of the engine that fits it",
    "instance_group.passive": "every instance takes batches",
    "instance_group.secondary_devices": "an instance has one device",
    "instance_group.host_policy": "threads and memory are placed by the system",
    "optimization": "how an engine runs is decided when it is built, see the parameters precision and level",
    "model_metrics": "histograms have fixed buckets",
}
# without it, results or promises would be others
REFUSED = {
    "sequence_batching": "no state is kept between requests",
    "model_transaction_policy.decoupled": "each request has one response",
    "response_cache.enable": "responses are not kept",
    "input.allow_ragged_batch": "rows of a batch have one shape; the parameter pad_dims pads them",
    "input.is_shape_tensor": "shapes are read from an engine's ordinary inputs",
    "output.is_shape_tensor": "shapes are read from an engine's ordinary inputs",
    "input.is_non_linear_format_io": "elements lie row-major",
    "output.is_non_linear_format_io": "elements lie row-major",
    "batch_input": "an engine gets the inputs of its requests only",
    "batch_output": "outputs are cut along their first dim only",
    "model_operations": "no libraries are loaded",
    "model_repository_agents": "no agents run",
    "cc_model_filenames": "a version has one model file: default_model_filename",
    "ensemble_scheduling.step.model_namespace": "models have one space of names",
}


def check_fields(config: Any, problems: Problems) -> tuple[str, ...]:
    """Notes on what is not honoured; what is refused, and what no enum has, goes to `problems`."""
    notes: dict[str, str] = {}
    for path, place, field, value in _said(config, "", ""):
        if path in REFUSED:
            problems.add(place, "a field that is not supported", f"it left out: {REFUSED[path]}")
        elif path in NOTED:
            notes.setdefault(path, f"{place} is not honoured: {NOTED[path]}")
        elif not any(f"{path}.".startswith(f"{known}.") for known in HONOURED):
            problems.add(place, "a field that nothing is done with", "it left out")
        elif field.enum_type is not None and value not in field.enum_type.values_by_number:
            problems.add(place, value, "one of " + ", ".join(field.enum_type.values_by_name))
    return tuple(notes.values())


def _said(message: Any, path: str, place: str) -> Iterator[tuple[str, str, Any, Any]]:
    """Fields that are set, with and without indices. What is noted or refused is not looked into."""
    for field, value in message.ListFields():
        here, there = f"{path}{field.name}", f"{place}{field.name}"
        if here in NOTED or here in REFUSED or field.type != FieldDescriptor.TYPE_MESSAGE:
            yield here, there, field, value
        elif field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in sorted(value):
                    yield from _said(value[key], f"{here}.", f"{there}[{key!r}].")
        elif field.is_repeated:
            for at, each in enumerate(value):
                yield from _said(each, f"{here}.", f"{there}[{at}].")
        else:
            yield from _said(value, f"{here}.", f"{there}.")
