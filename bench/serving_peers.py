"""`ridge serve` beside MLServer, LitServe and Ray Serve: the highest rate whose p99 keeps a bound.

    python -m bench.serving_peers [--quick] [--rounds 2] [--seconds 6] [--models mlp,minilm]
                                  [--servers ridgeline,…] [--environments DIR] [--out FILE]

Every server runs on one core with one thread of compute, the generator on another, all in one run, one at a
time. Requests arrive at random (an open loop), one row each. Peers run ONNX Runtime in environments of their
own, which are made on first use (1.2 GB); each is tried with the settings of `VARIANTS`, and the best of
them is measured at length. A server whose answer is not ONNX Runtime's has no row.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from bench.models_cpu import RESULTS, surroundings
from bench.serving_models import SUBJECTS, Subject
from bench.serving_servers import (
    OURS,
    PACKAGES,
    VARIANTS,
    ServerFailed,
    Variant,
    install,
    package_version,
    processor_seconds,
    read_output,
    request_of,
    running,
)
from ridgeline.serve.clients.address import Address
from ridgeline.serve.clients.wire import HEADER_LENGTH
from ridgeline.serve.loadtest.connections import Connector
from ridgeline.serve.loadtest.loadtest import BOUNDS
from ridgeline.serve.loadtest.rows import LevelRow, flat
from ridgeline.serve.loadtest.run import LoadSettings, LoadTest
from ridgeline.serve.loadtest.search import CLOSE, search

SERVER_CORE, GENERATOR_CORE = 0, 1
FIRST_PORT = 18080
TOLERANCE = 1e-3  # of the largest value: other tactics, other batches
TRIAL_SECONDS, TRIAL_CLOSE = 1.0, 0.12
STEADY = 0.7  # of the best rate: where processor time per request is taken
BESIDE = ("onnxruntime", "uvicorn")  # versions that are told of each peer
FAILURES = (OSError, HTTPException, ValueError, ServerFailed)


@dataclass
class Round:
    """One search: its best rate, and the server at a steady part of that."""

    best_rps: float | None
    levels: list[dict[str, Any]]
    p50_us: float | None = None
    p99_us: float | None = None
    server_cpu_us: float | None = None  # processor time of all its processes, per request
    generator_share: float | None = None
    problem: str = ""  # of a server that failed


@dataclass
class Row:
    """One server with one model."""

    model: str
    server: str
    variant: str
    wire: str
    bound_ms: float
    gate: str  # "pass", or why there are no figures
    request_bytes: int = 0
    best_rps: float | None = None  # the median of the rounds; of one without a rate, 0
    trials: dict[str, float | None] = field(
        default_factory=dict
    )  # best rate of every variant, in a short search
    rounds: list[Round] = field(default_factory=list)


class Bench:
    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments, self._folder = arguments, folder
        self._port = FIRST_PORT

    def rows(self, subject: Subject, servers: Sequence[str]) -> list[Row]:
        """Trials first; then rounds, in each of which every server has its turn."""
        rows, chosen = [], {}
        for server in servers:
            chosen[server], row = self._choose(subject, server)
            rows.append(row)
        for number in range(self._arguments.rounds):
            for row in rows[:: 1 if number % 2 == 0 else -1]:
                if row.gate == "pass":
                    row.rounds.append(self._round(chosen[row.server], subject))
                    print(f"  {subject.name:8} {row.server:15} {_told_round(row.rounds[-1])}", flush=True)
        for row in rows:
            # a round in which no rate kept the bound is a rate of nothing, or the others would hide it
            row.best_rps = (
                statistics.median(each.best_rps or 0.0 for each in row.rounds) if row.rounds else None
            )
        return rows

    def _round(self, variant: Variant, subject: Subject) -> Round:
        """One search at length. A server that fails in it has no rate, and the others keep theirs."""
        try:
            return self._search(variant, subject, self._arguments.seconds, is_final=True)
        except FAILURES as error:
            return Round(None, [], problem=_told_failure(error))

    def _choose(self, subject: Subject, server: str) -> tuple[Variant, Row]:
        """The variant with the highest rate in a short search."""
        variants = [variant for variant in VARIANTS if variant.server == server]
        trials: dict[str, float | None] = {}
        gates = {}
        for variant in variants:
            try:
                trials[variant.name] = self._search(variant, subject, TRIAL_SECONDS).best_rps
                gates[variant.name] = "pass"
            except FAILURES as error:
                trials[variant.name] = None
                gates[variant.name] = _told_failure(error)
            told = gates[variant.name] if gates[variant.name] != "pass" else _rate(trials[variant.name])
            print(f"  {subject.name:8} {server:15} {variant.name:38} {told}", flush=True)
        best = max(variants, key=lambda variant: (gates[variant.name] == "pass", trials[variant.name] or 0.0))
        request, _ = request_of(best, subject, Address(port=self._port))
        row = Row(
            subject.name, server, best.name, best.wire, subject.bound_us / 1e3, gates[best.name],
            request_bytes=len(request), trials=trials,
        )  # fmt: skip
        return best, row

    def _search(self, variant: Variant, subject: Subject, seconds: float, *, is_final: bool = False) -> Round:
        with self._serving(variant, subject, seconds) as (test, mark):
            levels, best = search(test, subject.bound_us, close=CLOSE if is_final else TRIAL_CLOSE)
            made = Round(best, [_told(row) for row in levels])
            if best is not None:
                before = processor_seconds(mark)
                steady = test.open(STEADY * best)
                spent = processor_seconds(mark) - before
                made.p50_us, made.p99_us = steady.percentiles_us.get("50"), steady.p99_us
                # the warm-up's requests are as many for each second
                share = steady.seconds / (steady.seconds + self._warmup(seconds))
                made.server_cpu_us = spent * share * 1e6 / max(steady.requests, 1)
                made.generator_share = steady.generator_share
        return made

    def _warmup(self, seconds: float) -> float:
        return min(1.0, seconds / 2)

    @contextmanager
    def _serving(self, variant: Variant, subject: Subject, seconds: float) -> Iterator[tuple[LoadTest, str]]:
        """A server that answers as ONNX Runtime does, under a generator."""
        self._port += 2  # a port that was just left may not be free yet
        python = install(variant.server, self._arguments.environments)
        address = Address(port=self._port)
        request, _ = request_of(variant, subject, address)
        with running(
            variant, subject, self._port, python=python, folder=self._folder, core=SERVER_CORE
        ) as started:
            started.wait_until(lambda: _answers(variant, subject, address, request))
            settings = LoadSettings(
                duration_s=max(seconds, BOUNDS * subject.bound_us / 1e6), warmup_s=self._warmup(seconds)
            )
            with closing(LoadTest(Connector(address), [request], settings)) as test:
                yield test, started.mark


def _answers(variant: Variant, subject: Subject, address: Address, request: bytes) -> bool:
    """False while nothing answers; `ServerFailed` if what answers computes something else."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = dict(line.split(": ", 1) for line in lines)
    with closing(HTTPConnection(address.host, address.port, timeout=30)) as connection, suppress(OSError):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content, length = response.read(), response.headers.get(HEADER_LENGTH)
        if response.status != 200:
            return False
        got = read_output(variant, subject, content, None if length is None else int(length))
        apart = float(np.abs(got.reshape(subject.expected.shape) - subject.expected).max())
        if not apart <= TOLERANCE * float(np.abs(subject.expected).max()):
            raise ServerFailed(f"its answer is {apart:.2g} away from ONNX Runtime's")
        return True
    return False


def put_model(subject: Subject, folder: Path) -> None:
    """Our repository with the engine, planned for one thread."""
    place = folder / subject.name / "model" / "1"
    place.mkdir(parents=True)
    (place.parent / "config.pbtxt").write_text(f"max_batch_size: {subject.max_batch}\n", encoding="utf-8")
    words = ["--profile", subject.profile, "--threads", "1", "-o", place / "model.ridge"]
    command = [sys.executable, "-m", "ridgeline", "build", subject.path, *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compared(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By model: our rate over each peer's."""
    made: dict[str, dict[str, float]] = {}
    for ours in rows:
        if ours.server == OURS and ours.best_rps:
            peers = [row for row in rows if row.model == ours.model and row.server != OURS and row.best_rps]
            made[ours.model] = {row.server: round(ours.best_rps / row.best_rps, 2) for row in peers}
    return made


def _told(row: LevelRow) -> dict[str, Any]:
    names = (
        "level",
        "requests",
        "throughput_rps",
        "p50_us",
        "p99_us",
        "errors",
        "generator_share",
        "late_p99_us",
    )
    values = flat(row)
    return {name: _rounded(values[name]) for name in names} | {"gave_up": row.gave_up}


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _rate(rate: float | None) -> str:
    return "no rate keeps the bound" if rate is None else f"{rate:,.1f} requests/s"


def _told_round(made: Round) -> str:
    return made.problem or _rate(made.best_rps)


def _told_failure(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _note(row: Row) -> str:
    """Why there are no figures, or in how many rounds there were none."""
    if row.gate != "pass":
        return row.gate
    without = [each for each in row.rounds if each.best_rps is None]
    return f"{len(without)} of {len(row.rounds)} rounds: {_told_round(without[0])}" if without else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round: a look, not a result")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each level")
    parser.add_argument("--models", default=",".join(SUBJECTS))
    parser.add_argument("--servers", default=",".join(dict.fromkeys(each.server for each in VARIANTS)))
    place = Path(tempfile.gettempdir()) / "ridgeline-serving-peers"
    parser.add_argument("--environments", type=Path, default=place)
    parser.add_argument("--out", type=Path, default=RESULTS / f"serving-peers-{date.today()}.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, TRIAL_SECONDS
    servers = arguments.servers.split(",")
    pythons = {server: install(server, arguments.environments) for server in servers}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="ridge-peers-") as scratch:
        subjects = [SUBJECTS[name](Path(scratch)) for name in arguments.models.split(",")]
        for subject in subjects:
            put_model(subject, Path(scratch))
        os.sched_setaffinity(0, {GENERATOR_CORE})
        for subject in subjects:
            rows += Bench(arguments, Path(scratch)).rows(subject, servers)
            # hours of work: what is measured is kept whatever becomes of the next subject
            _write(arguments, rows, pythons)
    _show(rows, compared(rows), arguments.out)


def _write(arguments: argparse.Namespace, rows: Sequence[Row], pythons: dict[str, Path]) -> None:
    made = {
        **surroundings(threads=1, duration_s=arguments.seconds), "kernel": platform.release(),
        "cores_used": {"server": SERVER_CORE, "generator": GENERATOR_CORE}, "rounds": arguments.rounds,
        "peers": {
            server: {name: package_version(python, name) for name in (_name(server), *BESIDE)}
            for server, python in pythons.items() if server in PACKAGES
        },
        "variants": [asdict(variant) for variant in VARIANTS if variant.server in pythons],
        "ours_over": compared(rows), "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    arguments.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def _name(server: str) -> str:
    return PACKAGES[server][0].partition("==")[0].partition("[")[0]


def _show(rows: Sequence[Row], ours_over: dict[str, dict[str, float]], out: Path) -> None:
    print(f"\n{'model':8} {'server':15} {'best variant':38} {'requests/s':>12} {'ours is':>8} {'CPU µs':>8}")
    for row in rows:
        times = ours_over.get(row.model, {}).get(row.server)
        spent = [each.server_cpu_us for each in row.rounds if each.server_cpu_us is not None]
        told = f"{row.best_rps:,.1f}" if row.best_rps else "–"
        cpu = f"{statistics.median(spent):,.0f}" if spent else "–"
        over = f"{times:.2f}×" if times else ""
        print(f"{row.model:8} {row.server:15} {row.variant:38} {told:>12} {over:>8} {cpu:>8}  {_note(row)}")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
