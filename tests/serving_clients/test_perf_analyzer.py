"""The real perf_analyzer, unmodified: closed and open loops over both protocols, its columns, its metrics."""

from __future__ import annotations

import csv
import re
import subprocess
from pathlib import Path

import pytest
from served import Server

SHORT = ["--measurement-mode", "count_windows", "--measurement-request-count", "30"]
SHORT += ["-s", "100000", "-r", "5"]
TIMEOUT_S = 120
GRPC, HTTP = "grpc", "http"


def analyze(
    analyzer: list[str], server: Server, protocol: str, *words: str, path: Path
) -> list[dict[str, float]]:
    """The rows of its CSV."""
    url = {GRPC: server.grpc, HTTP: server.http}[protocol]
    command = [*analyzer, "-u", url, "-i", protocol, "-f", str(path), *words, *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with path.open() as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def require_plausible(row: dict[str, float]) -> None:
    assert row["Inferences/Second"] > 10
    assert 0 < row["p50 latency"] <= row["p90 latency"] <= row["p99 latency"]
    assert row["Server Compute Infer"] > 0
    server = sum(
        row[f"Server {part}"] for part in ("Queue", "Compute Input", "Compute Infer", "Compute Output")
    )
    assert server <= row["p99 latency"] * 1.5


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_a_range_of_concurrency(analyzer: list[str], server: Server, protocol: str, tmp_path: Path) -> None:
    words = ["-m", "mlp", "--concurrency-range", "1:4:3", "-b", "2"]
    rows = analyze(analyzer, server, protocol, *words, path=tmp_path / "a.csv")
    assert sorted(row["Concurrency"] for row in rows) == [1, 4]
    for row in rows:
        require_plausible(row)


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_a_range_of_rates(analyzer: list[str], server: Server, protocol: str, tmp_path: Path) -> None:
    words = ["-m", "affine", "--request-rate-range", "50:100:50"]
    rows = analyze(analyzer, server, protocol, *words, path=tmp_path / "a.csv")
    assert sorted(row["Request Rate"] for row in rows) == [50, 100]
    for row in rows:
        require_plausible(row)


def test_requests_side_by_side_and_in_json(analyzer: list[str], server: Server, tmp_path: Path) -> None:
    for words in (["--async"], ["--input-tensor-format", "json", "--output-tensor-format", "json"]):
        more = ["-m", "mlp", "--concurrency-range", "4", *words]
        (row,) = analyze(analyzer, server, HTTP, *more, path=tmp_path / "a.csv")
        require_plausible(row)


def test_a_stream(analyzer: list[str], server: Server, tmp_path: Path) -> None:
    words = ["-m", "mlp", "--concurrency-range", "2", "--streaming"]
    (row,) = analyze(analyzer, server, GRPC, *words, path=tmp_path / "a.csv")
    assert row["Inferences/Second"] > 10


def test_an_ensemble_with_its_steps(analyzer: list[str], server: Server) -> None:
    command = [*analyzer, "-u", server.http, "-m", "pair", "--concurrency-range", "2", *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Composing models:\s+affine", done.stdout)


def test_it_reads_the_server_s_metrics(analyzer: list[str], server: Server, tmp_path: Path) -> None:
    """Without a GPU there are no columns of it; the page is read all the same."""
    words = ["-m", "mlp", "--concurrency-range", "2", "--verbose-csv", "--collect-metrics"]
    words += ["--metrics-url", f"{server.metrics}/metrics", "--metrics-interval", "50"]
    (row,) = analyze(analyzer, server, HTTP, *words, path=tmp_path / "a.csv")
    require_plausible(row)
