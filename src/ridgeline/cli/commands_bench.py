"""`ridge bench`: how fast an engine is, alone or against its peers in the same run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import AsJson, EngineOrModel, Seed, Trust, parse_names
from ridgeline.cli.bench_options import ADDED, AsCsv, InputFiles, Rebuild, SweepOption, require_no_more, take
from ridgeline.cli.exits import FAILED_GATE
from ridgeline.cli.files import is_engine_file, require_file, require_outputs, write_atomically
from ridgeline.cli.render import emit, say_error, talk
from ridgeline.cli.shared_options import with_options
from ridgeline.errors import OptionError

PEERS = ("ort", "torch")
# without these tactics each ONNX op is one PyTorch call
NOT_OP_BY_OP = ("ort", "cpp", "onednn", "mkl")


def _with_bench_options(command: Any) -> Any:
    return with_options(command, ADDED, take)


@_with_bench_options
def bench(
    engine: EngineOrModel,
    peers: Annotated[str, typer.Option(metavar="ort,torch", help="peers to run side by side")] = "",
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the ONNX file an ENGINE was built from, for the peers"),
    ] = None,
    sweep: SweepOption = "",
    rebuild: Rebuild = False,
    input: InputFiles = None,
    seed: Seed = 0,
    trust: Trust = False,
    csv: AsCsv = False,
    json: AsJson = False,
    *,
    options: dict[str, Any],
    settings: Any,
    exports: dict[str, Path],
) -> None:
    """Measure latency and throughput; with peers, in one interleaved run, outputs compared.

    Beside an ENGINE, --shapes are the sizes to run it at; beside a MODEL, those to build it for. Exit status
    3 when an output differs from a peer's, or between contexts, by more than verification allows.

    Examples:

      ridge bench model.onnx --peers ort,torch

      ridge bench model.ridge --shapes x=8x3x224x224 --concurrency 4 --percentile 99,99.9

      ridge bench model.onnx --sweep batch=1..64
    """
    rivals = parse_names(peers, option="--peers", known=PEERS)
    require_no_more("--json", {"--csv": csv and json})
    more = {"--input": bool(input), "--avg-runs": bool(settings.avg_runs)}
    _require_compatible(sweep, rivals, exports, more, rebuild=rebuild)
    require_outputs(exports, source=engine, inputs=input)
    if model is not None:
        require_file(model)
    _require_possible(settings, engine, options, rivals)
    if sweep:
        _sweep(engine, sweep, options, settings, seed=seed, rebuild=rebuild, trust=trust, csv=csv, json=json)
        return
    from ridgeline.analyze.bench_export import report_csv
    from ridgeline.cli.draw_bench import draw_bench, draw_csv
    from ridgeline.cli.engines import load_or_build, tell_notes

    sizes = _run_sizes(engine, options)
    built = load_or_build(engine, options, trust=trust)
    feeds = _feeds(input, built, seed=seed, sizes=sizes)
    made = _measure(built, feeds, _peers(rivals, model or engine, built), settings)
    _export(made, built, feeds, exports)
    tell_notes(built)
    draw = partial(draw_csv, text=report_csv(made.report)) if csv else draw_bench
    _tell_warnings(made.report.warnings if csv else ())
    emit(made.report, draw, as_json=json, schema="bench", file=str(engine))
    _gate(made.report.passed, "a peer's" if rivals else "that of another context")


def _require_possible(settings: Any, engine: Path, options: Mapping[str, Any], rivals: Sequence[str]) -> None:
    """Raise before a build if what it makes cannot be measured so. An engine is asked once it is read."""
    from ridgeline.analyze.bench_settings import require_alone, require_possible
    from ridgeline.cli.engines import target_of

    if rivals:
        require_alone(settings)
    target = target_of(engine, options)
    if target is not None:
        require_possible(settings, target)


def _measure(built: Any, feeds: Mapping[str, Any], opponents: Sequence[Any], settings: Any) -> Any:
    from ridgeline.analyze.bench import BenchRun, bench_alone, bench_peers
    from ridgeline.analyze.doctor import CACHE
    from ridgeline.analyze.doctor_host import read_host
    from ridgeline.cli.progress import StageProgress

    with StageProgress(talk) as progress:
        on_round = partial(progress, "measuring")
        if not opponents:
            host = read_host(CACHE.expanduser())
            return bench_alone(built, feeds, settings, on_round=on_round, host=host)
        return BenchRun(bench_peers(built, feeds, opponents, settings, on_round=on_round), (), {})


def _require_compatible(
    sweep: str, rivals: Sequence[str], exports: Mapping[str, Path], more: dict[str, bool], *, rebuild: bool
) -> None:
    """Options that would be ignored beside others are errors; `more` are those that a sweep would ignore."""
    given = dict.fromkeys(exports, True)
    if sweep:
        require_no_more("--sweep", {"--peers": bool(rivals), **given, **more})
    elif rebuild:
        raise OptionError("--rebuild is for --sweep", help="add --sweep batch=1..64, or leave it out")
    if rivals:
        require_no_more("--peers", {flag: True for flag in given if flag != "--export-profile"})


def _run_sizes(engine: Path, options: dict[str, Any]) -> dict[str, str] | None:
    """Of an engine that is built already, --shapes are the sizes to run it at."""
    return options.pop("profiles", None) if is_engine_file(engine) else None


def _feeds(
    given: Sequence[str] | None, built: Any, *, seed: int, sizes: Mapping[str, str] | None
) -> dict[str, Any]:
    from ridgeline.cli.arrays import read_inputs, read_raw_inputs, split_raw
    from ridgeline.cli.engines import complete_feeds, require_same_sizes, run_shapes

    arrays, raw = split_raw(given or ())
    found = read_inputs(arrays) | read_raw_inputs(raw, run_shapes(built.plan, sizes or {}) if raw else {})
    require_same_sizes(found, sizes or {})
    return complete_feeds(built, found, seed=seed, sizes=sizes)


def _export(made: Any, built: Any, feeds: Mapping[str, Any], exports: Mapping[str, Path]) -> None:
    from ridgeline.analyze.bench_export import layers_text, times_text, write_outputs

    for flag, path in exports.items():
        if flag == "--export-output":
            write_atomically(path, partial(write_outputs, made.outputs, path))
            continue
        text = (
            times_text(made.queries, path)
            if flag == "--export-times"
            else layers_text(built.profile(feeds), path)
        )
        content = text.encode("utf-8")
        write_atomically(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
    for path in exports.values():
        talk.print(f"wrote {path}", style="dim")


def _sweep(
    engine: Path, text: str, options: dict[str, Any], settings: Any, *, seed: int, rebuild: bool, trust: bool,
    csv: bool, json: bool,
) -> None:  # fmt: skip
    from ridgeline.analyze.bench_export import sweep_csv
    from ridgeline.analyze.bench_sweep import parse_sweep, shapes_at, sweep
    from ridgeline.cli.draw_bench import draw_csv, draw_sweep
    from ridgeline.cli.engines import run_shapes
    from ridgeline.cli.progress import StageProgress
    from ridgeline.cli.sweep_engines import engines_for

    asked = parse_sweep(text)
    sizes = _run_sizes(engine, options)
    engine_at, wanted = engines_for(engine, asked, options, rebuild=rebuild, trust=trust)

    def feeds_at(built: Any, size: int) -> dict[str, Any]:
        shapes = shapes_at(built.plan.inputs, run_shapes(built.plan, sizes or {}), wanted.dim, size)
        return built.example_inputs(seed=seed, shapes=shapes)  # type: ignore[no-any-return]

    with StageProgress(talk) as progress:
        report = sweep(
            engine_at, feeds_at, wanted, settings, rebuilt=rebuild, on_size=partial(progress, "measuring")
        )
    draw = partial(draw_csv, text=sweep_csv(report)) if csv else draw_sweep
    _tell_warnings([f"at {row.size}: {each}" for row in report.rows for each in row.warnings] if csv else ())
    emit(report, draw, as_json=json, schema="bench_sweep", file=str(engine))
    _gate(report.passed, "that of another context")


def _tell_warnings(warnings: Sequence[str]) -> None:
    """Beside CSV, which has no room for them."""
    for warning in warnings:
        talk.print(f"warning: {warning}", style="yellow", soft_wrap=True)


def _gate(passed: bool, other: str) -> None:
    if not passed:
        say_error(f"an output differs from {other} by more than verification allows")
        raise typer.Exit(FAILED_GATE)


def _peers(names: Sequence[str], source: Path, built: Any) -> list[Any]:
    """Peers that run the model; where only the engine file is given, the engine's own fused graph."""
    with tempfile.TemporaryDirectory(prefix="ridge-bench-") as folder:
        note = ""
        if names and is_engine_file(source):
            source = Path(folder) / "fused.onnx"
            source.write_bytes(built.fused_onnx(weights=True).SerializeToString())
            note = "runs the engine's fused.onnx (no --model given)"
        return [_peer(name, source, built, note) for name in names]


def _peer(name: str, source: Path, built: Any, note: str) -> Any:
    from ridgeline.analyze.bench import Peer
    from ridgeline.analyze.peers import ort_peer
    from ridgeline.cli.engines import build_engine

    plan = built.plan
    if name == "ort":
        return ort_peer(source, threads=plan.target.threads, note=note)
    options = {
        "level": 0,
        "verify": "off",
        "threads": plan.target.threads,
        "without": NOT_OP_BY_OP,
        "profiles": dict(plan.profile),
    }
    return Peer("torch (op by op)", build_engine(source, options).run, note)
