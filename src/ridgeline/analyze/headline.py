"""One row per model: its build, and its speed against a peer of the same run. Nothing here prints."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.analyze.bench import BenchReport
from ridgeline.analyze.show import Summary


@dataclass(frozen=True)
class Headline:
    """The row of one model."""

    model: str
    shapes: dict[str, tuple[int, ...]]  # of the inputs
    nodes: int  # of the model; Constant nodes are not counted
    steps: int
    peer: str
    peer_us: float
    ours_us: float
    ratio: float
    ratio_p10: float
    ratio_p90: float
    max_error: float | None
    tolerance: float | None
    verified: bool
    agrees: bool  # the outputs of engine and peer, compared in the bench run
    memory_bytes: int
    build_s: float
    engine_file: str = ""
    is_noise: bool = False  # the samples lie on both sides of parity


def headline(
    name: str, *, summary: Summary, measured: BenchReport, build_s: float, engine_file: str = ""
) -> Headline:
    """Make the row from a summary and a bench run with one peer."""
    ours, theirs = measured.rows[:2]
    versus = measured.versus[0]
    worst = summary.verdict.worst
    return Headline(
        model=name,
        shapes={row.name: row.planned or () for row in summary.inputs},
        nodes=summary.nodes,
        steps=len(summary.steps),
        peer=theirs.name,
        peer_us=theirs.median_us,
        ours_us=ours.median_us,
        ratio=versus.ratio,
        ratio_p10=versus.ratio_p10,
        ratio_p90=versus.ratio_p90,
        max_error=worst.max_error if worst else None,
        tolerance=worst.tolerance if worst else None,
        verified=summary.verdict.verified,
        agrees=versus.agrees,
        memory_bytes=sum(row.nbytes for row in summary.memory),
        build_s=build_s,
        engine_file=engine_file,
        is_noise=versus.is_noise,
    )
