"""Which ceilings hold for a target: those measured on this machine, a shipped file by its name, or a user's.

`ridge calibrate` keeps its files in the cache folder, one for each machine and number of threads.
"""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from pathlib import Path

from ridgeline.base.ceilings import Ceilings
from ridgeline.base.spec import Target
from ridgeline.base.target_files import ceilings_of_arch, known_ceilings, known_targets, read_target
from ridgeline.errors import TargetError, did_you_mean
from ridgeline.options import available_cores
from ridgeline.runtime.device import current_device, is_here
from ridgeline.tactics.cache import cpu_name

CALIBRATIONS = Path("~/.cache/ridgeline/targets")


def find_ceilings(target: Target) -> Ceilings:
    """The best that is known of a target: a calibration of this machine, else what its maker states.

    `TargetError` for a processor that was never measured: its maker's figures say little about it.
    """
    if is_here(target):
        path = calibration_path(target)
        if path.is_file():
            return read_target(path)
    if target.traits.is_gpu:
        return stated_ceilings(target)
    raise TargetError(
        "nothing is known of this processor",
        got=f"{cpu_name()}, {target.threads} thread{'' if target.threads == 1 else 's'}",
        want="a calibration of it",
        help=f"ridge calibrate --target cpu --threads {target.threads} measures it",
    )


def named_ceilings(name: str) -> Ceilings:
    """A shipped machine by its name, this machine as `cpu` or `cuda`, or a target file by its path."""
    if name in known_targets():
        return known_ceilings(name)
    if name in ("cpu", "cuda"):
        if name == "cuda":
            return find_ceilings(Target(name, current_device().arch))
        # as many threads as a build and `ridge calibrate` take, unless they are told otherwise
        return find_ceilings(Target(name, platform.machine(), available_cores()))
    if name.endswith(".toml") or Path(name).is_file():
        return read_target(Path(name))
    known = [*known_targets(), "cpu", "cuda"]
    raise TargetError(
        f"there is no target {name!r}",
        want=", ".join(known) + ", or a target file",
        help=did_you_mean(name, known) or "ridge calibrate -o my.toml writes one of this machine",
    )


def stated_ceilings(target: Target) -> Ceilings:
    """What makers say of this machine or architecture; of a processor, nothing but its name."""
    if not target.traits.is_gpu:
        return Ceilings(name="cpu", kind=target.kind, arch=target.arch, title=cpu_name())
    return _of_this_gpu() if is_here(target) else ceilings_of_arch(target.arch)


def calibration_path(target: Target) -> Path:
    """Where the calibration of this machine is kept."""
    name = current_device().name if target.traits.is_gpu else f"{cpu_name()} {target.threads} threads"
    return CALIBRATIONS.expanduser() / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".toml")


def _of_this_gpu() -> Ceilings:
    """The shipped file of a GPU of this name, else the one that stands for its architecture."""
    device = current_device()
    words = re.sub(r"[^a-z0-9]+", " ", device.name.lower()).split()
    named = next((name for name in known_targets() if name in words), None)
    found = known_ceilings(named) if named is not None else ceilings_of_arch(device.arch)
    return replace(found, sms=device.multiprocessors, shared_bytes=device.shared_bytes or found.shared_bytes)
