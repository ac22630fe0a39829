"""Timing cache and lock: text in, the same text out; damage is said and survived."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.base.choices import Candidate
from ridgeline.errors import OptionError
from ridgeline.tactics.cache import Entry, TimingCache, measuring_context, require_own

ENTRY = Entry(
    'layer0/"attn"',
    (
        Candidate("cpp.gemv", {"threads": 2, "panel": 32}, 12.5),
        Candidate("aten", {}, 20.25),
        Candidate("onednn.linear", {}, refused="weight is not constant"),
    ),
    0,
    "here",
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    cache = TimingCache({"abc": ENTRY})
    cache.write(tmp_path / "t.toml")
    again = TimingCache.read(tmp_path / "t.toml")
    assert again.entries == cache.entries
    assert not again.problems
    again.write(tmp_path / "u.toml")
    assert (tmp_path / "t.toml").read_text() == (tmp_path / "u.toml").read_text()


def test_an_entry_counts_where_it_was_measured(tmp_path: Path) -> None:
    cache = TimingCache({"abc": ENTRY})
    assert cache.find("abc", "here") == ENTRY
    assert cache.find("abc", "elsewhere") is None
    assert cache.find("xyz", "here") is None


@pytest.mark.parametrize(
    "text",
    [
        "format = ",
        "format = 99\n",
        'format = 1\n[site.a]\ntitle = "x"\n',
        'format = 1\n[site.a]\ntitle = "x"\nchosen = 5\ncandidates = [{ tactic = "aten" }]\n',
        'format = 1\n[site.a]\ntitle = "x"\nchosen = 0\ncandidates = [{ tactic = "a", config = "{" }]\n',
        "format = 1\nsite = 3\n",
    ],
)
def test_damage_is_reported_and_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    cache = TimingCache.read(path)
    assert cache.entries == {}
    assert len(cache.problems) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot be written"):
        TimingCache().write(tmp_path / "file" / "t.toml")


def test_the_context_names_code_libraries_and_machine() -> None:
    assert "2 threads" in measuring_context(2)
    assert measuring_context(1) != measuring_context(2)


def test_a_lock_holds_sites_alone_and_no_context(tmp_path: Path) -> None:
    TimingCache({"abc-1234": ENTRY}).write_lock(tmp_path / "m.lock", ["abc-1234"])
    lock = TimingCache.read(tmp_path / "m.lock")
    assert list(lock.entries) == ["abc"]
    assert lock.entries["abc"].context == ""
    assert (tmp_path / "m.lock").read_text().startswith("# Ridgeline lock")


def test_two_builds_that_share_a_cache_keep_what_both_measured(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    TimingCache({"old": ENTRY}).write(path)
    first, second = TimingCache.read(path), TimingCache.read(path)
    first.entries |= {"a": ENTRY, "old": replace(ENTRY, title="measured again")}
    second.entries["b"] = ENTRY
    first.write(path)
    second.write(path)
    merged = TimingCache.read(path).entries
    assert set(merged) == {"old", "a", "b"}
    assert merged["old"].title == "measured again"


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: TimingCache({f"k{i}": ENTRY}).write(path), range(40)))
    assert len(TimingCache.read(path).entries) == 40


@pytest.mark.parametrize("content", ["notes of mine\n", '[project]\nname = "x"\n'])
def test_a_file_that_is_no_cache_is_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(OptionError, match="not a timing cache"):
        require_own(path)
    assert path.read_text() == content
    path.write_text("# Ridgeline timing cache, and then damage [[[")
    require_own(path)
    path.write_text("")
    require_own(path)
    require_own(tmp_path / "new.toml")
