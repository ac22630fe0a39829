"""Damaged requests: the answer is well formed and the server lives. fuzz_http.py goes on for longer."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from fuzz_http import BINARY_INPUT, HOSTILE, JSON_INPUT, TEXT_INPUT, check_codec, check_socket, fuzz
from http_rig import Rig, running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 120
leaves = st.one_of(st.sampled_from(HOSTILE), st.integers(), st.floats(), st.text(max_size=5))
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner), max_leaves=6
)
names = st.sampled_from(
    ["x", "y", "binary_data_size", "sequence_id", "priority", "triton_a", "classification"]
)
parameters = st.dictionaries(names, leaves, max_size=3)


def damaged(whole: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The object with some members replaced, and some left out."""
    changes = st.dictionaries(st.sampled_from(sorted(whole)), values, max_size=2)
    absent = st.lists(st.sampled_from(sorted(whole)), max_size=1)
    return st.builds(
        lambda new, gone: {k: v for k, v in (whole | new).items() if k not in gone}, changes, absent
    )


inputs = st.one_of(damaged(JSON_INPUT), damaged(BINARY_INPUT), damaged(TEXT_INPUT), values)
documents = st.fixed_dictionaries(
    {"inputs": st.lists(inputs, max_size=3) | values},
    optional={"id": leaves, "outputs": values, "parameters": parameters | values},
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(documents, st.none() | st.binary(max_size=8), st.integers(-2, 2))
def test_any_document_is_a_request_or_refused(document: Any, blobs: bytes | None, off: int) -> None:
    header = json.dumps(document).encode()
    check_codec(header + (blobs or b""), None if blobs is None else max(0, len(header) + off))


@settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
@given(st.binary(max_size=60), st.none() | st.integers(0, 70))
def test_any_bytes_are_a_request_or_refused(body: bytes, length: int | None) -> None:
    check_codec(body, length)


def test_damaged_bodies_are_requests_or_refused() -> None:
    tried, right = fuzz(1.0, 7, with_sockets=False)
    assert tried > right > tried // 50, "some damaged bodies are whole, most are not"


@pytest.fixture(scope="module")
def rig() -> Any:
    with running() as served:
        yield served


def test_damaged_connections_leave_the_server_alive(rig: Rig) -> None:
    draw = random.Random(11)
    for _ in range(60):
        check_socket(rig, draw)
    rig.check_alive()
    rig.wait("not rig.server.connections")
