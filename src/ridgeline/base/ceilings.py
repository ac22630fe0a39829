"""What a machine can do at most: rates of memory and arithmetic, the cost of a launch, and their sources.

Times are in µs and rates per µs. `base/target_files.py` reads and writes these values as target files.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ridgeline.base.architectures import ARCHITECTURES, PREDICTED_AS
from ridgeline.base.spec import TRAITS

# what large transfers and products reach of the maker's figures, where nothing was measured: medians of
# published measurements on Hopper (4.3 of 4.8 TB/s, 790 of 989 TFLOP/s)
REACHABLE_BYTES, REACHABLE_FLOPS = 0.88, 0.80
AS_STATED = "as the maker states"
# half of the peak at a few hundred KiB: a copy that small ends before memory is busy
DEFAULT_LAUNCH_US = 1.0
PAST_CACHE = 4  # a copy of this many caches hardly finds anything there
IN_CACHE = 1.25  # copies that are so much faster than those from memory come from a cache
# L2 has no figure in data sheets. Rates that were measured or published, in TB/s
L2_TB_S = {"sm_80": 4.0, "sm_86": 2.5, "sm_89": 4.0, "sm_90": 5.5, "sm_100": 6.5, "sm_120": 5.0}
L2_OVER_MEMORY = 2.5
# a type without a figure of its own: the types to ask instead, and its rate as a share of theirs. Tensor
# cores since Turing multiply int8 at twice the rate of float16
SAME_RATE = {
    "float64": (("float64", 1.0),),
    "float32": (("float32", 1.0),),
    "tf32": (("tf32", 1.0), ("float32", 1.0)),
    "float16": (("float16", 1.0), ("bfloat16", 1.0), ("int8", 0.5), ("float32", 1.0)),
    "bfloat16": (("bfloat16", 1.0), ("float16", 1.0), ("int8", 0.5), ("float32", 1.0)),
    "float8": (("float8", 1.0), ("float16", 1.0), ("float32", 1.0)),
    "int8": (("int8", 1.0), ("float16", 1.0), ("float32", 1.0)),
}
RATE_OF = {"float8_e4m3fn": "float8", "float8_e5m2": "float8", "uint8": "int8"}


@dataclass(frozen=True)
class Point:
    """One measured step of a calibration network: how far it took longer than the cost model said."""

    family: str  # of regions that one correction serves: "product", "convolution", …
    features: tuple[float, ...]  # logarithms of its sizes, as `tactics/cost_features.py` orders them
    measured_us: float
    modelled_us: float

    @property
    def log_ratio(self) -> float:
        return math.log(self.measured_us / self.modelled_us)


@dataclass(frozen=True)
class Ceilings:
    """One machine. What is not known is None, or absent from a table."""

    name: str
    kind: str  # cuda | cpu
    arch: str
    title: str = ""
    measured: str = ""  # when, and on what; empty: these are the maker's figures
    threads: int = 1
    sms: int | None = None
    clock_mhz: float | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    shared_bytes: int | None = None  # that one block may have
    power_w: float | None = None
    peak_bytes: float | None = None  # per µs, as the maker states it
    peak_flops: Mapping[str, float] = field(default_factory=dict)  # dense, per µs, by type
    launch_us: float | None = None  # the least that one step takes in a captured run
    copy: tuple[tuple[float, float], ...] = ()  # bytes read and written, and the rate that such a copy has
    flops: Mapping[str, float] = field(default_factory=dict)  # reached by large products, by type
    points: tuple[Point, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # networks that were not measured, and why
    l2_factor: float = 1.0  # of a machine that was made up: its L2 is so much larger and faster
    sources: Mapping[str, str] = field(default_factory=dict)  # of each stated figure, its address

    @property
    def is_gpu(self) -> bool:
        return TRAITS[self.kind].is_gpu

    @property
    def l2_bytes_per_us(self) -> float:
        """What L2 delivers to all processors: a known rate of its architecture, else a multiple of memory."""
        known = L2_TB_S.get(PREDICTED_AS.get(self.arch, self.arch))
        if known is not None:
            return 1e6 * known * self.l2_factor
        return L2_OVER_MEMORY * self.memory_bytes_per_us * self.l2_factor

    @property
    def is_measured(self) -> bool:
        return bool(self.measured)

    @property
    def source(self) -> str:
        return f"measured {self.measured}" if self.measured else AS_STATED

    def bytes_per_us(self, nbytes: float = math.inf) -> float:
        """The rate of a copy that reads and writes this many bytes; between two measured sizes, between."""
        if not self.copy:
            return REACHABLE_BYTES * (self.peak_bytes or math.nan)
        sizes = [size for size, _ in self.copy]
        at = bisect_left(sizes, nbytes)
        if at == 0 or at == len(sizes):
            return self.copy[min(at, len(sizes) - 1)][1]
        (low, slow), (high, fast) = self.copy[at - 1], self.copy[at]
        part = math.log(nbytes / low) / math.log(high / low)
        return slow * math.pow(fast / slow, part)

    @property
    def memory_bytes_per_us(self) -> float:
        """What comes from memory itself: the best rate of copies that are far larger than the cache."""
        past = [rate for nbytes, rate in self.copy if nbytes >= PAST_CACHE * (self.l2_bytes or math.inf)]
        return max(past) if past else self.bytes_per_us()

    def best_bytes_per_us(self, nbytes: float) -> float:
        """The best rate of copies of this many bytes or more: what is in a cache comes from there.

        A smaller copy may be slower, but that is its launch.
        """
        return max((rate for size, rate in self.copy if size >= nbytes), default=self.memory_bytes_per_us)

    def is_cached(self, nbytes: float) -> bool:
        """Whether copies of this many bytes or more are so fast that they come from a cache."""
        return self.best_bytes_per_us(nbytes) > IN_CACHE * self.memory_bytes_per_us

    @property
    def cache_bytes_per_us(self) -> float:
        """What comes from the cache: the best rate of copies that fit it; NaN if none was measured."""
        inside = [rate for nbytes, rate in self.copy if nbytes <= (self.l2_bytes or 0)]
        return max(inside, default=math.nan)

    def flops_per_us(self, dtype: str) -> float:
        """What large products of this type reach; NaN if nothing is known of it."""
        for name, share in SAME_RATE[RATE_OF.get(dtype, dtype if dtype in SAME_RATE else "float32")]:
            if name in self.flops:
                return share * self.flops[name]
            if name in self.peak_flops:
                return share * REACHABLE_FLOPS * self.peak_flops[name]
        return math.nan

    def bound_us(self, nbytes: float, flops: float, dtype: str) -> float:
        """The least time of this work: its bytes or its arithmetic, whichever takes longer; NaN if a rate
        that it needs is not known."""
        moving_us = nbytes / self.best_bytes_per_us(nbytes) if nbytes else 0.0
        computing_us = flops / self.flops_per_us(dtype) if flops else 0.0
        # `max` would leave out a NaN, and call the other of the two the bound
        return math.nan if math.isnan(moving_us + computing_us) else max(moving_us, computing_us)

    @property
    def least_launch_us(self) -> float:
        return DEFAULT_LAUNCH_US if self.launch_us is None else self.launch_us

    @property
    def has_warpgroups(self) -> bool:
        return self.arch in ARCHITECTURES and ARCHITECTURES[self.arch].has_warpgroups

    def what_if(
        self,
        *,
        bandwidth: float = 1.0,
        peak: float = 1.0,
        sms: float = 1.0,
        clock: float = 1.0,
        l2: float = 1.0,
    ) -> Ceilings:
        """The same machine with figures multiplied. More SMs or a higher clock raise the arithmetic too."""
        arithmetic = peak * sms * clock
        return replace(
            self,
            sms=None if self.sms is None else max(1, round(self.sms * sms)),
            clock_mhz=None if self.clock_mhz is None else self.clock_mhz * clock,
            l2_bytes=None if self.l2_bytes is None else round(self.l2_bytes * l2),
            l2_factor=self.l2_factor * l2,
            peak_bytes=None if self.peak_bytes is None else self.peak_bytes * bandwidth,
            peak_flops={name: rate * arithmetic for name, rate in self.peak_flops.items()},
            copy=tuple((size, rate * bandwidth) for size, rate in self.copy),
            flops={name: rate * arithmetic for name, rate in self.flops.items()},
            launch_us=None if self.launch_us is None else self.launch_us / clock,
        )
