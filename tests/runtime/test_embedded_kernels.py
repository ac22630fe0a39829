"""Compiled kernels in an engine file: sealed by whoever made them, refused when they were changed."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from models import quick, rewritten

import ridgeline
from ridgeline.errors import PlanError
from ridgeline.kernels.triton import compiler
from ridgeline.kernels.triton.compiler import Compiled, KernelStore
from ridgeline.kernels.triton.source import Kernel
from ridgeline.runtime.file import Stored, read_engine, write_engine
from ridgeline.runtime.signing import is_signed_here, sign_hashes

DIGEST = "0123456789abcdef" * 2 + "01234567"
HASHES = {f"kernels/{DIGEST}.kernel": "aa", "kernels/other": "bb"}


def compiled(**changes: object) -> Compiled:
    facts = {
        "name": "add", "arch": "sm_90", "cubin": b"\x7fELF\nnot run here", "shared": 0, "num_warps": 4,
        "pdl": True, "parameters": 3, "types": ("*fp16", "i32"), "registers": 32, "spills": 0,
        "seconds": 0.1, "triton": "3.7",
    }  # fmt: skip
    return Compiled(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def saved(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine file with one kernel; that its target is the host matters to nobody here."""
    engine = quick(tiny_model)
    stored = Stored(engine.plan, engine.report, {DIGEST: compiled()}, engine.model, engine.weights)
    return write_engine(tmp_path_factory.mktemp("on_board") / "tiny.ridge", stored)


def test_kernels_come_back_and_are_sealed(saved: Path) -> None:
    stored = read_engine(saved)
    assert stored.kernels == {DIGEST: compiled()}
    assert stored.is_signed_here


def test_a_tampered_kernel_is_named(saved: Path, tmp_path: Path) -> None:
    member = f"kernels/{DIGEST}.kernel"

    def change(members: dict[str, bytes]) -> None:
        members[member] += b"\0"

    with pytest.raises(PlanError, match=member):
        read_engine(rewritten(saved, tmp_path / "t.ridge", change))


def test_a_kernel_that_the_manifest_names_must_be_there(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="is missing"):
        read_engine(rewritten(saved, tmp_path / "t.ridge", lambda m: m.pop(f"kernels/{DIGEST}.kernel")))


def replaced(content: bytes) -> Callable[[dict[str, bytes]], None]:
    """Another kernel with a hash that fits: only the seal tells."""

    def change(members: dict[str, bytes]) -> None:
        name = f"kernels/{DIGEST}.kernel"
        members[name] = content
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
        members["manifest.json"] = json.dumps(manifest).encode()

    return change


def test_a_replaced_kernel_breaks_the_seal(saved: Path, tmp_path: Path) -> None:
    other = compiled(cubin=b"somebody else's").to_bytes()
    stored = read_engine(rewritten(saved, tmp_path / "t.ridge", replaced(other)))
    assert not stored.is_signed_here


@pytest.mark.parametrize("content", [b"", b"{}", b"[]\n", b"\xff\xfe\n", b'{"format": 99}\n'])
def test_nonsense_with_a_valid_hash(saved: Path, tmp_path: Path, content: bytes) -> None:
    with pytest.raises(PlanError, match="does not read"):
        read_engine(rewritten(saved, tmp_path / "t.ridge", replaced(content)))


def test_members_with_other_names_are_refused(saved: Path, tmp_path: Path) -> None:
    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"]["kernels/../../evil.kernel"] = "00"
        members["manifest.json"] = json.dumps(manifest).encode()

    with pytest.raises(PlanError, match="names other members"):
        read_engine(rewritten(saved, tmp_path / "t.ridge", change))


def test_a_seal_is_of_one_account_and_of_these_kernels(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine" / "seal.key", tmp_path / "other" / "seal.key"
    seal = sign_hashes(HASHES, key_file=mine)
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    assert is_signed_here(seal, HASHES, key_file=mine)
    assert seal == sign_hashes(HASHES, key_file=mine), "equal engines make equal files"
    assert not is_signed_here(seal, {**HASHES, "kernels/other": "cc"}, key_file=mine)
    assert not is_signed_here(seal, HASHES, key_file=other)
    assert sign_hashes(HASHES, key_file=other) != seal
    for wrong in (None, "", 7, "ü"):
        assert not is_signed_here(wrong, HASHES, key_file=mine)


def test_where_no_key_can_be_kept_nothing_is_sealed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert sign_hashes(HASHES, key_file=tmp_path / "file" / "seal.key") == ""
    short = tmp_path / "seal.key"
    short.write_bytes(b"short")
    assert sign_hashes(HASHES, key_file=short) == ""


def test_what_a_file_brought_comes_before_the_cache_and_stays_out_of_it(tmp_path: Path) -> None:
    kernel = Kernel("add", "", (("x", "*fp16"),), text="not even Python")
    empty = KernelStore(cache_dir=tmp_path)
    store = KernelStore({kernel.digest: compiled()}, cache_dir=tmp_path)
    assert store.find(kernel, "sm_90") == compiled()
    assert store.find(kernel, "sm_80") is None
    assert compiler.compile_kernels([kernel], "sm_90", store=store) == [compiled()]
    assert empty.find(kernel, "sm_90") is None
    assert not list(tmp_path.iterdir())


def test_kernels_that_were_not_compiled_here_are_not_sealed(saved: Path, tmp_path: Path) -> None:
    stored = read_engine(saved)
    foreign = write_engine(tmp_path / "foreign.ridge", replace(stored, are_foreign=True))
    assert read_engine(foreign).kernels == stored.kernels
    assert not read_engine(foreign).is_signed_here


@pytest.mark.parametrize("mode", ["folder", "file", "link"])
def test_a_cache_that_others_write_to_is_not_read(tmp_path: Path, mode: str) -> None:
    kernel = Kernel("add", "", (("x", "*fp16"),), text="not even Python")
    store = KernelStore(cache_dir=tmp_path)
    path = compiler._path(kernel, "sm_90", tmp_path)
    compiler._write(path, compiled())
    assert store.find(kernel, "sm_90") == compiled()
    if mode == "link":
        path.rename(tmp_path / "theirs")
        path.symlink_to(tmp_path / "theirs")
    else:
        (path.parent if mode == "folder" else path).chmod(0o777)
    assert store.find(kernel, "sm_90") is None


def test_a_host_engine_brings_none(tiny_model: Path, tmp_path: Path) -> None:
    loaded = ridgeline.load(quick(tiny_model).save(tmp_path / "tiny.ridge"))
    assert not loaded.fused.kernels.compiled
    assert loaded.fused.kernels.left_out == ""
