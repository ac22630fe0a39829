"""What a build tells of itself where nobody asked: a line on a terminal, the log elsewhere, or nothing."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import ridgeline
from ridgeline.base.progress import ERASE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    # not sys.stderr itself: pytest changes that between the fixture and the test
    monkeypatch.setattr("ridgeline.base.progress.sys", SimpleNamespace(stderr=stream))
    return stream


def test_a_terminal_sees_one_line_that_is_gone_at_the_end(tiny_model: Path, terminal: Terminal) -> None:
    ridgeline.build(tiny_model, level=0, verify="fast")
    text = terminal.getvalue()
    assert {"ridgeline: load", "ridgeline: passes", "ridgeline: select"} <= set(text.split(ERASE))
    assert "\n" not in text
    assert text.endswith(ERASE)


def test_the_line_is_gone_after_an_error_too(terminal: Terminal) -> None:
    with pytest.raises(ridgeline.errors.ModelError):
        ridgeline.build(b"no model")
    assert terminal.getvalue().endswith(ERASE)


def test_elsewhere_it_is_logged(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ridgeline"):
        ridgeline.build(tiny_model, level=0, verify="off")
    assert "select" in caplog.messages
    assert any(message.startswith("select took ") for message in caplog.messages)


def test_false_is_silence(tiny_model: Path, terminal: Terminal) -> None:
    ridgeline.build(tiny_model, level=0, verify="off", progress=False)
    assert terminal.getvalue() == ""


def test_a_compiled_module_tells_of_its_export(terminal: Terminal) -> None:
    ridgeline.compile(nn.Linear(3, 3).eval(), torch.ones(1, 3), level=0, verify="off")
    assert "ridgeline: export" in terminal.getvalue()


@pytest.mark.parametrize("level", [0, 1])
def test_counters_end_at_their_total(tiny_model: Path, level: int) -> None:
    last: dict[str, tuple[int, int]] = {}

    def note(stage: str, done: int, total: int, detail: str = "") -> None:
        assert done <= total
        last[stage] = (done, total)

    ridgeline.build(tiny_model, level=level, progress=note)
    assert "verify" in last
    assert all(done == total for done, total in last.values()), last
