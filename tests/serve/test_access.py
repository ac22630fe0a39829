"""Keys: who is let through with which, how files of them change, and servers that must not be open."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from ridgeline.errors import OptionError
from ridgeline.serve.access import Access, Asked, KeyFile, is_loopback, why_not_serve
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.settings import Keys

API, ADMIN = "an-api-key", "an-admin-key"
ALL: tuple[Asked, ...] = ("live", "page", "infer", "status", "metrics", "load", "log_settings")


def key_file(path: Path, *keys: str) -> Path:
    path.write_text("".join(f"{key}\n" for key in keys))
    path.chmod(0o600)
    return path


def refused(access: Access, metadata: dict[str, str], verb: Asked) -> Kind | None:
    try:
        access.check(metadata, verb)
    except RequestError as caught:
        error = caught
    else:
        return None
    assert not any(key in error.message for key in (API, ADMIN)), "keys are never repeated"
    return error.kind


def let_through(access: Access, key: str = "") -> str:
    """`+` for each of `ALL` that the key allows, `-` where another would, `?` where no key is known."""
    metadata = {"authorization": f"Bearer {key}"} if key else {}
    signs = {None: "+", Kind.FORBIDDEN: "-", Kind.UNAUTHENTICATED: "?"}
    return "".join(signs[refused(access, metadata, verb)] for verb in ALL)


def test_keys_allow_what_they_are_for(tmp_path: Path) -> None:
    api, admin = key_file(tmp_path / "api", API, "second"), key_file(tmp_path / "admin", ADMIN)
    both, only_api, only_admin = Access(Keys(api, admin)), Access(Keys(api)), Access(Keys(admin=admin))
    assert [let_through(both, key) for key in ("", "wrong", API, "second", ADMIN)] == [
        "++?????", "++?????", "+++++--", "+++++--", "+++++++",
    ]  # fmt: skip
    assert [let_through(only_api, key) for key in ("", API)] == ["++?????", "+++++++"]
    assert [let_through(only_admin, key) for key in ("", "wrong", ADMIN)] == ["+++++??", "+++++??", "+++++++"]
    assert let_through(Access(Keys())) == "+++++++"
    assert [each.is_open for each in (both, only_api, only_admin, Access(Keys()))] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("metadata", "is_known"),
    [
        ({"authorization": f"Bearer {API}"}, True),
        ({"authorization": f"bearer  {API} "}, True),
        ({"x-api-key": API}, True),
        ({"authorization": f"Basic {API}", "x-api-key": API}, True),
        ({"authorization": API}, False),
        ({"authorization": "Bearer "}, False),
        ({"authorization": f"Bearer {API}x"}, False),
        ({"authorization": f"Bearer {API[:-1]}"}, False),
        ({"authorization": "Bearer wrong", "x-api-key": API}, False),
        ({"x-api-key": ""}, False),
        ({"x-api-key": "# a comment"}, False),
        ({"x-api-key": "\udcff\xff"}, False),
    ],
)
def test_how_a_key_is_given(tmp_path: Path, metadata: dict[str, str], is_known: bool) -> None:
    path = key_file(tmp_path / "api", "# a comment", "", f"  {API}  # of the tests", "#")
    assert (refused(Access(Keys(path)), metadata, "infer") is None) == is_known


def test_a_file_that_changes_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, now = key_file(tmp_path / "api", "old"), [100.0]
    keys = KeyFile(path, clock=lambda: now[0])
    key_file(path, "new-key")
    assert (keys.holds("old"), keys.holds("new-key")) == (True, False), "it is not looked at each time"
    now[0] += 1.5
    assert (keys.holds("old"), keys.holds("new-key")) == (False, True)
    # the same length and time, but another file
    stamp = path.stat()
    other = key_file(tmp_path / "other", "newer-k")
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    other.replace(path)
    now[0] += 1.5
    assert keys.holds("newer-k")
    path.unlink()
    now[0] += 1.5
    with caplog.at_level(logging.WARNING):
        assert keys.holds("newer-k"), "a file that is being replaced locks nobody out"
    assert "cannot be read again" in caplog.text
    key_file(path)
    now[0] += 1.5
    assert not keys.holds("newer-k"), "a file without keys lets nobody in"


def test_files_without_keys_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        Access(Keys(tmp_path / "missing"))
    with pytest.raises(OptionError, match="no key"):
        Access(Keys(admin=key_file(tmp_path / "empty", "# nothing", " ")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="cannot be read"):
        Access(Keys(tmp_path / "binary"))


@pytest.mark.parametrize(
    ("mode", "is_warned"), [(0o600, False), (0o400, False), (0o640, False), (0o604, True)]
)
def test_files_that_others_may_read_are_warned_about(tmp_path: Path, mode: int, is_warned: bool) -> None:
    path = key_file(tmp_path / "api", API)
    path.chmod(mode)
    warnings = Access(Keys(path)).warnings()
    assert len(warnings) == is_warned
    assert all("chmod 600" in each for each in warnings)


def test_admin_calls_are_never_open_to_a_network(tmp_path: Path) -> None:
    keys = Keys(admin=key_file(tmp_path / "admin", ADMIN))
    for host, is_own in (
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
        ("::", False), ("10.0.0.1", False), ("a.name", False), ("", False),
    ):  # fmt: skip
        assert is_loopback(host) == is_own
        assert (why_not_serve(host, admin=True, keys=Keys()) == "") == is_own
        assert (why_not_serve(host, admin=True, keys=Keys(api=Path("api"))) == "") == is_own
        assert why_not_serve(host, admin=False, keys=Keys()) == ""
        assert why_not_serve(host, admin=True, keys=keys) == ""
