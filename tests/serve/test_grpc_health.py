"""grpc.health.v1 beside the inference service, and TLS."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_echo import Running, refused, request, running

from ridgeline.serve.errors import Kind, RequestError, unavailable
from ridgeline.serve.grpc import health
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import Settings, Tls

SERVING, NOT_SERVING, UNKNOWN = "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"


def closed(metadata: Any, verb: str) -> None:
    raise RequestError(Kind.UNAUTHENTICATED, "a key is needed")


@pytest.fixture
def server() -> Iterator[Running]:
    """Probes have no keys."""
    with running(access=closed) as server:
        yield server


def told(body: bytes) -> str:
    status = messages.HealthCheckResponse.FromString(body).status
    return str(messages.HealthCheckResponse.ServingStatus.Name(status))


def asks(service: str) -> bytes:
    return bytes(messages.HealthCheckRequest(service=service).SerializeToString())


def test_check_tells_whether_requests_are_taken(server: Running) -> None:
    check = server.method("Check", messages.HEALTH)
    for service in ("", messages.SERVICE):
        assert told(check(asks(service))) == NOT_SERVING
    server.soon(server.server.set_serving, True)
    for service in ("", messages.SERVICE):
        assert told(check(asks(service))) == SERVING
    assert refused(lambda: check(asks("other")))[0] is StatusCode.NOT_FOUND
    assert refused(lambda: check(b"\xff"))[0] is StatusCode.INVALID_ARGUMENT
    server.soon(server.server.set_serving, False)
    assert told(check(asks(""))) == NOT_SERVING


def test_watch_tells_every_change_and_ends_with_the_server(server: Running) -> None:
    watch = server.channel.unary_stream(f"/{messages.HEALTH}/Watch")
    known, unknown = watch(asks(messages.SERVICE), timeout=10), watch(asks("other"), timeout=10)
    assert told(next(known)) == NOT_SERVING
    assert told(next(unknown)) == UNKNOWN
    for is_serving, status in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
        server.soon(server.server.set_serving, is_serving)
        server.soon(server.server.set_serving, is_serving)  # no change, and not told
        assert told(next(known)) == status
    server.on_loop(server.server.stop(5))
    assert [told(each) for each in known] == [NOT_SERVING]
    assert list(unknown) == []
    assert known.code() is unknown.code() is StatusCode.OK


def test_health_is_as_ready_as_the_server(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOOK_EVERY_S", 0.02)
    server.soon(server.server.set_serving, True)
    check = server.method("Check", messages.HEALTH)
    watched = server.channel.unary_stream(f"/{messages.HEALTH}/Watch")(asks(""), timeout=10)
    assert told(check(asks(""))) == told(next(watched)) == SERVING
    for ready, status in (
        (False, NOT_SERVING),
        (True, SERVING),
        (unavailable("the server ended"), NOT_SERVING),
    ):
        server.echo.answers["ready"] = ready
        assert told(check(asks(""))) == told(next(watched)) == status


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem signed server.pem and client.pem; other.pem signed itself."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    folder = tmp_path_factory.mktemp("tls")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(folder, *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    openssl(folder, *new, "-keyout", "other.key", "-out", "other.pem", "-subj", "/CN=other")
    for name in ("server", "client"):
        openssl(
            folder, *new, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
            "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
        )  # fmt: skip
    return folder


def infer(port: int, folder: Path, client: str = "") -> Any:
    key, chain = ((folder / f"{client}.{end}").read_bytes() if client else None for end in ("key", "pem"))
    credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes(), key, chain)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        call = channel.unary_unary(f"/{messages.SERVICE}/ModelInfer")
        return messages.ModelInferResponse.FromString(call(request(id="t").SerializeToString(), timeout=5)).id


def with_tls(folder: Path, client_ca: str = "") -> Settings:
    tls = Tls(folder / "server.pem", folder / "server.key", folder / client_ca if client_ca else None)
    return replace(Settings((), grpc_port=0), tls=tls)


def test_a_certificate_of_the_server(certificates: Path) -> None:
    with running(with_tls(certificates)) as server:
        assert infer(server.port, certificates) == "t"
        assert refused(lambda: server.infer(request()))[0] is StatusCode.UNAVAILABLE  # in the clear


def test_certificates_of_clients(certificates: Path) -> None:
    with running(with_tls(certificates, "ca.pem")) as server:
        assert infer(server.port, certificates, "client") == "t"
        for client in ("", "other"):
            status, _ = refused(lambda client=client: infer(server.port, certificates, client))
            assert status is StatusCode.UNAVAILABLE
