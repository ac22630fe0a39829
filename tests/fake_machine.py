"""A folder that looks like the /proc and /sys of a quiet server with two sockets. Tests break it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ridgeline.analyze.doctor_host import HostFacts, read_host

CPUS = 4
CACHE = Path("/srv/cache/ridgeline")
GIB = 2**30
FILES = {
    "proc/cpuinfo": "processor : 0\nmodel name : Test CPU 9000\nflags : fpu avx avx2 fma avx512f\n",
    "proc/self/status": "Name: python\nCpus_allowed_list: 0-1\n",
    "proc/self/cgroup": "0::/user.slice\n",
    "proc/self/mountinfo": (
        "22 1 259:2 / / rw shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        "23 22 0:21 / /dev/shm rw - tmpfs tmpfs rw\n"
        "24 22 0:40 / /net rw - nfs4 server:/export rw\n"
    ),
    "proc/loadavg": "0.08 0.05 0.01 1/300 4242\n",
    "proc/meminfo": (
        "MemTotal: 131072000 kB\nMemAvailable: 120000000 kB\nSwapTotal: 8000000 kB\nSwapFree: 8000000 kB\n"
    ),
    "proc/1/comm": "systemd\n",
    "proc/1/cmdline": "/sbin/init\0",
    "sys/fs/cgroup/cpu.stat": "nr_periods 0\nnr_throttled 0\n",
    "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
    "sys/devices/system/cpu/smt/active": "0\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/devices/system/node/node1/cpulist": "2-3\n",
    "sys/bus/pci/devices/0000:18:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:18:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:18:00.0/numa_node": "0\n",
    "sys/bus/pci/devices/0000:00:1f.2/vendor": "0x8086\n",
    "sys/bus/pci/devices/0000:00:1f.2/class": "0x010601\n",
    "sys/devices/pci0/nvme0n1/queue/rotational": "0\n",
    "sys/devices/pci0/nvme0n1/nvme0n1p2/partition": "2\n",
}
ROOM = {"/dev/shm": 16 * GIB, "": 200 * GIB}  # free bytes of a folder, and of all others


def make_machine(root: Path, changes: dict[str, str | None] | None = None) -> Path:
    """The files under `root`. `changes` replaces their text; None removes one."""
    for number in range(CPUS):
        folder = f"sys/devices/system/cpu/cpu{number}"
        write(root, f"{folder}/cpufreq/scaling_governor", "performance\n")
        write(root, f"{folder}/topology/thread_siblings_list", f"{number}\n")
    for path, text in FILES.items():
        write(root, path, text)
    for folder in ("dev/shm", str(CACHE).lstrip("/"), "sys/dev/block"):
        (root / folder).mkdir(parents=True)
    (root / "sys/dev/block/259:2").symlink_to(root / "sys/devices/pci0/nvme0n1/nvme0n1p2")
    for path, changed in (changes or {}).items():
        if changed is None:
            (root / path).unlink()
        else:
            write(root, path, changed)
    return root


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def read_machine(root: Path, *, cache: Path = CACHE, room: dict[str, int] | None = None) -> HostFacts:
    """As `ridge doctor` reads it, with the room that a test gives each folder."""
    rooms = {**ROOM, **(room or {})}

    def statvfs(path: str) -> Any:
        inside = "/" + str(Path(path).relative_to(root))
        free = rooms.get(inside, rooms[""])
        return SimpleNamespace(f_blocks=2 * free, f_bavail=free, f_frsize=1)

    return read_host(cache, root=root, statvfs=statvfs)
