"""What tests ask a tactic about a site: its offer, or why there is none."""

from __future__ import annotations

from ridgeline.base.spec import Config, Site
from ridgeline.kernels.triton.stage import Stages
from ridgeline.kernels.triton.text import lower
from ridgeline.tactics.base import Offer, Refused, Tactic
from ridgeline.tactics.cuda.triton_codegen import GeneratedTactic
from ridgeline.tactics.offer import read_offer


def offered(tactic: Tactic, site: Site) -> Offer:
    offer = read_offer(tactic, site)
    assert isinstance(offer, Offer), f"{tactic.name}: {offer.reason}"
    return offer


def why_not(tactic: Tactic, site: Site) -> str | None:
    """The reason of a refusal; None where the tactic is willing."""
    offer = read_offer(tactic, site)
    return offer.reason if isinstance(offer, Refused) else None


def stages_of(tactic: GeneratedTactic, site: Site, config: Config) -> Stages:
    """The launches of one config, whether or not the tactic would offer it."""
    return tactic.stages(site, lower(site), config)
