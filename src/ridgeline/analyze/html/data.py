"""The data of the page: the rows of a report, with texts and contests that repeat written once.

Names come from strangers' models. They are shortened and made visible here, and escaped by `page.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ridgeline.analyze.explain import Contest, config_text
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.report_data import EngineReport, ReportRegion, ReportStep
from ridgeline.analyze.report_graph import RegionBody
from ridgeline.analyze.runs import part_rows
from ridgeline.errors import visible

LONGEST_NAME = 200
# of the JSON text; with the libraries the page stays under 6 MB
MOST_BYTES = 3_600_000
MOST_FINDINGS = 200
FEW = 3  # losers of each contest that are kept where the data would be too large


@dataclass
class _Shared:
    """Texts and contests that many rows have in common: rows hold their places in these lists."""

    texts: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    contests: list[dict[str, Any]] = field(default_factory=list)
    is_short: bool = False  # only the first few losers, and no refusals

    def text(self, text: str) -> int:
        return self.texts.setdefault(clean(text, 600), len(self.texts))

    def contest(self, contest: Contest) -> int:
        losers = contest.losers[:FEW] if self.is_short else contest.losers
        refusals = () if self.is_short else contest.unwilling
        untimed = () if self.is_short else contest.untimed
        row = {
            "tactic": clean(contest.tactic),
            "config": clean(config_text(contest.config)),
            "us": rounded(contest.median_us),
            "predicted": contest.is_predicted,
            "losers": [
                [
                    self.text(each.tactic),
                    self.text(config_text(each.config)),
                    rounded(each.median_us),
                    rounded(each.behind),
                ]
                for each in losers
            ],
            "refused": [
                *([self.text(each.tactic), self.text(f"not tried: {each.reason}")] for each in untimed),
                *([self.text(each.tactic), self.text(each.reason)] for each in refusals),
            ],
        }
        place = self.places.setdefault(compact(row), len(self.contests))
        if place == len(self.contests):
            self.contests.append(row)
        return place


def page_data(report: EngineReport, *, title: str, made_by: str) -> str:
    """The JSON text to embed. Where it would be too large, contests are cut, and a note says so."""
    text = compact(_page(report, _Shared(), title=title, made_by=made_by, notes=()))
    if len(text) <= MOST_BYTES:
        return text
    note = (
        f"This engine has {len(report.steps):,} steps. To keep the page small it lists the {FEW} best losers "
        "of each step and no refusals: ridge explain ENGINE NODE and ridge report --format json have all."
    )
    return compact(_page(report, _Shared(is_short=True), title=title, made_by=made_by, notes=(note,)))


def _page(
    report: EngineReport, shared: _Shared, *, title: str, made_by: str, notes: tuple[str, ...]
) -> dict[str, Any]:
    summary = report.summary
    steps = [_step(step, shared) for step in report.steps]
    regions = [_region(region, shared) for region in report.regions]
    used = {region.function for region in report.regions}
    return {
        "title": clean(title),
        "madeBy": made_by,
        "notes": list(notes),
        "summary": {
            **cleaned(asdict(summary), without=("steps", "tactics")),
            "verified": summary.verdict.verified,
            "worst": rounded(summary.verdict.worst_fraction) if summary.verdict.worst else None,
        },
        "times": report.times,
        "latencyUs": rounded(report.latency_us),
        "latencyOf": report.latency_of,
        "roofline": rounded(report.roofline),
        "roof": cleaned(asdict(report.roof)) if report.roof is not None else None,
        "measured": cleaned(asdict(report.measured)) if report.measured is not None else None,
        "findings": [_finding(each) for each in report.findings[:MOST_FINDINGS]],
        "notLookedFor": len(report.not_looked_for),
        "hotSpots": [cleaned(asdict(spot), without=("parts",)) for spot in report.hot_spots],
        "why": clean(report.why, 600),
        "steps": steps,
        "regions": regions,
        "bodies": {clean(body.function): _body(body) for body in report.bodies if body.function in used},
        "graphInputs": [clean(name) for name in report.graph_inputs],
        "graphOutputs": [clean(name) for name in report.graph_outputs],
        "memory": _memory(report),
        "alternatives": [cleaned(asdict(row)) for row in report.alternatives],
        "unfused": [
            {**cleaned(asdict(row), without=("nodes",)), "nodes": [clean(n) for n in row.nodes[:50]]}
            for row in report.unfused
        ],
        "unwilling": [
            {
                "tactic": clean(row.tactic),
                "regions": row.regions,
                "reasons": [clean(r, 600) for r in row.reasons],
            }
            for row in report.unwilling
        ],
        "hostValues": len(report.host_values),
        "runs": [
            dict(zip(("of", "as", "steps", "why"), map(clean, row), strict=True))
            for row in part_rows(report.summary.run_parts)
        ],
        "islands": [cleaned(asdict(row)) for row in report.islands],
        "checks": [cleaned(asdict(row)) for row in report.checks],
        "kernels": [cleaned(asdict(row), without=("evidence",)) for row in report.kernels],
        "contests": shared.contests,
        "texts": list(shared.texts),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        **cleaned(asdict(finding), without=("nodes", "evidence")),
        "severity": finding.severity,
        "nodes": len(finding.nodes),
        "node": clean(finding.nodes[0]) if finding.nodes else "",
    }


def _step(step: ReportStep, shared: _Shared) -> dict[str, Any]:
    return {
        "index": step.index,
        "name": clean(step.name),
        "kind": step.op_class,
        "precision": step.precision,
        "ops": clean(step.ops_text),
        "nodes": len(step.nodes),
        "tactic": clean(step.tactic),
        "config": clean(config_text(step.config)),
        "us": rounded(step.us),
        "p10": rounded(step.p10_us),
        "p90": rounded(step.p90_us),
        "start": rounded(step.start_us),
        "gap": rounded(step.gap_us),
        "share": rounded(step.share),
        "flops": step.flops,
        "bytes": step.bytes,
        "bound": rounded(step.bound_us),
        "boundBy": step.bound_by,
        "limiter": step.limiter,
        "evidence": shared.text(step.evidence) if step.evidence else None,
        "roofline": rounded(step.roofline),
        "contest": shared.contest(step.contest),
        "why": shared.text(step.why) if step.why else None,
        "notes": [shared.text(note) for note in step.notes],
        "kernels": list(step.kernels),
        "launches": [[shared.text(k.name), rounded(k.start_us), rounded(k.us)] for k in step.launches],
        "inside": [
            [clean(n.name), shared.text(n.op_type), rounded(n.us)]
            for n in sorted(step.inside, key=lambda node: -node.us)[:200]
        ],
        "work": [[shared.text(n.op_type), n.flops, n.bytes] for n in step.work[:200]],
    }


def _region(region: ReportRegion, shared: _Shared) -> dict[str, Any]:
    return {
        "name": clean(region.name),
        "step": region.step,
        "body": clean(region.function),
        "kind": region.op_class,
        "ops": [shared.text(op) for op in region.ops],
        "nodes": [clean(name) for name in region.nodes],
        "inputs": [clean(name) for name in region.inputs],
        "outputs": [clean(name) for name in region.outputs],
        "weights": [clean(name) for name in region.weights],
        "contest": None if region.contest is None else shared.contest(region.contest),
    }


def _body(body: RegionBody) -> dict[str, Any]:
    short = {name: clean(name, 80) for op in body.ops for name in (*op.inputs, *op.outputs)}
    return {
        "inputs": [clean(name, 80) for name in body.inputs],
        "outputs": [clean(name, 80) for name in body.outputs],
        "ops": [
            [
                clean(op.op_type, 80),
                [short[name] for name in op.inputs],
                [short[name] for name in op.outputs],
                clean(op.attributes, 300),
            ]
            for op in body.ops
        ],
    }


def _memory(report: EngineReport) -> dict[str, Any]:
    memory = report.memory
    return {
        "arena": memory.arena_bytes,
        "unshared": memory.unshared_bytes,
        "live": list(memory.live_bytes),
        "blocks": [
            [clean(b.value), b.spec, b.nbytes, b.offset, b.first, b.last]
            for b in memory.blocks
            if b.kind == "arena"
        ],
    }


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def clean(text: str, longest: int = LONGEST_NAME) -> str:
    """A name that cannot turn or hide the text around it, cut in its middle: ends of paths tell most."""
    # what is cut away need not be looked at
    shown = visible(text[: 4 * longest] + text[-4 * longest :] if len(text) > 8 * longest else text)
    if len(shown) <= longest:
        return shown
    return f"{shown[: longest // 2]}…{shown[-(longest // 2 - 1) :]}"


def cleaned(value: Any, *, without: tuple[str, ...] = ()) -> Any:
    """Every text in these rows made safe to show."""
    if isinstance(value, Mapping):
        return {clean(str(k)): cleaned(v) for k, v in value.items() if k not in without}
    if isinstance(value, (list, tuple)):
        return [cleaned(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return clean(value, 600) if isinstance(value, str) else value


def rounded(value: float | None) -> float | None:
    """Five digits: a page shows three."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
