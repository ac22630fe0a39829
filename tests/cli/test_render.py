from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from ridgeline.analyze.bench import Versus
from ridgeline.analyze.headline import Headline
from ridgeline.cli.draw_bench import draw_headlines
from ridgeline.cli.files import write_atomically
from ridgeline.cli.grid import put, table
from ridgeline.cli.progress import StageProgress
from ridgeline.cli.render import bar, behind, duration, ms_format, number, percent, ratio, size, to_json
from ridgeline.errors import OptionError


@pytest.mark.parametrize(
    ("us", "text"),
    [(None, "–"), (9.876, "9.88 µs"), (98.76, "98.8 µs"), (1234, "1.23 ms"), (4.5e6, "4.50 s")],
)
def test_durations_have_three_digits_and_a_unit(us: float | None, text: str) -> None:
    assert duration(us) == text


def test_other_figures() -> None:
    assert [size(n) for n in (0, 640, 1536, 5 << 20, 3 << 40)] == [
        "0 B",
        "640 B",
        "1.50 KiB",
        "5.00 MiB",
        "3072 GiB",
    ]
    assert [percent(p) for p in (None, 0.5, 0.012, 0.0)] == ["–", "50 %", "1.2 %", "0 %"]
    assert [behind(p) for p in (None, 0.12, 1.4, -0.03)] == ["–", "+12 %", "2.4×", "-3 %"]
    assert [number(n) for n in (None, 3.0, 0.123456)] == ["–", "3", "0.1235"]
    assert [len(bar(s, width=4)) for s in (0.0, 0.5, 1.0)] == [0, 2, 4]
    assert ms_format(50)(1234.5) == "1.2345"


def test_json_has_no_nan_and_keeps_properties() -> None:
    @dataclass(frozen=True)
    class Row:
        x: float
        path: Path

        @property
        def doubled(self) -> float:
            return self.x * 2

    rows = json.loads(to_json([Row(1.5, Path("a")), Row(math.inf, Path("b"))]))
    assert rows == [{"x": 1.5, "path": "a", "doubled": 3.0}, {"x": None, "path": "b", "doubled": None}]


def _lines(width: int) -> list[str]:
    grid = table("name", "us", "reason", numeric=("us",), keep=("reason",))
    grid.add_row(
        "a_very_long_node_name_of_the_graph", "123456.7", "float[batch,3] is not [bold] enough for this"
    )
    file = io.StringIO()
    put(grid, Console(file=file, width=width, markup=False))
    return file.getvalue().splitlines()


def test_words_give_way_before_numbers_and_reasons_wrap() -> None:
    lines = _lines(60)
    assert max(map(len, lines)) <= 60
    text = " ".join(" ".join(lines).split())
    assert "123456.7" in text
    assert "…" in text
    assert "float[batch,3] is not" in text
    assert "[bold]" in text


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.bin"
    write_atomically(path, lambda file: file.write(b"old"))

    def fail(file: object) -> None:
        raise OSError("disk full")

    with pytest.raises(OptionError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_progress_off_a_terminal_is_one_line_a_stage() -> None:
    file = io.StringIO()
    with StageProgress(Console(file=file, markup=False)) as progress:
        for done in range(3):
            progress("timing", done + 1, 3, "conv")
        progress("verify", 0, 0)
    first, second = file.getvalue().splitlines()
    assert first.startswith("  timing: 3 of 3, ")
    assert second.startswith("  verify: ")


def test_progress_on_a_terminal_draws_bars() -> None:
    file = io.StringIO()
    with StageProgress(Console(file=file, force_terminal=True, width=90, markup=False)) as progress:
        progress("timing", 1, 2, "conv")
        progress("timing", 2, 2, "conv")
        progress("verify", 0, 0)
    assert "2/2" in file.getvalue()


def test_noise_is_no_loss_and_losses_stay() -> None:
    def row(name: str, speed: float, low: float, high: float) -> Headline:
        return Headline(
            model=name, shapes={"x": (1, 3)}, nodes=9, steps=3, peer="ort", peer_us=1000.0,
            ours_us=1000.0 / speed, ratio=speed, ratio_p10=low, ratio_p90=high, max_error=1e-7,
            tolerance=1e-5, verified=True, agrees=True, memory_bytes=1 << 20, build_s=3.0,
            is_noise=Versus("ort", speed, low, high, "y", 0.0, 0.0).is_noise,
        )  # fmt: skip

    stream = io.StringIO()
    rows = [row("even", 0.97, 0.9, 1.05), row("slow", 0.8, 0.75, 0.86), row("fast", 2.4, 2.2, 2.6)]
    draw_headlines(rows, Console(file=stream, width=100, color_system=None))
    text = stream.getvalue()
    assert "0.90 – 1.05" in text
    assert "0.80×" in text
    (noise,) = [line for line in text.splitlines() if "within noise" in line]
    assert noise.split()[0] == "even"
    assert ratio(0.8, is_noise=False).style == "bold red"
    assert ratio(0.97, is_noise=True).style == ""


def test_stages_of_several_engines_stand_under_their_names() -> None:
    stream = io.StringIO()
    with StageProgress(Console(file=stream, width=80)) as progress:
        for stage, done, total, detail in (
            ("ranges", 0, 0, ""), ("engine", 0, 0, "fp32"), ("load", 0, 0, ""), ("engine", 0, 0, "int8"),
            ("load", 0, 0, ""), ("judge", 0, 11, ""), ("judge", 11, 11, ""),
        ):  # fmt: skip
            progress(stage, done, total, detail)
    lines = [line.split(",")[0].rsplit(": 0", 1)[0].strip() for line in stream.getvalue().splitlines()]
    assert lines == ["ranges", "engine 1: fp32", "load", "engine 2: int8", "load", "judge: 11 of 11"]
