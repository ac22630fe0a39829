"""A listener sees to it that its connections may be opened, or takes fewer and says so."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from http_rig import running

from ridgeline.serve.http.open_files import room_for

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft one and the hard one, which the process itself keeps as they are."""
    held = [UNLIMITED, UNLIMITED]

    def change(_: int, new: tuple[int, int]) -> None:
        held[:] = new

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(held))
    monkeypatch.setattr(resource, "setrlimit", change)
    return held


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "fit"),
    [
        (1024, 10_000, 4608, 4096),
        (1024, UNLIMITED, 4608, 4096),
        (5000, 5000, 5000, 4096),
        (UNLIMITED, UNLIMITED, UNLIMITED, 4096),
        (1024, 2048, 2048, 1536),
        (100, 300, 300, 150),
    ],
)
def test_the_limit_is_raised_as_far_as_the_system_lets(
    soft: int, hard: int, raised: int, fit: int, limits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    limits[:] = soft, hard
    assert room_for(4096) == fit
    assert limits == [raised, hard]
    assert (f"{fit} connections are taken, not 4096" in caplog.text) == (fit < 4096)


def test_a_limit_that_cannot_be_raised_is_lived_with(
    limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int, new: Any) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    limits[:] = 1024, 10_000
    assert room_for(4096) == 512
    assert room_for(100) == 100


def test_a_listener_takes_as_many_connections_as_fit(limits: list[int]) -> None:
    limits[:] = 4, 4
    with running() as rig:
        assert rig.server._state.most_connections == 2
        with rig.socket(), rig.socket():
            rig.wait("rig.server.connections == 2")
            assert rig.raw(b"GET /v2/health/live HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503")
