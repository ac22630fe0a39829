"""Our clients and the load generator against the real server: both protocols, TLS, keys, its statistics."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from serving import Running, engine, put_model, serving

from ridgeline.serve.clients.client import Client, ServerError
from ridgeline.serve.clients.over_grpc import GrpcClient
from ridgeline.serve.settings import Keys, Tls

Ridge = Callable[..., tuple[int, str, str]]
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
QUICK = ("--duration", "0.3", "--warmup", "0.05")
SUBJECT = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    put_model(root, "affine", shift=1.5, config="max_batch_size: 8\n")
    with serving(root, grpc_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    return engine("affine", 1.5).run({"x": X})["y"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-keyout", "key.pem", "-out", "cert.pem", *SUBJECT]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem"


def test_both_protocols_have_the_engine_s_bits(server: Running, wanted: np.ndarray) -> None:
    with server.client() as http, GrpcClient(f"127.0.0.1:{server.ports['grpc']}") as grpc:
        assert http.metadata("affine") == grpc.metadata("affine")
        assert grpc.is_ready()
        assert grpc.is_ready("affine")
        assert not grpc.is_ready("nobody")
        for client in (http, grpc):
            np.testing.assert_array_equal(client.infer("affine", {"x": X})["y"], wanted)
            assert list(client.infer("affine", {"x": X}, outputs=["y"], version="1")) == ["y"]


def test_refusals_over_grpc_are_the_server_s_words(server: Running) -> None:
    with GrpcClient(f"127.0.0.1:{server.ports['grpc']}") as client:
        with pytest.raises(ServerError, match="nobody"):
            client.metadata("nobody")
        with pytest.raises(ServerError, match="x") as caught:
            client.infer("affine", {"x": np.zeros((1, 5), np.float32)})
        assert caught.value.status == 3  # INVALID_ARGUMENT
    with GrpcClient("127.0.0.1:1") as client, pytest.raises(ServerError, match=r"no answer from 127.0.0.1:1"):
        client.metadata("affine")


def test_infer_over_grpc(ridge: Ridge, server: Running, wanted: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    url = f"localhost:{server.ports['grpc']}"
    code, _, stderr = ridge(
        "infer", url, "affine", "--grpc", "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path
    )
    assert code == 0, stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), wanted)


def test_loadtest_shows_what_the_server_counts(ridge: Ridge, server: Running) -> None:
    words = ("--concurrency", "8", "--batch", "2", *QUICK, "--json")
    code, stdout, stderr = ridge("loadtest", f"localhost:{server.ports['http']}", "affine", *words)
    assert code == 0, stderr
    (row,) = json.loads(stdout)["rows"]
    assert row["errors"] == {}
    assert row["server"]["requests"] == row["requests"]
    assert 2 <= row["server"]["rows_per_batch"] <= 8
    assert row["rows_per_s"] == pytest.approx(2 * row["throughput_rps"])
    told_us = sum(row["server"][f"{part}_us"] for part in ("queue", "input", "infer", "output"))
    assert 0 < told_us < row["mean_us"]


def test_tls_and_keys(ridge: Ridge, certificate: Path, tmp_path: Path) -> None:
    put_model(tmp_path / "models", "affine", config="max_batch_size: 8\n")
    (tmp_path / "keys").write_text("secret-of-a-team\n")
    (tmp_path / "keys").chmod(0o600)
    tls = Tls(certificate, certificate.with_name("key.pem"))
    keys = Keys(api=tmp_path / "keys")
    with serving(tmp_path / "models", grpc_port=0, tls=tls, keys=keys) as running:
        url = "https:" + f"//localhost:{running.ports['http']}"
        known = ("--ca", certificate, "--key-file", tmp_path / "keys")
        assert ridge("infer", url, "affine", *known)[0] == 0
        assert (
            ridge("infer", "grpcs:" + f"//localhost:{running.ports['grpc']}", "affine", "--grpc", *known)[0]
            == 0
        )
        code, stdout, stderr = ridge("loadtest", url, "affine", "--rate", "100", *QUICK, *known, "--json")
        assert code == 0, stderr
        (row,) = json.loads(stdout)["rows"]
        assert row["errors"] == {}
        assert row["requests"] > 10
        assert "key" in ridge("infer", url, "affine", "--ca", certificate)[2]
        with Client(url) as client, pytest.raises(ServerError, match=r"(?s)no answer.*certificate"):
            client.metadata("affine")
