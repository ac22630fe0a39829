"""The engine file: what goes in comes out, and anything else is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from models import quick, rand, rewritten

import ridgeline
from ridgeline.errors import OptionError, PlanError


@pytest.fixture(scope="module")
def saved(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick(tiny_model).save(tmp_path_factory.mktemp("saved") / "tiny.ridge")


def test_a_loaded_engine_computes_the_same_bits(tiny_model: Path, saved: Path) -> None:
    x = rand(2, 3, 32, 32)
    loaded = ridgeline.load(saved)
    np.testing.assert_array_equal(loaded.run({"x": x})["y"], quick(tiny_model).run({"x": x})["y"])


def test_plan_and_report_come_back(saved: Path, tiny_model: Path) -> None:
    loaded = ridgeline.load(saved)
    assert loaded.plan == quick(tiny_model).plan


def test_the_fused_graph_is_a_legal_model_beside_its_weights(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        archive.extractall(tmp_path)
    onnx.checker.check_model(str(tmp_path / "fused.onnx"))
    x = rand(2, 3, 32, 32)
    got = ort.InferenceSession(str(tmp_path / "fused.onnx")).run(["y"], {"x": x})[0]
    np.testing.assert_allclose(got, ridgeline.load(saved).run({"x": x})["y"], atol=1e-5)


def test_equal_engines_make_equal_plans_and_weights(saved: Path, tmp_path: Path) -> None:
    again = ridgeline.load(saved).save(tmp_path / "again.ridge")
    with zipfile.ZipFile(saved) as a, zipfile.ZipFile(again) as b:
        for name in ("plan.json", "weights.safetensors", "fused.onnx"):
            assert a.read(name) == b.read(name)


def test_weights_start_aligned(saved: Path) -> None:
    assert all(t.data_ptr() % 64 == 0 for t in ridgeline.load(saved).weights.values())


@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.6, 0.95])
def test_a_truncated_file(saved: Path, tmp_path: Path, keep: float) -> None:
    content = saved.read_bytes()
    path = tmp_path / "cut.ridge"
    path.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
    with pytest.raises(PlanError):
        ridgeline.load(path)


@pytest.mark.parametrize("member", ["plan.json", "report.json", "fused.onnx", "weights.safetensors"])
def test_a_tampered_member_is_named(saved: Path, tmp_path: Path, member: str) -> None:
    def change(members: dict[str, bytes]) -> None:
        members[member] = members[member][:-2] + b"zz"

    with pytest.raises(PlanError, match=member):
        ridgeline.load(rewritten(saved, tmp_path / "t.ridge", change))


def test_a_missing_member(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        ridgeline.load(rewritten(saved, tmp_path / "t.ridge", lambda m: m.pop("plan.json")))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("format", 99, "another format version"),
        ("target", "cpu:vax", "another target"),
        ("target", "cuda:sm_90", "a plan for another target"),
        ("sha256", {"plan.json": ""}, "names other members"),
    ],
)
def test_other_versions_and_targets(saved: Path, tmp_path: Path, key: str, value: object, text: str) -> None:
    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        members["manifest.json"] = json.dumps({**manifest, key: value}).encode()

    with pytest.raises(PlanError, match=text):
        ridgeline.load(rewritten(saved, tmp_path / "t.ridge", change))


def test_not_an_engine_file(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(PlanError, match=r"is an ONNX model, not an engine(.|\n)*ridgeline.build"):
        ridgeline.load(tiny_model)
    with pytest.raises(PlanError, match="there is no engine file"):
        ridgeline.load(tmp_path / "none.ridge")


def test_an_unwritable_place_leaves_nothing_behind(tiny_model: Path, tmp_path: Path) -> None:
    engine = quick(tiny_model)
    with pytest.raises(OptionError, match="cannot be written"):
        engine.save(tmp_path / "no" / "such" / "folder.ridge")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    engine = quick(tiny_model)
    engine.save(tmp_path / "kept.ridge")
    before = (tmp_path / "kept.ridge").read_bytes()
    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OptionError, match="No space left"):
        engine.save(tmp_path / "kept.ridge")
    assert [p.name for p in tmp_path.iterdir()] == ["kept.ridge"]
    assert (tmp_path / "kept.ridge").read_bytes() == before


def rehashed(saved: Path, path: Path, member: str, content: bytes) -> Path:
    """A copy with one member replaced and the manifest made to agree with it."""

    def change(members: dict[str, bytes]) -> None:
        members[member] = content
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"][member] = hashlib.sha256(content).hexdigest()
        members["manifest.json"] = json.dumps(manifest).encode()

    return rewritten(saved, path, change)


@pytest.mark.parametrize("member", ["plan.json", "report.json", "fused.onnx", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff" * 40])
def test_nonsense_with_a_valid_hash(saved: Path, tmp_path: Path, member: str, content: bytes) -> None:
    with pytest.raises(PlanError):
        ridgeline.load(rehashed(saved, tmp_path / "t.ridge", member, content))


def test_weights_that_do_not_fill_their_place(saved: Path, tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [8, 3, 3, 3], "data_offsets": [0, 0]}
    header = json.dumps({"conv_w": entry}).encode()
    content = struct.pack("<Q", len(header)) + header
    with pytest.raises(PlanError, match="does not fill its place"):
        ridgeline.load(rehashed(saved, tmp_path / "t.ridge", "weights.safetensors", content))


def test_every_flipped_byte_of_the_directory_is_met(saved: Path, tmp_path: Path) -> None:
    content = bytearray(saved.read_bytes())
    start = content.rindex(b"PK\x01\x02", 0, len(content) - 100)
    path = tmp_path / "t.ridge"
    for at in range(start, min(start + 46, len(content))):
        changed = bytearray(content)
        changed[at] ^= 0x21
        path.write_bytes(changed)
        with contextlib.suppress(PlanError):  # some bytes of a directory mean nothing
            ridgeline.load(path)
