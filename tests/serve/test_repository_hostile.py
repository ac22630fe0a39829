"""Folders of models that somebody hostile may write to: names, links, pipes, and too much of anything."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.serve.test_repository import put

from ridgeline.serve.repository import files as repository_files
from ridgeline.serve.repository.repository import Scan, changes, scan


def only_problem(found: Scan) -> str:
    assert not found.models
    (reason,) = found.problems.values()
    return reason


@pytest.mark.parametrize(
    "name", ["a b", "a\nb", "a\x1b[2J", "ä", "a" * 129, "a%2f..", "a;b", "a\\b", "$(x)", os.fsdecode(b"\xff")]
)
def test_hostile_names_are_no_models(tmp_path: Path, name: str) -> None:
    put(tmp_path / name / "1/model.onnx")
    found = scan([tmp_path])
    assert not found.models
    assert not found.problems
    assert "is no name of a model" in found.notes[0]
    assert found.notes[0].isprintable()
    assert not scan([tmp_path], only=name).models


@pytest.mark.parametrize("name", ["..", ".", "", "/etc", "../secret", "a/../../secret", "a/1", "\0"])
def test_names_of_requests_lead_nowhere_else(tmp_path: Path, name: str) -> None:
    put(tmp_path / "secret/1/model.onnx")
    put(tmp_path / "root/a/1/model.onnx")
    assert not scan([tmp_path / "root"], only=name).models
    assert list(scan([tmp_path / "root"], only="a").models) == ["a"]


def test_hidden_entries_are_nobodys(tmp_path: Path) -> None:
    put(tmp_path / ".git/1/model.onnx")
    put(tmp_path / "new.tmp/1/model.onnx")
    put(tmp_path / "notes.txt")
    found = scan([tmp_path])
    assert not found.models
    assert not found.problems
    assert found.notes == ("'new.tmp' is being written", "'notes.txt' is no model")


def test_links_stay_in_the_folder_of_their_model(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", put(tmp_path / "secret.onnx")
    put(root / "b/1/model.onnx")

    def reason(link: str, to: Path) -> str:
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(to)
        try:
            return only_problem(scan([root], only="a"))
        finally:
            (root / link).unlink()

    assert "link out" in reason("a", tmp_path)
    assert "does not exist" in reason("a", root / "nothing")
    assert reason("a", put(root / "b/labels.txt")) == "Not a directory"
    assert "link out" in reason("a.onnx", secret)
    assert "link out" in reason("a/1/model.onnx", secret)
    assert "link out" in reason("a/1/model.onnx", root / "b/1/model.onnx")
    assert "does not exist" in reason("a/1/model.onnx", root / "a/nothing")
    (root / "a/1").rmdir()
    assert "link out" in reason("a/1", root / "b/1")
    put(root / "a/1/model.onnx")
    for link in ("a/1/weights.bin", "a/1/.weights", "a/labels.txt", "a/config.pbtxt"):
        assert "link out" in reason(link, secret), link
    assert "'1/loop': leads nowhere" in reason("a/1/loop", root / "a/1/loop")


def test_a_version_that_leads_out_harms_no_other(tmp_path: Path) -> None:
    put(tmp_path / "b/1/model.onnx")
    put(tmp_path / "a/1/model.onnx")
    (tmp_path / "a/2").symlink_to(tmp_path / "b/1")
    (tmp_path / "a/3").symlink_to("1")
    put(tmp_path / "a/4/model.onnx")
    os.mkfifo(tmp_path / "a/4/weights")
    put(tmp_path / "b/notes/secret.tmp")
    (tmp_path / "a/5").symlink_to(tmp_path / "b/notes")
    found = scan([tmp_path]).models["a"]
    assert [v.number for v in found.versions] == [1, 3]
    assert found.versions[1].path == tmp_path / "a/1/model.onnx"
    assert "link out" in found.broken[2]
    assert "link out" in found.broken[5]  # nothing outside is even listed
    assert "is a pipe" in found.broken[4]


def test_links_inside_of_a_model_are_followed(tmp_path: Path) -> None:
    put(tmp_path / "a/shared/weights.bin")
    put(tmp_path / "a/1/model.onnx")
    (tmp_path / "a/1/weights.bin").symlink_to("../shared/weights.bin")
    (tmp_path / "a/1/more").symlink_to("../shared")
    before = scan([tmp_path])
    assert [stamp[0] for stamp in before.models["a"].versions[0].files] == ["model.onnx", "weights.bin"]
    put(tmp_path / "a/shared/weights.bin", "other content")
    assert changes(before, scan([tmp_path])).changed == ("a",)


@pytest.mark.parametrize(
    "name", ["a/1/model.onnx", "a/1/weights", "a/config.pbtxt", "a/labels.txt", "a.onnx"]
)
def test_pipes_and_sockets_are_refused_and_never_opened(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if not name.startswith("a."):
        put(tmp_path / "a/1/model.onnx").unlink()
        if name != "a/1/model.onnx":
            put(tmp_path / "a/1/model.onnx")
    os.mkfifo(path)
    assert "is a pipe" in only_problem(scan([tmp_path]))
    path.unlink()
    os.chdir(path.parent)  # addresses of sockets are short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)
        assert "is a socket" in only_problem(scan([tmp_path]))
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "link out" in only_problem(scan([tmp_path]))


@pytest.fixture(autouse=True)
def _same_folder_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_a_model_has_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository_files, "MOST_FILES", 20)
    put(tmp_path / "a/1/model.onnx")
    deep = tmp_path / "a/1" / "/".join(["d"] * 20)
    put(deep / "x")
    assert "more than 16 deep" in only_problem(scan([tmp_path]))
    put(tmp_path / "b/1/model.onnx")
    for number in range(19):
        (tmp_path / f"b/1/{number}").touch()
    assert list(scan([tmp_path]).models) == ["b"]
    for number in range(19, 21):
        (tmp_path / f"b/1/{number}").touch()
    assert "more than 20 files" in scan([tmp_path]).problems["b"]
