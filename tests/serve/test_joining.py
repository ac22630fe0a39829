"""Requests joined into a batch and taken apart again: every row comes back to whom it belongs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.serve.batching.joining import cut, join, key_of, padding_of, rows_of
from ridgeline.serve.datatypes import join_bytes, split_bytes
from ridgeline.serve.errors import RequestError
from ridgeline.serve.hosts.hosting import Joined
from ridgeline.serve.messages import Tensor
from ridgeline.serve.spec import ModelSpec, TensorSpec


def tensor(name: str, array: np.ndarray, datatype: str = "FP32") -> Tensor:
    return Tensor(name, datatype, array.shape, array.tobytes())


def written(joined: Joined) -> np.ndarray:
    memory = bytearray(joined.nbytes)
    joined.write_into(memoryview(memory))
    return np.frombuffer(memory, np.float32).reshape(joined.shape)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.lists(st.integers(0, 3), max_size=3))
def test_rows_come_back_to_their_requests(counts: list[int], rest: list[int]) -> None:
    random = np.random.default_rng(sum(counts))
    arrays = [random.random((count, *rest), np.float32) for count in counts]
    (joined,) = join([[tensor("x", array)] for array in arrays], None)
    whole = written(joined)
    assert np.array_equal(whole, np.concatenate(arrays))
    parts = rows_of(Tensor("y", "FP32", whole.shape, whole.tobytes()), counts)
    for part, array in zip(parts, arrays, strict=True):
        assert (part.shape, bytes(part.data)) == (array.shape, array.tobytes())


def test_bytes_are_cut_between_their_elements() -> None:
    rows = [[b"", b"ab"], [b"cde", b"\x00\xff"], [b"f" * 300, b"g"]]
    whole = Tensor("y", "BYTES", (3, 2), join_bytes([each for row in rows for each in row]))
    first, second = rows_of(whole, [1, 2])
    assert split_bytes(memoryview(first.data), 2) == rows[0]
    assert (second.shape, split_bytes(memoryview(second.data), 4)) == ((2, 2), rows[1] + rows[2])


@pytest.mark.parametrize("shape", [(), (1,), (4, 2)])
def test_outputs_without_the_batch_are_an_error_not_a_guess(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.float32)
    with pytest.raises(RequestError, match="does not keep requests apart"):
        rows_of(tensor("y", array), [1, 2])
    assert rows_of(tensor("y", array), [1])[0].shape == shape  # alone, it may have any shape


def padded() -> ModelSpec:
    return ModelSpec(
        "m",
        max_batch_size=8,
        inputs=(
            TensorSpec("ids", "FP32", (-1,), ("seq",)),
            TensorSpec("mask", "FP32", (-1, 2), ("seq", "")),
        ),
        outputs=(
            TensorSpec("hidden", "FP32", (-1, 3), ("seq", "")),
            TensorSpec("pooled", "FP32", (3,), ("",)),
        ),
        pad_dims=("seq",),
        pad_values={"ids": 7},
    )


def test_lengths_that_may_be_padded_share_a_batch_and_others_do_not() -> None:
    padding = padding_of(padded())
    short = [tensor("ids", np.ones((1, 3), np.float32)), tensor("mask", np.ones((1, 3, 2), np.float32))]
    long = [tensor("ids", np.ones((2, 5), np.float32)), tensor("mask", np.ones((2, 5, 2), np.float32))]
    odd = [long[0], tensor("mask", np.ones((2, 5, 1), np.float32))]
    assert key_of(short, padding, 1) == key_of(long, padding, 1) != key_of(odd, padding, 1)
    assert key_of(short, None, 1) != key_of(long, None, 1)
    ids, mask = join([short, long], padding)
    assert written(ids).tolist() == [[1, 1, 1, 7, 7], [1] * 5, [1] * 5]
    assert written(mask)[0, 3:].tolist() == [[0, 0], [0, 0]]  # 0 where no value is given


def test_what_was_computed_for_padding_is_cut_off() -> None:
    padding = padding_of(padded())
    assert padding is not None
    hidden = np.arange(30, dtype=np.float32).reshape(2, 5, 3)
    asked = [tensor("ids", np.ones((2, 4), np.float32)), tensor("mask", np.ones((2, 4, 2), np.float32))]
    got = cut(tensor("hidden", hidden), padding, asked)
    assert got.shape == (2, 4, 3)
    assert bytes(got.data) == hidden[:, :4].tobytes()
    pooled = tensor("pooled", np.ones((2, 3), np.float32))
    assert cut(pooled, padding, asked) is pooled


def test_joined_inputs_without_elements() -> None:
    empty = np.zeros((2, 0), np.float32)
    (joined,) = join([[tensor("x", empty)], [tensor("x", empty)]], None)
    assert (joined.nbytes, joined.shape) == (0, (4, 0))
    joined.write_into(memoryview(bytearray()))
