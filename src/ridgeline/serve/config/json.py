"""A `ModelSpec` as the protocol tells it: ModelConfig as JSON with all its fields, and ModelMetadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from ridgeline.serve.config.parameters import Own, written
from ridgeline.serve.config.queues import ACTIONS, KINDS, MICROSECONDS
from ridgeline.serve.datatypes import DATATYPES
from ridgeline.serve.protocol.messages import DataType, ModelConfig
from ridgeline.serve.spec import BatchPolicy, ModelSpec, QueuePolicy, TensorSpec

_DATA = {"zero": "zero_data", "random": "random_data", "file": "input_data_file"}


def metadata_json(spec: ModelSpec, versions: Iterable[int | str]) -> dict[str, Any]:
    def tensors(given: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "datatype": each.datatype, "shape": list(spec.whole_dims(each))}
            for each in given
        ]

    return {
        "name": spec.name,
        "versions": [str(version) for version in versions],
        "platform": spec.platform,
        "inputs": tensors(spec.inputs),
        "outputs": tensors(spec.outputs),
    }


def config_json(spec: ModelSpec) -> dict[str, Any]:
    """What is honoured. 64-bit integers are numbers; fields that are not set stand there with their defaults,
    messages only where they are set: clients ask whether they are."""
    return _json(config_of(spec))


def _json(message: Any) -> dict[str, Any]:
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: Any, value: Any) -> Any:
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    if is_message and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {str(key): _one(inner, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_one(field, each) for each in value]
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return _json(value)
    return field.enum_type.values_by_number[value].name if field.enum_type is not None else value


def config_of(spec: ModelSpec) -> Any:
    """The ModelConfig that reads as this spec."""
    config = ModelConfig(
        name=spec.name,
        platform=spec.platform,
        backend=spec.backend,
        max_batch_size=spec.max_batch_size,
        default_model_filename=spec.default_model_filename,
        metric_tags=spec.metric_tags,
    )
    _write_versions(config, spec)
    for port in spec.inputs:
        config.input.add(optional=port.is_optional, **_tensor(port))
    for port in spec.outputs:
        config.output.add(label_filename=port.label_file, **_tensor(port))
    for group in spec.instances:
        config.instance_group.add(
            name=group.name, count=group.count, kind=KINDS.index(group.kind), gpus=group.gpus
        )
    own = Own(spec.idempotent, spec.pad_dims, dict(spec.pad_values), dict(spec.build), dict(spec.parameters))
    for key, text in written(own).items():
        config.parameters[key].string_value = text
    _write_warmups(config, spec)
    if spec.ensemble is not None:
        _write_ensemble(config, spec)
    elif spec.batching != BatchPolicy():
        _write_batching(config.dynamic_batching, spec.batching)
    return config


def _tensor(port: TensorSpec) -> dict[str, Any]:
    number = DataType.values_by_name[DATATYPES[port.datatype].config].number
    reshape = {} if port.reshape is None else {"reshape": {"shape": port.reshape}}
    return {"name": port.name, "data_type": number, "dims": port.dims, **reshape}


def _write_versions(config: Any, spec: ModelSpec) -> None:
    policy = config.version_policy
    if spec.versions.kind == "specific":
        policy.specific.versions.extend(spec.versions.versions)
    elif spec.versions.kind == "all":
        policy.all.SetInParent()
    else:
        policy.latest.num_versions = spec.versions.count


def _write_batching(message: Any, policy: BatchPolicy) -> None:
    message.SetInParent()
    message.preferred_batch_size.extend(policy.preferred)
    message.max_queue_delay_microseconds = round(policy.max_delay_s * MICROSECONDS)
    message.preserve_ordering = policy.preserve_ordering
    message.priority_levels = policy.priority_levels
    message.default_priority_level = policy.default_priority
    if policy.queue != QueuePolicy():
        _write_queue(message.default_queue_policy, policy.queue)
    for priority, queue in policy.queues.items():
        _write_queue(message.priority_queue_policy[priority], queue)


def _write_queue(message: Any, queue: QueuePolicy) -> None:
    message.timeout_action = ACTIONS.index(queue.timeout_action)
    message.default_timeout_microseconds = round(queue.timeout_s * MICROSECONDS)
    message.allow_timeout_override = queue.allow_override
    message.max_queue_size = queue.max_queue_size


def _write_warmups(config: Any, spec: ModelSpec) -> None:
    for warmup in spec.warmups:
        message = config.model_warmup.add(name=warmup.name, batch_size=warmup.batch_size, count=warmup.count)
        for each in warmup.inputs:
            tensor = message.inputs[each.name]
            tensor.data_type = DataType.values_by_name[DATATYPES[each.datatype].config].number
            tensor.dims.extend(each.dims)
            setattr(tensor, _DATA[each.source], each.file if each.source == "file" else True)


def _write_ensemble(config: Any, spec: ModelSpec) -> None:
    assert spec.ensemble is not None, "the caller asked"
    config.ensemble_scheduling.max_inflight_requests = spec.ensemble.max_inflight_requests
    for step in spec.ensemble.steps:
        config.ensemble_scheduling.step.add(
            model_name=step.model,
            model_version=int(step.version) if step.version else -1,
            input_map=step.input_map,
            output_map=step.output_map,
        )
