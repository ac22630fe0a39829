"""`ridge bench`: how fast an engine is, alone or against its peers in the same run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import (
    AsJson,
    EngineOrModel,
    Inputs,
    Seed,
    Trust,
    parse_names,
)
from ridgeline.cli.exits import FAILED_GATE
from ridgeline.cli.files import is_engine_file, require_file
from ridgeline.cli.render import emit, say_error, talk
from ridgeline.cli.shared_options import with_build_options

PEERS = ("ort", "torch")
# without these tactics each ONNX op is one PyTorch call
NOT_OP_BY_OP = ("ort", "cpp", "onednn", "mkl")


@with_build_options
def bench(
    engine: EngineOrModel,
    peers: Annotated[str, typer.Option(metavar="ort,torch", help="peers to run side by side")] = "",
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the ONNX file an ENGINE was built from, for the peers"),
    ] = None,
    duration: Annotated[float, typer.Option(min=0.0, metavar="S", help="seconds to measure each for")] = 3.0,
    warmup: Annotated[
        float, typer.Option(min=0.0, metavar="MS", help="milliseconds to warm each up")
    ] = 200.0,
    input: Inputs = None,
    seed: Seed = 0,
    trust: Trust = False,
    json: AsJson = False,
    *,
    options: dict[str, Any],
) -> None:
    """Measure latency and throughput; with peers, in one interleaved run, outputs compared.

    Exit status 3 when an output differs from a peer's by more than verification allows.

    Examples:

      ridge bench model.onnx --peers ort,torch

      ridge bench model.ridge --peers ort --model model.onnx --duration 10
    """
    from ridgeline.analyze.bench import bench as measure
    from ridgeline.cli.arrays import read_inputs
    from ridgeline.cli.draw_bench import draw_bench
    from ridgeline.cli.engines import complete_feeds, load_or_build, tell_notes
    from ridgeline.cli.progress import StageProgress

    rivals = parse_names(peers, option="--peers", known=PEERS)
    if model is not None:
        require_file(model)
    given = read_inputs(input)
    built = load_or_build(engine, options, trust=trust)
    feeds = complete_feeds(built, given, seed=seed)
    opponents = _peers(rivals, model or engine, built)
    with StageProgress(talk) as progress:
        report = measure(
            built, feeds, peers=opponents, duration_s=duration, warmup_ms=warmup,
            on_round=lambda done, total: progress("measuring", done, total),
        )  # fmt: skip
    tell_notes(built)
    emit(report, draw_bench, as_json=json, schema="bench", file=str(engine))
    if not report.passed:
        say_error("an output differs from a peer's by more than verification allows")
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
