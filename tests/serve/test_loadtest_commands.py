"""`ridge infer` and `ridge loadtest` on the command line: inputs, files, forms, exit statuses."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from protocol_stand_in import StandIn, stand_in

from ridgeline.cli.commands_serve_clients import parse_duration_us
from ridgeline.errors import OptionError
from ridgeline.serve.loadtest.page import load_page
from ridgeline.serve.loadtest.rows import LoadReport

Ridge = Callable[..., tuple[int, str, str]]
LIGHT = """
import sys
from ridgeline.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code
assert not {"torch", "onnx", "onnxruntime", "grpc"} & sys.modules.keys()
"""
QUICK = ("--duration", "0.1", "--warmup", "0")


@pytest.fixture
def server() -> StandIn:
    with stand_in() as made:
        yield made


def sent(server: StandIn) -> np.ndarray:
    """The array of the last inference."""
    _, _, headers, body = next(each for each in reversed(server.seen) if each[1].endswith("/infer"))
    return np.frombuffer(body[int(headers["inference-header-content-length"]) :], np.float32)


def test_infer_shows_and_writes_outputs(ridge: Ridge, server: StandIn, tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    code, stdout, stderr = ridge(
        "infer", server.url, "add_one", "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path
    )
    assert (code, "random" in stderr) == (0, False)
    assert "2×3" in stdout
    assert "1, 2, 3, 4, 5, 6" in stdout
    assert "…" not in stdout
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x + 1)


def test_infer_shows_that_there_are_more_elements(ridge: Ridge, server: StandIn, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(9, dtype=np.float32).reshape(3, 3))
    stdout = ridge("infer", server.url, "add_one", "--input", f"x={tmp_path / 'x.npy'}")[1]
    assert "1, 2, 3, 4, 5, 6 …" in stdout


def test_infer_takes_every_form_of_input(ridge: Ridge, server: StandIn, tmp_path: Path) -> None:
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    x.tofile(tmp_path / "x.bin")
    np.savez(tmp_path / "x.npz", x=x)
    (tmp_path / "plain.json").write_text(json.dumps({"x": x.tolist()}))
    request = {"inputs": [{"name": "x", "shape": [3, 3], "datatype": "FP32", "data": x.ravel().tolist()}]}
    (tmp_path / "request.json").write_text(json.dumps(request))
    for words in (
        ("--input", f"x={tmp_path / 'x.bin'}"), ("--input", tmp_path / "x.npz"),
        ("--data", tmp_path / "plain.json"), ("--data", tmp_path / "request.json"),
    ):  # fmt: skip
        assert ridge("infer", server.url, "add_one", *words)[0] == 0
        np.testing.assert_array_equal(sent(server), x.ravel())


def test_inputs_that_do_not_fit_are_errors(ridge: Ridge, server: StandIn, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\0" * 13)
    (tmp_path / "bad.json").write_text("[1]")
    (tmp_path / "shape.json").write_text('{"inputs": [{"name": "x", "shape": [9], "data": [1]}]}')
    (tmp_path / "plain.json").write_text('{"x": [[1, 2, 3]]}')
    np.save(tmp_path / "x.npy", np.zeros((1, 3)))
    for words, message in (
        (("--input", f"x={tmp_path / 'x.bin'}"), "13 bytes"),
        (("--input", f"z={tmp_path / 'x.bin'}"), "no input 'z'"),
        (("--input", f"x={tmp_path / 'x.npy'}"), "another type"),
        (("--data", tmp_path / "bad.json"), "holds no inputs"),
        (("--data", tmp_path / "shape.json"), "does not have its shape"),
        (("--data", tmp_path / "none.json"), "cannot be read"),
        (("--shapes", "x=1xN"), "--shapes gives no sizes"),
        (("--header", "a"), "--header"),
        (("--header", "a=b\r\nX-Key: c"), "characters that a header cannot"),
        (("--header", "a=µ"), "characters that a header cannot"),
        (("--key-file", tmp_path / "no"), "cannot be read"),
        (("--input", f"x={tmp_path / 'x.npy'}", "--data", tmp_path / "plain.json"), "given twice"),
    ):
        code, _, stderr = ridge("infer", server.url, "add_one", *words)
        assert (code, message in stderr) == (1, True), stderr


def test_headers_and_keys_are_sent(ridge: Ridge, server: StandIn, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("# of the team\nsecret-1\n")
    words = ("--header", "X-Team=search", "--key-file", tmp_path / "key")
    assert ridge("infer", server.url, "add_one", *words)[0] == 0
    assert ridge("loadtest", server.url, "add_one", "--rate", "50", *QUICK, *words)[0] == 0
    for _, path, headers, _ in server.seen:
        assert (headers["x-team"], headers["authorization"]) == ("search", "Bearer secret-1"), path


def test_the_server_s_refusal_is_the_error(ridge: Ridge, server: StandIn) -> None:
    server.replies["/v2/models/add_one/infer"] = 400, {}, b'{"error":"unexpected shape"}'
    code, stdout, stderr = ridge("infer", server.url, "add_one", "--json")
    assert (code, json.loads(stdout)["what"], "unexpected shape" in stderr) == (1, "unexpected shape", True)


def test_infer_as_json(ridge: Ridge, server: StandIn) -> None:
    made = json.loads(ridge("infer", server.url, "add_one", "--batch", "2", "--json")[1])
    assert made["schema"] == "ridgeline/inference/1"
    assert made["rows"][0]["shape"] == [2, 3]


def test_loadtest_tells_levels_and_writes_files(ridge: Ridge, server: StandIn, tmp_path: Path) -> None:
    table, page = tmp_path / "a.csv", tmp_path / "a.html"
    words = ("--concurrency", "1..4", "--batch", "2", "--csv", table, "--plot", page, *QUICK)
    code, stdout, stderr = ridge("loadtest", server.url, "add_one", *words)
    assert code == 0, stderr
    assert "closed loop" in stdout
    assert "rows/s" in stdout
    assert "rows / batch" in stdout
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["level"]) for row in rows] == [1, 2, 4]
    assert all(float(row["p99_us"]) > 0 and float(row["server_queue_us"]) == 100 for row in rows)
    text = page.read_text()
    assert text.count("<circle") == 9
    assert "<script" not in text
    assert "default-src 'none'" in text


def test_names_of_models_are_text_on_the_page() -> None:
    report = LoadReport(
        url="a", model="<script>x", version="", loop="closed", arrivals="", duration_s=1, warmup_s=0,
        shapes={"<b>": (1,)}, types={"<b>": "FP32"}, rows_per_request=1, request_bytes=1, rows=(),
        p99_bound_us=None, best_rps=None,
    )  # fmt: skip
    page = load_page(report)
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;x" in page


def test_loadtest_as_json_is_an_open_loop_with_a_rate(ridge: Ridge, server: StandIn) -> None:
    made = json.loads(ridge("loadtest", server.url, "add_one", "--rate", "100,200", *QUICK, "--json")[1])
    assert (made["schema"], made["loop"], made["arrivals"]) == ("ridgeline/load_test/1", "open", "poisson")
    assert [row["level"] for row in made["rows"]] == [100, 200]


def test_loadtest_shows_errors_by_status(ridge: Ridge, server: StandIn) -> None:
    server.fails_after = 3
    code, stdout, _ = ridge("loadtest", server.url, "add_one", "--concurrency", "1", *QUICK)
    assert code == 0
    assert "× 503: busy" in stdout


def test_a_bound_that_nothing_keeps_fails_the_gate(ridge: Ridge, server: StandIn) -> None:
    code, stdout, stderr = ridge("loadtest", server.url, "add_one", "--p99-below", "1us", *QUICK)
    assert code == 3
    assert "none of these rates" in stdout
    assert "no rate keeps p99 within 1us" in stderr


def test_options_that_mean_nothing_together_are_errors(ridge: Ridge, server: StandIn, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    (tmp_path / "x.json").write_text('{"x": [[1, 2, 3]]}')
    for words, message in (
        (("--rate", "1", "--concurrency", "1"), "cannot be used together"),
        (("--p99-below", "soon"), "does not read as a time"),
        (("--rate", "x"), "does not read as levels"),
        (("--rate", "1", "--arrivals", "monthly"), "--arrivals has no 'monthly'"),
        (("--csv", tmp_path / "no" / "a.csv"), "does not exist"),
        (("--csv", tmp_path / "a", "--plot", tmp_path / "a"), "name one file"),
        (("--concurrency", "1", "--arrivals", "constant"), "--arrivals means nothing in a closed loop"),
        (("--connections", "9"), "--connections means nothing in a closed loop"),
        (("--input", f"x={tmp_path / 'x.npy'}", "--batch", "8"), "--batch 8 does not fit input 'x'"),
        (("--shapes", "x=2x3", "--batch", "8"), "--batch 8 does not fit input 'x'"),
        (("--input", f"x={tmp_path / 'x.npy'}", "--shapes", "x=2x3"), "--shapes names 'x'"),
        (("--data", tmp_path / "x.json", "--shapes", "x=2x3"), "--shapes names 'x'"),
    ):
        code, _, stderr = ridge("loadtest", server.url, "add_one", *words)
        assert (code, message in stderr) == (1, True), stderr


@pytest.mark.parametrize("command", ["infer", "loadtest"])
def test_an_address_of_grpc_is_not_asked_over_http(ridge: Ridge, server: StandIn, command: str) -> None:
    for scheme in ("grpc", "GRPCS"):
        code, _, stderr = ridge(command, f"{scheme}:" + f"//{server.url}", "add_one")
        assert (code, "is an address of gRPC" in stderr) == (1, True), stderr
    assert server.connections == 0


def test_rows_that_are_asked_for_twice_are_the_same(ridge: Ridge, server: StandIn, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    words = ("--input", f"x={tmp_path / 'x.npy'}", "--batch", "2")
    assert ridge("infer", server.url, "add_one", *words)[0] == 0


def test_times_as_users_write_them() -> None:
    assert [parse_duration_us(text, option="--x") for text in ("20ms", "1.5 s", "800us")] == [
        20e3,
        1.5e6,
        800,
    ]
    for bad in ("20", "0ms", "-1s", "1h", ""):
        with pytest.raises(OptionError, match="--x"):
            parse_duration_us(bad, option="--x")


def test_neither_command_loads_a_framework(server: StandIn) -> None:
    words = ["loadtest", server.url, "add_one", "--concurrency", "1", *QUICK]
    done = subprocess.run([sys.executable, "-c", LIGHT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
