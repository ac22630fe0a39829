"""A server in Ray Serve's replicas and an engine mapped over a data set: a real cluster of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from serving import put_model

from ridgeline.errors import OptionError
from ridgeline.serve.ray_settings import ENVIRONMENT, refuse_what_ray_lacks
from ridgeline.serve.settings import Keys, Settings, Tls

RIG = Path(__file__).with_name("ray_rig.py")
ENDS_S = 120.0
LEFT_S = 20.0


def free_port() -> int:
    """Ray does not tell which port it was given for 0."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def processes_of(group: int) -> list[str]:
    """Ray's workers have process groups of their own, but all share a session.

    One that has ended and waits for whoever adopted it to take notice has ended.
    """
    found = subprocess.run(
        ["ps", "-o", "stat=,args=", "-s", str(group)], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.splitlines() if not line.startswith("Z")]


@pytest.mark.skipif(find_spec("ray") is None, reason="needs ridgeline[ray]")
def test_two_replicas_answer_and_a_data_set_is_mapped(tmp_path: Path) -> None:
    put_model(tmp_path, "shift", shift=0.5)
    ran = subprocess.Popen(
        [sys.executable, str(RIG), str(tmp_path), str(free_port())],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | ENVIRONMENT,
    )  # fmt: skip
    out, errors = ran.communicate(timeout=ENDS_S)
    assert ran.returncode == 0, errors
    told = json.loads(out.splitlines()[-1])
    assert told["served"] == {"ready": True, "inputs": ["x"], "equal": True}
    assert told["mapped"] == {"ids": list(range(11)), "columns": ["id", "image", "scores"], "equal": True}
    # a worker notices that its cluster is gone, and ends; on a busy machine that takes a moment
    ends = time.monotonic() + LEFT_S
    while processes_of(ran.pid) and time.monotonic() < ends:
        time.sleep(0.2)
    assert processes_of(ran.pid) == []


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"admin_port": 9000}, "--admin"),
        ({"keys": Keys(admin=Path("keys"))}, "--admin-keys"),
        ({"http_workers": 2}, "--http-workers"),
        ({"mode": "explicit"}, "--model-control explicit"),
        ({"tls": Tls(Path("cert"), Path("key"))}, "--tls-cert"),
        ({"grace_seconds": 1.0}, "--grace"),
        ({"log_json": True}, "--log-json"),
    ],
)
def test_what_ray_cannot_honour_is_an_error(given: dict[str, object], option: str) -> None:
    settings = Settings((Path("models"),))
    refuse_what_ray_lacks(settings)
    with pytest.raises(OptionError, match=f"^{option} cannot be had under Ray"):
        refuse_what_ray_lacks(replace(settings, **given))  # type: ignore[arg-type]
