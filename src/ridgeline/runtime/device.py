"""The GPU of this machine: what it is, whether an engine fits it, and how much memory is left.

Everything that is wrong with a GPU is said here, before work starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from ridgeline.base.spec import Target
from ridgeline.errors import DeviceError as DeviceError
from ridgeline.errors import PlanError, RidgelineError, first_line
from ridgeline.kernels.triton.driver import driver_version
from ridgeline.plan.plan import Memory
from ridgeline.runtime.forking import require_process

MAKE_ROOM = "close other programs on the GPU, or build for smaller shapes"
# after these the driver refuses everything else this process asks for
FATAL = (
    "device-side assert", "illegal memory access", "misaligned address", "illegal instruction",
    "unspecified launch failure", "launch timed out", "launch failure", "hardware stack error",
    "invalid program counter", "uncorrectable ECC", "uncorrectable NVLink", "unknown error",
    "operation not supported on global/shared address space", "context is destroyed",
    "invalid device context", "system not yet initialized", "external device returned invalid",
)  # fmt: skip
# how libraries on the GPU say that there is too little memory
OUT_OF_MEMORY = ("CUDA error 2:", "CUDA error: out of memory", "[CUDA]: out of memory", "STATUS_ALLOC_FAILED")


@dataclass(frozen=True)
class Device:
    """What decides how kernels run here."""

    name: str
    arch: str
    multiprocessors: int
    memory_bytes: int
    shared_bytes: int  # the most one block may have
    l2_bytes: int
    cuda: str
    driver: str

    @property
    def key(self) -> str:
        """What a timing depends on."""
        return f"{self.name} {self.arch} {self.multiprocessors} SMs, CUDA {self.cuda}, driver {self.driver}"


def why_no_gpu() -> str | None:
    """None when there is one to use."""
    if torch.version.cuda is None:
        return "this PyTorch was built without CUDA"
    if not torch.cuda.is_available():
        return "no CUDA device is visible, or the driver is older than this PyTorch needs"
    return None


@cache
def current_device() -> Device:
    """The device PyTorch uses."""
    reason = why_no_gpu()
    if reason is not None:
        raise DeviceError(
            "there is no GPU to run on",
            got=reason,
            want="an NVIDIA GPU with a driver for CUDA " + (torch.version.cuda or "12 or later"),
            help="build for another machine with --target cuda:sm_90, or for this one with --target cpu",
        )
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Device(
        name=facts.name,
        arch=f"sm_{facts.major}{facts.minor}",
        multiprocessors=facts.multi_processor_count,
        memory_bytes=facts.total_memory,
        shared_bytes=getattr(facts, "shared_memory_per_block_optin", 0),
        l2_bytes=getattr(facts, "L2_cache_size", 0),
        cuda=torch.version.cuda or "",
        driver=driver_version(),
    )


def is_here(target: Target) -> bool:
    """Whether this machine is the one that is built for, so that candidates can be timed on it."""
    if not target.exists or not target.traits.is_gpu:
        return target.exists
    return why_no_gpu() is None and current_device().arch == target.arch


def require_here(target: Target) -> None:
    """Raise where this machine or process cannot run engines of the target."""
    require_process(target)
    if not target.exists:
        raise PlanError(
            f"an engine for the target {target} runs nowhere",
            help="it shows what a plan would be: build with --target cpu or cuda to run the model",
        )
    if target.traits.is_gpu:
        require_device(target)


def require_device(target: Target) -> Device:
    """The device, when it is the one an engine was built for."""
    try:
        device = current_device()
    except DeviceError as error:
        raise DeviceError(
            "there is no GPU to run on",
            got=error.got,
            want=f"a GPU of {target.arch}, for which the engine was built",
            help="run it on a machine that has one, or build the model again with --target cpu",
        ) from None
    if device.arch != target.arch:
        raise DeviceError(
            "the engine was built for another GPU",
            got=f"{device.name} ({device.arch})",
            want=target.arch,
            help=f"build it again with --target cuda:{device.arch}",
        )
    return device


def require_memory(parts: Mapping[str, int], *, free: int | None = None) -> None:
    """Refuse before allocating, part by part, when there is too little; `free` is asked for if not given."""
    free = free_bytes() if free is None else free
    needed = sum(parts.values())
    if needed > free:
        raise DeviceError(
            "too little GPU memory",
            rows=[f"{name}: {size:,} bytes" for name, size in parts.items() if size],
            got=f"{free:,} bytes free",
            want=f"{needed:,} bytes",
            help=MAKE_ROOM,
        )


def foreseen_parts(memory: Memory) -> dict[str, int]:
    """The least that a plan will take; copies that tactics pack replace the weights they are made of."""
    return {"weights": memory.weight_bytes, "arena": memory.arena_bytes, "inputs": memory.io_bytes}


def free_bytes() -> int:
    """What this process may still take: of the device, or of the share that PyTorch was given of it."""
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    allowed = int(torch.cuda.get_per_process_memory_fraction() * total) - reserved
    return max(0, min(free, allowed)) + reserved - torch.cuda.memory_allocated()


def device_error(error: Exception) -> DeviceError | None:
    """A failure of the GPU in words a user can act on; None for any other error."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(words in text for words in OUT_OF_MEMORY):
        return DeviceError("too little GPU memory", got=first_line(error), help=MAKE_ROOM)
    fatal = next((line.strip() for line in text.splitlines() if any(name in line for name in FATAL)), None)
    if fatal is None or "CUDA" not in text:
        return None
    found = DeviceError(
        "a CUDA error ended all work of this process on the GPU",
        got=fatal.removeprefix("got").strip(),
        want="indices inside their tables and memory that is still there",
        help="start a new process: the driver takes back the device's memory after such an error",
    )
    found.is_fatal = True
    return found


@contextmanager
def gpu_errors() -> Iterator[None]:
    """Raise failures of the GPU as what they are."""
    try:
        yield
    except (RuntimeError, RidgelineError) as error:
        found = device_error(error)
        if found is None:
            raise
        raise found from error
