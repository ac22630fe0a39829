"""The repository works anywhere: it names no host to fetch from and no folder of one machine."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "docs", "bench", "examples", ".ci")
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".json", ".sh", ".cfg", ".ini", ""}
# brackets keep this file from matching itself
# data sheets: each figure of a shipped target names the page it was read on
CITING = ROOT / "src" / "ridgeline" / "base" / "gpus"
FORBIDDEN = {
    # links to pages people read are listed, and the name of SVG; anything else would be a place to fetch from
    "host": re.compile(
        r"http[s]?://(?!www[.]apache[.]org|keepachangelog[.]com|git-lfs[.]github[.]com|www[.]w3[.]org)"
    ),
    "package index": re.compile(r"index[-]url|find[-]links"),
    "path of one machine": re.compile(r"(?<![\w.*])/(?:[w]ork/|[t]mp/models|[h]ome/|[r]oot/)"),
}


def text_files() -> list[Path]:
    # in a worktree `.git` is a file, and no part of the repository
    top = [file for file in ROOT.iterdir() if file.is_file() and file.name != ".git"]
    below = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file()]
    return [f for f in top + below if f.suffix in TEXT and "__pycache__" not in f.parts]


def test_no_registry_hosts_and_no_machine_paths() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {what}: {line.strip()[:80]}"
        for file in text_files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line) and not (what == "host" and file.parent == CITING)
    ]
    assert not found, "\n".join(found)
