"""The profiles of an engine: the same model planned for each, or for each part of one, and one signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.base.spec import Site, TensorSpec
from ridgeline.ir.sites import make_site
from ridgeline.plan.check import check_steps
from ridgeline.plan.plan import Plan, Step
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.islands import BindBody, Islands
from ridgeline.runtime.signature import Bounds, Signature
from ridgeline.runtime.weights import default_of


@dataclass(frozen=True, eq=False)
class Variant:
    """The model planned for one profile, or for a part of one, and the steps of that plan."""

    plan: Plan
    executable: Executable
    is_further: bool = False  # a part of the same profile as the variant before it

    def __post_init__(self) -> None:
        fused = self.executable.fused
        check_steps(self.plan, fused.program, self.executable.regions, fused.tactics)

    def sites_to_embed(self) -> list[tuple[Step, Site]]:
        """Steps whose kernels an engine file holds, with their sites at the planned shapes.

        Of a pair of regions also each region as it would run alone: the machine itself may settle on that.
        """
        executable, fused = self.executable, self.executable.fused
        parts = {name: step for step in executable.steps if is_pair(step, fused) for name in step.regions}
        if not parts:
            return executable.every_planned_site()
        inferred = fused.inference.at(executable.planned_shapes)
        regions = {region.name: region for region in fused.program.regions}
        alone: list[tuple[Step, Site]] = []
        for note in self.plan.regions:
            if note.name in parts and note.candidates:
                best, *losers = note.candidates
                step = replace(
                    parts[note.name], name=note.name, regions=(note.name,), tactic=best.tactic,
                    config=best.config, losers=tuple(losers),
                )  # fmt: skip
                alone.append((step, make_site(fused.program, regions[note.name], inferred, fused.target)))
        return [*executable.every_planned_site(), *alone]

    @property
    def alone(self) -> Variant:
        """As the only one of an engine, whose profile is the part that this one takes."""
        profile = self.plan.part or self.plan.profile
        return Variant(replace(self.plan, profile=profile, part={}), self.executable)


def is_pair(step: Step, fused: FusedModel) -> bool:
    """Whether the step is a pair of regions that would run apart otherwise."""
    tactic = fused.tactics.get(step.tactic)
    return len(step.regions) > 1 and tactic is not None and tactic.pair_ops is not None


def load_variant(plan: Plan, fused: FusedModel, bind_body: BindBody) -> Variant:
    """A plan over its model. Its bodies of control flow are fused again when a step first runs them."""
    islands = Islands(fused, plan.bodies, bind_body)
    return Variant(plan, Executable(fused, plan.steps, plan.planned_shapes, islands))


def load_variants(plan: Plan, fused: FusedModel, bind_body: BindBody) -> list[Variant]:
    """One for each profile of a whole plan, or for each part of one, such as a plan that a file holds."""
    return [
        replace(
            load_variant(replace(each, others=(), parts=()), fused, bind_body), is_further=each is not first
        )
        for first in (plan, *plan.others)
        for each in (first, *first.parts)
    ]


class Profiles:
    """The variants of an engine. A retuned one takes the place of the one before."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.variants = tuple(variants)
        first = self.variants[0]
        self.inference = first.executable.fused.inference
        names = [port.name for port in first.plan.inputs]
        self.plan = self._whole_plan()
        self.signature = Signature(
            first.plan.inputs,
            [Bounds(plan.profile, plan.value_profile) for plan in (self.plan, *self.plan.others)],
            first.plan.guards,
            {n: array for n in names if (array := default_of(self.inference.weights, n)) is not None},
            [Bounds(v.plan.part or v.plan.profile, v.plan.value_profile) for v in self.variants],
        )

    def at(self, specs: Mapping[str, TensorSpec]) -> Variant:
        """The variant whose profile, or part of one, holds these inputs; the first where none does."""
        return self.variants[self.signature.find(specs) or 0]

    def swap(self, index: int, variant: Variant) -> None:
        """Run another plan from the next new instance on; instances that are there keep theirs."""
        self.variants = (*self.variants[:index], variant, *self.variants[index + 1 :])
        self.plan = self._whole_plan()

    def _whole_plan(self) -> Plan:
        """The first one's, with those of further profiles inside, and in each those of its further parts."""
        profiles: list[list[Plan]] = []
        for variant in self.variants:
            if variant.is_further:
                profiles[-1].append(variant.plan)
            else:
                profiles.append([variant.plan])
        first, *others = (replace(own, parts=tuple(parts)) for own, *parts in profiles)
        return replace(first, others=tuple(others))
