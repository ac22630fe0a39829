"""How sites are offered to tactics: read once, refused with a reason, compiled several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Site
from ridgeline.errors import BuildError, failure
from ridgeline.kernels.cpp.compiler import compile_many
from ridgeline.kernels.triton.compiler import KernelStore, compile_kernels
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Bind, Launch, Offer, Refused, Tactic
from ridgeline.tactics.constant_ops import offer_evaluated, without_constant_ops


def read_offer(tactic: Tactic, site: Site) -> Offer | Refused:
    """What the tactic makes of the site. The only place where a reader's `RefusedError` becomes `Refused`."""
    if tactic.runs_on and site.target.traits.device != tactic.runs_on:
        return Refused(f"target is {site.target}, want {tactic.runs_on}")
    if not (tactic.takes_open_shapes or site.is_inferred):
        return Refused("a shape inside depends on data")
    found = without_constant_ops(site) if site.is_inferred else None
    # the floor is fastest on numbers; any other tactic may have a use for the levels
    offer = Refused("") if tactic.is_floor and found is not None else _asked(tactic, site)
    if isinstance(offer, Refused) and found is not None and not tactic.reads_levels:
        offer = _asked(tactic, found.site)
        offer = offer if isinstance(offer, Refused) else offer_evaluated(offer, found)
    if isinstance(offer, Refused) or offer.extents is None:
        return offer
    return replace(offer, bind=partial(_bind_within, offer.bind, offer.extents))


def _asked(tactic: Tactic, site: Site) -> Offer | Refused:
    try:
        return tactic.offer(site)
    except RefusedError as refusal:
        return Refused(str(refusal))
    except Exception as error:  # a site that the tactic's author did not think of
        return Refused(failure(error))


def _bind_within(
    bind: Bind, extents: Callable[[Config], Mapping[int, int]], config: Config, weights: Mapping[str, Tensor]
) -> Launch:
    """A launch that is refused over tensors which end before the bytes that it may touch."""
    return replace(bind(config, weights), extents=extents(config))


def require_offer(tactic: Tactic, site: Site) -> Offer:
    """The offer of a tactic that is known to take the site."""
    offer = read_offer(tactic, site)
    if isinstance(offer, Refused):
        raise BuildError(f"{tactic.name} does not take {site.name or 'the site'}", got=offer.reason)
    return offer


def kernels_of(tactics: Mapping[str, Tactic], site: Site, name: str, config: Config) -> Sequence[Kernel]:
    """Those that one candidate launches; none for a library, or where the candidate refuses the site."""
    offer = read_offer(tactics[name], site) if name in tactics else None
    return offer.kernels(config) if isinstance(offer, Offer) and offer.has(config) else ()


Job: TypeAlias = tuple[Tactic, Site, Offer | Refused, Config]


def cpp_text(offer: Offer | Refused, config: Config) -> str | None:
    """The generated C++ that binding this config compiles, if there is any and it can be written."""
    if isinstance(offer, Refused) or offer.cpp_source is None:
        return None
    try:
        return offer.cpp_source(config)
    except Exception:  # binding it says why
        return None


def precompile(
    jobs: Iterable[Job],
    *,
    on_done: Callable[[int, int], None] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[Exception]:
    """Compile what these sites will bind, several at a time. What fails here fails again when it is bound.

    All tactics together: one after the other, processes would wait for the longest kernel of each. C++ that
    is not begun when `is_over` comes back as a `LeftOutError`, a Triton kernel as a `KernelLeftOutError`.
    """
    sources: dict[Path, list[str]] = {}
    kernels: dict[tuple[str, int], tuple[KernelStore, list[Kernel]]] = {}  # by architecture and store
    failed: list[Exception] = []
    for tactic, site, offer, config in jobs:
        if isinstance(offer, Refused):
            continue
        try:
            found = offer.kernels(config)
            if found:
                key = site.target.arch, id(tactic.store)
                kernels.setdefault(key, (tactic.store, []))[1].extend(found)
            if offer.cpp_source is not None:
                sources.setdefault(tactic.cache_dir, []).append(offer.cpp_source(config))
        except Exception as error:
            failed.append(error)
    for folder, texts in sources.items():
        failed += compile_many(texts, cache_dir=folder, is_over=is_over, on_done=on_done)
    for (arch, _), (store, wanted) in kernels.items():
        made = compile_kernels(wanted, arch, store=store, on_done=on_done, is_over=is_over)
        failed += [answer for answer in made if isinstance(answer, Exception)]
    return failed
