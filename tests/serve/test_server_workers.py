"""A server whose engines live in worker processes: what the death of one costs, and how soon it is over."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from serving import Running, put_model, rows, serving, until

from ridgeline.errors import OptionError
from ridgeline.serve.clients.client import ServerError
from ridgeline.serve.front_ends import listeners
from ridgeline.serve.run import worker_hosts

SLOW = "import time\ndef run(inputs):\n    time.sleep(0.05)\n    return {'y': inputs['x']}\n"
CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""


def put_slow_model(root: Path) -> None:
    (root / "slow" / "1").mkdir(parents=True)
    (root / "slow" / "config.pbtxt").write_text(CONFIG)
    (root / "slow" / "1" / "model.py").write_text(SLOW)


def worker_pid(running: Running, device: str) -> int:
    (pid,) = [row["pid"] for row in running.server.hosts.status() if row["device"] == device]
    assert isinstance(pid, int)
    return pid


def test_a_killed_worker_costs_the_batch_it_ran_and_nothing_else(tmp_path: Path) -> None:
    put_model(tmp_path, "quick", shift=1)
    put_slow_model(tmp_path)
    failed: list[str] = []
    answered = [0] * 8
    with serving(tmp_path, hosts_of=worker_hosts, python_steps=True) as running:
        ends = threading.Event()

        def ask(index: int) -> None:
            with running.client() as client:
                while not ends.is_set():
                    try:
                        assert client.infer("slow", {"x": rows(index)})["y"].tolist() == rows(index).tolist()
                        answered[index] += 1
                    except ServerError as error:
                        failed.append(error.what)

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(answered))]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        assert min(answered) > 0
        os.kill(worker_pid(running, "python"), signal.SIGKILL)
        began = time.monotonic()
        with running.client() as client:
            assert client.infer("quick", {"x": rows(1)})["y"][0, 0] == 2  # another worker's model
            while client.is_ready():
                assert time.monotonic() - began < 5, "nobody noticed"
            while not client.is_ready():
                assert time.monotonic() - began < 5, "it is not back in 5 s"
        before = sum(answered)
        time.sleep(0.3)
        ends.set()
        for thread in threads:
            thread.join()
        assert sum(answered) > before
    # the batch that ran, of four requests at the most; what waited was answered by the next worker
    assert 1 <= len(failed) <= 4, failed


def test_http_workers_share_the_port_and_answer_alike(tmp_path: Path) -> None:
    put_model(tmp_path, "m", shift=1)
    with serving(tmp_path, http_workers=2) as running:
        for _ in range(8):
            with running.client() as client:
                assert client.infer("m", {"x": rows(1, 2)})["y"].tolist() == (rows(1, 2) + 1).tolist()
                assert client.is_ready()
        with running.client() as client:
            assert client.statistics("m")["model_stats"][0]["inference_count"] == 16
            assert client.ask("GET", "/v2/models/m")["inputs"][0]["shape"] == [-1, 4]


def test_a_front_end_that_died_is_replaced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "AGAIN_SECONDS", 0.05)
    put_model(tmp_path, "m", shift=1)
    with serving(tmp_path, http_workers=2) as running:
        processes = running.listeners._processes
        assert processes is not None
        real, failures = processes._wait_started, iter([True, True])

        async def fails_twice(running: listeners.Running) -> None:
            await real(running)
            if next(failures, False):
                raise OptionError("it did not start")

        processes._wait_started = fails_twice  # type: ignore[method-assign]
        first = [each.process.pid for each in processes._running]
        os.kill(first[0], signal.SIGKILL)
        until(lambda: len(processes._running) == 2 and first[0] not in pids_of(processes), 30)
        time.sleep(0.3)  # one that was started beside would be there by now
        assert len(processes._running) == 2
        assert first[1] in pids_of(processes)
        with running.client() as client:
            assert client.infer("m", {"x": rows(1)})["y"].tolist() == (rows(1) + 1).tolist()


def pids_of(processes: listeners.FrontEndProcesses) -> list[int]:
    return [each.process.pid for each in processes._running]
