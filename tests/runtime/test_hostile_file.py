"""Engine files from a stranger: hashes that fit, and contents that lie. Refused by name, before any work."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import model_of, quick, rand

import ridgeline
from ridgeline.base.files import PART
from ridgeline.errors import PlanError

Members = dict[str, bytes]
NET = """net (float[N,16] x) => (float[N,8] y, float[N,8] s) {
  h = MatMul (x, w)
  y = Relu (h)
  t = Tanh (x)
  m = MatMul (t, w)
  s = Softmax <axis = -1> (m)
}"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine = quick(model_of(NET, w=rand(16, 8)))
    return engine.save(tmp_path_factory.mktemp("hostile") / "net.ridge")


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, given: Members, **options: Any) -> Path:
    """The members as an engine file, with hashes that fit them."""
    members = dict(given)
    manifest = json.loads(members["manifest.json"])
    manifest["sha256"] = {
        n: hashlib.sha256(c).hexdigest() for n, c in members.items() if n != "manifest.json"
    }
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in {**members, "manifest.json": json.dumps(manifest).encode()}.items():
            archive.writestr(name, content)
    return path


def with_plan(saved: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    members = members_of(saved)
    plan = json.loads(members["plan.json"])
    change(plan)
    return write(path, {**members, "plan.json": json.dumps(plan).encode()})


def test_the_writer_of_these_tests_makes_good_files(saved: Path, tmp_path: Path) -> None:
    x = rand(3, 16)
    got = ridgeline.load(with_plan(saved, tmp_path / "t.ridge", lambda plan: None)).run({"x": x})
    np.testing.assert_array_equal(got["y"], ridgeline.load(saved).run({"x": x})["y"])


def test_compressed_members_are_refused(saved: Path, tmp_path: Path) -> None:
    members = members_of(saved) | {"report.json": members_of(saved)["report.json"] + b" " * 50_000_000}
    path = write(tmp_path / "bomb.ridge", members, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(PlanError, match="is compressed"):
        ridgeline.load(path)


def test_a_member_twice_is_refused(saved: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "t.ridge", members_of(saved))
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("plan.json", b"{}")
    with pytest.raises(PlanError, match=r"plan\.json is in it twice"):
        ridgeline.load(path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../plan.json", "kernels/../x.kernel", "notes.txt"])
def test_other_members_are_refused(saved: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match="names other members"):
        ridgeline.load(write(tmp_path / "t.ridge", {**members_of(saved), name: b""}))
    path = write(tmp_path / "u.ridge", members_of(saved))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"")
    with pytest.raises(PlanError, match="is not in the manifest"):
        ridgeline.load(path)


def test_a_link_is_refused(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.ridge"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members_of(saved).items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16 if name == "plan.json" else 0
            archive.writestr(info, content)
    with pytest.raises(PlanError, match=r"plan\.json is a link"):
        ridgeline.load(path)


def directory_entry(content: bytes, name: str) -> int:
    """Where the directory speaks of a member."""
    return content.index(name.encode(), content.index(b"PK\x01\x02")) - 46


@pytest.mark.parametrize(
    ("offset", "text"),
    [(20, "is compressed"), (24, "is compressed"), (42, "not where the directory says|inside another")],
)
def test_sizes_and_places_of_the_directory(saved: Path, tmp_path: Path, offset: int, text: str) -> None:
    content = bytearray(write(tmp_path / "t.ridge", members_of(saved)).read_bytes())
    at = directory_entry(bytes(content), "report.json") + offset
    (old,) = struct.unpack_from("<L", content, at)
    struct.pack_into("<L", content, at, old + 1)
    (tmp_path / "t.ridge").write_bytes(content)
    with pytest.raises(PlanError, match=text):
        ridgeline.load(tmp_path / "t.ridge")


def test_a_member_larger_than_the_file(saved: Path, tmp_path: Path) -> None:
    content = bytearray(write(tmp_path / "t.ridge", members_of(saved)).read_bytes())
    at = directory_entry(bytes(content), "manifest.json")
    for field in (20, 24):
        struct.pack_into("<L", content, at + field, 2**31)
    (tmp_path / "t.ridge").write_bytes(content)
    with pytest.raises(PlanError, match="larger than the file"):
        ridgeline.load(tmp_path / "t.ridge")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ridge")
    with pytest.raises(PlanError, match="not a regular file"):
        ridgeline.load(tmp_path / "pipe.ridge")


@pytest.mark.parametrize("seal", ['"\\ud800"', "7", '["x"]'])
def test_a_seal_that_is_no_text(saved: Path, tmp_path: Path, seal: str) -> None:
    members = members_of(saved)
    text = members["manifest.json"].decode().replace('"seal": ""', f'"seal": {seal}')
    with zipfile.ZipFile(tmp_path / "t.ridge", "w") as archive:
        for name, content in {**members, "manifest.json": text.encode()}.items():
            archive.writestr(name, content)
    with pytest.raises(PlanError):
        ridgeline.load(tmp_path / "t.ridge")


@pytest.mark.parametrize("member", ["plan.json", "report.json"])
def test_half_a_character(saved: Path, tmp_path: Path, member: str) -> None:
    members = members_of(saved)
    broken = json.loads(members[member])
    key = "model" if member == "plan.json" else "reference"
    broken[key] = "\ud800"
    with pytest.raises(PlanError, match="surrogates"):
        ridgeline.load(write(tmp_path / "t.ridge", {**members, member: json.dumps(broken).encode()}))


def with_header(saved: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    members = members_of(saved)
    content = members["weights.safetensors"]
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    weights = struct.pack("<Q", len(text)) + text + content[8 + length :]
    return write(path, {**members, "weights.safetensors": weights})


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["w"].update(shape=[2**40, 2**40]),
        lambda h: h["w"].update(shape=[-16, -8]),
        lambda h: h["w"].update(shape=[8, 16]),
        lambda h: h["w"].update(shape=[16.0, 8]),
        lambda h: h["w"].update(dtype="I32"),
        lambda h: h["w"].update(dtype=[]),
        lambda h: h["w"].update(data_offsets=[0, 2**62]),
        lambda h: h["w"].update(data_offsets=[-64, 448]),
        lambda h: h.update(other=h["w"]),
        lambda h: h.update(__metadata__={"w": '["int4",[16,8]]'}),
        lambda h: h.update(__metadata__=[]),
        lambda h: h.pop("w"),
    ],
)  # fmt: skip
def test_a_header_that_lies(saved: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(PlanError):
        ridgeline.load(with_header(saved, tmp_path / "t.ridge", change))


def test_a_header_longer_than_the_file(saved: Path, tmp_path: Path) -> None:
    members = members_of(saved)
    weights = struct.pack("<Q", 2**62) + members["weights.safetensors"][8:]
    with pytest.raises(PlanError, match="a header of"):
        ridgeline.load(write(tmp_path / "t.ridge", {**members, "weights.safetensors": weights}))


def with_graph(saved: Path, path: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    members = members_of(saved)
    proto = onnx.ModelProto.FromString(members["fused.onnx"])
    change(proto)
    return write(path, {**members, "fused.onnx": proto.SerializeToString()})


def point_outside(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def add_constant_outside(proto: onnx.ModelProto) -> None:
    node = proto.graph.node.add(op_type="Constant", output=["stolen"])
    attribute = node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    attribute.t.data_type, attribute.t.dims[:] = onnx.TensorProto.FLOAT, [4]
    point_outside(attribute.t)


@pytest.mark.parametrize(
    "change",
    [
        lambda proto: point_outside(proto.graph.initializer[0]),
        lambda proto: setattr(proto.graph.initializer[0], "raw_data", b"\0" * 512),
        lambda proto: proto.graph.initializer[0].dims.__setitem__(0, -16),
        lambda proto: proto.graph.initializer[0].dims.__setitem__(slice(None), [8, 16]),
        lambda proto: setattr(proto.graph.initializer[0], "data_type", onnx.TensorProto.INT32),
        lambda proto: proto.graph.initializer.add(name="more", data_type=1, dims=[0]),
        add_constant_outside,
    ],
)
def test_graph_and_weights_say_the_same(
    saved: Path, tmp_path: Path, change: Callable[[onnx.ModelProto], object]
) -> None:
    with pytest.raises(PlanError):
        ridgeline.load(with_graph(saved, tmp_path / "t.ridge", change))


def change_input(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plan: plan["planned_shapes"]["x"].update(changes)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: p["steps"].reverse(), "which no step before it makes"),
        (lambda p: p["steps"].append(p["steps"][0]), "is in two steps"),
        (lambda p: p["steps"].pop(), "does not fit|no step|made by no step|at these shapes"),
        (lambda p: p["steps"][0].update(regions=["nothing"]), "nothing"),
        (lambda p: p["steps"][0].update(tactic="cpp.nothing"), "there is no tactic 'cpp.nothing'"),
        (lambda p: p["steps"][0].update(inputs=["w"]), "other inputs or outputs"),
        (lambda p: p["steps"][0].update(config=7), r"steps\[0\]\.config"),
        (lambda p: p["steps"][0].update(config={"threads": [1]}), r"steps\[0\]\.config\.threads"),
        (lambda p: p["steps"][0].update(extra=1), "fields of Step"),
        (lambda p: p["steps"][0].pop("site"), "fields of Step"),
        (lambda p: p["steps"][0]["work"].update(flops=2**70), "64-bit"),
        (change_input(shape=[2**40, 16]), "planned shape of 'x'"),
        (change_input(shape=[2**31 - 1, 16]), "planned inputs take"),
        (change_input(shape=[-4, 16]), "planned shape of 'x'"),
        (change_input(shape=[4, 17]), "planned shape of 'x'"),
        (change_input(shape=[4]), "planned shape of 'x'"),
        (change_input(shape=[True, 16]), r"planned_shapes\.x\.shape\[0\]"),
        (change_input(dtype="float64"), "planned shape of 'x'"),
        (change_input(dtype="nothing"), "planned shape of 'x'"),
        (change_input(layout="sideways"), "layout"),
        (change_input(value=[1]), "planned values of 'x'"),
        (lambda p: p["planned_shapes"].clear(), "planned shapes are of"),
        (lambda p: p["inputs"][0].update(name="z"), "inputs:"),
        (lambda p: p["inputs"][0].update(dims=[{}, 16]), r"inputs\[0\]\.dims"),
        (lambda p: p["outputs"].pop(), "outputs:"),
        (lambda p: p["profile"].update(x=[{"min": -1, "opt": 1, "max": 4}] * 2), "out of order"),
        (lambda p: p["profile"].update(z=[]), "there is no input 'z'"),
        (lambda p: p["memory"].update(arena_bytes=-1), "arena_bytes"),
        (lambda p: p["memory"].update(arena_bytes=2**64), "arena_bytes"),
        (lambda p: p["memory"].update(live_bytes=[-5]), "live_bytes"),
        (lambda p: p["steps"][0].update(stream=1), "steps are on several streams, which this target has not"),
        (lambda p: p["steps"][-1].update(waits=[0]), "steps are on several streams"),
        (lambda p: p["steps"][0].update(waits=["a"]), r"steps\[0\]\.waits\[0\]"),
        (lambda p: p["steps"][0].update(stream="1"), r"steps\[0\]\.stream"),
        (lambda p: p["target"].update(threads=2**31), "threads"),
        (lambda p: p["target"].update(threads=0), "threads"),
    ],
)
def test_a_plan_that_cannot_be(
    saved: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], text: str
) -> None:
    with pytest.raises(PlanError, match=text):
        ridgeline.load(with_plan(saved, tmp_path / "t.ridge", change)).run({"x": rand(3, 16)})


def test_a_config_that_no_tactic_offers_is_not_bound(saved: Path, tmp_path: Path) -> None:
    """300,000 sums ended the process: no registers, and an array of them on the stack."""

    def change(plan: dict[str, Any]) -> None:
        for step in plan["steps"]:
            step["config"] = dict.fromkeys(step["config"], 300000) | {"sums": 300_000}

    engine = ridgeline.load(with_plan(saved, tmp_path / "t.ridge", change))
    x = rand(3, 16)
    got = engine.context(wait=True).run({"x": x})
    np.testing.assert_allclose(got["y"], ridgeline.load(saved).run({"x": x})["y"], atol=1e-5)
    assert any("offers no such config" in note for note in engine.notes)


def test_what_a_killed_save_left_is_swept(saved: Path, tmp_path: Path) -> None:
    engine = ridgeline.load(saved)
    dead = tmp_path / f".net.ridge.abc{PART}"
    dead.write_bytes(b"half")
    alive = tmp_path / f".net.ridge.def{PART}"
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        engine.save(tmp_path / "net.ridge")
        assert {path.name for path in tmp_path.iterdir()} == {"net.ridge", alive.name}


def test_a_link_in_place_of_a_part_is_left_alone(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / f".x{PART}").symlink_to(tmp_path / "precious")
    ridgeline.load(saved).save(tmp_path / "net.ridge")
    assert (tmp_path / "precious").read_text() == "mine"
