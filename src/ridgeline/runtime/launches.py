"""Steps bound to launches: by the plan's tactic where it fits, and kept for the shapes used last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from functools import cached_property

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Site
from ridgeline.errors import BuildError, PluginError, first_line
from ridgeline.ir.body import Region
from ridgeline.kernels.triton.compiler import CompileError
from ridgeline.plan.plan import Step
from ridgeline.runtime.examples import site_inputs
from ridgeline.runtime.forking import PerProcess
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.islands import Islands
from ridgeline.tactics.base import Launch, Offer, Refused
from ridgeline.tactics.offer import Job, precompile, read_offer

# shapes of one step whose launches are kept, as many as a context keeps instances
KEPT_LAUNCHES = 8


class Launches:
    """The launches of one executable; all its instances share them."""

    def __init__(
        self,
        fused: FusedModel,
        steps: Sequence[Step],
        regions: Sequence[Region],
        islands: Islands,
        planned_sites: Callable[[], Sequence[tuple[Step, Site]]],
    ) -> None:
        self._tactics, self._weights = fused.tactics, fused.placed_weights
        self._shape_free = fused.shape_free
        self._notes = fused.notes  # what did not go as planned on this machine
        self._unplanned: dict[str, dict[str, str]] = {}  # by reason: steps and the tactic that was planned
        self._steps, self._regions, self._islands = steps, regions, islands
        self._find_planned = planned_sites
        self._own = PerProcess(fused.target)
        self._made: dict[tuple[int, str], Launch] = {}

    @cached_property
    def _planned_sites(self) -> dict[str, Site]:
        """At the planned shapes, by step."""
        return {step.name: site for step, site in self._find_planned()}

    def __len__(self) -> int:
        return len(self._made)

    def values(self) -> ValuesView[Launch]:
        return self._made.values()

    def compile_ahead(self, sites: Sequence[tuple[int, Site]]) -> None:
        """What these sites will compile, several at a time instead of one by one."""
        jobs: list[Job] = []
        for index, site in sites:
            step = self._steps[index]
            offer = self._offer(step.tactic, site)
            if isinstance(offer, Refused) or not offer.compiles:
                continue
            if self._is_offered(index, step.tactic, offer, step.config):
                jobs.append((self._tactics[step.tactic], site, offer, step.config))
        precompile(jobs)

    def launch(self, index: int, site: Site) -> Launch:
        with self._own.lock:
            launch = self._known(index, site)
            if launch is None:
                launch = self._bind(index, site)
                is_any = launch.shape_free and self._is_as_planned(index, site)
                self._made[index, "" if is_any else site.key] = launch
                self._forget_old(index)
            return launch

    def uncompiled(self, index: int, site: Site) -> Launch:
        """One that is there already, or that needs no compiler: else the floor's."""
        with self._own.lock:
            known = self._known(index, site)
            _, offer, _ = next(self._willing(index, site))
            if known is None and offer.compiles:
                return self._floor(site)[1].bind({}, self._weights_of(index, site))
        return known or self.launch(index, site)

    def _known(self, index: int, site: Site) -> Launch | None:
        own, any_shape = (self._made.get((index, key)) for key in (site.key, ""))
        return own or (any_shape if any_shape is not None and self._is_as_planned(index, site) else None)

    def _is_as_planned(self, index: int, site: Site) -> bool:
        """A launch for any shape is none for a shape that the plan's tactic refuses."""
        return isinstance(self._offer(self._steps[index].tactic, site), Offer)

    def _examined(self, name: str, site: Site, weights: Mapping[str, Tensor], launch: Launch) -> Launch:
        """A launch of a plugin is run and compared: the code may not be what the engine was built with."""
        if self._tactics[name].is_examined:
            inputs = site_inputs(site, weights, device=site.target.traits.device)
            self._tactics[name].examine(site, launch, inputs)
        return launch

    def _offer(self, tactic: str, site: Site) -> Offer | Refused:
        """What a tactic offers for a site, if this build has it."""
        found = self._tactics.get(tactic)
        return Refused("is not in this build") if found is None else read_offer(found, site)

    def _is_offered(self, index: int, tactic: str, offer: Offer, config: Config) -> bool:
        """For this site, or for the one at the planned shapes, which the config was chosen for."""
        if offer.has(config):
            return True
        planned = self._planned_sites.get(self._steps[index].name)
        then = None if planned is None else self._offer(tactic, planned)
        return isinstance(then, Offer) and then.has(config)

    def _floor(self, site: Site) -> tuple[str, Offer]:
        name, floor = next((name, tactic) for name, tactic in self._tactics.items() if tactic.is_floor)
        offer = read_offer(floor, site)
        assert isinstance(offer, Offer), "the floor takes every site"
        return name, offer

    def _weights_of(self, index: int, site: Site) -> dict[str, Tensor]:
        return {name: self._weights[self._regions[index].outer(name)] for name in site.weights}

    def _forget_old(self, index: int) -> None:
        """Launches of shapes long gone keep packed weights; instances that still run hold their own."""
        shapes = [key for key in self._made if key[0] == index]
        for key in shapes[:-KEPT_LAUNCHES]:
            del self._made[key]

    def _bind(self, index: int, site: Site) -> Launch:
        """By the first willing tactic whose kernel can be had."""
        step = self._steps[index]
        planned = self._tactics.get(step.tactic)
        is_floor = planned is not None and planned.is_floor
        island = self._islands.bind(self._regions[index], site) if is_floor else None
        if island is not None:
            return island
        weights = self._weights_of(index, site)
        for name, offer, config in self._willing(index, site):
            try:
                place = (step.regions, name, tuple(sorted(config.items())))
                launch = self._shape_free.get(place) or offer.bind(config, weights)
                if launch.shape_free:
                    self._shape_free[place] = launch
                return self._examined(name, site, weights, launch)
            except (CompileError, RefusedError) as error:
                self._note(f"its kernel cannot be had: {first_line(error)}", step.name, name)
            except PluginError as error:
                self._note(f"is not sound at these shapes: {first_line(error)}", step.name, name)
            except (KeyError, TypeError, ValueError, AssertionError) as error:
                raise BuildError(
                    f"{step.name}: {name} cannot be bound with the config it was given",
                    got=f"{dict(config)}: {error!r}",
                    help="was a lock or a cache edited by hand? delete it and build again",
                ) from error
        raise AssertionError("the floor compiles nothing")

    def _willing(self, index: int, site: Site) -> Iterator[tuple[str, Offer, Config]]:
        """The plan's tactic, its losers where it does not fit, and the floor."""
        step = self._steps[index]
        losers = [(c.tactic, c.config) for c in step.losers if c.refused is None]
        for name, config in [(step.tactic, step.config), *losers]:
            offer = self._offer(name, site)
            if isinstance(offer, Refused):
                self._note(offer.reason, step.name, name)
            elif self._is_offered(index, name, offer, config):
                yield name, offer, config
            else:
                self._note(f"offers no such config here: {dict(config)}", step.name, name)
        yield *self._floor(site), {}

    def _note(self, reason: str, step: str, tactic: str) -> None:
        """One note for each reason, however many steps it holds for."""
        steps = self._unplanned.setdefault(reason, {})
        old = _note_text(reason, steps)
        steps.setdefault(step, tactic)
        new = _note_text(reason, steps)
        if old in self._notes:
            self._notes[self._notes.index(old)] = new
        else:
            self._notes.append(new)


def _note_text(reason: str, steps: Mapping[str, str]) -> str:
    if not steps:
        return ""
    step, tactic = next(iter(steps.items()))
    if len(steps) == 1:
        return f"{step}: {tactic} was planned but {reason}"
    return f"{reason}: {len(steps)} steps run another tactic than was planned, the first {step} ({tactic})"
