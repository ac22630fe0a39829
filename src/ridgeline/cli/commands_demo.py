"""`ridge demo`: trained models, from file to verified engine to a table against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.arguments import AsJson, Threads
from ridgeline.cli.demo_models import DemoModel, demo_files
from ridgeline.cli.exits import FAILED_GATE
from ridgeline.cli.files import make_folder, require_file, write_atomically
from ridgeline.cli.grid import put_lines
from ridgeline.cli.render import document, emit, out, talk, to_json

if TYPE_CHECKING:
    from ridgeline.analyze.headline import Headline

BENCH_S = 4.0


def demo(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="where models, engines and the report go")
    ] = Path("ridge-demo"),
    wheel: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a rapidocr wheel already here, for machines offline")
    ] = None,
    threads: Threads = None,
    json: AsJson = False,
) -> None:
    """Build, verify and bench trained models against ONNX Runtime, and print the table.

    Downloads one wheel (29 MB) on its first run; takes about a minute.

    Example:

      ridge demo --folder out
    """
    from ridgeline.cli.draw_bench import draw_headlines

    if wheel is not None:
        require_file(wheel)
    make_folder(folder)
    files = demo_files(folder, wheel=wheel, tell=lambda text: talk.print(text, style="dim"))
    rows = [_build_and_bench(model, path, folder, threads) for model, path in files.items()]
    report = folder / "report.json"
    write_atomically(report, lambda file: file.write(to_json(document("demo", rows)).encode() + b"\n"))
    emit(rows, draw_headlines, as_json=json, schema="demo", file=str(report))
    if not json:
        put_lines([("report", str(report)), ("next", f"ridge explain {rows[0].engine_file}")], out)
    if not all(row.verified and row.agrees for row in rows):
        raise typer.Exit(FAILED_GATE)


def _build_and_bench(model: DemoModel, path: Path, folder: Path, threads: int | None) -> Headline:
    """One model: built, saved, and timed against ONNX Runtime."""
    import onnx

    from ridgeline.analyze.bench import bench
    from ridgeline.analyze.headline import headline
    from ridgeline.analyze.peers import ort_peer
    from ridgeline.analyze.show import summarise
    from ridgeline.cli.engines import build_engine, complete_feeds
    from ridgeline.cli.progress import StageProgress

    talk.print(f"{model.title}: {path.name} at {model.shapes}")
    graph = onnx.load(path, load_external_data=False).graph
    options = {"profiles": {graph.input[0].name: model.shapes}, **({"threads": threads} if threads else {})}
    began = perf_counter()
    engine = build_engine(path, options)
    build_s = perf_counter() - began
    saved = engine.save(folder / f"{path.stem}.ridge")
    with StageProgress(talk) as progress:
        measured = bench(
            engine,
            complete_feeds(engine, {}, seed=0),
            peers=[ort_peer(path, threads=engine.plan.target.threads)],
            duration_s=BENCH_S,
            on_round=lambda done, total: progress("measuring", done, total),
        )
    summary = summarise(engine.plan, engine.report)
    return headline(model.title, summary=summary, measured=measured, build_s=build_s, engine_file=str(saved))
