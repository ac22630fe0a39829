"""The contract of a tactic: one way to run a region on a target.

A tactic reads a site once and makes an `Offer` of it, whose configs are bound to `Launch`es; or it refuses,
with the reason. It never times itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from ridgeline.base.devices import Device
from ridgeline.base.spec import Config, Site
from ridgeline.errors import PlanError
from ridgeline.kernels.cpp.compiler import CACHE_DIR as CPP_CACHE
from ridgeline.kernels.triton.compiler import COMPILED_HERE, KernelStore
from ridgeline.kernels.triton.source import Kernel

Call: TypeAlias = Callable[[Sequence[Any], Sequence[Tensor]], Sequence[Tensor] | None]
Freeze: TypeAlias = Callable[[Sequence[Any], Sequence[Tensor]], Callable[[], object]]
# points one argument of a frozen call at the memory that begins at an address
Move: TypeAlias = Callable[[int], object]


@runtime_checkable
class Movable(Protocol):
    """A frozen call whose arguments can be pointed at other memory, so that nothing is copied there or back.

    The memory has the argument's dtype, shape and contiguous layout. Whoever points a call at it keeps it
    alive for as long, and points the call back.
    """

    def __call__(self) -> object: ...

    def mover(self, argument: int) -> Move | None:
        """For the inputs, then the outputs, as `freeze` was given them; None: this one stays where it is."""


def once(freeze: Freeze) -> Call:
    """The call of a launch that freezes anew each time."""

    def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        freeze(inputs, outputs)()

    return call


@dataclass(frozen=True)
class Launch:
    """A region bound to its site and weights; shared by every instance and context that runs the site.

    `writes_out`: `call(inputs, outputs)` fills `outputs` and allocates nothing that outlives it.
    Otherwise the library allocates: `call(inputs, ())` returns the output tensors as a tuple, and the caller
    owns them. `inputs` follow `site.body.inputs`: None for absent ones; weights and host-known inputs are
    passed too, so a launch that prepacked a weight simply ignores its slot.
    """

    call: Call
    writes_out: bool = False
    shape_free: bool = False  # serves every shape, so instances share it
    calls_torch: bool = True  # False: a frozen call never enters PyTorch
    in_place: bool = False  # an output may lie exactly on an input of the same spec
    packed_bytes: int = 0  # weight copies this launch keeps
    # those of them in host memory that other launches may hold as well (`tactics/shared_copies.py`)
    shared: tuple[Tensor, ...] = field(default=(), compare=False)
    # a faster form for fixed inputs and outputs, perhaps `Movable`; None: `call` with its arguments fixed
    freeze: Freeze | None = None
    wants_host_values: bool = False  # inputs known on the host stay there, also on a GPU
    reads: frozenset[int] | None = None  # slots of the inputs that a call looks at; None: all of them
    scratch_bytes: int = 0  # memory that each frozen call makes for itself
    # its programs wait for one another, so all of some must be under way: no two such run side by side
    waits_inside: bool = False
    note: str = ""  # what the report should say about it, such as ops that run in a slow fall-back
    why_eager: str = ""  # why no CUDA graph can hold a call, where that is known without a trial
    # bytes from the start of an argument up to the last that a call touches, by argument: the inputs, then
    # the outputs. None: a library that looks at the tensors it is given does the work
    extents: Mapping[int, int] | None = None

    def frozen(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
        self.require_inside(inputs, outputs)
        if self.freeze is not None:
            return self.freeze(inputs, outputs)
        return partial(self.call, inputs, outputs)

    def run(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
        """One call over tensors that are checked first."""
        self.require_inside(inputs, outputs)
        return self.call(inputs, outputs)

    def require_inside(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        """Raise before a kernel would touch memory past a tensor that it is given."""
        for argument, touched in (self.extents or {}).items():
            is_input = argument < len(inputs)
            given = inputs[argument] if is_input else outputs[argument - len(inputs)]
            held = given.nbytes if isinstance(given, Tensor) else 0
            if touched > held:
                what = f"input {argument}" if is_input else f"output {argument - len(inputs)}"
                raise PlanError(
                    f"a kernel would touch memory past its {what}",
                    got=f"{held} bytes",
                    want=f"{touched} bytes",
                    help="the plan does not fit its graph: build the engine again from the model",
                )


Bind: TypeAlias = Callable[[Config, Mapping[str, Tensor]], Launch]


@dataclass(frozen=True)
class Footprint:
    """What a launch means for memory, known before anything is bound; the fields are those of `Launch`."""

    writes_out: bool
    in_place: bool = False
    packed_bytes: int = 0
    scratch_bytes: int = 0


@dataclass(frozen=True)
class Refused:
    """Why a tactic does not take a site. The reason is kept in the plan."""

    reason: str


@dataclass(frozen=True)
class Offer:
    """What follows from one reading of a site: the variants worth timing, and how to run each of them."""

    configs: Sequence[Config]  # worth timing under the options of the build, best guess first
    bind: Bind  # packs the weights, given by name, and returns the launch
    # of our own, in the order of their launches
    kernels: Callable[[Config], Sequence[Kernel]] = lambda config: ()
    cpp_source: Callable[[Config], str] | None = None  # generated C++ that binding compiles
    footprint: Callable[[Config], Footprint] | None = None  # None: only a bound launch can tell
    predict_us: Callable[[Config, Device], float] | None = None  # on this GPU; None: nothing predicts it
    extents: Callable[[Config], Mapping[int, int]] | None = None  # of its launches, which get them from here
    other_configs: Sequence[Config] = ()  # offered under other options
    compiles: bool = False  # binding takes a compiler, unless a cache has what it makes

    def has(self, config: Config) -> bool:
        """Whether the tactic itself could have made this config.

        A config from a plan, a lock or a cache may be a stranger's, or made for a machine with other
        vectors. Generated code believes its config, so only what could be offered is ever bound.
        """
        return any(dict(config) == dict(known) for known in (*self.configs, *self.other_configs))


@dataclass(frozen=True)
class InsideTime:
    """A node inside a launch, timed by the library that runs it."""

    name: str
    op_type: str
    us: float


@dataclass(frozen=True)
class PairOps:
    """Regions that a tactic takes as a pair: one with an op of the first types, then one of the second."""

    first: Collection[str]
    second: Collection[str]
    is_all_of_first: bool = False  # no op of the first region is of another type

    def accept(self, first: Collection[str], second: Collection[str]) -> bool:
        """Whether two regions with these types of ops may be such a pair."""
        found = set(self.first)
        is_first = found.issuperset(first) if self.is_all_of_first else not found.isdisjoint(first)
        return is_first and not set(self.second).isdisjoint(second)


class Tactic:
    """One way to run a region. Traits say what selection and the runtime need to know of every tactic."""

    name: str
    runs_on = ""  # the device of its tensors; "": any
    is_floor = False  # runs any region, op by op
    takes_open_shapes = False  # also where shapes inside a region depend on data
    is_examined = False  # a plugin's: it is run and compared at every set of shapes before it is believed
    reads_levels = False  # takes quantised weights as they are; others get the numbers, evaluated at bind
    takes_spans = False  # may run neighbouring regions as one step
    # takes nothing but two neighbouring regions as one step, of which the second reads what the first makes
    pair_ops: PairOps | None = None
    # has a pool of its own whose threads spin after a call, and disturb what follows
    spins_threads = False
    has_profiler = False  # its library times the nodes inside a launch: `time_inside`
    store: KernelStore = COMPILED_HERE  # of compiled Triton kernels
    cache_dir: Path = CPP_CACHE  # of compiled C++

    def offer(self, site: Site) -> Offer | Refused:
        """Read the site. A reader on the way may raise `RefusedError`; `read_offer` makes it `Refused`."""
        raise NotImplementedError

    def examine(self, site: Site, launch: Launch, inputs: Sequence[Any]) -> None:
        """Raise where a bound launch is not sound. Tests do it for ours; those of plugins are run first."""

    def time_inside(
        self, site: Site, config: Config, weights: Mapping[str, Tensor], inputs: Sequence[Any], rounds: int
    ) -> Sequence[InsideTime]:
        """The nodes inside a launch over these inputs, by the library's own profiler."""
        raise NotImplementedError
