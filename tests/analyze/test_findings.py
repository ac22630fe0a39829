"""Ten planted faults are found, and no more; mending one takes its finding away and gains what was said."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
from bench.planted_faults import FAULTS, OTHERS, Branch, Fault, half, network, planted

import ridgeline
from ridgeline.analyze.explain import explain_plan
from ridgeline.analyze.findings.close_race import MARGIN
from ridgeline.analyze.findings.finding import SEVERITIES, Finding, severity_of
from ridgeline.analyze.findings.in_graph import GRAPH_KINDS, find_all, find_in_graph
from ridgeline.analyze.findings.in_plan import GRAPH_KIND_NAMES, find_in_plan, ranked
from ridgeline.analyze.findings.open_shapes import REFUSED
from ridgeline.analyze.findings.subject import Subject
from ridgeline.base.choices import Candidate
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Island, Kept, Precision, Report
from ridgeline.select import candidates, race


def subject_of(model: onnx.ModelProto, target: str = "null:sm_90", **options: object) -> Subject:
    given = {"target": target, "level": 0, "verify": "off", **options}
    return Subject(ridgeline.build(model, **given))  # type: ignore[arg-type]


@cache
def whole() -> tuple[float, tuple[Finding, ...]]:
    """The time of the network with all its faults, and what is found in it."""
    subject = subject_of(planted())
    return subject.total_us, tuple(find_in_graph(subject))


def test_ten_faults_are_found_and_nothing_else_is_as_severe() -> None:
    _, found = whole()
    severe = [finding for finding in found if finding.severity == "high"]
    assert len(FAULTS) == 10
    assert sorted(finding.kind for finding in severe) == sorted(fault.kind for fault in FAULTS)
    for fault in FAULTS:
        (finding,) = [each for each in severe if each.kind == fault.kind]
        assert fault.node in finding.nodes
        assert finding.change
        assert finding.how
        assert finding.evidence["us"] if "us" in finding.evidence else finding.evidence["us_each"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
def test_a_mended_fault_is_gone_and_gains_what_was_predicted(fault: Fault) -> None:
    total_us, found = whole()
    (told,) = [finding for finding in found if finding.kind == fault.kind and finding.severity == "high"]
    mended = subject_of(planted([fault.kind]))
    left = [finding.kind for finding in find_in_graph(mended) if finding.severity == "high"]
    assert sorted(left) == sorted(each.kind for each in FAULTS if each is not fault)
    assert told.gain_us is not None
    gained_us = total_us - mended.total_us
    # a change may let more be fused than was counted on, never less
    assert gained_us >= 0.95 * told.gain_us, (gained_us, told.gain_us)


@pytest.mark.parametrize("fault", OTHERS, ids=lambda fault: fault.kind)
def test_other_faults_alone(fault: Fault) -> None:
    subject = subject_of(network([fault.planted]))
    (finding,) = find_in_graph(subject)
    mended = subject_of(network([fault.mended]))
    assert finding.kind == fault.kind
    assert fault.node in finding.nodes
    assert not find_in_graph(mended)
    assert finding.gain_us is not None
    assert subject.total_us - mended.total_us == pytest.approx(finding.gain_us, rel=0.05)


def test_the_severity_is_the_share_of_the_run_and_nothing_else() -> None:
    high, medium, low = SEVERITIES.values()
    assert [severity_of(share) for share in (high, medium, low, low / 2, None)] == [
        "high", "medium", "low", "note", "note",
    ]  # fmt: skip


def test_the_largest_gain_comes_first_and_small_ones_only_on_request() -> None:
    def of(share: float | None) -> Finding:
        return Finding("layout", ("n",), "what", "change", gain_us=share, share=share)

    found = [of(0.0001), of(0.01), of(None), of(0.5)]
    assert [finding.share for finding in ranked(found)] == [0.5, 0.01, None]
    assert [finding.share for finding in ranked(found, 0.0)] == [0.5, 0.01, 0.0001]
    assert [finding.share for finding in ranked(found, 0.1)] == [0.5]


def test_names_that_text_alone_knows_are_those_of_the_kinds() -> None:
    assert tuple(kind.name for kind in GRAPH_KINDS) == GRAPH_KIND_NAMES
    assert MARGIN == race.MARGIN


def test_alignment_matters_only_where_tensor_cores_multiply() -> None:
    """Float32 without TF32 runs on plain cores, a processor has none."""
    branch = Branch(
        "float[2048,1021] x",
        "float[2048,1024] y",
        "y = MatMul (x, w)",
        {"w": np.ones((1021, 1024), np.float32)},
    )
    assert not find_in_graph(subject_of(network([branch])))
    same = Branch(
        "float16[2048,1021] x", "float16[2048,1024] y", "y = MatMul (x, w)", {"w": half(1021, 1024)}
    )
    assert [finding.kind for finding in find_in_graph(subject_of(network([same])))] == ["alignment"]
    assert not find_in_graph(subject_of(network([same]), target="null"))


def test_copies_that_padding_needs_are_counted() -> None:
    """Columns of an output must be cut off again; of a product in the middle they are not."""

    def gain_us(outputs: str, nodes: str) -> float:
        weights = {"w": half(1024, 1021), "v": half(1021, 64)}
        branch = Branch("float16[4096,1024] x", outputs, nodes, weights)
        found = [f for f in find_in_graph(subject_of(network([branch]))) if f.evidence.get("N") == 1021]
        return (found[0].gain_us or 0.0) if found else 0.0

    inside = gain_us("float16[4096,64] z", "y = MatMul (x, w) z = MatMul (y, v)")
    at_the_end = gain_us("float16[4096,1021] y", "y = MatMul (x, w)")
    assert inside - at_the_end > 1.0


def test_levels_that_a_product_computes_with_are_no_finding() -> None:
    """The weight is quantised too: the pair is what the product reads."""
    branch = Branch(
        "float16[256,256] x", "float16[256,256] y",
        """r = Relu (x) q = QuantizeLinear (r, s, z) d = DequantizeLinear (q, s, z)
        v = DequantizeLinear <axis = 1> (w, t) y = MatMul (d, v)""",
        {
            "s": np.float16(0.02), "z": np.int8(0), "t": np.full(256, 0.01, np.float16),
            "w": np.ones((256, 256), np.int8),
        },
    )  # fmt: skip
    assert not find_in_graph(subject_of(network([branch])))


def timed(model: onnx.ModelProto, slow: str) -> Subject:
    """A plan as if it were measured: as the model says, but for one op that took eight times as long."""
    engine = ridgeline.build(model, target="null:sm_90", level=0, verify="off")
    times = {place.region.name: place.us or 0.0 for place in Subject(engine).places}
    (variant,) = engine.variants
    steps = tuple(
        replace(step, median_us=times[step.name] * (8 if slow in step.op_types else 1))
        for step in variant.plan.steps
    )
    engine.profiles.swap(0, replace(variant, plan=replace(variant.plan, steps=steps)))
    return Subject(engine)


@pytest.mark.parametrize(
    ("node", "kind", "change"),
    [
        ("ReduceSum <keepdims = 0> (x, a)", "tail_reduction", "Reshape to [1, 2048, 2048]"),
        ("Sinh (x)", "floor_op", "(Exp(x) - Exp(-x)) * 0.5"),
    ],
)
def test_a_measured_time_that_the_model_cannot_explain(node: str, kind: str, change: str) -> None:
    """Idle processors, slow libraries: only the measurement tells of them, against the other steps."""
    shape, op = "float16[1]" if "Reduce" in node else "float16[1,4194304]", node.split()[0]
    branch = Branch(
        "float16[1,4194304] x, float16[2048,2048] z", f"{shape} y, float16[2048,2048] u",
        f"y = {node} e = Exp (z) s = Softmax <axis = -1> (e) u = Tanh (s)", {"a": np.array([1])},
    )  # fmt: skip
    predicted = [finding.kind for finding in find_in_graph(subject_of(network([branch])))]
    assert predicted == (["floor_op"] if kind == "floor_op" else [])
    subject = timed(network([branch]), op)
    (finding,) = find_in_graph(subject)
    assert finding.kind == kind
    assert change in finding.change
    (slow,) = [place for place in subject.places if op in place.region.op_types]
    assert finding.gain_us is not None
    assert 0.5 * (slow.us or 0) < finding.gain_us < (slow.us or 0)


def test_findings_of_a_processor_rest_on_measured_times() -> None:
    branch = Branch(
        "float[8,256,512] x", "float[8,256,512] y",
        "t = Transpose <perm = [0, 2, 1]> (x) m = CumSum (t, one) y = Transpose <perm = [0, 2, 1]> (m)",
        {"one": np.int64(2)},
    )  # fmt: skip
    engine = ridgeline.build(network([branch]), level=1, verify="off", without=("ort",))
    found = find_all(engine)
    assert {finding.kind for finding in found} >= {"layout"}
    times = {step.name: step.median_us for step in engine.plan.steps}
    for finding in found:
        if finding.kind == "layout":
            assert finding.gain_us == pytest.approx(times[finding.step], abs=1e-3)


def planned(plan: Plan, report: Report | None = None) -> dict[str, Finding]:
    return {finding.kind: finding for finding in find_in_plan(plan, report or Report())}


def test_a_race_inside_the_noise_is_told_once(plan: Plan) -> None:
    """The runner-up of the stem is 10 % behind; at 1 % nobody can tell them apart."""
    assert "close_race" not in planned(plan)
    stem, head = plan.steps
    near = replace(stem, losers=(Candidate("ort", {}, 121.0), *stem.losers[:2]))
    told = planned(replace(plan, steps=(near, head)))["close_race"]
    assert told.evidence["steps"] == 1
    assert "/stem/Conv_0" in told.nodes
    assert (told.gain_us, told.severity) == (None, "note")


def test_islands_of_one_kind_are_one_finding(plan: Plan) -> None:
    islands = tuple(
        Island(f"region_{name}", ("NonZero",), "its size is data's", "", 5.0) for name in ("stem", "head")
    )
    told = planned(plan, Report(islands=islands))["island"]
    assert told.evidence == {"steps": 2, "us": 10.0}
    assert "Where" in told.change
    assert "/stem/Conv_0" in told.nodes


def test_what_stayed_in_high_precision_is_told_by_reason(plan: Plan) -> None:
    kept = (Kept("/a", "overflows"), Kept("/b", "overflows"), Kept("/c", "kept by --keep"))
    found = find_in_plan(plan, Report(precision=Precision("fp16", kept=kept)))
    assert [(finding.kind, finding.nodes) for finding in found] == [
        ("kept_precision", ("/a", "/b")), ("kept_precision", ("/c",)),
    ]  # fmt: skip


def test_a_tactic_that_refuses_other_sizes_of_the_profile_is_told(plan: Plan) -> None:
    stem, head = plan.steps
    refused = Candidate("cpp.conv", {}, refused=f"{REFUSED}a tensor is empty")
    told = planned(replace(plan, steps=(replace(stem, losers=(*stem.losers, refused)), head)))["open_shapes"]
    assert "a tensor is empty" in told.what
    assert "x axis 0: 1..8" in told.change


def test_refusals_say_open_shapes_as_selection_does() -> None:
    assert REFUSED in inspect.getsource(candidates)


def test_refused_fusions_have_a_cost_in_time(plan: Plan) -> None:
    """Two refusals lose 1500 bytes; the best rate in the plan is 100 bytes per µs, the least step 40 µs."""
    first, second = explain_plan(plan).unfused
    assert first.lost_us == pytest.approx(1500 / 100 + 2 * 40)
    assert second.lost_us is None


def test_steps_that_only_move_are_listed_with_their_share(plan: Plan) -> None:
    stem, head = plan.steps
    turn = replace(stem, name="turn", op_types=("Transpose",), median_us=40.0)
    (row,) = explain_plan(replace(plan, steps=(turn, head))).moves
    assert (row.step, row.us, row.share) == ("turn", 40.0, 0.5)
