"""Files stay short enough to be read in one sitting."""

from __future__ import annotations

from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
CEILING, KERNEL_CEILING = 400, 600
MEDIAN_CEILING = 200
ENGINE, ENGINE_CEILING = Path("src/ridgeline/runtime/engine.py"), 200


def line_counts(*folders: str) -> dict[Path, int]:
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return {file.relative_to(ROOT): len(file.read_text(encoding="utf-8").splitlines()) for file in files}


def test_no_file_is_too_long() -> None:
    too_long = {
        str(file): lines
        for file, lines in line_counts("src", "tests", "bench", "docs", "examples").items()
        if lines > (KERNEL_CEILING if "kernels" in file.parts else CEILING)
    }
    assert not too_long, f"split by what a reader looks for: {too_long}"


def test_the_median_file_is_short() -> None:
    assert median(lines for lines in line_counts("src").values() if lines) < MEDIAN_CEILING


def test_the_engine_only_names_its_parts() -> None:
    assert line_counts("src")[ENGINE] <= ENGINE_CEILING, "give it a part of its own, in a file of its own"
