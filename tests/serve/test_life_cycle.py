"""What happens to models when files, workers and builds fail while they are loaded, served or taken away."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Running, put_model, rows, serving, until

from ridgeline.serve.clients.client import ServerError
from ridgeline.serve.models.builds import Builds
from ridgeline.serve.run import worker_hosts

STEP = """
backend: "python"
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }
output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }
"""


def put_step(root: Path, name: str, code: str, config: str = STEP) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    (root / name / "1" / "model.py").write_text(code)


def index(running: Running) -> dict[tuple[str, str], dict[str, str]]:
    with running.client() as client:
        found = client.ask("POST", "/v2/repository/index")
    return {(row["name"], row["version"]): row for row in found}


def asking(running: Running, model: str, count: int) -> tuple[list[threading.Thread], list[object]]:
    """So many requests at once, and what became of each: the answer's first value, or the error."""
    ends: list[object] = []

    def ask(value: int) -> None:
        with running.client() as client:
            try:
                ends.append(float(client.infer(model, {"x": rows(value)})["y"][0, 0]))
            except ServerError as error:
                ends.append(error.status)

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(count)]
    for thread in threads:
        thread.start()
    return threads, ends


def test_a_version_that_cannot_be_loaded_leaves_the_one_before_it(tmp_path: Path) -> None:
    put_model(tmp_path, "a", shift=1)
    with serving(tmp_path, mode="poll", poll_seconds=0.05) as running, running.client() as client:
        (tmp_path / "a" / "2").mkdir()
        (tmp_path / "a" / "2" / "model.ridge").write_bytes(b"half an engine")
        until(lambda: index(running).get(("a", "2"), {}).get("state") == "UNAVAILABLE")
        assert client.infer("a", {"x": rows(0)})["y"][0, 0] == 1
        put_model(tmp_path, "a", shift=2, version=2)
        until(lambda: client.infer("a", {"x": rows(0)})["y"][0, 0] == 2)
        assert index(running)["a", "1"]["state"] == "UNAVAILABLE"


def test_models_whose_files_go_in_pieces_are_taken_away(tmp_path: Path) -> None:
    put_model(tmp_path, "a", shift=1)
    put_model(tmp_path, "other")
    (tmp_path / "bad" / "1").mkdir(parents=True)
    with serving(tmp_path, mode="poll", poll_seconds=0.05) as running, running.client() as client:
        assert not client.is_ready()
        (tmp_path / "a" / "1" / "model.ridge").unlink()
        until(lambda: "a" in running.server.models._found.problems)
        assert client.infer("a", {"x": rows(0)})["y"][0, 0] == 1  # it goes on while something is left
        shutil.rmtree(tmp_path / "a")
        shutil.rmtree(tmp_path / "bad")
        until(lambda: index(running)["a", "1"]["state"] == "UNAVAILABLE")
        until(client.is_ready)


def test_an_ensemble_is_tried_again_when_what_it_needs_has_come(tmp_path: Path) -> None:
    put_model(tmp_path, "first", shift=1)
    (tmp_path / "both" / "1").mkdir(parents=True)
    (tmp_path / "both" / "config.pbtxt").write_text("""
        platform: "ensemble" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
        ensemble_scheduling {
          step { model_name: "first" input_map { key: "x" value: "IN" } output_map { key: "y" value: "h" } }
          step { model_name: "second" input_map { key: "x" value: "h" } output_map { key: "y" value: "OUT" } }
        }""")
    with serving(tmp_path, mode="poll", poll_seconds=0.05) as running, running.client() as client:
        assert not client.is_ready()
        put_model(tmp_path, "second", shift=2)
        until(lambda: client.is_ready("both"))
        assert client.infer("both", {"IN": rows(0)})["OUT"][0, 0] == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (('key: "x"', 'key: "nothing"'), "a tensor of the step's model: x"),
        (
            ("TYPE_FP32 dims: 4 }\n        output", "TYPE_INT32 dims: 4 }\n        output"),
            "a tensor of type INT32",
        ),
    ],
)
def test_an_ensemble_that_does_not_fit_its_models_is_not_served(
    tmp_path: Path, wrong: tuple[str, str], said: str
) -> None:
    put_model(tmp_path, "first", shift=1)
    (tmp_path / "one" / "1").mkdir(parents=True)
    config = """
        platform: "ensemble" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
        ensemble_scheduling {
          step { model_name: "first" input_map { key: "x" value: "IN" } output_map { key: "y" value: "OUT" } }
        }"""
    assert wrong[0] in config
    (tmp_path / "one" / "config.pbtxt").write_text(config.replace(*wrong))
    with serving(tmp_path) as running:
        assert said in index(running)["one", "1"]["reason"]


def test_whatever_is_wrong_with_one_model_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_model(tmp_path, "good", shift=1)
    (tmp_path / "locked" / "1").mkdir(parents=True)
    (tmp_path / "locked" / "1" / "model.onnx").write_bytes(b"x")

    async def refuse(*_: Any) -> Path:
        raise PermissionError(13, "Permission denied", "/secret/place")

    monkeypatch.setattr(Builds, "engine_for", refuse)
    with serving(tmp_path) as running, running.client() as client:
        assert client.infer("good", {"x": rows(0)})["y"][0, 0] == 1
        row = index(running)["locked", "1"]
        assert (row["state"], row["reason"]) == ("UNAVAILABLE", "PermissionError: Permission denied")


def test_an_engine_that_contradicts_its_configuration_is_not_kept(tmp_path: Path) -> None:
    put_model(tmp_path, "a")
    with serving(tmp_path, mode="explicit", load=("a",)) as running, running.client() as client:
        host = running.server.hosts._watched["cpu"].host
        had = len(host._instances)  # type: ignore[attr-defined]
        config = '{"input": [{"name": "x", "dataType": "TYPE_INT32", "dims": [4]}], "maxBatchSize": 8}'
        with pytest.raises(ServerError, match="INT32"):
            client.ask("POST", "/v2/repository/models/a/load", {"parameters": {"config": config}})
        assert len(host._instances) == had  # type: ignore[attr-defined]


def test_a_load_goes_on_when_whoever_asked_for_it_goes_away(tmp_path: Path) -> None:
    put_step(
        tmp_path,
        "slow",
        "import time\ndef load():\n    time.sleep(0.4)\ndef run(inputs):\n    return inputs\n",
    )
    with serving(tmp_path, mode="explicit", python_steps=True) as running:
        models = running.server.models

        async def leave() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(models.load("slow"), 0.1)

        running.do(leave())
        until(lambda: index(running)["slow", "1"]["state"] == "READY")


def test_a_warm_up_that_fails_keeps_a_python_model_back(tmp_path: Path) -> None:
    warm = """
    model_warmup {
      name: "w" batch_size: 1
      inputs { key: "x" value { data_type: TYPE_FP32 dims: [1, 4] zero_data: true } }
    }"""
    put_step(tmp_path, "step", "def run(inputs):\n    1 / inputs['x'].item(0)\n", STEP + warm)
    with serving(tmp_path, python_steps=True) as running:
        assert "warm-up failed" in index(running)["step", "1"]["reason"]


def test_labels_of_an_engine_s_output_go_with_a_step_before_it(tmp_path: Path) -> None:
    config = """
    max_batch_size: 8
    input { name: "x" data_type: TYPE_FP32 dims: 4 }
    output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }
    """
    put_model(tmp_path, "m", config=config)
    (tmp_path / "m" / "labels.txt").write_text("a\nb\nc\nd\n")
    (tmp_path / "m" / "preprocess.py").write_text("def run(inputs):\n    return inputs\n")
    with serving(tmp_path, python_steps=True) as running, running.client() as client:
        inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 3, 1, 2]}]
        wanted = [{"name": "y", "parameters": {"classification": 1}}]
        answer = client.ask("POST", "/v2/models/m/infer", {"inputs": inputs, "outputs": wanted})
        assert answer["outputs"][0]["data"] == ["3.000000:1:b"]


def test_an_optional_input_of_a_pipeline_may_be_left_out(tmp_path: Path) -> None:
    config = """
    max_batch_size: 0
    input { name: "TEXT" data_type: TYPE_FP32 dims: 4 }
    input { name: "SCALE" data_type: TYPE_FP32 dims: 1 optional: true }
    output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }
    """
    put_model(tmp_path, "m", config=config)
    (tmp_path / "m" / "preprocess.py").write_text(
        "def run(inputs):\n    return {'x': inputs['TEXT'][None] * inputs.get('SCALE', [1])[0]}\n"
    )
    with serving(tmp_path, python_steps=True) as running, running.client() as client:
        text, scale = np.ones(4, np.float32), np.full(1, 5, np.float32)
        assert client.infer("m", {"TEXT": text})["y"].tolist() == [[1] * 4]
        assert client.infer("m", {"TEXT": text, "SCALE": scale})["y"].tolist() == [[5] * 4]


def test_a_retired_generation_hears_of_its_worker_s_death(tmp_path: Path) -> None:
    slow = "import time\ndef run(inputs):\n    time.sleep(0.3)\n    return {'y': inputs['x']}\n"
    put_step(tmp_path, "slow", slow)
    settings = {"mode": "explicit", "load": ("*",), "python_steps": True}
    with serving(tmp_path, hosts_of=worker_hosts, **settings) as running, running.client() as client:
        threads, ends = asking(running, "slow", 4)
        until(lambda: running.server.requests == 4)
        client.ask("POST", "/v2/repository/models/slow/load")
        (host,) = [each.host for each in running.server.hosts._watched.values()]
        assert len(host._models) == 2  # type: ignore[attr-defined]
        os.kill(host.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        for thread in threads:
            thread.join(20)
        # the one that ran was lost; those that waited were answered by the worker that came after it
        assert sorted(map(str, ends)).count("500") == 1
        assert len(ends) == 4
        until(lambda: len(host._models) == 1)  # type: ignore[attr-defined]
        assert client.is_ready("slow")


def test_a_model_that_does_not_come_back_is_not_served_any_more(tmp_path: Path) -> None:
    folder = put_model(tmp_path, "a")
    put_model(tmp_path, "b", shift=1)
    with serving(tmp_path, hosts_of=worker_hosts) as running, running.client() as client:
        (host,) = [each.host for each in running.server.hosts._watched.values()]
        (folder / "model.ridge").unlink()
        os.kill(host.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        until(lambda: index(running)["a", "1"]["state"] == "UNAVAILABLE")
        began = time.monotonic()
        with pytest.raises(ServerError) as caught:
            client.infer("a", {"x": rows(0)})
        assert caught.value.status == 503
        assert time.monotonic() - began < 5
        until(lambda: client.is_ready("b"))
        assert client.infer("b", {"x": rows(0)})["y"][0, 0] == 1


def test_a_model_that_ends_its_worker_takes_no_other_with_it(tmp_path: Path) -> None:
    late = "import time\ndef load():\n    time.sleep(0.3)\ndef run(inputs):\n    return {'y': inputs['x']}\n"
    for name in ("a", "b"):
        put_step(tmp_path, name, late)
    put_step(tmp_path, "deadly", "import os\ndef load():\n    os._exit(3)\n")
    with serving(tmp_path, hosts_of=worker_hosts, python_steps=True) as running:
        found = index(running)
        assert {name: row["state"] for (name, _), row in found.items()} == {
            "a": "READY", "b": "READY", "deadly": "UNAVAILABLE",
        }  # fmt: skip


def test_a_batch_that_does_not_end_ends_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_step(tmp_path, "stuck", "import time\ndef run(inputs):\n    time.sleep(1e6)\n")
    with (
        serving(tmp_path, hosts_of=quick_to_look, python_steps=True, batch_seconds=0.2) as running,
        running.client() as client,
    ):
        with pytest.raises(ServerError, match="did not end in"):
            client.infer("stuck", {"x": rows(0)})
        until(lambda: client.is_ready("stuck"))


def quick_to_look(settings: Any) -> Any:
    hosts = worker_hosts(settings)
    make: Callable[[str], Any] = hosts._make

    def quick(device: str) -> Any:
        host = make(device)
        host._ping_seconds = 0.05
        return host

    hosts._make = quick
    return hosts
