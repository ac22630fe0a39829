"""The protocol's messages as classes, made when this is imported from inference.desc. No generated code.

They live in a pool of their own: Triton's client registers the same names in protobuf's default pool, and
both may be in one process. docs/make_protocol.py writes inference.desc from the .proto files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

DESCRIPTORS = Path(__file__).with_name("inference.desc")
SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

DecodeError = message.DecodeError


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _pool()


def _class(name: str, package: str = "inference") -> Any:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{package}.{name}"))


DataType = POOL.FindEnumTypeByName("inference.DataType")

ServerLiveRequest = _class("ServerLiveRequest")
ServerLiveResponse = _class("ServerLiveResponse")
ServerReadyRequest = _class("ServerReadyRequest")
ServerReadyResponse = _class("ServerReadyResponse")
ModelReadyRequest = _class("ModelReadyRequest")
ModelReadyResponse = _class("ModelReadyResponse")

ServerMetadataRequest = _class("ServerMetadataRequest")
ServerMetadataResponse = _class("ServerMetadataResponse")
ModelMetadataRequest = _class("ModelMetadataRequest")
ModelMetadataResponse = _class("ModelMetadataResponse")
ModelConfig = _class("ModelConfig")
ModelConfigRequest = _class("ModelConfigRequest")
ModelConfigResponse = _class("ModelConfigResponse")
ModelStatisticsRequest = _class("ModelStatisticsRequest")
ModelStatisticsResponse = _class("ModelStatisticsResponse")

InferParameter = _class("InferParameter")
InferTensorContents = _class("InferTensorContents")
ModelInferRequest = _class("ModelInferRequest")
ModelInferResponse = _class("ModelInferResponse")
ModelStreamInferResponse = _class("ModelStreamInferResponse")

RepositoryIndexRequest = _class("RepositoryIndexRequest")
RepositoryIndexResponse = _class("RepositoryIndexResponse")
RepositoryModelLoadRequest = _class("RepositoryModelLoadRequest")
RepositoryModelLoadResponse = _class("RepositoryModelLoadResponse")
RepositoryModelUnloadRequest = _class("RepositoryModelUnloadRequest")
RepositoryModelUnloadResponse = _class("RepositoryModelUnloadResponse")
TraceSettingRequest = _class("TraceSettingRequest")
TraceSettingResponse = _class("TraceSettingResponse")
LogSettingsRequest = _class("LogSettingsRequest")
LogSettingsResponse = _class("LogSettingsResponse")

HealthCheckRequest = _class("HealthCheckRequest", "grpc.health.v1")
HealthCheckResponse = _class("HealthCheckResponse", "grpc.health.v1")
