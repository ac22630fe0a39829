"""A hand-made plan with something of everything."""

from __future__ import annotations

import pytest

from ridgeline.base.choices import Candidate, Refusal
from ridgeline.base.spec import Port, Target, TensorSpec
from ridgeline.options import DimRange
from ridgeline.plan.plan import Memory, Plan, RegionNote, Step, Work
from ridgeline.plan.report import Check, Report


def _step(name: str, op_types: tuple[str, ...], tactic: str, median_us: float | None, **more: object) -> Step:
    return Step(
        name=name,
        regions=(f"region_{name}", f"region_{name}_again") if name == "head" else (f"region_{name}",),
        op_types=op_types,
        sources=tuple(f"/{name}/{op}_{i}" for i, op in enumerate(op_types)),
        inputs=("x",),
        outputs=(f"{name}_y",),
        tactic=tactic,
        config={},
        site="0" * 32,
        work=Work(flops=1000, bytes=4000),
        median_us=median_us,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def plan() -> Plan:
    stem = _step(
        "stem",
        ("Conv", "Mul", "Add", "Relu", "MaxPool"),
        "onednn.conv",
        120.0,
        losers=(
            Candidate("aten", {}, 300.0),
            Candidate("onednn.conv", {"layout": "nchw"}, 121.0),
            Candidate("ort", {}, 132.0),
            Candidate("cpp", {}, refused="a convolution is not pointwise"),
        ),
        why="onednn.conv is 10 % faster than ort",
    )
    head = _step(
        "head",
        ("Gemm", "Softmax"),
        "ort",
        40.0,
        losers=(Candidate("cpp", {}, refused="a convolution is not pointwise"),),
        notes=("allocates its output",),
    )
    return Plan(
        model="tiny",
        target=Target("cpu", "", 2),
        precision="fp32",
        inputs=(Port("x", "float32", ("batch", 3, 32, 32)),),
        outputs=(Port("y", "float32", ("batch", 10)),),
        profile={
            "x": (DimRange(1, 4, 8), DimRange(3, 3, 3), DimRange(32, 32, 32), DimRange(32, 32, 32)),
        },
        planned_shapes={"x": TensorSpec("float32", (4, 3, 32, 32))},
        steps=(stem, head),
        memory=Memory(
            arena_bytes=1 << 20,
            unshared_bytes=4 << 20,
            io_bytes=49_312,
            weight_bytes=3 << 20,
            packed_bytes=1 << 19,
            library_bytes=160,
        ),
        regions=(
            RegionNote(
                name="region_stem",
                function="stem",
                op_types=stem.op_types,
                sources=stem.sources,
                site="a",
                work=Work(1000, 4000),
                candidates=(Candidate("onednn.conv", {}, 120.0), *stem.losers),
            ),
            *(
                RegionNote(
                    name=f"region_head{suffix}",
                    function="head",
                    op_types=head.op_types,
                    sources=tuple(f"{source}{suffix}" for source in head.sources),
                    site="b",
                    work=Work(1000, 4000),
                    candidates=(Candidate("ort", {}, 20.0), *head.losers),
                )
                for suffix in ("", "_again")
            ),
        ),
        host_values=("/Shape_0", "/Gather_1"),
        refusals=(
            Refusal("epilogue", "MaxPool is no epilogue", "/stem/MaxPool_4", 1000),
            Refusal("epilogue", "MaxPool is no epilogue", "/other/MaxPool", 500),
            Refusal("horizontal", "inputs differ", "/head/Gemm_0", None),
        ),
        alternatives=(
            Candidate("regions", {}, 160.0),
            Candidate("ort whole graph", {}, 200.0),
            Candidate("spans", {}, refused="one region only"),
        ),
        why="regions beat the whole graph by 20 %",
        slow_ops=("Foo at /a/Foo: onnx reference evaluator",),
    )


@pytest.fixture
def report() -> Report:
    return Report(
        nodes=9,
        reference="onnxruntime 1.31",
        checks=(
            Check("opt shapes", "y", "x 4x3x32x32", 1e-7, 1e-5, passed=True),
            Check("batch 1 against 4", "y", "x 1x3x32x32", 5e-6, 1e-5, passed=True),
        ),
        stage_seconds={"load": 0.2, "timing": 3.4, "tiny": 0.001},
        call_overhead_us=8.0,
        run_us=168.0,
        sites_timed=2,
        library_allocations=("head",),
        warnings=("the timing cache is damaged and was ignored",),
        versions={"torch": "2.13", "onnxruntime": "1.31"},
    )
