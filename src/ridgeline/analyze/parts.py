"""Which plan of an engine takes which sizes: its profiles, and the parts of those tuned at several points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.errors import OptionError
from ridgeline.frontend.profiles import shapes_text
from ridgeline.options import Ranges
from ridgeline.plan.plan import Plan, total_us


@dataclass(frozen=True)
class PartRow:
    """One plan of a profile that is tuned at several points; part 1 is tuned at `opt`."""

    profile: int
    part: int
    tuned_at: str
    takes: str  # the sizes that it runs; where several parts take the same, the nearest point decides
    steps: int
    steps_us: float | None


def profile_text(plan: Plan) -> str:
    """The sizes and values that a plan takes, as the command line has them."""
    sizes = [f"{name}={'x'.join(map(str, dims))}" for name, dims in plan.profile.items() if dims]
    values = [f"{name}=[{', '.join(map(str, v))}]" for name, v in plan.value_profile.items()]
    return " ".join((*sizes, *values))


def part_rows(plan: Plan) -> tuple[PartRow, ...]:
    """Those of every profile that has parts."""
    return tuple(
        _row(profile, part, each)
        for profile, own in enumerate((plan, *plan.others), start=1)
        for part, each in enumerate((own, *own.parts) if own.parts else (), start=1)
    )


def plan_place(plan: Plan, profile: int, part: int) -> int:
    """Where `Plan.every_plan` has a part of a profile, both counted from 1."""
    profiles = [plan, *plan.others]
    if not 1 <= profile <= len(profiles):
        raise OptionError(f"there is no profile {profile}", want=f"1 to {len(profiles)}")
    count = 1 + len(profiles[profile - 1].parts)
    if not 1 <= part <= count:
        raise OptionError(
            f"profile {profile} has no part {part}",
            want=f"1 to {count}" if count > 1 else "1: it is tuned at one point only",
            help="ridge build MODEL --tune-at POINTS makes a part for each point" if count == 1 else "",
        )
    return sum(1 + len(each.parts) for each in profiles[: profile - 1]) + part - 1


def which_text(plan: Plan, profile: int, part: int) -> str:
    """The profile, and the part of it, that something is told of; empty where there is only one plan."""
    profiles = [plan, *plan.others]
    own = profiles[profile - 1]
    said = [f"{profile} of {len(profiles)}: {profile_text(own)}"] if len(profiles) > 1 else []
    if own.parts:
        said = said or [profile_text(own)]
        row = _row(profile, part, (own, *own.parts)[part - 1])
        said.append(f"part {part} of {1 + len(own.parts)}, tuned at {row.tuned_at} for {row.takes}")
    return "; ".join(said)


def _row(profile: int, part: int, plan: Plan) -> PartRow:
    tuned_at, takes = shapes_text(plan.planned_shapes), _sizes_text(plan.part)
    return PartRow(profile, part, tuned_at, takes, len(plan.steps), total_us(plan.steps))


def _sizes_text(shapes: Mapping[str, Ranges]) -> str:
    each = {
        name: "x".join(str(r.min) if r.min == r.max else f"{r.min}..{r.max}" for r in dims)
        for name, dims in shapes.items()
        if dims
    }
    return " ".join(f"{name}={sizes}" for name, sizes in each.items())
