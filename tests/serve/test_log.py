"""Lines of the log as people and as machines read them; the settings that clients may change."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ridgeline.serve.errors import RequestError
from ridgeline.serve.log import JsonFormat, LineFormat, LogSettings


@pytest.fixture(autouse=True)
def same_level_afterwards() -> Iterator[None]:
    logger = logging.getLogger("ridgeline")
    level = logger.level
    yield
    logger.setLevel(level)


def record(text: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("ridgeline.serve.x").makeRecord(
        "ridgeline.serve.x", logging.WARNING, __file__, 1, text, (), None, extra=extra
    )


def test_a_line_is_one_line_whatever_a_client_put_into_it() -> None:
    line = LineFormat().format(record("model evil\n2026-01-01 info forged\x1b[2J", model="m"))
    assert "\n" not in line
    assert "\x1b" not in line
    assert line.endswith("model=m")
    assert " warning serve.x: model evil" in line


def test_json_holds_every_field() -> None:
    event = json.loads(JsonFormat().format(record("text\nmore", model="m", status=200)))
    assert (event["event"], event["level"], event["model"], event["status"]) == (
        "text\nmore",
        "warning",
        "m",
        200,
    )


def test_settings_are_changed_as_a_whole_or_not_at_all() -> None:
    settings = LogSettings()
    assert settings.change({"log_verbose_level": 1})["log_verbose_level"] == 1
    assert logging.getLogger("ridgeline").level == logging.DEBUG
    for wrong in (
        {"log_info": False, "log_file": "x"},
        {"log_info": 1},
        {"nonsense": 1},
        {"log_verbose_level": 2**32},
    ):
        with pytest.raises(RequestError):
            settings.change(wrong)
    assert settings.change({})["log_info"] is True
    settings.change({"log_verbose_level": 0, "log_info": False})
    assert logging.getLogger("ridgeline").level == logging.WARNING


def test_workers_log_as_the_server_does() -> None:
    code = (
        "import logging, socket; from ridgeline.serve.hosts import spawner;"
        "spawner.Spawner.serve = lambda _: logging.getLogger('ridgeline.worker').error('told');"
        "spawner.main(socket.socketpair()[0].detach(), log_json=True)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ran.stderr)["event"] == "told"
