"""Progress of a build or a bench, on stderr: bars on a terminal, one line per finished stage elsewhere."""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

REFRESH_S = 0.1
# a heading: the stages that follow are those of one of several engines
ENGINE = "engine"


class StageProgress:
    """Callable as `Options.progress`: (stage, done, total, detail). A stage ends when the next one begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._done, self._total = 0, 0
        self._began = monotonic()
        self._drawn = 0.0
        self._tasks: dict[str, TaskID] = {}
        self._engines = 0
        # no refresh thread: it would wake up in the middle of the timings
        self._bars = Progress(
            TextColumn("  [bold]{task.description:<14}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[count]:>9}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
        )

    def __enter__(self) -> StageProgress:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()
        elif kind is None:
            self._end_stage()

    def __call__(self, stage: str, done: int, total: int, detail: str = "") -> None:
        if stage == ENGINE:
            self._engines += 1
            detail = f"{self._engines}: {detail}"
            if not self._console.is_terminal:
                self._end_stage()
                self._stage = ""
                self._console.print(f"  engine {detail}", highlight=False)
                return
        is_new = stage != self._stage
        if is_new:
            self._end_stage()
            self._stage, self._began = stage, monotonic()
        self._done, self._total = done, total
        if self._console.is_terminal:
            self._draw(stage, detail, force=is_new or (total > 0 and done >= total))

    def _draw(self, stage: str, detail: str, *, force: bool) -> None:
        now = monotonic()
        if not force and now - self._drawn < REFRESH_S:
            return
        self._drawn = now
        count = f"{self._done}/{self._total}" if self._total else ""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=None, count="", detail="")
        self._bars.update(
            self._tasks[stage],
            total=self._total or None,
            completed=self._done,
            count=count,
            detail=detail[:40],
        )
        self._bars.refresh()

    def _end_stage(self) -> None:
        if not self._stage:
            return
        if self._console.is_terminal:
            if self._stage in self._tasks:
                task = self._tasks[self._stage]
                self._bars.update(task, total=self._total or 1, completed=self._total or 1, detail="")
                self._bars.stop_task(task)
            return
        count = f"{self._done} of {self._total}, " if self._done and self._total else ""
        self._console.print(f"  {self._stage}: {count}{monotonic() - self._began:.1f} s", highlight=False)
