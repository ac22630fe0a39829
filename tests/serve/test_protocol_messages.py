"""The protocol's messages: wire-compatible with Triton's, made at run time, in a pool of their own."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, text_format

from ridgeline.serve.protocol import messages

ROOT = Path(__file__).parents[2]

# what a client's generated code has; a wrong number is silent, since protobuf skips fields it does not know
NUMBERS = {
    "ModelInferRequest": (
        "model_name=1 model_version=2 id=3 parameters=4 inputs=5 outputs=6 raw_input_contents=7"
    ),
    "ModelInferRequest.InferInputTensor": "name=1 datatype=2 shape=3 parameters=4 contents=5",
    "ModelInferRequest.InferRequestedOutputTensor": "name=1 parameters=2",
    "ModelInferResponse": "model_name=1 model_version=2 id=3 parameters=4 outputs=5 raw_output_contents=6",
    "InferTensorContents": (
        "bool_contents=1 int_contents=2 int64_contents=3 uint_contents=4 uint64_contents=5 "
        "fp32_contents=6 fp64_contents=7 bytes_contents=8"
    ),
    "InferParameter": "bool_param=1 int64_param=2 string_param=3 double_param=4 uint64_param=5",
    "ModelStreamInferResponse": "error_message=1 infer_response=2",
    "ModelStatistics": (
        "name=1 version=2 last_inference=3 inference_count=4 execution_count=5 inference_stats=6 "
        "batch_stats=7 memory_usage=8 response_stats=9"
    ),
    "ModelConfig": (
        "name=1 platform=2 version_policy=3 max_batch_size=4 input=5 output=6 instance_group=7 "
        "default_model_filename=8 cc_model_filenames=9 metric_tags=10 dynamic_batching=11 "
        "optimization=12 sequence_batching=13 parameters=14 ensemble_scheduling=15 model_warmup=16 "
        "backend=17 model_operations=18 model_transaction_policy=19 batch_input=20 batch_output=21 "
        "model_repository_agents=23 response_cache=24 runtime=25 model_metrics=26"
    ),
    "ModelQueuePolicy": (
        "timeout_action=1 default_timeout_microseconds=2 allow_timeout_override=3 max_queue_size=4"
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_fields_have_the_protocols_numbers(name: str) -> None:
    fields = messages.POOL.FindMessageTypeByName(f"inference.{name}").fields
    in_order = sorted(fields, key=lambda field: field.number)
    assert " ".join(f"{field.name}={field.number}" for field in in_order) == NUMBERS[name]


def test_the_descriptors_are_those_of_the_proto_files(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools makes descriptors; a server has none")
    runpy.run_path(str(ROOT / "docs" / "make_protocol.py"))["compile_to"](tmp_path / "made.desc")
    made, kept = (
        descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
        for path in (tmp_path / "made.desc", messages.DESCRIPTORS)
    )
    assert made == kept, "run python docs/make_protocol.py"


def test_protobufs_default_pool_does_not_know_the_names() -> None:
    for name in ("inference.ModelInferRequest", "inference.ModelConfig"):
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(name)


def test_bytes_of_a_request_are_the_wire_format() -> None:
    """Written out by hand: tag, length, value."""
    request = messages.ModelInferRequest(model_name="m", raw_input_contents=[b"\x01\x02"])
    tensor = request.inputs.add(name="x", datatype="INT16", shape=[1])
    tensor.contents.int_contents.append(-1)
    assert request.SerializeToString() == (
        b"\x0a\x01m"
        b"\x2a\x1b\x0a\x01x\x12\x05INT16\x1a\x01\x01\x2a\x0c\x12\x0a" + b"\xff" * 9 + b"\x01"
        b"\x3a\x02\x01\x02"
    )


def test_a_config_file_is_read_as_text() -> None:
    config = text_format.Parse(
        """
        name: "resnet"  platform: "onnxruntime_onnx"  max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP16 dims: [ 3, -1, 224 ] } ]
        instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }
        dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 4 } } }
        parameters { key: "mode" value: { string_value: "fast" } }
        """,
        messages.ModelConfig(),
    )
    assert config.input[0].data_type == messages.DataType.values_by_name["TYPE_FP16"].number
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert config.dynamic_batching.priority_queue_policy[1].max_queue_size == 4
    with pytest.raises(text_format.ParseError, match="max_batchsize"):
        text_format.Parse("max_batchsize: 8", messages.ModelConfig())
