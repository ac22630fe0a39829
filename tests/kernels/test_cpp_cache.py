"""The cache of compiled C++: nobody else's code is loaded, old libraries go, unused ones are unloaded."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpp_cases import needs_compiler

from ridgeline.base import files
from ridgeline.kernels.cpp import compiler
from ridgeline.kernels.cpp.compiler import ENTRY, LeftOutError, compile_cpp, compile_many
from ridgeline.kernels.cpp.prelude import PRELUDE

pytestmark = needs_compiler


def source(number: int) -> str:
    return f'extern "C" void run(int* out) {{ *out = {number}; }}'


def result(run: Callable[[Any], None]) -> int:
    out = ctypes.c_int(-1)
    run(ctypes.byref(out))
    return out.value


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory, where libraries go that the cache folder may not hold."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(files, "_folder_of_this_process", lambda: folder)
    return folder


def mapped(folder: Path) -> int:
    """Libraries of this folder that are loaded now."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[5] for line in lines if str(folder) in line})


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_write_to_is_not_used(tmp_path: Path, elsewhere: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    assert result(compile_cpp(source(1), cache_dir=folder)["run"]) == 1
    assert not list(folder.iterdir())
    assert list(elsewhere.rglob("*.so"))


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "theirs")
    compile_cpp(source(1), cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "theirs").iterdir())


def test_a_folder_of_another_owner_is_not_used(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    compile_cpp(source(1), cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("plant", ["writable", "link", "damaged"])
def test_a_planted_library_is_replaced(tmp_path: Path, plant: str) -> None:
    compile_cpp(source(1), cache_dir=tmp_path)
    (library,) = tmp_path.glob("*.so")
    size = library.stat().st_size
    library.unlink()
    (tmp_path / "theirs").write_bytes(b"theirs")
    if plant == "link":
        library.symlink_to(tmp_path / "theirs")
    else:
        (tmp_path / "theirs").rename(library)
        library.chmod(0o666 if plant == "writable" else 0o600)
    assert result(compile_cpp(source(1), cache_dir=tmp_path)["run"]) == 1
    assert library.lstat().st_size == size
    assert files.why_not_private(library) is None


def test_the_folder_is_pruned_and_unused_libraries_are_unloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "KEPT_LIBRARIES", 4)
    first = compile_cpp(source(0), cache_dir=tmp_path)["run"]
    for number in range(1, 10):
        run = compile_cpp(source(number), cache_dir=tmp_path)["run"]
        assert result(run) == number
        assert len(list(tmp_path.glob("*.so"))) <= 4
        assert mapped(tmp_path) == 2, "the first and this one"
    assert result(first) == 0, "its file is gone, the library is not"
    del first, run
    assert mapped(tmp_path) == 0


def test_scratch_folders_of_killed_processes_go(tmp_path: Path) -> None:
    (tmp_path / "tmpdead").mkdir()
    os.utime(tmp_path / "tmpdead", (0, 0))
    (tmp_path / "tmpalive").mkdir()
    compile_cpp(source(1), cache_dir=tmp_path)
    assert not (tmp_path / "tmpdead").exists()
    assert (tmp_path / "tmpalive").exists()


def ours(number: int, text: str = "") -> str:
    """A kernel as we generate them; `text` stands before its entry."""
    return f"{PRELUDE.strip()}\n{text}\n{ENTRY}void** p) {{ *(int*)p[0] = {number}; }}\n"


def made_by(source: str, folder: Path) -> int:
    out = ctypes.c_int(-1)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(out))
    compile_cpp(source, cache_dir=folder)["run"](pointers)
    return out.value


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that compilers were started with, on a machine with one core."""
    texts: list[str] = []
    run = compiler.subprocess.run

    def counted(command: list[str], **more: Any) -> Any:
        if "input" in more:
            texts.append(more["input"])
        return run(command, **more)

    monkeypatch.setattr(compiler.subprocess, "run", counted)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    return texts


def test_kernels_that_wait_share_a_process(tmp_path: Path, processes: list[str]) -> None:
    macro = "#define LANES {}\nstatic inline int lanes() {{ return LANES; }}"
    sources = [ours(i, macro.format(i)) for i in range(24)]
    assert compile_many(sources, cache_dir=tmp_path) == []
    assert len(processes) < len(sources) / 2
    begun = len(processes)
    assert [made_by(source, tmp_path) for source in sources] == list(range(24))
    assert len(processes) == begun, "all of them are in the cache"


def test_one_bad_kernel_costs_the_others_nothing(tmp_path: Path, processes: list[str]) -> None:
    sources = [ours(i, "int broken = ;" if i == 3 else "") for i in range(24)]
    (error,) = compile_many(sources, cache_dir=tmp_path)
    assert "refused a kernel" in str(error)
    assert [made_by(s, tmp_path) for i, s in enumerate(sources) if i != 3] == [i for i in range(24) if i != 3]


def test_what_brings_headers_is_compiled_alone(tmp_path: Path, processes: list[str]) -> None:
    sources = [ours(i, "#include <omp.h>") for i in range(4)]
    assert compile_many(sources, cache_dir=tmp_path) == []
    assert len(processes) == len(sources)
    assert [made_by(source, tmp_path) for source in sources] == list(range(4))


def test_a_library_under_several_names_is_pruned_name_by_name(
    tmp_path: Path, processes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "KEPT_LIBRARIES", 10)
    sources = [ours(i) for i in range(24)]
    compile_many(sources, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*.so"))) <= 10
    assert [made_by(source, tmp_path) for source in sources] == list(range(24))


def test_without_hard_links_libraries_are_copied(
    tmp_path: Path, processes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", link)
    sources = [ours(i) for i in range(24)]
    compile_many(sources, cache_dir=tmp_path)
    assert [made_by(source, tmp_path) for source in sources] == list(range(24))


def test_when_the_time_is_over_the_rest_is_left_out(tmp_path: Path, processes: list[str]) -> None:
    sources, told = [ours(i) for i in range(24)], []
    left = compile_many(
        sources,
        cache_dir=tmp_path,
        is_over=lambda: len(processes) >= 2,
        on_done=lambda done, total: told.append((done, total)),
    )
    assert all(isinstance(error, LeftOutError) for error in left)
    assert {error.source for error in left if isinstance(error, LeftOutError)} < set(sources)
    assert len(processes) == 2
    done = 24 - len(left)
    assert told[-1] == (done, 24)
    assert len(list(tmp_path.glob("*.so"))) == done


def test_who_gives_up_stops_the_compilers(tmp_path: Path, processes: list[str]) -> None:
    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_many([ours(i) for i in range(24)], cache_dir=tmp_path, on_done=give_up)
    assert len(processes) == 1
