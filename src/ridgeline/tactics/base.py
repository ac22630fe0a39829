"""The contract of a tactic: one way to run a region on a target.

A tactic answers `why_not`, offers `configs`, and binds a site to a `Launch`. It never times itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from ridgeline.base.spec import Config, Site
from ridgeline.errors import PlanError
from ridgeline.kernels.triton.source import Kernel

Call: TypeAlias = Callable[[Sequence[Any], Sequence[Tensor]], Sequence[Tensor] | None]
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
    # a faster form for fixed inputs and outputs, perhaps `Movable`; None: `call` with its arguments fixed
    freeze: Callable[[Sequence[Any], Sequence[Tensor]], Callable[[], object]] | None = None
    wants_host_values: bool = False  # inputs known on the host stay there, also on a GPU
    reads: frozenset[int] | None = None  # slots of the inputs that a call looks at; None: all of them
    scratch_bytes: int = 0  # memory that each frozen call makes for itself
    note: str = ""  # what the report should say about it, such as ops that run in a slow fall-back
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


class Tactic:
    """One way to run a region. Traits say what selection and the runtime need to know of every tactic."""

    name: str
    is_floor = False  # runs any region, op by op
    takes_open_shapes = False  # also where shapes inside a region depend on data
    takes_spans = False  # may run neighbouring regions as one step
    spins_threads = False  # has a pool of its own whose threads spin after a call, and disturb what follows

    def examine(self, site: Site, launch: Launch, inputs: Sequence[Any]) -> None:
        """Raise where a bound launch is not sound. Tests do it for ours; those of plugins are run first."""

    def why_not(self, site: Site) -> str | None:
        """None when willing; else the reason, kept in the plan."""
        raise NotImplementedError

    def configs(self, site: Site) -> Iterable[Config]:
        """The variants worth timing, best guess first."""
        raise NotImplementedError

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        """Prepack and return the launch. `weights` maps the site's weight inputs to tensors."""
        raise NotImplementedError


@runtime_checkable
class OffersMore(Protocol):
    """A tactic whose configs also depend on the options of a build."""

    name: str

    def every_config(self, site: Site) -> Iterable[Config]:
        """What it offers under any options."""


def could_offer(tactic: Tactic, site: Site, config: Config) -> bool:
    """Whether the tactic itself could have made this config for the site.

    A config from a plan, a lock or a cache may be a stranger's, or made for a machine with other vectors.
    Generated code believes its config, so that only what could be offered is ever bound.
    """
    offered = tactic.every_config(site) if isinstance(tactic, OffersMore) else tactic.configs(site)
    return any(dict(config) == dict(known) for known in offered)


@runtime_checkable
class Compiles(Protocol):
    """A tactic that can compile for many sites ahead of binding, several at a time."""

    name: str

    def precompile(self, jobs: Sequence[tuple[Site, Config]]) -> object:
        """Failures show again when the site is bound."""


@runtime_checkable
class HasKernels(Protocol):
    """A tactic whose launches are kernels of our own, alone or after a library's."""

    name: str

    def kernels(self, site: Site, config: Config) -> Sequence[Kernel]:
        """All that `bind` will launch, in order; none where a library does everything."""


@dataclass(frozen=True)
class Footprint:
    """What a launch will be to memory, told before anything is bound; as `Launch` says it afterwards."""

    writes_out: bool
    in_place: bool = False
    packed_bytes: int = 0
    scratch_bytes: int = 0


@runtime_checkable
class Foretells(Protocol):
    """A tactic that can be planned for where it cannot be bound: on a machine without its GPU."""

    name: str

    def footprint(self, site: Site, config: Config) -> Footprint: ...
