"""Folders of models: what is found, what is refused and why, what counts as a change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ridgeline.serve.config.text import parse_json
from ridgeline.serve.repository.repository import changes, chosen_versions, configure_found, scan
from ridgeline.serve.spec import ENSEMBLE, PYTHON, VersionPolicy

ENSEMBLE_CONFIG = """
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
ensemble_scheduling { step { model_name: "a" model_version: -1
  input_map { key: "i" value: "x" } output_map { key: "o" value: "y" } } }
"""


def put(path: Path, text: str = "content") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_models_lie_in_folders_of_versions(tmp_path: Path) -> None:
    put(tmp_path / "a/1/model.onnx")
    put(tmp_path / "a/1/weights.bin")
    put(tmp_path / "a/10/model.ridge")
    put(tmp_path / "a/9/model.onnx")
    put(tmp_path / "a/config.pbtxt", 'name: "a" max_batch_size: 4')
    put(tmp_path / "b/2/net.onnx")
    put(tmp_path / "b/config.pbtxt", 'default_model_filename: "net.onnx"')
    found = scan([tmp_path])
    assert not found.problems
    assert not found.notes
    a, b = found.models["a"], found.models["b"]
    assert [(v.number, v.kind) for v in a.versions] == [(1, "onnx"), (9, "onnx"), (10, "engine")]
    first = a.versions[0]
    assert first.path == tmp_path / "a/1/model.onnx"
    assert [stamp[0] for stamp in first.files] == ["model.onnx", "weights.bin"]
    assert configure_found(a).spec.max_batch_size == 4
    assert [v.path for v in b.versions] == [tmp_path / "b/2/net.onnx"]


def test_one_version_needs_no_folder(tmp_path: Path) -> None:
    put(tmp_path / "in_folder/model.onnx")
    put(tmp_path / "in_folder/labels.txt")
    put(tmp_path / "bare.onnx")
    put(tmp_path / "bare.onnx.data")
    put(tmp_path / "bare.onnx.tmp")
    put(tmp_path / "bare.data/x")
    put(tmp_path / "bare.v2.ridge")
    put(tmp_path / "folder.onnx/1/model.onnx")
    put(tmp_path / "notes.txt")
    found = scan([tmp_path])
    assert sorted(found.notes) == ["'bare.onnx.tmp' is being written", "'notes.txt' is no model"]
    assert list(found.problems) == ["bare.data"]
    assert {name: each.versions[0].kind for name, each in found.models.items()} == {
        "bare": "onnx", "bare.v2": "engine", "folder.onnx": "onnx", "in_folder": "onnx",
    }  # fmt: skip
    assert [stamp[0] for stamp in found.models["bare"].versions[0].files] == ["bare.onnx", "bare.onnx.data"]
    assert found.models["bare"].folder is None
    assert configure_found(found.models["bare"]).is_batch_open
    given = parse_json('{"max_batch_size": 2}')
    assert configure_found(scan([tmp_path], only="bare", given=given).models["bare"]).spec.max_batch_size == 2
    assert all(len(each.versions) == 1 and each.versions[0].number == 1 for each in found.models.values())


def test_an_ensemble_needs_no_files(tmp_path: Path) -> None:
    put(tmp_path / "e/config.pbtxt", ENSEMBLE_CONFIG)
    (tmp_path / "f/3").mkdir(parents=True)
    put(tmp_path / "f/config.pbtxt", ENSEMBLE_CONFIG)
    found = scan([tmp_path])
    assert [(v.number, v.path) for v in found.models["e"].versions] == [(1, None)]
    assert [(v.number, v.path) for v in found.models["f"].versions] == [(3, None)]
    assert found.models["e"].platform == ENSEMBLE


@pytest.mark.parametrize("name", ["01", "0", "-1", "1.5", "v1", "1" * 19, "١", "1 "])
def test_folders_that_are_no_version_are_left_alone(tmp_path: Path, name: str) -> None:
    put(tmp_path / "a/1/model.onnx")
    put(tmp_path / "a" / name / "model.onnx")
    found = scan([tmp_path]).models["a"]
    assert [v.number for v in found.versions] == [1]
    assert "is no version" in found.notes[0]


def test_what_lies_beside_versions_is_told_where_it_may_be_meant(tmp_path: Path) -> None:
    for path in ("1/model.onnx", "configs/x.pbtxt", "warmup/x", "__pycache__/x", ".git/x", "labels.txt"):
        put(tmp_path / "a" / path)
    put(tmp_path / "a/2.tmp/model.onnx")
    assert scan([tmp_path]).models["a"].notes == ("'2.tmp' is being written",)
    put(tmp_path / "a/model.onnx")
    assert "outside of a version's folder is left alone" in scan([tmp_path]).models["a"].notes[1]


def test_only_its_own_configuration_is_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "a/1/model.onnx")
    put(tmp_path / "a/labels.txt.tmp")
    put(tmp_path / "a/config.pbtxt.old")
    assert scan([tmp_path]).models["a"].notes == ("'labels.txt.tmp' is being written",)


def test_a_configuration_of_a_load_request_stands_in(tmp_path: Path) -> None:
    put(tmp_path / "a/1/other.onnx")
    put(tmp_path / "a/config.pbtxt", "broken")
    put(tmp_path / "b/1/model.onnx")
    given = parse_json('{"default_model_filename": "other.onnx", "max_batch_size": 2}')
    found = scan([tmp_path], only="a", given=given)
    assert list(found.models) == ["a"]
    assert configure_found(found.models["a"]).spec.max_batch_size == 2


def test_steps_in_python_are_off_unless_allowed(tmp_path: Path) -> None:
    put(tmp_path / "a/1/model.onnx")
    put(tmp_path / "a/preprocess.py")
    put(tmp_path / "b/1/model.py")
    put(tmp_path / "b/config.pbtxt", 'backend: "python"')
    put(tmp_path / "c/1/model.py")
    put(tmp_path / "d/1/model.onnx")
    put(tmp_path / "d/1/model.py")
    off = scan([tmp_path])
    assert list(off.models) == ["d"]
    assert "preprocess.py runs Python code" in off.problems["a"]
    assert all("--python-steps" in off.problems[name] for name in "abc")
    on = scan([tmp_path], python_steps=True)
    assert on.models["a"].preprocess == tmp_path / "a/preprocess.py"
    assert on.models["a"].postprocess is None
    put(tmp_path / "a/postprocess.py")
    side = '[{"name": "x", "data_type": "TYPE_FP32"}]'
    given = parse_json(f'{{"max_batch_size": 1, "input": {side}, "output": {side}}}')
    found = scan([tmp_path], only="a", given=given, python_steps=True)
    both = configure_found(found.models["a"], python_steps=True)
    assert (both.spec.preprocess, both.spec.postprocess) == ("preprocess.py", "postprocess.py")
    assert on.models["b"].platform == on.models["c"].platform == PYTHON
    assert on.models["d"].versions[0].kind == "onnx"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.pbtxt": ""}, "no folder of a version, and itself no model.ridge or model.onnx"),
        ({"1/readme.txt": "x"}, "version 1: has no model.ridge or model.onnx"),
        ({"1/model.onnx": ""}, "version 1: 'model.onnx' is empty"),
        ({"1/model.onnx.tmp": "x"}, "version 1: is being written: 'model.onnx.tmp'"),
        ({"1/model.onnx": "x", "config.pbtxt.tmp": "x"}, "its configuration is being written"),
        ({"1/model.onnx": "x", "config.pbtxt": "max_batch_size: "}, "config.pbtxt: 1 problem"),
        ({"1/model.plan": "x"}, "TensorRT's model.plan alone"),
        ({"1/m.bin": "x", "config.pbtxt": 'default_model_filename: "m.bin"'}, "'m.bin' is no model file"),
        ({"1/model.onnx": "x", "config.pbtxt": 'default_model_filename: "b.onnx"'}, "has no b.onnx"),
        ({"1/x": "x", "config.pbtxt": 'default_model_filename: "../../good/1/model.onnx"'}, "has no ../../"),
        ({"1/model.onnx": "x", "config.pbtxt": 'backend: "python"'}, "has no model.py"),
        ({"1/m.onnx": "x", "config.pbtxt": 'platform: "ridgeline_python" default_model_filename: "m.onnx"'},
         "'m.onnx' is not what"),
        ({"1/model.py": "x", "config.pbtxt": 'backend: "ridgeline"'}, "not what backend 'ridgeline' runs"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_told_and_harms_no_other(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for path, text in files.items():
        put(tmp_path / "a" / path, text)
    put(tmp_path / "good/1/model.onnx")
    found = scan([tmp_path], python_steps=True)
    assert "good" in found.models
    reason = found.problems["a"]
    assert said in reason
    assert str(tmp_path) not in reason


def test_a_broken_version_harms_no_other(tmp_path: Path) -> None:
    put(tmp_path / "a/1/model.onnx")
    before = scan([tmp_path])
    put(tmp_path / "a/2/model.onnx.part")
    half = scan([tmp_path])
    assert [v.number for v in half.models["a"].versions] == [1]
    assert half.models["a"].broken == {2: "is being written: 'model.onnx.part'"}
    assert changes(before, half).changed == ("a",)  # to be told, not to be loaded
    (tmp_path / "a/2/model.onnx.part").rename(tmp_path / "a/2/model.onnx")
    assert changes(half, scan([tmp_path])).changed == ("a",)


def test_one_name_in_two_places_is_no_model(tmp_path: Path) -> None:
    put(tmp_path / "one/a/1/model.onnx")
    put(tmp_path / "one/b/1/model.onnx")
    put(tmp_path / "one/b.onnx")
    put(tmp_path / "two/a/1/model.onnx")
    put(tmp_path / "two/c/1/model.onnx")
    found = scan([tmp_path / "one", tmp_path / "two"])
    assert list(found.models) == ["c"]
    assert found.problems["a"].endswith("one/a, two/a")
    assert found.problems["b"].endswith("one/b, one/b.onnx")
    again = tmp_path / "again"
    again.symlink_to(tmp_path / "one")
    assert not scan([tmp_path / "two", again, again, again]).problems.keys() - {"a", "b"}


def test_changes_are_seen_by_any_file_that_matters(tmp_path: Path) -> None:
    put(tmp_path / "a/1/model.onnx")
    put(tmp_path / "a/config.pbtxt", "max_batch_size: 1")
    put(tmp_path / "b/1/model.onnx")
    before = scan([tmp_path])
    assert changes(before, scan([tmp_path])) == changes(before, before)
    for path in ("a/1/model.onnx", "a/1/weights.bin", "a/config.pbtxt", "a/labels.txt", "a/warmup/x"):
        put(tmp_path / path, "max_batch_size: 2 # longer")
        after = scan([tmp_path])
        assert changes(before, after).changed == ("a",), path
        before = after
    put(tmp_path / "a/labels.txt.part")
    put(tmp_path / "a/__pycache__/preprocess.cpython-311.pyc")
    put(tmp_path / "a/.config.pbtxt.swp")
    assert scan([tmp_path]).models == before.models
    put(tmp_path / "c.onnx")
    (tmp_path / "b/1/model.onnx").unlink()
    (tmp_path / "b/1").rmdir()
    (tmp_path / "b").rmdir()
    seen = changes(before, scan([tmp_path]))
    assert (seen.added, seen.changed) == (("c",), ())


def test_a_file_of_equal_size_and_time_is_another_file(tmp_path: Path) -> None:
    path = put(tmp_path / "a/1/model.onnx", "one")
    found = path.stat()
    before = scan([tmp_path])
    new = put(tmp_path / "new", "two")
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
    new.rename(path)
    assert changes(before, scan([tmp_path])).changed == ("a",)


def test_what_cannot_be_read_has_not_changed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root / "a/1/model.onnx")
    put(root / "b/1/model.onnx")
    before = scan([root])
    put(root / "a/config.pbtxt", "half of i")
    broken = scan([root])
    assert "a" in broken.problems
    assert changes(before, broken) == changes(before, before)
    root.rename(tmp_path / "away")
    gone = scan([root])
    assert gone.unreadable == (root,)
    assert "No such file" in gone.notes[0]
    assert changes(before, gone) == changes(before, before)


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy(), (10,)),
        (VersionPolicy("latest", 2), (3, 10)),
        (VersionPolicy("latest", 99), (1, 3, 10)),
        (VersionPolicy("all"), (1, 3, 10)),
        (VersionPolicy("specific", versions=(1, 2, 10)), (1, 10)),
        (VersionPolicy("specific", versions=(4,)), ()),
    ],
)
def test_versions_are_chosen_by_number(policy: VersionPolicy, chosen: tuple[int, ...]) -> None:
    assert chosen_versions(policy, [10, 1, 3]) == chosen
