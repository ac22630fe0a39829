"""Verdicts on the machine around the GPU: processor, threads, memory, disk, variables that are set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ridgeline.analyze.doctor_host import Folder, HostFacts
from ridgeline.analyze.doctor_rows import DoctorRow, Topic, size_text

CPU, MEMORY, DISK, SETTINGS = Topic("cpu"), Topic("memory"), Topic("disk"), Topic("settings")
# what others may take of the machine before timings suffer: half a core, or a tenth of all
IDLE_LOAD, IDLE_SHARE = 0.5, 0.1
LOW_MEMORY = 0.1
NEEDED_BYTES, COMFORTABLE_BYTES = 256 << 20, 4 << 30
SHM_BYTES = 64 << 20  # what a container gets if nobody asks for more
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# settings under which timings or results are not those of an ordinary run, and why
DISTORTING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for the one before",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation asks the driver",
    "TRITON_INTERPRET": "Triton kernels run in Python",
    "NVIDIA_TF32_OVERRIDE": "libraries round float32 products whatever the engine asks for",
    "CUDA_DEBUGGER_SOFTWARE_PREEMPTION": "kernels run under a debugger",
}
UNSET = (None, "", "0")
NAMES = (*THREADS, *DISTORTING, "CUDA_VISIBLE_DEVICES")
NOT_SHOWN = "the kernel does not show it: in a virtual machine or container the host decides"


def judge_host(host: HostFacts, settings: Mapping[str, str]) -> Iterator[DoctorRow]:
    """Every row about the host; `settings` are variables of the environment, as far as they are set."""
    yield _processor(host)
    yield _governor(host)
    yield _turbo(host)
    yield _smt(host)
    yield _quota(host)
    yield _load(host)
    yield _memory(host)
    yield _swap(host)
    yield _huge_pages(host)
    yield _shm(host.shm)
    yield _cache(host.cache)
    yield _threads(host, settings)
    yield from _settings(settings)


def _processor(host: HostFacts) -> DoctorRow:
    where = " (virtual machine)" if host.is_virtual else ""
    value = f"{host.cpu or 'unknown'}{where}, {len(host.cpus)} CPUs for this process: {' '.join(host.isa)}"
    if host.isa and "avx2" not in host.isa:
        reason = "no AVX2: generated kernels and libraries run several times slower than on other machines"
        return CPU.note("processor", value, reason)
    return CPU.fine("processor", value, "kernels are generated for these instructions")


def _governor(host: HostFacts) -> DoctorRow:
    if not host.governors:
        return CPU.unknown("governor", NOT_SHOWN)
    value = ", ".join(host.governors)
    if host.governors == ("performance",):
        return CPU.fine("governor", value, "the clock does not wait for load")
    return CPU.distorts(
        "governor", value, "the clock follows the load with a delay: short runs are timed at a low clock",
        "sudo cpupower frequency-set -g performance",
    )  # fmt: skip


def _turbo(host: HostFacts) -> DoctorRow:
    if host.turbo is None:
        return CPU.unknown("turbo", NOT_SHOWN)
    if not host.turbo:
        return CPU.fine("turbo", "off", "the clock stays the same however many cores work")
    return CPU.note(
        "turbo", "on", "the clock depends on temperature and on how many cores work: compare within one run",
        "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo "
        "(AMD: echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost)",
    )  # fmt: skip


def _smt(host: HostFacts) -> DoctorRow:
    cores, cpus = host.cores, len(host.cpus)
    shared = cores is not None and cores < cpus
    if host.smt is None and not shared:
        return CPU.unknown("threads per core", NOT_SHOWN)
    if not shared:
        value = "1" if cores is not None else "off" if not host.smt else "on"
        return CPU.fine("threads per core", value, "no two threads of this process share a core")
    return CPU.note(
        "threads per core", f"{cpus} CPUs on {cores} cores",
        "two threads on one core share its vector units: plan for as many threads as there are cores",
        f"ridge build MODEL.onnx --threads {cores}",
    )  # fmt: skip


def _quota(host: HostFacts) -> DoctorRow:
    if host.quota_cpus is None:
        return CPU.fine("quota", "none", "no control group limits the time of this process")
    value = f"{host.quota_cpus:.2f} of {len(host.cpus)} CPUs"
    if host.throttled_periods:
        value += f", stopped in {host.throttled_periods:,} periods so far"
    if host.quota_cpus >= len(host.cpus):
        return CPU.fine("quota", value, "enough for all CPUs of this process")
    least = max(int(host.quota_cpus), 1)
    return CPU.distorts(
        "quota", value, "threads beyond the quota are stopped for the rest of every period of 0.1 s",
        f"ridge bench MODEL.onnx --threads {least}, or a larger quota (docker run --cpus {len(host.cpus)})",
    )  # fmt: skip


def _load(host: HostFacts) -> DoctorRow:
    if host.load_1m is None:
        return CPU.unknown("load", NOT_SHOWN)
    value = f"{host.load_1m:.2f} in the last minute"
    if host.load_1m <= max(IDLE_LOAD, IDLE_SHARE * len(host.cpus)):
        return CPU.fine("load", value, "next to nothing else runs")
    return CPU.distorts(
        "load", value, "other programs take time of the same cores", "top; end what is not needed"
    )


def _threads(host: HostFacts, settings: Mapping[str, str]) -> DoctorRow:
    given = {name: settings[name] for name in THREADS if settings.get(name)}
    if not given:
        return SETTINGS.fine("threads", "not set", "engines use the threads they were planned for")
    value = ", ".join(f"{name}={number}" for name, number in given.items())
    most = max((int(number) for number in given.values() if number.isdigit()), default=0)
    if most > len(host.cpus):
        reason = f"more threads than the {len(host.cpus)} CPUs of this process: they take turns"
        return SETTINGS.distorts("threads", value, reason, f"unset {' '.join(given)}")
    if most < (host.cores or len(host.cpus)):
        reason = "fewer threads than cores: peers may run with fewer threads than the engine"
        return SETTINGS.note("threads", value, reason, f"unset {' '.join(given)}")
    return SETTINGS.fine("threads", value, "as many as there are cores")


def _memory(host: HostFacts) -> DoctorRow:
    if host.memory_bytes is None or host.available_bytes is None:
        return MEMORY.unknown("memory", NOT_SHOWN)
    value = f"{size_text(host.available_bytes)} of {size_text(host.memory_bytes)} available"
    if host.available_bytes >= LOW_MEMORY * host.memory_bytes:
        return MEMORY.fine("memory", value, "nothing needs to be moved to disk")
    reason = "pages are about to be moved to disk or dropped: any access may wait for it"
    return MEMORY.distorts("memory", value, reason, "top -o %MEM; end what is not needed")


def _swap(host: HostFacts) -> DoctorRow:
    if host.swap_bytes is None or host.swap_used_bytes is None:
        return MEMORY.unknown("swap", NOT_SHOWN)
    if not host.swap_bytes:
        return MEMORY.fine("swap", "none", "nothing is moved to disk")
    value = f"{size_text(host.swap_used_bytes)} of {size_text(host.swap_bytes)} used"
    if not host.swap_used_bytes:
        return MEMORY.fine("swap", value, "nothing was moved to disk")
    reason = "something was moved to disk: if it is touched during a run, the run waits"
    return MEMORY.note("swap", value, reason, "sudo swapoff -a && sudo swapon -a")


def _huge_pages(host: HostFacts) -> DoctorRow:
    if host.huge_pages is None:
        return MEMORY.unknown("huge pages", NOT_SHOWN)
    if host.huge_pages != "never":
        return MEMORY.fine("huge pages", host.huge_pages, "large arrays need few address translations")
    return MEMORY.note(
        "huge pages", "never", "large weights need many more address translations",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )  # fmt: skip


def _shm(shm: Folder) -> DoctorRow:
    if shm.total_bytes is None or shm.free_bytes is None:
        return MEMORY.unknown("/dev/shm", "it is not there: processes of one machine cannot share arrays")
    value = f"{size_text(shm.free_bytes)} of {size_text(shm.total_bytes)} free"
    if shm.free_bytes > SHM_BYTES:
        return MEMORY.fine("/dev/shm", value, "room for data loaders and servers that share arrays")
    reason = "data loaders and servers that share arrays between processes run out of it"
    return MEMORY.note(
        "/dev/shm", value, reason, "docker run --shm-size 8g, or mount -o remount,size=8g /dev/shm"
    )


def _cache(cache: Folder) -> DoctorRow:
    kind = " on ".join(filter(None, (cache.filesystem, cache.device)))
    value = f"{cache.path}" + (f" ({kind})" if kind else "")
    if not cache.is_writable:
        reason = "compiled kernels cannot be kept: every build and every load compiles them again"
        return DISK.distorts("cache folder", value, reason, f"sudo chown -R $(id -un) {cache.path}")
    if cache.free_bytes is None:
        return DISK.unknown("cache folder", f"{value}: its room is not shown")
    value += f", {size_text(cache.free_bytes)} free"
    if cache.free_bytes < NEEDED_BYTES:
        reason = "too little room for compiled kernels and engines"
        return DISK.problem("cache folder", value, reason, f"df -h {cache.path}; delete what is not needed")
    slow = {
        "rotating": "a rotating disk: engines load at a tenth of the speed of an SSD",
        "network": "a network file system: loading depends on the network and its other users",
    }.get(cache.device or "")
    if slow:
        return DISK.note("cache folder", value, slow, f"ln -s /local/disk {cache.path}")
    if cache.free_bytes < COMFORTABLE_BYTES:
        return DISK.note("cache folder", value, "little room: it fills up", f"df -h {cache.path}")
    return DISK.fine("cache folder", value, "room for compiled kernels")


def _settings(settings: Mapping[str, str]) -> Iterator[DoctorRow]:
    found = [name for name in DISTORTING if settings.get(name) not in UNSET]
    for name in found:
        yield SETTINGS.distorts(name, settings[name], DISTORTING[name], f"unset {name}")
    if not found:
        yield SETTINGS.fine(
            "environment", "nothing set", "no variable that changes timings or results is set"
        )
