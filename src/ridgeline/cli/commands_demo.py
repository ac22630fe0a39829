"""`ridge demo`: trained models, from file to verified engine to a table against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from ridgeline.cli.arguments import AsJson, Threads
from ridgeline.cli.demo_models import demo_files
from ridgeline.cli.exits import FAILED_GATE
from ridgeline.cli.files import make_folder, require_file, write_atomically
from ridgeline.cli.grid import put_lines
from ridgeline.cli.render import document, emit, out, talk, to_json

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
    import onnx

    from ridgeline.analyze.bench import bench
    from ridgeline.analyze.headline import headline
    from ridgeline.analyze.peers import ort_peer
    from ridgeline.analyze.show import summarise
    from ridgeline.cli.draw_bench import draw_headlines
    from ridgeline.cli.engines import build_engine, complete_feeds
    from ridgeline.cli.progress import StageProgress

    if wheel is not None:
        require_file(wheel)
    make_folder(folder)
    rows = []
    for model, path in demo_files(
        folder, wheel=wheel, tell=lambda text: talk.print(text, style="dim")
    ).items():
        talk.print(f"{model.title}: {path.name} at {model.shapes}")
        graph = onnx.load(path, load_external_data=False).graph
        options = {
            "profiles": {graph.input[0].name: model.shapes},
            **({"threads": threads} if threads else {}),
        }
        began = perf_counter()
        engine = build_engine(path, options)
        build_s = perf_counter() - began
        saved = folder / f"{path.stem}.ridge"
        engine.save(saved)
        feeds = complete_feeds(engine, {}, seed=0)
        peer = ort_peer(path, threads=engine.plan.target.threads)
        with StageProgress(talk) as progress:
            measured = bench(
                engine,
                feeds,
                peers=[peer],
                duration_s=BENCH_S,
                on_round=lambda done, total: progress("measuring", done, total),
            )
        summary = summarise(engine.plan, engine.report)
        rows.append(
            headline(
                model.title,
                summary=summary,
                measured=measured,
                build_s=build_s,
                engine_file=str(saved),
            )
        )
    report = folder / "report.json"
    write_atomically(report, lambda file: file.write(to_json(document("demo", rows)).encode() + b"\n"))
    emit(rows, draw_headlines, as_json=json, schema="demo", file=str(report))
    if not json:
        put_lines([("report", str(report)), ("next", f"ridge explain {rows[0].engine_file}")], out)
    if not all(row.verified and row.agrees for row in rows):
        raise typer.Exit(FAILED_GATE)
