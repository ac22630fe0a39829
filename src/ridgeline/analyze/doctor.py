"""`ridge doctor`: the state of this machine, judged by what it does to a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.analyze.doctor_cpu import judge_host
from ridgeline.analyze.doctor_gpu import judge_gpu, judge_mps, judge_no_gpu, judge_visible
from ridgeline.analyze.doctor_host import HostFacts
from ridgeline.analyze.doctor_rows import VERDICTS, DoctorRow, Verdict
from ridgeline.analyze.doctor_versions import Versions, judge_versions
from ridgeline.analyze.gpu_facts import GpuFacts, read_gpus
from ridgeline.base.nvml import Nvml, NvmlError

CACHE = Path("~/.cache/ridgeline")


@dataclass(frozen=True)
class DoctorReport:
    """Every row, and the facts they were made from."""

    rows: tuple[DoctorRow, ...]
    versions: Versions
    host: HostFacts
    gpus: tuple[GpuFacts, ...]

    @property
    def worst(self) -> str:
        """The worst verdict of any row."""
        return max((row.verdict for row in self.rows), key=VERDICTS.index, default="fine")

    def count(self, verdict: Verdict) -> int:
        return sum(row.verdict == verdict for row in self.rows)


def examine(
    host: HostFacts, versions: Versions, settings: Mapping[str, str], *, open_gpus: Callable[[], Nvml]
) -> DoctorReport:
    """Reads the GPUs, then judges everything. `settings` are variables of the environment that are set."""
    try:
        with closing(open_gpus()) as nvml:
            versions = replace(versions, driver=nvml.driver, driver_cuda=nvml.cuda)
            gpus = read_gpus(nvml)
        why = "" if gpus else "the driver sees no GPU"
    except NvmlError as error:
        gpus, why = (), f"{error.what} ({error.got})" if error.got else error.what
    rows = [*judge_versions(versions, has_gpu=bool(gpus))]
    if gpus:
        rows += [row for gpu in gpus for row in judge_gpu(gpu, host)]
        rows.append(judge_mps(host))
        rows += judge_visible(settings)
    else:
        rows.append(judge_no_gpu(why, host))
    rows += judge_host(host, settings)
    return DoctorReport(tuple(rows), versions, host, gpus)
