"""LSTM, GRU and RNN as generated C++: weights packed once, all steps and directions in one call."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.base.spec import Config, Site
from ridgeline.kernels.cpp.compiler import cpu_lanes, find_compiler
from ridgeline.kernels.cpp.linear import PARALLEL_MACS
from ridgeline.kernels.cpp.recurrent import Cut, Recurrent, find_recurrent, pack_recurrent, recurrent_source
from ridgeline.tactics.cpu.cpp import CppReading, GeneratedCpp
from ridgeline.tactics.read.epilogue import constant_tensors

# about 10 µs of work: a step in which threads share the units ends with waiting for the slowest of them
TEAM_MACS = 256 * 1024
# a recurrent weight that one core's L2 does not hold, so that each thread had better read only its share
LARGE_BYTES = 1024 * 1024


class CppRecurrent(GeneratedCpp):
    """h, c = cell(x · W + h · R + b), step by step, states kept in cache between the steps."""

    name = "cpp.recurrent"

    def read(self, site: Site) -> CppReading:
        found = find_recurrent(site)
        return CppReading(
            _configs(found, site.target.threads),
            lambda config: recurrent_source(site, found, _cut(config)),
            lambda config, weights: pack_recurrent(
                found, constant_tensors(site, weights), _cut(config).lanes
            ),
        )


def _configs(found: Recurrent, threads: int) -> Sequence[Config]:
    alone: Config = {"threads": 1, "split": "rows"}
    if threads == 1 or found.macs < PARALLEL_MACS:
        return (alone,)
    ways: list[Config] = []
    rows = found.batch * found.directions
    if rows > 1:
        ways.append({"threads": threads, "split": "rows"})
    is_large = 4 * found.gates * found.hidden**2 > LARGE_BYTES
    if found.step_macs >= TEAM_MACS and (rows < threads or is_large):
        ways.append({"threads": threads, "split": "units"})
    return (*ways, alone)


def _cut(config: Config) -> Cut:
    return Cut(int(config["threads"]), str(config["split"]), cpu_lanes(find_compiler() or "c++"))
