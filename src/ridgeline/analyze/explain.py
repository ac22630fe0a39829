"""Rows that explain a plan: the tactic of each step and its lead, what was not fused, and why.

Everything is read from the plan; nothing is timed or rebuilt, and nothing here prints. What to change in the
model is looked for in `findings/`.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from ridgeline.analyze.explain_costs import MoveRow, move_rows, refusal_us
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.in_plan import GRAPH_KIND_NAMES, find_in_plan, ranked
from ridgeline.analyze.findings.rates import reached_ceilings
from ridgeline.analyze.parts import plan_place, which_text
from ridgeline.analyze.show import short_ops
from ridgeline.analyze.streams import stream_notes
from ridgeline.base.ceilings import Ceilings
from ridgeline.base.choices import Candidate, Refusal
from ridgeline.base.grouping import grouped
from ridgeline.base.spec import Config
from ridgeline.errors import OptionError
from ridgeline.plan.plan import Plan, RegionNote, Step, total_us
from ridgeline.plan.report import Island, Precision, Report, RunPart

_QUOTED = re.compile(r"'[^']*'")
_SHAPE = re.compile(r"\[[\d, ]+\]")


@dataclass(frozen=True)
class Loser:
    """A candidate that was timed (or predicted) and lost; `behind` 0.12 is 12 % slower than the winner."""

    tactic: str
    config: Config
    median_us: float
    behind: float | None


@dataclass(frozen=True)
class Unwilling:
    """A tactic that refused a step."""

    tactic: str
    reason: str


@dataclass(frozen=True)
class Untimed:
    """A willing candidate that was not tried, where others were."""

    tactic: str
    config: Config
    reason: str


@dataclass(frozen=True)
class Contest:
    """The chosen tactic, the slower ones and those that refused, by measured or predicted time."""

    tactic: str
    config: Config
    median_us: float | None
    losers: tuple[Loser, ...]
    unwilling: tuple[Unwilling, ...]
    is_predicted: bool = False
    untimed: tuple[Untimed, ...] = ()

    @property
    def winner(self) -> str:
        return f"{self.tactic} {config_text(self.config)}".rstrip()

    @property
    def runner_up(self) -> Loser | None:
        """The best of another tactic: a rival config of the winner says little about the choice."""
        return next((loser for loser in self.losers if loser.tactic != self.tactic), None)


@dataclass(frozen=True)
class StepStory:
    """One step: its nodes, its tactic, and the other candidates."""

    index: int
    name: str
    regions: tuple[str, ...]
    ops: tuple[str, ...]
    ops_text: str
    nodes: tuple[str, ...]
    contest: Contest
    why: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RegionStory:
    """Equal regions (same body, same shapes): what was fused, and the best tactic for one alone."""

    names: tuple[str, ...]
    function: str
    ops: tuple[str, ...]
    ops_text: str
    nodes: tuple[str, ...]
    steps: tuple[int, ...]
    contest: Contest | None


@dataclass(frozen=True)
class KindRow:
    """All regions that fuse the same ops in the same order, whatever their shapes."""

    ops: tuple[str, ...]
    ops_text: str
    regions: int
    winners: dict[str, int]  # tactic -> regions it would run best by itself
    total_us: float | None  # sum of their times; None if some were not timed


@dataclass(frozen=True)
class UnfusedRow:
    """All fusions refused by one rule for one reason; the names and shapes are those of the first."""

    rule: str
    reason: str
    count: int
    nodes: tuple[str, ...]
    bytes_lost: int | None
    lost_us: float | None = None  # those bytes at the machine's rate, and a launch each


@dataclass(frozen=True)
class UnwillingRow:
    """One tactic's refusals over all regions, and the reasons it gave, the most frequent first."""

    tactic: str
    regions: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class AlternativeRow:
    """A whole plan that was considered; `behind` 0.12 is 12 % slower than the chosen one."""

    name: str
    is_chosen: bool
    total_us: float | None
    behind: float | None
    refused: str


@dataclass(frozen=True)
class Explanation:
    """Why a plan is as it is; of one node if `node` is set."""

    model: str
    target: str
    threads: int
    node: str
    total_nodes: int  # of the model; Constant nodes are not counted
    total_regions: int
    total_steps: int
    steps_us: float | None
    why: str
    alternatives: tuple[AlternativeRow, ...]
    steps: tuple[StepStory, ...]
    regions: tuple[RegionStory, ...]
    kinds: tuple[KindRow, ...]
    unfused: tuple[UnfusedRow, ...]
    unwilling: tuple[UnwillingRow, ...]
    host_values: tuple[str, ...]
    islands: tuple[Island, ...] = ()
    run_parts: tuple[RunPart, ...] = ()  # what is in which CUDA graph, once the engine has run
    profile: str = ""  # which profile this explains, and which part of it, if there are several
    findings: tuple[Finding, ...] = ()  # the largest gain first
    not_looked_for: tuple[str, ...] = ()  # kinds of findings that need the engine's graph, which was not read
    moves: tuple[MoveRow, ...] = ()
    computed_in: str = ""  # the float type that most ops make
    lowered: Precision | None = None  # what was asked of precision, and which nodes stayed out


def explain_engine(
    plan: Plan,
    report: Report,
    node: str = "",
    *,
    profile: int = 1,
    part: int = 1,
    findings: Sequence[Finding] | None = None,
    min_gain: float | None = None,
) -> Explanation:
    """As `explain_plan`, for a part of one of the profiles, with the cost of steps that could not be planned.

    `findings` are those of the engine's graph (`findings.in_graph`); without them, those that the text tells.

    Parameters: which plan of the engine, and what to tell of it.
    """
    place = plan_place(plan, profile, part)
    chosen = plan.every_plan[place]
    story = explain_plan(chosen, node, total_nodes=report.nodes)
    found = find_in_plan(chosen, report) if findings is None else findings
    islands = [i for i in report.islands if not node or node in (i.step, *i.ops)]
    names = {island.step for island in report.islands}
    return replace(
        story,
        steps=tuple(_without_guess(step) if names & {*step.regions} else step for step in story.steps),
        islands=tuple(islands) if place == 0 else (),
        run_parts=tuple(p for p in report.run_parts if place == 0 and (not node or node in p.steps)),
        profile=which_text(plan, profile, part),
        findings=ranked([f for f in found if not node or node in (f.step, *f.nodes)], min_gain),
        not_looked_for=GRAPH_KIND_NAMES if findings is None else (),
        lowered=report.precision,
    )


def _without_guess(step: StepStory) -> StepStory:
    """Drop the predicted time of a step whose work depends on data. Only the order of candidates is known."""
    contest = step.contest
    return replace(step, contest=replace(contest, median_us=None)) if contest.is_predicted else step


def explain_plan(plan: Plan, node: str = "", *, total_nodes: int = 0) -> Explanation:
    """The whole plan, or only what concerns one node of the original model (or one region, or one step)."""
    steps = [_step_story(index, step) for index, step in enumerate(plan.steps, start=1)]
    notes: Sequence[RegionNote] = plan.regions
    refusals: Sequence[Refusal] = plan.refusals
    hosted = plan.host_values
    if node:
        steps = [step for step in steps if node in {step.name, *step.regions, *step.nodes}]
        notes = [note for note in notes if node in {note.name, *note.sources}]
        refusals = [refusal for refusal in refusals if refusal.at == node]
        hosted = tuple(name for name in hosted if name == node)
        if not (steps or notes or refusals or hosted):
            raise _unknown_node(plan, node)
    return Explanation(
        model=plan.model,
        target=str(plan.target),
        threads=plan.target.threads,
        node=node,
        total_nodes=total_nodes,
        total_regions=len({region for step in plan.steps for region in step.regions}),
        total_steps=len(plan.steps),
        steps_us=total_us(plan.steps),
        why=plan.why,
        alternatives=_alternatives(plan.alternatives),
        steps=tuple(steps),
        regions=_region_stories(notes, plan.steps),
        kinds=_kinds(notes),
        unfused=_unfused(refusals, reached_ceilings(plan)),
        unwilling=_unwilling(notes, plan.steps),
        host_values=hosted,
        moves=() if node else move_rows(plan),
        computed_in=plan.precision,
    )


def config_text(config: Config) -> str:
    """``block=64 unroll=2``, in the order of the names."""
    return " ".join(f"{key}={config[key]}" for key in sorted(config))


def _step_story(index: int, step: Step) -> StepStory:
    chosen = Candidate(step.tactic, step.config, step.median_us, predicted_us=step.predicted_us)
    return StepStory(
        index=index,
        name=step.name,
        regions=step.regions,
        ops=step.op_types,
        ops_text=short_ops(step.op_types),
        nodes=step.sources,
        contest=_contest((chosen, *step.losers)),
        why=step.why,
        notes=(*step.notes, *stream_notes(step)),
    )


def _region_stories(notes: Iterable[RegionNote], steps: Sequence[Step]) -> tuple[RegionStory, ...]:
    """One story for all regions that share body and shapes, in the order they first appear."""
    equal = grouped(((note.function, note.site), note) for note in notes)
    step_of = {region: index for index, step in enumerate(steps, start=1) for region in step.regions}
    stories = []
    for (function, _), group in equal.items():
        first = group[0]
        stories.append(
            RegionStory(
                names=tuple(note.name for note in group),
                function=function,
                ops=first.op_types,
                ops_text=short_ops(first.op_types),
                nodes=tuple(source for note in group for source in note.sources),
                steps=tuple(dict.fromkeys(step_of[note.name] for note in group if note.name in step_of)),
                contest=_contest(first.candidates) if first.candidates else None,
            )
        )
    return tuple(stories)


def _kinds(notes: Iterable[RegionNote]) -> tuple[KindRow, ...]:
    """Rows with the most frequent first; equally frequent ones keep their order."""
    rows = []
    for ops, group in grouped((note.op_types, note) for note in notes).items():
        best = [note.candidates[0] for note in group if note.candidates]
        times = [candidate.median_us for candidate in best if candidate.median_us is not None]
        total = sum(times) if times and len(times) == len(best) else None
        winners = dict(Counter(candidate.tactic for candidate in best).most_common())
        rows.append(KindRow(ops, short_ops(ops), len(group), winners, total))
    return tuple(sorted(rows, key=lambda row: -row.regions))


def _contest(candidates: Sequence[Candidate]) -> Contest:
    """The contest of these candidates, of which the first was chosen."""
    chosen, *rest = candidates
    is_predicted = chosen.predicted_us is not None
    if is_predicted:
        chosen, *rest = (replace(c, median_us=None if c.refused else c.predicted_us) for c in candidates)
    timed = sorted((c for c in rest if c.median_us is not None), key=lambda c: c.median_us or 0.0)
    return Contest(
        tactic=chosen.tactic,
        config=dict(chosen.config),
        median_us=chosen.median_us,
        losers=tuple(
            Loser(c.tactic, dict(c.config), c.median_us or 0.0, _behind(c.median_us, chosen.median_us))
            for c in timed
        ),
        unwilling=tuple(Unwilling(c.tactic, c.refused) for c in rest if c.refused is not None),
        is_predicted=is_predicted,
        untimed=tuple(Untimed(c.tactic, dict(c.config), c.untimed) for c in rest if c.untimed is not None),
    )


def _behind(median_us: float | None, winner_us: float | None) -> float | None:
    return median_us / winner_us - 1 if median_us is not None and winner_us else None


def _alternatives(ranked: Sequence[Candidate]) -> tuple[AlternativeRow, ...]:
    """One row per whole plan; the first was chosen."""
    return tuple(
        AlternativeRow(
            name=f"{candidate.tactic} {config_text(candidate.config)}".rstrip(),
            is_chosen=candidate is ranked[0],
            total_us=candidate.median_us,
            behind=_behind(candidate.median_us, ranked[0].median_us),
            refused=candidate.refused or "",
        )
        for candidate in ranked
    )


def _unfused(refusals: Iterable[Refusal], ceilings: Ceilings | None) -> tuple[UnfusedRow, ...]:
    """Grouped by rule and reason, the costliest first."""
    groups = grouped(((refusal.rule, _in_general(refusal.reason)), refusal) for refusal in refusals)
    rows = []
    for (rule, general), group in groups.items():
        reason = group[0].reason if len(group) == 1 else general
        known = [refusal.bytes_lost for refusal in group if refusal.bytes_lost is not None]
        nodes = tuple(refusal.at for refusal in group)
        lost = sum(known) if known else None
        rows.append(UnfusedRow(rule, reason, len(group), nodes, lost, refusal_us(lost, len(known), ceilings)))
    return tuple(sorted(rows, key=lambda row: (-(row.bytes_lost or 0), -row.count, row.rule, row.reason)))


def _in_general(reason: str) -> str:
    """The reason without names and sizes, so that reasons of one kind are equal."""
    return _SHAPE.sub("[…]", _QUOTED.sub("'…'", reason))


def _unwilling(notes: Sequence[RegionNote], steps: Sequence[Step]) -> tuple[UnwillingRow, ...]:
    """Refusals by tactic, counted over regions, or over steps if the plan has no notes on regions."""
    given: dict[str, Counter[str]] = {}
    for candidates in [note.candidates for note in notes] or [step.losers for step in steps]:
        for tactic, refused in {(c.tactic, c.refused) for c in candidates}:
            if refused:
                given.setdefault(tactic, Counter())[_in_general(refused)] += 1
    return tuple(
        UnwillingRow(tactic, reasons.total(), tuple(reason for reason, _ in reasons.most_common()))
        for tactic, reasons in sorted(given.items())
    )


def _unknown_node(plan: Plan, node: str) -> OptionError:
    names = [name for step in plan.steps for name in (*step.sources, step.name, *step.regions)]
    known = list(dict.fromkeys((*names, *(refusal.at for refusal in plan.refusals), *plan.host_values)))
    # people remember the end of a path, or one word of it
    near = [name for name in known if node.lower() in name.lower()][:5]
    near = near or get_close_matches(node, known, n=5, cutoff=0.5)
    return OptionError(
        f"no step of {plan.model or 'this plan'} has a node {node!r}",
        rows=[f"near: {name}" for name in near],
        want=f"one of the {len(known)} names in the plan; a node folded into a constant is in no step",
        help="ridge explain ENGINE lists them all"
        if not near
        else f"ridge explain ENGINE {shlex.quote(near[0])}",
    )
