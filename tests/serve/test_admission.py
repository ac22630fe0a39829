"""A request against its model: what does not fit is named before anything runs."""

from __future__ import annotations

from math import prod

import pytest

from ridgeline.serve.batching.admission import Admission, Admitted, outward
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.messages import InferRequest, Tensor, Wanted
from ridgeline.serve.spec import ModelSpec, TensorSpec

SPEC = ModelSpec(
    "m",
    max_batch_size=4,
    inputs=(
        TensorSpec("a", "FP32", (2, -1)),
        TensorSpec("b", "INT64", ()),
        TensorSpec("c", "FP32", (3,), is_optional=True),
    ),
    outputs=(TensorSpec("y", "FP32", (2,)), TensorSpec("z", "FP32", (5,))),
)


def admit(spec: ModelSpec, request: InferRequest) -> Admitted:
    return Admission(spec).admit(request)


def fp32(name: str, *shape: int) -> Tensor:
    return Tensor(name, "FP32", shape, bytes(4 * prod(shape)))


def int64(name: str, *shape: int) -> Tensor:
    return Tensor(name, "INT64", shape, bytes(8 * prod(shape)))


def test_inputs_come_in_the_order_of_the_model_and_outputs_as_they_were_asked_for() -> None:
    asked = InferRequest("m", inputs=[int64("b", 3), fp32("a", 3, 2, 7)], outputs=[Wanted("z"), Wanted("y")])
    admitted = admit(SPEC, asked)
    assert [each.name for each in admitted.inputs] == ["a", "b"]
    assert [each.name for each in admitted.wanted] == ["z", "y"]
    assert admitted.size == 3
    assert [each.name for each in admit(SPEC, InferRequest("m", inputs=asked.inputs)).wanted] == ["y", "z"]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([int64("b", 1)], "input 'a' of model 'm' is missing"),
        ([fp32("a", 1, 2, 3), int64("b", 1), fp32("d", 1)], "has no input 'd'"),
        ([int64("a", 1, 2, 3), int64("b", 1)], "has type INT64, want FP32"),
        ([fp32("a", 1, 3, 3), int64("b", 1)], r"has shape \[1, 3, 3\], want \[-1, 2, -1\]"),
        ([fp32("a", 1, 2), int64("b", 1)], r"want \[-1, 2, -1\]"),
        ([fp32("a", 5, 2, 3), int64("b", 5)], "takes 1 to 4"),
        ([fp32("a", 0, 2, 3), int64("b", 0)], "takes 1 to 4"),
        ([fp32("a", 2, 2, 3), int64("b", 1)], "differ in their batch"),
    ],
)
def test_what_does_not_fit_is_refused(inputs: list[Tensor], says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        admit(SPEC, InferRequest("m", inputs=inputs))
    assert caught.value.kind is Kind.INVALID


def test_an_unknown_output_is_refused() -> None:
    asked = InferRequest("m", inputs=[fp32("a", 1, 2, 3), int64("b", 1)], outputs=[Wanted("w")])
    with pytest.raises(RequestError, match="has no output 'w': it gives y, z"):
        admit(SPEC, asked)


def test_shapes_of_clients_become_those_of_the_engine_and_back() -> None:
    spec = ModelSpec(
        "m",
        max_batch_size=4,
        inputs=(TensorSpec("x", "FP32", (-1,), reshape=(-1, 1)),),
        outputs=(TensorSpec("y", "FP32", (1, -1), reshape=(-1,)),),
    )
    admitted = admit(spec, InferRequest("m", inputs=[fp32("x", 2, 6)]))
    assert admitted.inputs[0].shape == (2, 6, 1)
    assert outward(spec, spec.outputs[0], fp32("y", 2, 6)).shape == (2, 1, 6)


def test_one_request_does_not_contradict_itself_in_what_may_be_padded() -> None:
    """Beside a longer request both inputs would be padded to its length, and nobody would notice."""
    ports = tuple(TensorSpec(name, "FP32", (-1,), names=("seq",)) for name in ("a", "b"))
    spec = ModelSpec("m", max_batch_size=4, inputs=ports, pad_dims=("seq",))
    assert admit(spec, InferRequest("m", inputs=[fp32("a", 1, 5), fp32("b", 1, 5)])).size == 1
    with pytest.raises(RequestError, match="differ in 'seq': 'a' has 5, 'b' has 7") as caught:
        admit(spec, InferRequest("m", inputs=[fp32("a", 1, 5), fp32("b", 1, 7)]))
    assert caught.value.kind is Kind.INVALID
