"""`examples/08_serving`: its steps alone and behind a server, and the files that start it elsewhere."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from PIL import Image
from typer.main import get_command

import ridgeline
from ridgeline.cli.main import app
from ridgeline.serve.repository.repository import configure_found, scan
from ridgeline.serve.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "08_serving"
WORDS = (
    "Ridgeline", "serves models", "the quick brown fox", "jumps over", "a lazy dog", "Invoice 2026-11-18",
    "Total: 1,284.50", "engine.plan", "throughput", "p99 <= 20 ms", "Kubernetes", "HELLO WORLD",
    "queue depth 17", "Readiness", "drain & reload", "48 x 320 pixels", "Zurich HB", "platform 7",
    "0123456789", "Straight from a fresh clone",
)  # fmt: skip
START_S = 60


def script(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"serving_example_{Path(name).stem}", EXAMPLE / name)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def png(image: Image.Image, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def drawn(text: str, size: int = 32) -> bytes:
    return png(script("draw_text.py").draw(text, size))


@pytest.fixture
def preprocess(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # `load` changes it
    module = script("ocr/preprocess.py")
    module.load()
    return module


def lines(preprocess: ModuleType, *files: bytes) -> np.ndarray:
    return preprocess.run({"IMAGE": np.array([*files, None], object)[:-1]})["x"]


def test_a_line_is_48_pixels_high_and_as_wide_as_it_needs(preprocess: ModuleType) -> None:
    made = lines(preprocess, png(Image.new("RGB", (200, 96), (255, 0, 0))))
    assert (made.shape, made.dtype) == ((1, 3, 48, 128), np.float32)  # 100 columns, to the next 32
    assert made[0, :, 0, 0].tolist() == [-1, -1, 1], "blue first, from -1 to 1"
    assert not made[..., 100:].any(), "what is filled up is grey"


def test_images_of_a_request_are_as_wide_as_the_widest(preprocess: ModuleType) -> None:
    narrow, wide = (png(Image.new("L", size, 255)) for size in ((48, 48), (480, 48)))
    assert lines(preprocess, narrow, wide).shape == (2, 3, 48, 480)
    longest = png(Image.new("L", (4800, 48)))
    assert lines(preprocess, longest).shape == (1, 3, 48, 960)
    assert lines(preprocess, png(Image.new("L", (1, 4800)))).shape == (1, 3, 48, 32)


def test_nothing_behind_the_text_is_white(preprocess: ModuleType) -> None:
    assert (lines(preprocess, png(Image.new("RGBA", (32, 48), (0, 0, 0, 0)))) == 1).all()
    assert (lines(preprocess, png(Image.new("RGB", (32, 48), "white"), "JPEG")) == 1).all()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a hundred bytes that says it is so large."""
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (b"", "image 0 does not read as PNG or JPEG"),
        (b"\x00" * 1000, "image 0 does not read as PNG or JPEG"),
        (b"\x89PNG\r\n\x1a\n" + b"\xff" * 100, "image 0 does not read as PNG or JPEG"),
        (drawn("half of it")[:-200], "image 0 does not read as PNG or JPEG"),
        (png(Image.new("L", (32, 32)), "GIF"), "image 0 does not read as PNG or JPEG"),
        (bomb(64, 64), "image 0 does not read as PNG or JPEG"),
        (bomb(50_000, 50_000), "image 0 has 50000 x 50000 pixels, want 1 to 16,000,000"),
        (bytes(8 * 2**20 + 1), "image 0 has 8,388,609 bytes, want at most 8,388,608"),
    ],
    ids=["empty", "zeros", "no chunks", "truncated", "another format", "no pixels", "bomb", "large"],
)  # fmt: skip
def test_a_file_that_is_no_image_is_refused(preprocess: ModuleType, file: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        lines(preprocess, file)


def test_a_request_has_one_to_eight_images(preprocess: ModuleType) -> None:
    for count in (0, 9):
        with pytest.raises(ValueError, match=f"{count} images in one request, want 1 to 8"):
            lines(preprocess, *[drawn("a")] * count)


def test_columns_become_text() -> None:
    postprocess = script("ocr/postprocess.py")
    postprocess._characters[:] = ["", "a", "b", " "]
    columns = [[0, 1, 1, 0, 1, 3, 2, 2], [0] * 8]
    made = postprocess.run({"fetch_name_0": (np.eye(4, dtype=np.float32) * 0.5)[columns]})
    assert made["TEXT"].tolist() == [b"aa b", b""]
    assert (made["CONFIDENCE"].dtype, made["CONFIDENCE"].tolist()) == (np.float32, [0.5, 0])


@pytest.fixture(scope="module")
def repository(trained: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the example lays it out, but with an engine that took no time to choose or to verify."""
    model, folder = trained("ppocr6_rec"), tmp_path_factory.mktemp("serving")
    made: Path = script("make_repository.py").make_repository(model, folder / "repository")
    version = made / "ocr" / "1"
    assert [file.name for file in version.iterdir()] == ["model.onnx"]
    profile = configured(made).build["profiles"]
    engine = ridgeline.build(
        version / "model.onnx", profiles=profile, level=0, verify="off", threads=1, progress=False
    )
    engine.save(version / "model.ridge")
    (version / "model.onnx").unlink()
    return made


def configured(repository: Path) -> Any:
    found = scan([repository], python_steps=True)
    assert not found.problems
    assert not found.notes
    assert list(found.models) == ["ocr"]
    made = configure_found(found.models["ocr"], python_steps=True)
    assert not made.notes
    return made.spec


def test_every_class_of_the_recogniser_has_a_character(
    repository: Path, trained: Callable[[str], Path]
) -> None:
    output = onnx.load(trained("ppocr6_rec"), load_external_data=False).graph.output[0]
    listed = (repository / "ocr" / "characters.txt").read_text(encoding="utf-8").split("\n")
    assert len(listed) + 2 == output.type.tensor_type.shape.dim[2].dim_value, "and no character, and a space"
    assert output.name == script("ocr/postprocess.py").ENGINE_OUTPUT


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "api"
    file.touch(mode=0o600)
    file.write_text("a-key\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def server(repository: Path, keys: Path) -> Iterator[dict[str, str]]:
    """The third command of README, at free ports and with keys; its addresses."""
    words = readme_commands()[2]
    assert words[:2] == [".venv/bin/ridge", "serve"]
    options = [repository if word == "ridge-demo/repository" else word for word in words[2:]]
    free = ["--http", "0", "--no-grpc", "--metrics", "0", "--api-keys", keys]
    with subprocess.Popen(
        [sys.executable, "-m", "ridgeline", "serve", *options, *free], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("ready"):
                break
        assert said[-1] == "ready\n", said
        yield dict(re.findall(r"^(\w+) +(\S+:\d+)$", "".join(said), re.MULTILINE))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=START_S)
        assert process.returncode == 0


def readme_commands() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_the_commands_of_the_page_are_there() -> None:
    scripts = [words[1] for words in readme_commands() if words[1].endswith(".py")]
    assert [Path(each).name for each in scripts] == ["make_repository.py", "draw_text.py", "read_text.py"]
    assert all((EXAMPLE.parents[1] / each).is_file() for each in scripts)


def ask(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLE / "read_text.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_client_reads_drawn_text(server: dict[str, str], keys: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.png" for i in range(len(WORDS))]
    for file, text in zip(files, WORDS, strict=True):
        file.write_bytes(drawn(text))
    done = ask(*files, "--server", server["http"], "--key-file", keys)
    assert done.returncode == 0, done.stderr
    read = [line.split("  ", 2) for line in done.stdout.splitlines()]
    assert [text for _, _, text in read] == list(WORDS)
    assert all(float(confidence) > 0.9 for _, confidence, _ in read)


def test_a_client_is_told_what_is_wrong(server: dict[str, str], keys: Path, tmp_path: Path) -> None:
    (tmp_path / "no.png").write_bytes(b"no image")
    with_key = ask(tmp_path / "no.png", "--server", server["http"], "--key-file", keys)
    without = ask(tmp_path / "no.png", "--server", server["http"])
    assert (with_key.returncode, without.returncode) == (1, 1)
    assert "image 0 does not read as PNG or JPEG" in with_key.stderr.splitlines()[-1]
    assert "a key is needed" in without.stderr.splitlines()[-1]


def test_a_key_is_the_first_line_that_is_no_comment(tmp_path: Path) -> None:
    read_key = script("read_text.py").read_key
    (tmp_path / "keys").write_text("# of the team\n\nfirst-key \nsecond-key\n", encoding="utf-8")
    assert read_key(tmp_path / "keys") == "first-key"
    for nothing in ("", "# only this\n", "schl\u00fcssel\n", "a\x00b\n"):
        (tmp_path / "keys").write_text(nothing, encoding="utf-8")
        with pytest.raises(ValueError, match=r"holds no key$"):
            read_key(tmp_path / "keys")


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
     b"HTTP/1.1 502 Bad\r\nContent-Length: 2\r\n\r\n{}", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
     b""],
)  # fmt: skip
def test_a_client_of_another_server_has_no_traceback(tmp_path: Path, answer: bytes) -> None:
    def serve() -> None:
        made, _ = listening.accept()
        with made:
            made.recv(65536)
            made.sendall(answer)

    (tmp_path / "a.png").write_bytes(b"")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        done = ask(tmp_path / "a.png", "--server", place)
        thread.join(10)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{place}: ")
    assert done.stderr.count("\n") == 1


def test_a_server_that_is_no_address_is_an_error(tmp_path: Path) -> None:
    done = ask(tmp_path / "a.png", "--server", "localhost:http")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_metrics_that_the_page_names_are_there(server: dict[str, str]) -> None:
    page = (EXAMPLE.parents[1] / "docs" / "deployment.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:nv|ridgeline|process)_\w+)`", page))
    connection = HTTPConnection(server["metrics"])
    connection.request("GET", "/metrics")
    told = set(re.findall(r"^# TYPE (\w+)", connection.getresponse().read().decode(), re.MULTILINE))
    connection.close()
    assert len(named) > 8
    assert {name for name in named - told if not name.startswith("nv_gpu_")} == set()


# -- the files that start it elsewhere


def serve_options(words: list[str]) -> dict[str, Any]:
    """What `ridge` makes of a command line; it ends the test if it does not like it."""
    assert words[0].rpartition("/")[2] == "ridge"
    command = get_command(app).commands[words[1]]
    return command.make_context("serve", words[2:]).params


def documents() -> dict[str, dict[str, Any]]:
    text = (EXAMPLE / "kubernetes.yaml").read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def entry_point() -> list[str]:
    found = re.search(r"^ENTRYPOINT (.*)$", (EXAMPLE / "Dockerfile").read_text(), re.MULTILINE)
    assert found
    return json.loads(found[1])


def test_a_pod_ends_after_the_server_has_drained() -> None:
    pod = documents()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = serve_options([*entry_point(), *container["args"]])
    assert options["grace"] > 0, "endpoints are told of the end while it begins"
    assert pod["terminationGracePeriodSeconds"] >= options["grace"] + options["drain"] + 10
    readiness = container["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < options["grace"]
    assert str(options["threads"]) == container["resources"]["limits"]["cpu"]


def test_probes_ask_what_the_server_answers() -> None:
    (container,) = documents()["Deployment"]["spec"]["template"]["spec"]["containers"]
    asked = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")
    }
    assert asked == {
        "startup": "/v2/health/live", "liveness": "/v2/health/live", "readiness": "/v2/health/ready",
    }  # fmt: skip
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    usual = Settings(())
    options = serve_options(entry_point())
    ports = {"http": usual.http_port, "grpc": usual.grpc_port, "metrics": usual.metrics_port}
    assert named == {name: options[name] or port for name, port in ports.items()}
    annotations = documents()["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(named["metrics"])


def test_a_pod_may_do_no_more_than_serve() -> None:
    pod = documents()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert not pod["automountServiceAccountToken"]
    own = container["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    assert mounts == {"/models": True, "/keys": True, "/cache": False, "/tmp": False}
    volumes = {each["name"] for each in pod["volumes"]}
    assert volumes == {each["name"] for each in container["volumeMounts"]}


def test_the_parts_of_the_manifest_speak_of_the_same_pods() -> None:
    found = documents()
    assert set(found) == {"ServiceAccount", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert {each["metadata"]["namespace"] for each in found.values()} == {"serving"}


def test_the_image_runs_as_somebody_without_rights() -> None:
    text = (EXAMPLE / "Dockerfile").read_text()
    assert "\nUSER 10001:10001\n" in text
    command = json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[0])
    assert serve_options([*entry_point(), *command])["host"] == "0.0.0.0"
    (source,) = re.findall(r"c\.request\('GET', '([^']+)'\)", text)
    assert source == "/v2/health/ready"


def test_the_unit_ends_after_the_server_has_drained() -> None:
    text = (EXAMPLE / "ridgeline.service").read_text()
    unit = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    options = serve_options(shlex.split(unit["ExecStart"]))
    assert int(unit["TimeoutStopSec"]) >= options["grace"] + options["drain"] + 10
    assert (unit["Type"], unit["KillMode"]) == ("notify", "mixed")
