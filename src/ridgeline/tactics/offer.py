"""What a tactic makes of one site: an offer, or a refusal with its reason. The site is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch import Tensor

from ridgeline.base.spec import Config, Site
from ridgeline.errors import failure
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Compiles, Footprint, Foretells, HasKernels, Launch, OffersMore, Tactic

Bind: TypeAlias = Callable[[Config, Mapping[str, Tensor]], Launch]


@dataclass(frozen=True)
class Refused:
    """Why a tactic does not take a site. The reason is kept in the plan."""

    reason: str


def _no_kernels(config: Config) -> Sequence[Kernel]:
    return ()


@dataclass(frozen=True)
class Offer:
    """What follows from one reading of a site: the variants worth timing, and how to run each of them."""

    configs: Sequence[Config]  # worth timing under the options of the build, best guess first
    bind: Bind
    kernels: Callable[[Config], Sequence[Kernel]] = _no_kernels  # of our own, in the order of their launches
    footprint: Callable[[Config], Footprint] | None = None  # None: only a bound launch can tell
    other_configs: Sequence[Config] = ()  # offered under other options
    compiles: bool = False  # binding it takes a compiler

    def has(self, config: Config) -> bool:
        """Whether the tactic itself could have made this config.

        A config from a plan, a lock or a cache may be a stranger's, or made for a machine with other
        vectors. Generated code believes its config, so only what could be offered is ever bound.
        """
        return any(dict(config) == dict(known) for known in (*self.configs, *self.other_configs))


def read_offer(tactic: Tactic, site: Site) -> Offer | Refused:
    """Read the site once. An exception is a site that the tactic's author did not think of."""
    try:
        own = getattr(tactic, "offer", None)
        if own is not None:
            made: Offer | Refused = own(site)
            return made
        reason = tactic.why_not(site)
        if reason is not None:
            return Refused(reason)
        return Offer(
            configs=tuple(tactic.configs(site)),
            bind=partial(tactic.bind, site),
            kernels=partial(tactic.kernels, site) if isinstance(tactic, HasKernels) else _no_kernels,
            footprint=partial(tactic.footprint, site) if isinstance(tactic, Foretells) else None,
            other_configs=tuple(tactic.every_config(site)) if isinstance(tactic, OffersMore) else (),
            compiles=isinstance(tactic, Compiles),
        )
    except Exception as error:
        return Refused(failure(error))


def precompile(tactic: Tactic, jobs: Iterable[tuple[Site, Config]]) -> None:
    """Compile what these sites will bind, several at a time; a failure returns when the site is bound."""
    todo = list(jobs)
    if todo and isinstance(tactic, Compiles):
        tactic.precompile(todo)


def kernels_of(tactics: Mapping[str, Tactic], site: Site, name: str, config: Config) -> Sequence[Kernel]:
    """Those that one candidate launches; none for a library, or where the candidate refuses the site."""
    offer = read_offer(tactics[name], site) if name in tactics else None
    return offer.kernels(config) if isinstance(offer, Offer) and offer.has(config) else ()
