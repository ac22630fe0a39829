"""Lengths that a model declares safe to pad, warm-ups, and instances of a model, with real engines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from serving import Running, put_model, rows, serving, until

import ridgeline
from ridgeline.serve.clients.client import ServerError
from ridgeline.serve.models.loading import Part

# the mean over the sequence of what the mask lets through: padding with mask 0 changes nothing
MASKED = """<ir_version: 8, opset_import: ["" : 18]>
masked (float[batch, seq] x, float[batch, seq] mask) => (float[batch, seq] kept, float[batch] total) {
  kept = Mul (x, mask)
  one = Constant <value_ints = [1]> ()
  total = ReduceSum <keepdims = 0> (kept, one)
}"""
PAD = """
max_batch_size: 8
dynamic_batching { max_queue_delay_microseconds: 200000 }
parameters { key: "pad_dims" value { string_value: "seq" } }
"""


def put_masked(root: Path, config: str) -> None:
    (root / "masked" / "1").mkdir(parents=True)
    (root / "masked" / "config.pbtxt").write_text(config)
    ridgeline.build(
        onnx.parser.parse_model(MASKED), profiles={"batch": "1..4..8", "seq": "1..8..64"}, level=0, threads=1,
        verify="off",
    ).save(root / "masked" / "1" / "model.ridge")  # fmt: skip


def ask_all(running: Running, lengths: list[int]) -> list[dict[str, np.ndarray]]:
    """One request of each length at the same time."""
    answers: list[dict[str, np.ndarray]] = [{} for _ in lengths]

    def ask(index: int) -> None:
        x = np.full((1, lengths[index]), index + 1, np.float32)
        with running.client() as client:
            answers[index] = client.infer("masked", {"x": x, "mask": np.ones_like(x)})

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(lengths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_lengths_share_a_batch_where_the_model_declares_it_safe(tmp_path: Path) -> None:
    put_masked(tmp_path, PAD)
    lengths = [3, 7, 5, 7]
    with serving(tmp_path) as running:
        for answer, length, value in zip(ask_all(running, lengths), lengths, (1, 2, 3, 4), strict=True):
            assert answer["kept"].tolist() == [[value] * length]
            assert answer["total"].tolist() == [value * length]
        with running.client() as client:
            assert client.statistics("masked")["model_stats"][0]["execution_count"] <= 2


def test_a_dim_to_pad_that_the_model_does_not_have_is_an_error(tmp_path: Path) -> None:
    put_masked(tmp_path, PAD.replace("seq", "other"))
    with serving(tmp_path) as running, running.client() as client, pytest.raises(ServerError, match="other"):
        client.metadata("masked")


def test_a_model_is_ready_after_its_warm_up_and_a_failed_one_is_not_served(tmp_path: Path) -> None:
    warm = """
    max_batch_size: 8
    model_warmup {{
      name: "full" batch_size: 8 count: 2
      inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: {dims} random_data: true }} }}
    }}"""
    put_model(tmp_path, "good", config=warm.format(dims=4))
    put_model(tmp_path, "bad", config=warm.format(dims=5))
    with serving(tmp_path) as running, running.client() as client:
        assert client.is_ready("good")
        assert client.statistics("good")["model_stats"][0]["inference_count"] == 0  # no client asked for it
        with pytest.raises(ServerError) as caught:
            client.infer("bad", {"x": rows(1)})
        assert caught.value.status == 503


def test_every_row_of_a_warm_up_is_what_its_file_holds(tmp_path: Path) -> None:
    warm = """
    max_batch_size: 8
    model_warmup {{
      name: "rows" batch_size: 4
      inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: 4 input_data_file: "{file}" }} }}
    }}"""
    for name in ("good", "bad"):
        put_model(tmp_path, name, config=warm.format(file=name))
        (tmp_path / name / "warmup").mkdir()
        (tmp_path / name / "warmup" / name).write_bytes(bytes(16 if name == "good" else 64))
    with serving(tmp_path) as running, running.client() as client:
        assert client.is_ready("good")
        with pytest.raises(ServerError, match="has more than 16 bytes"):
            client.metadata("bad")


def test_a_warm_up_of_a_model_without_a_batch_has_the_model_s_own_dims(tmp_path: Path) -> None:
    warm = """
    max_batch_size: 0
    model_warmup {
      name: "whole" batch_size: 1
      inputs { key: "x" value { data_type: TYPE_FP32 dims: [3, 4] random_data: true } }
    }"""
    put_model(tmp_path, "whole", config=warm)
    with serving(tmp_path) as running, running.client() as client:
        assert client.is_ready("whole")


def test_open_dims_are_warmed_up_as_the_engine_was_planned(tmp_path: Path) -> None:
    put_masked(tmp_path, PAD)
    with serving(tmp_path, mode="explicit") as running, running.client() as client:
        told: list[str] = []
        load = (
            running.server.models._loader._warm_up
        )  # how far it is, is told nowhere else for so short a time

        async def heard(part: Part, folder: Path | None, tell: Callable[[str], None]) -> None:
            await load(part, folder, told.append)

        running.server.models._loader._warm_up = heard  # type: ignore[method-assign]
        client.ask("POST", "/v2/repository/models/masked/load")
        assert told == [f"warming up: batch of {size}" for size in (1, 2, 4, 8)]
        assert client.is_ready("masked")


def test_several_instances_run_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "slow" / "1").mkdir(parents=True)
    (tmp_path / "slow" / "config.pbtxt").write_text(
        'backend: "python" instance_group { count: 2 }\n'
        'input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }\n'
    )
    (tmp_path / "slow" / "1" / "model.py").write_text(
        "import threading\n"
        "both = threading.Barrier(2, timeout=10)\n"
        "def run(inputs):\n"
        "    both.wait()\n"  # passes only if two run at the same time
        "    return {'y': inputs['x']}\n"
    )
    with serving(tmp_path, python_steps=True) as running:
        answers: list[float] = []

        def ask(index: int) -> None:
            with running.client() as client:
                answers.append(float(client.infer("slow", {"x": rows(index)})["y"][0, 0]))

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [0, 1]
        until(lambda: running.server.requests == 0)
