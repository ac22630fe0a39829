"""What the kernel says about this machine: small readers over /proc and /sys, under a root of choice.

What cannot be read is None: in a virtual machine or a container much of it belongs to somebody else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# of /proc/cpuinfo, those that our kernels and their peers use
ISA = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
NVIDIA, DISPLAY_CLASS = "0x10de", "0x03"
MPS = "nvidia-cuda-mps"  # the kernel keeps 15 letters of a program's name
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "gpfs", "ceph", "9p", "virtiofs")
# disks that a host makes up: what they say about rotating means nothing
VIRTUAL = ("vd", "xvd")

StatVfs = Callable[[str], Any]


@dataclass(frozen=True)
class Folder:
    """Where a folder lies: its file system, the kind of device under it, and the room left."""

    path: str
    filesystem: str | None
    device: str | None  # nvme, ssd, rotating, virtual, network or memory
    total_bytes: int | None
    free_bytes: int | None
    is_writable: bool


@dataclass(frozen=True)
class HostFacts:
    """The machine around the GPU. Null is what the kernel does not show here."""

    cpu: str | None
    isa: tuple[str, ...]
    is_virtual: bool
    cpus: tuple[int, ...]  # that this process may use
    cores: int | None  # under those: two threads of one core count once
    governors: tuple[str, ...]  # of those
    turbo: bool | None
    smt: bool | None
    quota_cpus: float | None  # that the control group may use at a time
    throttled_periods: int | None  # in which it was stopped, since it was made
    load_1m: float | None
    memory_bytes: int | None
    available_bytes: int | None
    swap_bytes: int | None
    swap_used_bytes: int | None
    huge_pages: str | None  # always, madvise or never
    numa_nodes: Mapping[str, tuple[int, ...]]  # node: its CPUs
    gpu_nodes: Mapping[str, int]  # NVIDIA's devices on the PCI bus: their NUMA node; -1 is unknown
    mps_processes: tuple[str, ...]
    shm: Folder
    cache: Folder


def read_host(cache: Path, *, root: Path = Path("/"), statvfs: StatVfs = os.statvfs) -> HostFacts:
    """All readers at once; a few milliseconds. `cache` is where compiled kernels are kept."""
    cpuinfo = _text(root, "proc/cpuinfo") or ""
    flags = set(_after(cpuinfo, "flags").split())
    cpus = _allowed_cpus(root)
    memory = _meminfo(root)
    swap, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
    quota, throttled = _quota(root)
    load = (_text(root, "proc/loadavg") or "").split()
    return HostFacts(
        cpu=_after(cpuinfo, "model name") or None,
        isa=tuple(name for name in ISA if name in flags),
        is_virtual="hypervisor" in flags,
        cpus=cpus,
        cores=_cores(root, cpus),
        governors=_governors(root, cpus),
        turbo=_turbo(root),
        smt=_flag(root, "sys/devices/system/cpu/smt/active"),
        quota_cpus=quota,
        throttled_periods=throttled,
        load_1m=float(load[0]) if load else None,
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        swap_bytes=swap,
        swap_used_bytes=None if swap is None or swap_free is None else swap - swap_free,
        huge_pages=_bracketed(_text(root, "sys/kernel/mm/transparent_hugepage/enabled")),
        numa_nodes=_numa_nodes(root),
        gpu_nodes=_gpu_nodes(root),
        mps_processes=_mps_processes(root),
        shm=read_folder(Path("/dev/shm"), root=root, statvfs=statvfs),
        cache=read_folder(cache, root=root, statvfs=statvfs),
    )


def read_folder(path: Path, *, root: Path, statvfs: StatVfs) -> Folder:
    """A folder that is not there yet is judged by the nearest one above it that is."""
    at = root / str(path).lstrip("/") if root != Path("/") else path
    while not at.exists() and at != at.parent:
        at = at.parent
    total = free = None
    with suppress(OSError):
        found = statvfs(str(at))
        total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    filesystem, number = _mount(root, path)
    return Folder(
        path=str(path),
        filesystem=filesystem,
        device=_device_kind(root, filesystem, number),
        total_bytes=total,
        free_bytes=free,
        is_writable=os.access(at, os.W_OK),
    )


def parse_list(text: str) -> tuple[int, ...]:
    """``0-3,8`` as the kernel writes sets of CPUs."""
    made: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        made.extend(range(int(first), int(last or first) + 1))
    return tuple(made)


def _text(root: Path, path: str) -> str | None:
    try:
        return (root / path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _flag(root: Path, path: str) -> bool | None:
    text = _text(root, path)
    return None if text not in ("0", "1") else text == "1"


def _after(text: str, key: str) -> str:
    found = re.search(rf"^{key}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _bracketed(text: str | None) -> str | None:
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else None


def _allowed_cpus(root: Path) -> tuple[int, ...]:
    listed = _after(_text(root, "proc/self/status") or "", "Cpus_allowed_list")
    return parse_list(listed)


def _cores(root: Path, cpus: tuple[int, ...]) -> int | None:
    """Threads of one core have the same list of siblings."""
    siblings = {_text(root, f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list") for n in cpus}
    return len(siblings) if siblings and None not in siblings else None


def _governors(root: Path, cpus: tuple[int, ...]) -> tuple[str, ...]:
    found = (_text(root, f"sys/devices/system/cpu/cpu{n}/cpufreq/scaling_governor") for n in cpus)
    return tuple(sorted({name for name in found if name}))


def _turbo(root: Path) -> bool | None:
    off = _flag(root, "sys/devices/system/cpu/intel_pstate/no_turbo")
    return _flag(root, "sys/devices/system/cpu/cpufreq/boost") if off is None else not off


def _meminfo(root: Path) -> dict[str, int]:
    rows = re.findall(r"^(\w+):\s+(\d+) kB$", _text(root, "proc/meminfo") or "", re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in rows}


def _quota(root: Path) -> tuple[float | None, int | None]:
    """The least CPU time that this group or one above it may use; and how often it was stopped."""
    groups = _text(root, "proc/self/cgroup") or ""
    own = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
    folder = Path(own[1]) if own else Path()
    quotas: list[float] = []
    throttled = None
    for at in (folder, *folder.parents):
        base = f"sys/fs/cgroup/{at}"
        limit = (_text(root, f"{base}/cpu.max") or "").split()
        if len(limit) == 2 and limit[0].isdigit():
            quotas.append(int(limit[0]) / int(limit[1]))
        stat = re.search(r"^nr_throttled (\d+)$", _text(root, f"{base}/cpu.stat") or "", re.MULTILINE)
        if stat and throttled is None:
            throttled = int(stat[1])
    # the first version of control groups has files of its own
    old = _text(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _text(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if old and period and int(old) > 0:
        quotas.append(int(old) / int(period))
    return min(quotas, default=None), throttled


def _numa_nodes(root: Path) -> dict[str, tuple[int, ...]]:
    nodes: dict[str, tuple[int, ...]] = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        cpus = _text(folder, "cpulist")
        if cpus is not None:
            nodes[folder.name.removeprefix("node")] = parse_list(cpus)
    return nodes


def _gpu_nodes(root: Path) -> dict[str, int]:
    found = {}
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        is_gpu = (_text(folder, "class") or "").startswith(DISPLAY_CLASS)
        if is_gpu and _text(folder, "vendor") == NVIDIA:
            found[folder.name] = int(_text(folder, "numa_node") or -1)
    return found


def _mps_processes(root: Path) -> tuple[str, ...]:
    """``control`` and ``server``, as far as they run."""
    found = set()
    for folder in (root / "proc").glob("[0-9]*"):
        if _text(folder, "comm") == MPS:
            program = (_text(folder, "cmdline") or "").split("\0")[0]
            found.add("server" if program.endswith("server") else "control")
    return tuple(sorted(found))


def _mount(root: Path, path: Path) -> tuple[str | None, str]:
    """File system and device number of the mount that a path lies on: the one with the longest name."""
    best = -1
    found: tuple[str | None, str] = (None, "")
    for line in (_text(root, "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.split()[:1]
        if len(words) > 4 and kind and path.is_relative_to(words[4]) and len(words[4]) >= best:
            best, found = len(words[4]), (kind[0], words[2])
    return found


def _device_kind(root: Path, filesystem: str | None, number: str) -> str | None:
    if filesystem in ("tmpfs", "ramfs"):
        return "memory"
    if filesystem in NETWORK:
        return "network"
    device = (root / "sys/dev/block" / number).resolve() if number else root
    for at in (device, device.parent):  # a partition has its disk above it
        rotates = _flag(at, "queue/rotational")
        if rotates is not None:
            if at.name.startswith(VIRTUAL):
                return "virtual"
            return "rotating" if rotates else "nvme" if at.name.startswith("nvme") else "ssd"
    return None
