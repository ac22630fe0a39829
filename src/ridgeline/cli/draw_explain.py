"""Draws what `ridge explain` says about a plan or one of its nodes."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.explain import (
    Contest,
    Explanation,
    RegionStory,
    StepStory,
    config_text,
)
from ridgeline.base.grouping import grouped
from ridgeline.cli.draw_findings import put_findings
from ridgeline.cli.draw_runs import draw_runs
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import behind, duration, percent, plural, size

LISTED = 8


def draw_explanation(story: Explanation, console: Console) -> None:
    """The whole plan as tables with reasons, or the pages of one node."""
    _headline(story, console)
    if story.node:
        _pages(story, console)
        return
    put_lines([("why", story.why), ("profile", story.profile), ("precision", precision_text(story))], console)
    console.print()
    put_findings(story, console)
    _alternatives(story, console)
    _steps(story, console)
    _islands(story, console)
    draw_runs(story.run_parts, console)
    _regions(story, console)
    _moves(story, console)
    _unfused(story, console)
    _unwilling(story, console)
    _host_values(story, console)


def precision_text(story: Explanation) -> str:
    """The type that ops compute in; what was asked for, and how much of it stayed out."""
    lowered = story.lowered
    if lowered is None:
        return f"{story.computed_in}, as the model has it" if story.computed_in else ""
    counts = ", ".join(f"{count} {name}" for name, count in lowered.nodes.items())
    kept = f"; {plural(len(lowered.kept), 'node')} kept, why is among the findings" if lowered.kept else ""
    return f"{story.computed_in}, asked for {lowered.asked}: {counts} of {lowered.counted}{kept}"


def draw_every_page(story: Explanation, console: Console) -> None:
    """The whole plan, each step and each region on its page."""
    _headline(story, console)
    _pages(story, console)


def _headline(story: Explanation, console: Console) -> None:
    counts = ((story.total_nodes, "node"), (story.total_regions, "region"), (story.total_steps, "step"))
    flow = " → ".join(plural(count, word) for count, word in counts)
    timed = f", {duration(story.steps_us)}" if story.steps_us is not None else ""
    machine = f"  ({story.target}, {plural(story.threads, 'thread')})"
    console.print(Text.assemble((story.model or "model", "bold"), f"  {flow}{timed}", (machine, "dim")))


def _alternatives(story: Explanation, console: Console) -> None:
    if len(story.alternatives) < 2:
        return
    grid = table("plan", "total", "behind", "note", numeric=("total", "behind"))
    for row in story.alternatives:
        note = "chosen" if row.is_chosen else f"refused: {row.refused}" if row.refused else ""
        gap = "" if row.is_chosen or row.refused else behind(row.behind)
        name = Text(row.name, "bold" if row.is_chosen else "")
        grid.add_row(name, duration(row.total_us) if not row.refused else "", gap, Text(note, "dim"))
    put(grid, console, title="Whole plans compared")


def _steps(story: Explanation, console: Console) -> None:
    # a plan that was made without its machine has no times yet
    time = "predicted" if any(step.contest.is_predicted for step in story.steps) else "median"
    numbers = ("#", "nodes", time, "behind")
    columns = ("#", "ops", "nodes", "tactic", time, "runner-up", "behind")
    grid = table(*columns, numeric=numbers)
    for step in story.steps:
        contest = step.contest
        cells = (contest.winner, duration(contest.median_us), *_runner_up(contest))
        grid.add_row(str(step.index), step.ops_text, str(len(step.nodes)), *cells)
    put(grid, console, title="Steps: who runs what")


def _islands(story: Explanation, console: Console) -> None:
    """Steps that cannot be planned because their shapes depend on data, with their cost."""
    if not story.islands:
        return
    numbers = ("time", "of all steps")
    grid = table("step", "ops", *numbers, "why", numeric=numbers, keep=("why",))
    for island in story.islands:
        share = f"{island.share:.0%}" if island.share is not None else ""
        why = f"{island.why}; {island.body}" if island.body else island.why
        grid.add_row(island.step, " ".join(island.ops[:4]), duration(island.median_us), share, why)
    put(grid, console, title="Islands: what data decides about")


def _regions(story: Explanation, console: Console) -> None:
    """Nothing is drawn if every step is one region, since the table of steps shows the same."""
    if all(len(step.regions) == 1 for step in story.steps):
        return
    numbers = ("regions", "time alone")
    grid = table("regions", "ops fused", "best alone", "time alone", numeric=numbers, keep=("ops fused",))
    for kind in story.kinds:
        winners = ", ".join(f"{tactic} ×{count}" for tactic, count in kind.winners.items())
        grid.add_row(str(kind.regions), kind.ops_text, winners, duration(kind.total_us) if winners else "")
    put(grid, console, title="Regions: what was fused, and who would run them one by one")


def _runner_up(contest: Contest) -> tuple[str | Text, str]:
    second = contest.runner_up
    if second:
        return second.tactic, behind(second.behind)
    if contest.median_us is None:
        return Text("not timed", "dim"), ""
    refused = len({refusal.tactic for refusal in contest.unwilling})
    return Text(f"{refused} refused" if refused else "no other", "dim"), ""


def _moves(story: Explanation, console: Console) -> None:
    """Layout changes: steps that compute nothing, with what they cost."""
    if not story.moves:
        return
    numbers = ("bytes", "time", "of the run")
    grid = table("step", "ops", *numbers, numeric=numbers)
    for row in story.moves:
        cells = (size(row.bytes), duration(row.us), percent(row.share))
        grid.add_row(row.step, " ".join(row.ops[:4]), *cells)
    put(grid, console, title="Steps that only move elements")


def _unfused(story: Explanation, console: Console) -> None:
    if not story.unfused:
        return
    # an estimate, where any step has a time to estimate from
    has_times = any(row.lost_us is not None for row in story.unfused)
    numbers = ("times", "bytes lost", *(("about",) if has_times else ()))
    grid = table("rule", "reason", *numbers, "first at", numeric=numbers, keep=("reason",))
    for row in story.unfused:
        about = (duration(row.lost_us),) if has_times else ()
        grid.add_row(row.rule, row.reason, str(row.count), size(row.bytes_lost), *about, row.nodes[0])
    put(grid, console, title="Not fused, and why")


def _unwilling(story: Explanation, console: Console) -> None:
    if not story.unwilling:
        return
    grid = table("tactic", "regions", "reason", numeric=("regions",), keep=("reason",))
    alike = grouped(((row.regions, row.reasons[0], len(row.reasons)), row) for row in story.unwilling)
    for row, *others in alike.values():
        names = ", ".join((row.tactic, *(other.tactic for other in others[:1])))
        names += f" and {len(others) - 1} more" if len(others) > 1 else ""
        more = f" (and {plural(len(row.reasons) - 1, 'other reason')})" if len(row.reasons) > 1 else ""
        grid.add_row(names, str(row.regions), row.reasons[0] + more)
    put(grid, console, title="Tactics that refused")


def _host_values(story: Explanation, console: Console) -> None:
    if story.host_values:
        console.print("Settled on the host before work starts, free at run time", style="bold")
        put_lines([(f"{len(story.host_values):,}", _listed(story.host_values))], console)


def _pages(story: Explanation, console: Console) -> None:
    pages_of_regions = any(len(step.regions) > 1 for step in story.steps)
    for step in story.steps:
        _step_page(step, console)
    for region in story.regions if pages_of_regions else ():
        _region_page(region, console)
    put_findings(story, console)
    refused = [(row, f" ({size(row.bytes_lost)} lost)" if row.bytes_lost else "") for row in story.unfused]
    put_lines(
        [("not fused", f"{row.rule}: {row.reason}{lost}") for row, lost in refused], console, style="yellow"
    )
    _host_values(story, console)


def _step_page(step: StepStory, console: Console) -> None:
    console.print(Text.assemble("\n", (f"step {step.index}", "bold"), f"  {step.name}"))
    put_lines(
        (
            ("ops", step.ops_text),
            ("regions", _listed(step.regions)),
            ("nodes", _listed(step.nodes)),
            ("why", step.why),
            *(("note", note) for note in step.notes),
        ),
        console,
    )
    _candidates(step.contest, console, first="chosen")


def _region_page(region: RegionStory, console: Console) -> None:
    times = f" and {len(region.names) - 1} equal to it" if len(region.names) > 1 else ""
    console.print(Text.assemble(("region", "bold"), f"  {region.names[0]}{times}"))
    put_lines((("ops", region.ops_text), ("nodes", _listed(region.nodes))), console)
    if region.contest:
        _candidates(region.contest, console, first="best alone")


def _candidates(contest: Contest, console: Console, *, first: str) -> None:
    console.print()
    time = "predicted" if contest.is_predicted else "median"
    grid = table("candidate", time, "behind", "verdict", numeric=(time, "behind"), keep=("verdict",))
    grid.add_row(Text(contest.winner, "bold"), duration(contest.median_us), "", Text(first, "bold"))
    for loser in contest.losers:
        name = f"{loser.tactic} {config_text(loser.config)}".rstrip()
        verdict = "slower" if loser.behind is None or loser.behind > 0 else "within the margin"
        grid.add_row(name, duration(loser.median_us), behind(loser.behind), verdict)
    for each in contest.untimed:
        name = f"{each.tactic} {config_text(each.config)}".rstrip()
        grid.add_row(name, "", "", Text(f"not tried: {each.reason}", "dim"))
    for refusal in contest.unwilling:
        grid.add_row(refusal.tactic, "", "", Text(refusal.reason, "dim"))
    put(grid, console)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:LISTED])
    return shown + (f" and {len(names) - LISTED:,} more" if len(names) > LISTED else "")
