"""`--time-limit` in every command that builds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Ridge = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("command", ["build", "run", "bench", "profile", "explain", "compare"])
def test_commands_that_build_take_it(ridge: Ridge, command: str) -> None:
    status, out, _ = ridge(command, "--help")
    assert status == 0
    assert "--time-limit" in out


def test_a_build_says_what_it_left_out(ridge: Ridge, tiny_model: Path, tmp_path: Path) -> None:
    arguments = (tiny_model, "-o", tmp_path / "e.ridge", "--time-limit", "0.001", "--verify", "off", "--json")
    status, out, _ = ridge("build", *arguments)
    assert status == 0
    (line,) = [line for line in json.loads(out)["warnings"] if "time limit" in line]
    assert "--time-limit 0.002 gives them time" in line
    status, _, err = ridge("run", tmp_path / "e.ridge", "--time-limit", "9")
    assert status == 1
    assert "is built already, and --time-limit can only be given to a build" in err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_nonsense_is_an_error(ridge: Ridge, tiny_model: Path, seconds: str) -> None:
    status, _, err = ridge("build", tiny_model, "--time-limit", seconds)
    assert status == 1
    assert "time_limit is not a number of seconds above 0" in err
