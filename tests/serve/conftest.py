"""Hosts for tests: what workers are forked from takes seconds to start, and is started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hosted import OnLoop, parent_of, wait_for_end

from ridgeline.serve.hosts.hosting import Host
from ridgeline.serve.hosts.spawning import Spawner
from ridgeline.serve.hosts.thread_host import ThreadHost
from ridgeline.serve.hosts.worker_host import WorkerHost
from ridgeline.serve.hosts.worker_link import WorkerLink


@pytest.fixture(scope="session")
def do() -> Iterator[OnLoop]:
    """``do(coroutine)`` runs it on the loop of the fixtures here."""
    on_loop = OnLoop()
    yield on_loop
    on_loop.close()


@pytest.fixture(scope="session")
def spawner(do: OnLoop) -> Iterator[Spawner]:
    made = Spawner()
    do(made.start())
    yield made
    do(stop_with_a_worker(made))


async def stop_with_a_worker(spawner: Spawner) -> None:
    """Nobody outlives a server, though it was not asked to end."""
    link = await WorkerLink.fork(spawner, "cpu", lambda _: None, 1 << 20)
    worker = await link.child.pid
    parent = parent_of(worker)
    await spawner.stop()
    wait_for_end(worker, parent)
    assert not link.is_open


@pytest.fixture(scope="session")
def worker_host(do: OnLoop, spawner: Spawner) -> Iterator[WorkerHost]:
    """For tests that leave its worker alive."""
    host = WorkerHost("cpu", spawner)
    do(host.start())
    yield host
    do(host.stop())


@pytest.fixture
def thread_host(do: OnLoop) -> Iterator[ThreadHost]:
    host = ThreadHost("cpu")
    do(host.start())
    yield host
    do(host.stop())


@pytest.fixture(params=["threads", "worker"])
def host(request: pytest.FixtureRequest) -> Host:
    """Of either kind."""
    found: Host = request.getfixturevalue("thread_host" if request.param == "threads" else "worker_host")
    return found
