"""A server with real engines: what is loaded, what is answered, how models come, change and go."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from serving import MODELS, Running, engine, engine_file, put_model, rows, serving, until

from ridgeline.serve.clients.client import ServerError
from ridgeline.serve.run import _drain, _load

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step {
    model_name: "shift" model_version: -1
    input_map { key: "x" value: "IN" } output_map { key: "y" value: "MID" }
  }
  step {
    model_name: "minus" model_version: -1
    input_map { key: "a" value: "MID" } output_map { key: "b" value: "OUT" }
  }
}
"""


def state_of(running: Running, name: str) -> str:
    with running.client() as client:
        rows = client.ask("POST", "/v2/repository/index")
    return next((row["state"] for row in rows if row["name"] == name), "ABSENT")


def test_answers_are_those_of_the_engine_bit_for_bit(tmp_path: Path) -> None:
    put_model(tmp_path, "shift", shift=0.1)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    x[0] = np.nan, np.inf, -np.inf, -0.0
    with serving(tmp_path) as running, running.client() as client:
        assert client.is_live()
        assert client.is_ready()
        assert client.is_ready("shift")
        got = client.infer("shift", {"x": x})["y"]
        assert got.tobytes() == engine("affine", 0.1).run({"x": x})["y"].tobytes()
        with pytest.raises(ServerError, match="batch size 9, model 'shift' takes 1 to 8"):
            client.infer("shift", {"x": np.zeros((9, 4), np.float32)})
        with pytest.raises(ServerError, match="is not found") as caught:
            client.metadata("other")
        assert caught.value.status == 404
        stats = client.statistics("shift")["model_stats"][0]
        assert (stats["inference_count"], stats["inference_stats"]["fail"]["count"]) == (3, 1)


def test_the_newest_version_answers_and_others_do_by_number(tmp_path: Path) -> None:
    for version in (1, 2, 10):
        put_model(tmp_path, "all", shift=version, version=version, config="version_policy { all { } }")
        put_model(tmp_path, "latest", shift=version, version=version)
        put_model(
            tmp_path, "some", shift=version, version=version,
            config="version_policy { specific { versions: 1 versions: 2 } }",
        )  # fmt: skip
    with serving(tmp_path) as running, running.client() as client:
        answers = {
            (name, version): float(client.infer(name, {"x": rows(0)}, version=version)["y"][0, 0])
            for name, version in [("all", ""), ("all", "1"), ("all", "2"), ("latest", ""), ("some", "")]
        }
        assert list(answers.values()) == [10, 1, 2, 10, 2]
        with pytest.raises(ServerError, match="has no version 1"):
            client.infer("latest", {"x": rows(0)}, version="1")
        assert client.ask("GET", "/v2/models/some")["versions"] == ["1", "2"]


def test_an_ensemble_is_its_steps_in_a_row(tmp_path: Path) -> None:
    put_model(tmp_path, "shift", shift=1)
    put_model(tmp_path, "minus", model="negate")
    (tmp_path / "both" / "1").mkdir(parents=True)
    (tmp_path / "both" / "config.pbtxt").write_text(ENSEMBLE)
    with serving(tmp_path) as running, running.client() as client:
        assert client.infer("both", {"IN": rows(1, 2)})["OUT"].tolist() == (-(rows(1, 2) + 1)).tolist()
        assert client.statistics("shift")["model_stats"][0]["inference_count"] == 2
        assert client.ask("GET", "/v2/models/both/config")["platform"] == "ensemble"
        with pytest.raises(ServerError, match=r"want \[-1, 4\]"):
            client.infer("both", {"IN": np.zeros((1, 5), np.float32)})


def test_an_ensemble_whose_steps_are_missing_or_circular_keeps_no_other_model_back(tmp_path: Path) -> None:
    put_model(tmp_path, "shift")
    for name, config in {
        "lame": ENSEMBLE.replace("minus", "nowhere"),
        "round": ENSEMBLE.replace("minus", "about"),
        "about": ENSEMBLE.replace("minus", "round"),
    }.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
    with serving(tmp_path) as running, running.client() as client:
        assert client.is_ready("shift")
        assert not client.is_ready()
        with pytest.raises(ServerError, match="needs model 'nowhere'"):
            client.infer("lame", {"IN": rows(1)})
        with pytest.raises(ServerError, match="round needs about needs round"):
            client.infer("round", {"IN": rows(1)})


def test_python_before_and_after_the_engine(tmp_path: Path) -> None:
    config = """
    max_batch_size: 0
    input { name: "TEXT" data_type: TYPE_STRING dims: -1 }
    output { name: "SUM" data_type: TYPE_FP32 dims: 1 }
    """
    put_model(tmp_path, "steps", shift=1, config=config)
    (tmp_path / "steps" / "preprocess.py").write_text(
        "import numpy as np\n"
        "def run(inputs):\n"
        "    values = [float(each) for each in inputs['TEXT']]\n"
        "    return {'x': np.repeat(np.array(values, np.float32)[:, None], 4, axis=1)}\n"
    )
    (tmp_path / "steps" / "postprocess.py").write_text(
        "def run(inputs):\n    return {'SUM': inputs['y'].sum(keepdims=True)[0]}\n"
    )
    with serving(tmp_path) as running:
        assert "off" in state_reason(running, "steps")
    with serving(tmp_path, python_steps=True) as running, running.client() as client:
        got = client.infer("steps", {"TEXT": np.array([b"1", b"2.5"], object)})
        assert got["SUM"].tolist() == [4 * 2 + 4 * 3.5]
        with pytest.raises(ServerError, match="could not convert"):
            client.infer("steps", {"TEXT": np.array([b"nonsense"], object)})
        assert client.is_ready("steps")
        told = client.statistics("steps")["model_stats"][0]
        assert (told["inference_count"], told["execution_count"]) == (1, 1)
        # what its engine ran: two rows at once
        assert [row["batch_size"] for row in told["batch_stats"]] == [2]


def state_reason(running: Running, name: str, version: str = "") -> str:
    """Of that version, or of the newest that is served."""
    with running.client() as client:
        rows = [row for row in client.ask("POST", "/v2/repository/index") if row["name"] == name]
    return next((row["reason"] for row in rows[::-1] if row["version"] == version or not version), "")


def test_a_broken_model_is_told_and_keeps_no_other_back(tmp_path: Path) -> None:
    put_model(tmp_path, "good")
    damaged = put_model(tmp_path, "damaged") / "model.ridge"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    tampered = put_model(tmp_path, "tampered") / "model.ridge"
    data = bytearray(tampered.read_bytes())
    at = data.index(b"Relu")
    data[at : at + 4] = b"Sqrt"
    tampered.write_bytes(data)
    with serving(tmp_path) as running, running.client() as client:
        assert client.infer("good", {"x": rows(1)})["y"][0, 0] == 1
        assert not client.is_ready()
        for name in ("damaged", "tampered"):
            assert state_of(running, name) == "UNAVAILABLE"
            with pytest.raises(ServerError) as caught:
                client.infer(name, {"x": rows(1)})
            assert caught.value.status == 503


def test_explicit_control_loads_and_unloads_when_asked(tmp_path: Path) -> None:
    put_model(tmp_path, "a", shift=1)
    put_model(tmp_path, "b", shift=2)
    with serving(tmp_path, mode="explicit", load=("a",)) as running, running.client() as client:
        assert client.is_ready()
        assert state_of(running, "b") == "ABSENT"
        client.ask("POST", "/v2/repository/models/b/load")
        assert client.infer("b", {"x": rows(1)})["y"][0, 0] == 3
        put_model(tmp_path, "b", shift=5)
        client.ask("POST", "/v2/repository/models/b/load", {"parameters": {"config": '{"maxBatchSize": 2}'}})
        assert client.infer("b", {"x": rows(1)})["y"][0, 0] == 6
        with pytest.raises(ServerError, match="takes 1 to 2"):
            client.infer("b", {"x": rows(1, 2, 3)})
        with pytest.raises(ServerError, match="cannot be loaded"):
            client.ask("POST", "/v2/repository/models/b/load", {"parameters": {"config": '{"nonsense": 2}'}})
        assert client.infer("b", {"x": rows(1)})["y"][0, 0] == 6
        shutil.copyfile(engine_file("affine", 7.0), tmp_path / "b" / "1" / "other.ridge")
        other = {"config": '{"defaultModelFilename": "other.ridge"}'}
        client.ask("POST", "/v2/repository/models/b/load", {"parameters": other})
        assert client.infer("b", {"x": rows(1)})["y"][0, 0] == 8
        client.ask("POST", "/v2/repository/models/b/unload")
        assert state_of(running, "b") == "UNAVAILABLE"
        with pytest.raises(ServerError) as caught:
            client.infer("b", {"x": rows(1)})
        assert caught.value.status in (404, 503)
        with pytest.raises(ServerError, match="not in the repository"):
            client.ask("POST", "/v2/repository/models/c/load")
        assert client.is_ready()


def test_without_explicit_control_nobody_loads_anything(tmp_path: Path) -> None:
    put_model(tmp_path, "a")
    with serving(tmp_path) as running, running.client() as client:
        for verb in ("load", "unload"):
            with pytest.raises(ServerError) as caught:
                client.ask("POST", f"/v2/repository/models/a/{verb}")
            assert caught.value.status in (403, 501)
        assert client.is_ready("a")


def test_polling_follows_the_folder(tmp_path: Path) -> None:
    put_model(tmp_path, "a", shift=1)
    with serving(tmp_path, mode="poll", poll_seconds=0.05) as running, running.client() as client:
        put_model(tmp_path, "a", shift=2, version=2)
        put_model(tmp_path, "b", shift=3)
        until(lambda: client.infer("a", {"x": rows(0)})["y"][0, 0] == 2)
        until(lambda: state_of(running, "b") == "READY")
        (tmp_path / "a" / "2" / "model.ridge").write_bytes(b"half an eng")
        until(lambda: state_reason(running, "a") != "" or state_of(running, "a") != "READY")
        assert client.infer("a", {"x": rows(0)})["y"][0, 0] == 2  # the old generation goes on
        (tmp_path / "a" / "2" / "model.ridge").rename(tmp_path / "a" / "2" / "model.ridge.part")
        until(lambda: "being written" in state_reason(running, "a"))
        assert client.infer("a", {"x": rows(0)})["y"][0, 0] == 2  # and is no less than the version before it
        put_model(tmp_path, "a", shift=4, version=2)
        until(lambda: client.infer("a", {"x": rows(0)})["y"][0, 0] == 4)
        (tmp_path / "a" / "3").mkdir()
        until(lambda: "has no model" in state_reason(running, "a", "3"))
        (tmp_path / "b" / "1" / "model.ridge").unlink()
        (tmp_path / "b" / "1").rmdir()
        (tmp_path / "b").rmdir()
        until(lambda: state_of(running, "b") == "UNAVAILABLE")


def test_reloads_under_load_lose_nothing_and_mix_nothing_up(tmp_path: Path) -> None:
    put_model(tmp_path, "m", shift=0)
    shifts = [0.0]
    wrong: list[object] = []
    counts = [0] * 4
    with serving(tmp_path, mode="explicit", load=("*",)) as running:
        ends = threading.Event()

        def ask(index: int) -> None:
            with running.client() as client:
                while not ends.is_set():
                    try:
                        before = len(shifts)
                        shift = float(client.infer("m", {"x": rows(index)})["y"][0, 0]) - index
                        # the load of the last one may not have been over when this was asked
                        if shift not in shifts[max(0, before - 2) :]:
                            wrong.append(shift)
                        counts[index] += 1
                    except Exception as error:
                        wrong.append(error)

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(counts))]
        for thread in threads:
            thread.start()
        with running.client() as client:
            for number in range(1, 21):
                put_model(tmp_path, "m", shift=number % 3)
                shifts.append(number % 3)
                client.ask("POST", "/v2/repository/models/m/load")
        ends.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert min(counts) > 0


def test_draining_answers_what_was_accepted_and_is_not_ready_meanwhile(tmp_path: Path) -> None:
    put_model(tmp_path, "m", config="dynamic_batching { max_queue_delay_microseconds: 400000 }")
    with serving(tmp_path, drain_seconds=10.0) as running:
        answers: list[float] = []

        def ask() -> None:
            with running.client() as client:
                answers.append(float(client.infer("m", {"x": rows(1)})["y"][0, 0]))

        with running.client() as probe:
            probe.is_live()
            thread = threading.Thread(target=ask)
            thread.start()
            until(lambda: running.server.requests == 1)
            running.call(running.server.begin_drain)
            assert (probe.is_live(), probe.is_ready()) == (True, False)
        running.do(running.listeners.close())
        assert running.do(running.server.drain())
        thread.join()
        assert answers == [1]
        with pytest.raises(ServerError), running.client() as late:
            late.server_metadata()


@pytest.mark.parametrize(("drain", "status"), [(5.0, 0), (0.1, 1)])
def test_the_status_tells_whether_every_request_was_answered(
    tmp_path: Path, drain: float, status: int
) -> None:
    (tmp_path / "slow" / "1").mkdir(parents=True)
    (tmp_path / "slow" / "config.pbtxt").write_text(
        'backend: "python" max_batch_size: 0\n'
        'input { name: "x" data_type: TYPE_FP32 dims: 4 }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: 4 }\n'
    )
    code = "import time\ndef run(inputs):\n    time.sleep(0.5)\n    return {'y': inputs['x']}\n"
    (tmp_path / "slow" / "1" / "model.py").write_text(code)
    with serving(tmp_path, python_steps=True, drain_seconds=drain) as running:
        ends: list[object] = []

        def ask() -> None:
            with running.client() as client:
                try:
                    ends.append(client.infer("slow", {"x": np.ones(4, np.float32)})["y"].tolist())
                except ServerError as error:
                    ends.append(error.status)

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: running.server.requests == 1)

        async def drained() -> int:
            loading = asyncio.ensure_future(asyncio.sleep(0))
            return await _drain(running.server, running.listeners, loading, asyncio.Queue())

        assert running.do(drained()) == status
        thread.join()
        assert ends == [[1.0] * 4 if status == 0 else 503]


def test_a_start_that_is_ended_does_not_say_that_it_serves(tmp_path: Path) -> None:
    put_model(tmp_path, "m")
    said: list[str] = []
    with serving(tmp_path) as running:

        async def ended() -> int:
            loading = asyncio.ensure_future(_load(running.server, running.listeners, said.append, ""))
            return await _drain(running.server, running.listeners, loading, asyncio.Queue())

        assert running.do(ended()) == 0
        assert said == []


def test_more_bytes_than_the_server_may_hold_are_refused(tmp_path: Path) -> None:
    put_model(tmp_path, "m")
    with serving(tmp_path, queue_bytes=100) as running, running.client() as client:
        assert client.infer("m", {"x": rows(1)})["y"][0, 0] == 1
        with pytest.raises(ServerError) as caught:
            client.infer("m", {"x": rows(*range(8))})
        assert caught.value.status == 503


def test_a_model_of_a_repository_may_be_onnx(tmp_path: Path) -> None:

    (tmp_path / "r" / "m" / "1").mkdir(parents=True)
    path = tmp_path / "r" / "m" / "1" / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODELS["affine"].format(shift=3)), path)
    for _ in range(2):  # the second start finds the engine where the first has kept it
        with serving(tmp_path / "r", cache=tmp_path / "cache") as running, running.client() as client:
            assert client.infer("m", {"x": rows(1)})["y"][0, 0] == 4
    assert len(list((tmp_path / "cache").glob("*.ridge"))) == 1
