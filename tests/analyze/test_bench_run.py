"""The measuring loop with a clock that only queries move, and what is made of its queries."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from threading import Barrier, get_ident
from time import sleep
from typing import Any

import numpy as np
import pytest

from fake_nvml import H200, FakeNvml
from ridgeline.analyze.bench_clocks import Clocks, clock_warnings, watched_clocks
from ridgeline.analyze.bench_export import require_suffix, times_text, write_outputs
from ridgeline.analyze.bench_figures import averages, flat_row, latency_row, part_rows
from ridgeline.analyze.bench_run import Measured, Query, Stamps, measure
from ridgeline.analyze.bench_settings import BenchSettings
from ridgeline.analyze.bench_sweep import find_dim, parse_sweep
from ridgeline.analyze.bench_warnings import bound_elsewhere, side_by_side, too_few, unstable
from ridgeline.base.nvml import Nvml, NvmlError
from ridgeline.base.spec import Port, TensorSpec
from ridgeline.base.timing import Timing
from ridgeline.cli.arrays import read_inputs, read_raw_inputs
from ridgeline.errors import OptionError


class FakeContext:
    """Queries that take as long as they are told, one after the other."""

    def __init__(self, *costs_us: float) -> None:
        self.now_ns, self.runs, self._costs = 0, 0, cycle(costs_us)

    def clock(self) -> int:
        return self.now_ns

    def run(self) -> Stamps:
        start, self.runs = self.now_ns, self.runs + 1
        self.now_ns += int(next(self._costs) * 1e3)
        return Stamps(start, self.now_ns, 1_000, 2_000, 3_000, 4_000)

    def outputs(self) -> Mapping[str, Any]:
        return {}


def measured(*costs_us: float, **settings: Any) -> Measured:
    context = FakeContext(*costs_us)
    wanted = BenchSettings(**{"warmup_ms": 0.0, "duration_s": 0.0, "iterations": 1} | settings)
    return measure([context], wanted, clock=context.clock)


def test_duration_is_the_least_time_and_iterations_the_least_number() -> None:
    assert len(measured(100.0, duration_s=0.01).queries) == 100
    assert len(measured(100.0, iterations=7).queries) == 7
    assert len(measured(100.0, duration_s=0.01, iterations=250).queries) == 250
    assert len(measured(100.0, duration_s=0.01, iterations=5).queries) == 100


def test_warm_up_is_run_and_not_counted() -> None:
    made = measured(100.0, warmup_ms=2.0, iterations=3)
    assert (made.warmup_queries, len(made.queries)) == (20, 3)
    assert made.queries[0].start_us == 0


def test_queries_carry_their_parts_in_microseconds() -> None:
    first, second = measured(100.0, 50.0, iterations=2).queries
    assert first == Query(0, 0.0, 100.0, 1.0, 2.0, 3.0, 4.0)
    assert (second.start_us, second.latency_us) == (100.0, 50.0)


def test_throughput_counts_queries_over_the_time_they_took() -> None:
    made = measured(100.0, 300.0, iterations=10)
    assert made.walltime_s == pytest.approx(0.002)
    assert made.throughput_qps == pytest.approx(5000)


@dataclass
class Meeting:
    """A context whose queries end only when those of all other contexts run as well."""

    together: Barrier
    thread: int = 0
    fails: bool = False

    def run(self) -> Stamps:
        if self.fails:
            raise ValueError("this context broke")
        self.thread = get_ident()
        self.together.wait(timeout=20)
        return Stamps(self.together.parties, self.together.parties + 1)

    def outputs(self) -> Mapping[str, Any]:
        return {}


def test_contexts_run_side_by_side_in_threads_of_their_own() -> None:
    together = Barrier(3)
    contexts = [Meeting(together) for _ in range(3)]
    made = measure(contexts, BenchSettings(duration_s=0.0, warmup_ms=0.0, iterations=5), clock=lambda: 0)
    assert len({context.thread for context in contexts}) == 3
    assert sorted(query.context for query in made.queries) == [0] * 5 + [1] * 5 + [2] * 5


def test_a_context_that_fails_ends_all() -> None:
    contexts = [Meeting(Barrier(1)), Meeting(Barrier(1), fails=True)]
    with pytest.raises(ValueError, match="this context broke"):
        measure(contexts, BenchSettings(duration_s=30.0, warmup_ms=0.0))


def test_averages_are_of_queries_in_a_row() -> None:
    queries = measured(10.0, 20.0, 60.0, iterations=8).queries
    rows = averages(queries, 3)
    assert [(row.queries, row.latency_us, row.start_us) for row in rows] == [(3, 30.0, 0.0), (3, 30.0, 90.0)]
    assert (rows[0].enqueue_us, rows[0].h2d_us, rows[0].compute_us, rows[0].d2h_us) == (1.0, 2.0, 3.0, 4.0)
    assert averages(queries, 0) == ()
    assert len(averages(queries, 8)) == 1


def test_averages_never_mix_contexts() -> None:
    queries = [Query(i % 2, float(i), i + 1.0 + i % 2, None, None, None, None) for i in range(8)]
    assert [(row.context, row.latency_us) for row in averages(queries, 2)] == [
        (0, 1.0), (1, 2.0), (0, 1.0), (1, 2.0),
    ]  # fmt: skip


def test_percentiles_are_those_asked_for() -> None:
    row = latency_row("ridgeline", Timing(tuple(map(float, range(1, 1001)))), (50.0, 99.9))
    assert row.percentiles_us == {"50": 500.0, "99.9": 999.0}
    parts = part_rows(measured(*map(float, range(1, 11)), iterations=10).queries, (50.0,), on_gpu=True)
    assert {part.part: part.median_us for part in parts} == {
        "enqueue": 1.0, "h2d": 2.0, "compute": 3.0, "d2h": 4.0,
    }  # fmt: skip


def test_a_row_for_tables_has_a_column_for_each_percentile() -> None:
    row = flat_row(latency_row("ridgeline", Timing((1.0, 2.0)), (50.0, 99.9)))
    assert (row["p50_us"], row["p99.9_us"], "percentiles_us" in row) == (1.0, 2.0, False)


def test_a_part_that_was_not_measured_has_no_row() -> None:
    queries = [Query(0, 0.0, 9.0, None, None, 5.0, None), Query(0, 9.0, 18.0, None, 1.0, 6.0, None)]
    assert [part.part for part in part_rows(queries, (), on_gpu=True)] == ["compute"]


@pytest.mark.parametrize(("samples", "said"), [(50, "p99, p99.9 of 50"), (100, "p99.9 of 100"), (1000, "")])
def test_a_percentile_that_is_only_the_maximum_is_said(samples: int, said: str) -> None:
    row = latency_row("ridgeline", Timing((1.0,) * samples), (90.0, 99.0, 99.9, 100.0))
    found = list(too_few(row, (90.0, 99.0, 99.9, 100.0)))
    assert [said in warning for warning in found] == [True] * bool(said)
    assert not found or "1,000 or more" in found[0]


def parts_of(enqueue: float, h2d: float, compute: float, d2h: float) -> Any:
    return part_rows([Query(0, 0.0, 99.0, enqueue, h2d, compute, d2h)], (), on_gpu=True)


def test_what_bounds_a_query_is_said() -> None:
    assert list(bound_elsewhere(parts_of(5, 5, 10, 5))) == []
    (bound,) = bound_elsewhere(parts_of(9, 5, 10, 5))
    assert "enqueue-bound: the host takes 9.0 µs to queue 10.0 µs" in bound
    (bound,) = bound_elsewhere(parts_of(5, 5, 10, 12))
    assert "transfer-bound: device to host takes 12.0 µs" in bound
    assert len(list(bound_elsewhere(parts_of(9, 10, 10, 12)))) == 3


def test_unstable_and_crowded_runs_are_said() -> None:
    assert list(unstable({"ridgeline": 0.02, "ort": 0.02})) == []
    assert "ort 3.0 %" in next(unstable({"ridgeline": 0.02, "ort": 0.03}))
    assert list(side_by_side(1, 8, 2)) == []
    assert len(list(side_by_side(2, 1, 2))) == 1
    assert "want 4 cores, and there are 2" in list(side_by_side(2, 2, 2))[1]
    assert len(list(side_by_side(2, 2, None))) == 1


def test_clocks_that_were_held_down_or_may_move_are_said() -> None:
    throttled = Clocks([1980, 1400], [("idle",), ("power cap", "set by user")])
    assert "throttled: power cap held the GPU's clocks down" in next(clock_warnings(throttled))
    free = Clocks([1980, 1500], [(), ()], index=3, max_mhz=1980)
    (warning,) = clock_warnings(free)
    assert "not locked, and moved from 1500 to 1980 MHz" in warning
    assert "nvidia-smi -i 3 -lgc 1980" in warning
    assert "moved" not in next(clock_warnings(Clocks([1980, 1975], [(), ()])))
    assert list(clock_warnings(Clocks([1980], [("set by user",)]))) == []
    assert list(clock_warnings(Clocks([], [("idle",)]))) == []
    assert next(clock_warnings(Clocks(why_not="no driver"))) == "clocks were not watched: no driver"


def test_clocks_are_read_while_it_runs() -> None:
    slowed = H200 | {"nvmlDeviceGetCurrentClocksEventReasons": 0x4, "nvmlDeviceGetClockInfo 1": 1200}
    with watched_clocks(lambda: Nvml(FakeNvml(slowed)), interval_s=0.001) as seen:
        for _ in range(1000):
            if seen.reasons:
                break
            sleep(0.005)
    assert (seen.sm_mhz[0], seen.reasons[0], seen.max_mhz) == (1200, ("power cap",), 1980)

    def no_driver() -> Nvml:
        raise NvmlError("there is no driver")

    with watched_clocks(no_driver) as seen:
        pass
    assert seen.why_not == "there is no driver"
    with watched_clocks(lambda: Nvml(FakeNvml(absent=("nvmlDeviceGetCount_v2",)))) as seen:
        pass
    assert seen.why_not == "counting the GPUs failed"


def test_times_are_exported_query_by_query() -> None:
    queries = measured(100.0, 50.0, iterations=2).queries
    rows = list(csv.DictReader(io.StringIO(times_text(queries, Path("t.csv")))))
    assert [row["latency_us"] for row in rows] == ["100.0", "50.0"]
    assert rows[1] == {
        "context": "0", "start_us": "100.0", "end_us": "150.0", "latency_us": "50.0", "enqueue_us": "1.0",
        "h2d_us": "2.0", "compute_us": "3.0", "d2h_us": "4.0",
    }  # fmt: skip
    told = json.loads(times_text(queries, Path("t.json")))
    assert told["schema"] == "ridgeline/bench_times/1"
    assert told["rows"][1] == {name: float(text) for name, text in rows[1].items()}


def test_outputs_keep_any_name_and_type(tmp_path: Path) -> None:
    outputs = {"file": np.arange(3), "a/b": np.ones((2, 2), np.float16), "s": np.array(["x"], object)}
    with (tmp_path / "o.npz").open("wb") as file:
        write_outputs(outputs, tmp_path / "o.npz", file)
    with np.load(tmp_path / "o.npz", allow_pickle=False) as saved:
        loaded = dict(saved)
    assert {name: array.tolist() for name, array in loaded.items()} == {
        "file": [0, 1, 2], "a/b": [[1.0, 1.0]] * 2, "s": ["x"],
    }  # fmt: skip
    assert loaded["a/b"].dtype == np.float16
    made = io.BytesIO()
    write_outputs(outputs, Path("o.json"), made)
    assert json.loads(made.getvalue())["outputs"]["a/b"] == {
        "type": "float16", "shape": [2, 2], "values": [[1.0, 1.0]] * 2,
    }  # fmt: skip
    with pytest.raises(OptionError, match="cannot tell the form"):
        require_suffix(Path("o.txt"), "--export-output", (".npz", ".json"))


@pytest.mark.parametrize("name", ["x.npy", "x.bin"])
def test_a_device_is_no_file_of_inputs(tmp_path: Path, name: str) -> None:
    """A device has no end: reading it whole would fill the memory."""
    path = tmp_path / name
    path.symlink_to("/dev/zero")
    spec = {"x": TensorSpec("float32", (2, 8))}
    with pytest.raises(OptionError, match="not a regular file"):
        read_inputs([f"x={path}"]) if name.endswith("npy") else read_raw_inputs([f"x={path}"], spec)


def test_a_sweep_is_read_as_powers_of_two_or_as_written() -> None:
    assert parse_sweep("batch=1..64").sizes == (1, 2, 4, 8, 16, 32, 64)
    assert parse_sweep("N=3..20").sizes == (3, 4, 8, 16, 20)
    assert parse_sweep("N=5,1, 2,5").sizes == (1, 2, 5)
    assert parse_sweep("N=4..4").sizes == (4,)
    for wrong in ("batch", "=1..4", "batch=", "batch=1..", "batch=1..4..8", "batch=a", "batch=1.5"):
        with pytest.raises(OptionError, match="does not read as DIM=SIZES"):
            parse_sweep(wrong)
    for empty in ("batch=8..2", "batch=0", "batch=0..4"):
        with pytest.raises(OptionError, match="no size to run at"):
            parse_sweep(empty)
    for large in ("batch=1..3000000000", "batch=1,99999999999999999999", f"batch=1..{'9' * 5000}"):
        with pytest.raises(OptionError, match="too large"):
            parse_sweep(large)


def test_a_swept_dim_is_found_by_name_or_as_the_batch() -> None:
    inputs = (Port("x", "float32", ("N", 3, "H")), Port("y", "float32", ("N",)))
    assert find_dim(inputs, "batch") == find_dim(inputs, "N") == "N"
    assert find_dim(inputs, "H") == "H"
    with pytest.raises(OptionError, match="no input has a dim 'M'"):
        find_dim(inputs, "M")
    with pytest.raises(OptionError, match="fixed at 2"):
        find_dim((Port("x", "float32", (2, "H")),), "batch")
