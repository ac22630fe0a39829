"""Reports of three engines, made once; and a browser, if there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_models import (
    CEILINGS,
    bert,
    chain_graph,
    chain_plan,
    checked,
    engine_file,
    resnet50,
    trace_of,
    with_times,
)

from browser_tabs import new_tab, tab  # noqa: F401 -- fixtures of the tests here
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.report_data import EngineReport
from ridgeline.analyze.report_engine import report_engine
from ridgeline.analyze.report_graph import read_fused_graph
from ridgeline.runtime.description import read_description

FINDING = Finding(
    "channels", ("layer2_1_b_conv",), "64 channels are <b>not</b> a multiple", "pad them: `ridge build`",
    gain_us=12.5, share=0.03,
)  # fmt: skip


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Engine files of a ResNet-50 and a BERT."""
    folder = tmp_path_factory.mktemp("report")
    models = {"resnet50": resnet50(), "bert": bert()}
    return {name: engine_file(model, folder / f"{name}.ridge") for name, model in models.items()}


@pytest.fixture(scope="session")
def reports(engines: dict[str, Path]) -> dict[str, EngineReport]:
    """Of both, with times; of the BERT with a trace; and of 2,000 steps."""
    made = {}
    for name, path in engines.items():
        described = read_description(path)
        plan = with_times(described.plan)
        made[name] = report_engine(
            plan,
            checked(described.report),
            graph=read_fused_graph(path),
            trace=trace_of(plan) if name == "bert" else None,
            ceilings=CEILINGS,
            findings=[FINDING] if name == "resnet50" else None,
        )
        if name == "bert":
            chain = with_times(chain_plan(described.plan, 2000))
            made["chain"] = report_engine(
                chain,
                checked(described.report),
                graph=chain_graph(chain),
                trace=trace_of(chain),
                ceilings=CEILINGS,
            )
    return made
