"""What tests ask a tactic about a site: its offer, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ridgeline.base.spec import Config, Site
from ridgeline.kernels.triton.stage import Stages
from ridgeline.kernels.triton.text import lower
from ridgeline.tactics.base import Bind, Offer, Refused, Tactic
from ridgeline.tactics.cuda.triton_codegen import GeneratedTriton
from ridgeline.tactics.offer import read_offer


def offered(tactic: Tactic, site: Site) -> Offer:
    offer = read_offer(tactic, site)
    assert isinstance(offer, Offer), f"{tactic.name}: {offer.reason}"
    return offer


def why_not(tactic: Tactic, site: Site) -> str | None:
    """The reason of a refusal; None where the tactic is willing."""
    offer = read_offer(tactic, site)
    return offer.reason if isinstance(offer, Refused) else None


def change_launches(
    monkeypatch: pytest.MonkeyPatch, tactic: type[Tactic], change: Callable[[Bind], Bind]
) -> None:
    """Let the offers of a tactic bind in another way."""
    right = tactic.offer

    def offer(self: Tactic, site: Site) -> Offer | Refused:
        made = right(self, site)
        return made if isinstance(made, Refused) else replace(made, bind=change(made.bind))

    monkeypatch.setattr(tactic, "offer", offer)


def stages_of(tactic: GeneratedTriton, site: Site, config: Config) -> Stages:
    """The launches of one config, whether or not the tactic would offer it."""
    return tactic.stages(site, lower(site), config)
