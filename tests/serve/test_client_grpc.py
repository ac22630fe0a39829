"""The client over gRPC, against answers that no server should give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ridgeline.serve.clients.client import ServerError
from ridgeline.serve.clients.over_grpc import GrpcClient
from ridgeline.serve.protocol import messages


def client(monkeypatch: pytest.MonkeyPatch, metadata: dict[str, Any], output: dict[str, Any]) -> GrpcClient:
    """One that is given these answers in place of a server's."""
    answers = {
        "ModelMetadata": messages.ModelMetadataResponse(name="m", inputs=[{"name": "x", **metadata}]),
        "ModelInfer": messages.ModelInferResponse(
            outputs=[{"name": "y", **output}], raw_output_contents=[b"\0" * 4]
        ),
    }
    made = GrpcClient("127.0.0.1:1")
    monkeypatch.setattr(made, "_call", lambda name, /, **_: answers[name])
    return made


KNOWN = {"datatype": "FP32", "shape": [-1]}


@pytest.mark.parametrize(
    ("metadata", "output", "message"),
    [
        ({"datatype": "FP99", "shape": [1]}, KNOWN, "unknown type 'FP99'"),
        ({"datatype": "FP32", "shape": [-2]}, KNOWN, "a dim of the size -2"),
        (KNOWN, {"datatype": "FP99", "shape": [1]}, "unknown type 'FP99'"),
        (KNOWN, {"datatype": "FP32", "shape": [-1]}, "a dim of the size -1"),
        (KNOWN, {"datatype": "FP32", "shape": [2]}, "4 bytes for FP32"),
        (KNOWN, {"datatype": "BYTES", "shape": [10**9]}, "4 bytes for 1000000000 elements"),
    ],
)
def test_answers_that_do_not_read_are_errors(
    monkeypatch: pytest.MonkeyPatch, metadata: dict[str, Any], output: dict[str, Any], message: str
) -> None:
    with client(monkeypatch, metadata, output) as made, pytest.raises(ServerError, match=message):
        made.infer("m", {"x": np.zeros(1, np.float32)})


def test_an_answer_that_reads_is_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    with client(monkeypatch, KNOWN, {"datatype": "FP32", "shape": [1]}) as made:
        assert made.infer("m", {"x": np.zeros(1, np.float32)})["y"].tolist() == [0]
