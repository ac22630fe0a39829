"""The profiles of an engine: the same model planned once for each, and the signature of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.base.spec import TensorSpec
from ridgeline.plan.check import check_steps
from ridgeline.plan.plan import Plan
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.islands import BindBody, Islands
from ridgeline.runtime.signature import Bounds, Signature
from ridgeline.runtime.weights import default_of


@dataclass(frozen=True, eq=False)
class Variant:
    """The model planned for one profile, and the steps of that plan."""

    plan: Plan
    executable: Executable

    def __post_init__(self) -> None:
        fused = self.executable.fused
        check_steps(self.plan, fused.program, self.executable.regions, fused.tactics)


def load_variant(plan: Plan, fused: FusedModel, bind_body: BindBody) -> Variant:
    """A plan over its model. Its bodies of control flow are fused again when a step first runs them."""
    islands = Islands(fused, plan.bodies, bind_body)
    return Variant(plan, Executable(fused, plan.steps, plan.planned_shapes, islands))


def load_variants(plan: Plan, fused: FusedModel, bind_body: BindBody) -> list[Variant]:
    """One for each profile of a whole plan, such as one that was read from a file."""
    return [load_variant(each, fused, bind_body) for each in (replace(plan, others=()), *plan.others)]


class Profiles:
    """The variants of an engine. A retuned one takes the place of the one before."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.variants = tuple(variants)
        first = self.variants[0]
        self.inference = first.executable.fused.inference
        names = [port.name for port in first.plan.inputs]
        self.signature = Signature(
            first.plan.inputs,
            [Bounds(v.plan.profile, v.plan.value_profile) for v in self.variants],
            first.plan.guards,
            {n: array for n in names if (array := default_of(self.inference.weights, n)) is not None},
        )
        self.plan = self._whole_plan()

    def at(self, specs: Mapping[str, TensorSpec]) -> Variant:
        """The variant whose profile holds these inputs; the first where none does."""
        return self.variants[self.signature.find(specs) or 0]

    def swap(self, index: int, variant: Variant) -> None:
        """Run another plan from the next new instance on; instances that are there keep theirs."""
        self.variants = (*self.variants[:index], variant, *self.variants[index + 1 :])
        self.plan = self._whole_plan()

    def _whole_plan(self) -> Plan:
        """The first one's, with those of the further profiles inside."""
        return replace(self.variants[0].plan, others=tuple(v.plan for v in self.variants[1:]))
