"""`ridge build --target`, `ridge kernels` and `ridge settle` on a machine without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cross_models import mlp
from ridgeline.analyze.kernel_findings import examine_code
from ridgeline.analyze.kernel_occupancy import occupancy
from ridgeline.analyze.kernel_report import report_kernels
from ridgeline.builder import build
from ridgeline.cli.engines import compile_steps
from ridgeline.kernels.triton.compiler import Compiled

Ridge = Callable[..., tuple[int, str, str]]


def test_build_for_another_machine(ridge: Ridge, here: Path) -> None:
    (here / "mlp.onnx").write_bytes(mlp())
    code, stdout, stderr = ridge("build", "mlp.onnx", "--target", "cuda:sm_90", "--level", "0")
    assert code == 0, stderr
    for words in ("cuda:sm_90", "not yet", "first run", "predicted"):
        assert words in stdout
    summary = json.loads(ridge("show", "mlp.ridge", "--json")[1])
    assert summary["verdict"]["verified"] is False
    assert all(step["predicted_us"] > 0 for step in summary["steps"])
    assert "predicted" in ridge("show", "mlp.ridge")[1]
    assert "predicted" in ridge("explain", "mlp.ridge")[1]


def test_a_mistyped_target_is_met_with_the_near_one(ridge: Ridge, here: Path) -> None:
    (here / "mlp.onnx").write_bytes(mlp())
    code, _, stderr = ridge("build", "mlp.onnx", "--target", "cuda:sm90")
    assert code == 1
    assert "did you mean 'cuda:sm_90'" in stderr


def test_kernels_as_a_table(ridge: Ridge, cross_engine: Path) -> None:
    code, stdout, stderr = ridge("kernels", cross_engine)
    assert code == 0, stderr
    for word in ("regs", "spill", "per SM", "tensor", "HMMA", "gemm"):
        assert word in stdout


def test_kernels_as_json(ridge: Ridge, cross_engine: Path) -> None:
    code, stdout, _ = ridge("kernels", cross_engine, "--json")
    assert code == 0
    report = json.loads(stdout)
    assert report["target"] == "cuda:sm_90"
    assert report["kernels"]
    for row in report["kernels"]:
        assert row["registers"] > 0
        assert row["spilled_bytes"] == 0
        assert 1 <= row["blocks_per_sm"] <= 32
        assert 0 < row["occupancy"] <= 1
        assert row["steps"]
        evidence = row["evidence"]
        assert evidence["local"] == 0
        assert evidence["load"].startswith("LDG")
        assert evidence["store"].startswith("STG")
        assert evidence["load_bits"] in (32, 64, 128)
    assert any(row["evidence"]["tensor_core"] in ("HMMA", "HGMMA") for row in report["kernels"])


def test_kernels_show_what_their_instructions_do(ridge: Ridge, cross_engine: Path) -> None:
    report = json.loads(ridge("kernels", cross_engine, "--json")[1])
    for row in report["kernels"]:
        mix = row["mix"]
        assert mix["total"] == row["evidence"]["instructions"]
        kinds = {name: number for name, number in mix.items() if name not in ("total", "move_share")}
        assert sum(kinds.values()) == mix["total"]
        assert (mix["tensor_core"] > 0) == bool(row["evidence"]["tensor_core"])
        assert any(name.startswith(("LDG", "LDGSTS")) for name in row["widths"])
        assert row["limits"][row["limited_by"]] == row["blocks_per_sm"]
        assert row["accesses_known"] == row["accesses"], "our kernels' addresses can all be computed"
        # their shared memory is swizzled, and their loads are coalesced
        assert not {finding["name"] for finding in row["findings"]} & {"bank conflicts", "not coalesced"}


def test_a_name_a_digest_or_a_step_picks_kernels(ridge: Ridge, cross_engine: Path) -> None:
    every = json.loads(ridge("kernels", cross_engine, "--no-sass", "--json")[1])["kernels"]
    for pattern in ("gemm", "ge*", every[0]["digest"][:8], str(every[0]["steps"][0])):
        picked = json.loads(ridge("kernels", cross_engine, pattern, "--no-sass", "--json")[1])["kernels"]
        assert picked
        assert every[0] in picked
    code, _, stderr = ridge("kernels", cross_engine, "gem")
    assert code == 1
    assert "did you mean 'gemm'" in stderr


def test_code_comes_with_its_source_lines(ridge: Ridge, cross_engine: Path) -> None:
    code, stdout, stderr = ridge("kernels", cross_engine, "--sass", "1")
    assert code == 0, stderr
    assert "HMMA" in stdout
    assert "tl.dot(" in stdout, "the line of ours that became it"
    made = json.loads(ridge("kernels", cross_engine, "--sass", "1", "--json")[1])["kernels"][0]
    (dot, *_) = [line for line in made["lines"] if "HMMA" in line["text"]]
    assert dot["source"].startswith("gemm.py:")
    assert "dot" in dot["source_text"]


def test_ptx_is_compiled_again(ridge: Ridge, cross_engine: Path) -> None:
    code, stdout, stderr = ridge("kernels", cross_engine, "--ptx", "1", "--json")
    assert code == 0, stderr
    (made,) = json.loads(stdout)["kernels"]
    text = "\n".join(line["text"] for line in made["lines"])
    assert ".visible .entry gemm(" in text
    assert "mma.sync" in text
    assert any(line["source"].startswith("gemm.py:") for line in made["lines"])
    assert ".loc" not in text
    assert ridge("kernels", cross_engine, "--ptx", "1", "--sass", "1")[0] == 2


def test_without_a_disassembler_the_stored_facts_are_left(
    ridge: Ridge, cross_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    report = json.loads(ridge("kernels", cross_engine, "--json")[1])
    assert all(row["evidence"] is None and row["registers"] > 0 for row in report["kernels"])
    assert "Triton" in report["note"]
    assert "Triton" in ridge("kernels", cross_engine)[1]


def test_without_disassembly_the_stored_facts_are_left(ridge: Ridge, cross_engine: Path) -> None:
    report = json.loads(ridge("kernels", cross_engine, "--no-sass", "--json")[1])
    assert all(row["evidence"] is None and row["registers"] > 0 for row in report["kernels"])
    assert report["note"] == ""


def test_an_engine_just_built_has_a_report_too() -> None:
    engine = build(mlp(), target="cuda:sm_90", level=1, verify="off")
    assert not engine.fused.kernels.compiled
    rows = report_kernels(engine.plan, compile_steps(engine), examine=examine_code).kernels
    assert {row.digest for row in rows} == {d for step in engine.plan.steps for d in step.kernels}


def test_kernels_of_a_host_engine(ridge: Ridge, tiny_engine: Path) -> None:
    code, _, stderr = ridge("kernels", tiny_engine)
    assert code == 1
    assert "has no GPU kernels" in stderr
    assert "--target cuda:sm_90" in stderr


def test_running_and_settling_want_the_gpu(ridge: Ridge, here: Path, cross_engine: Path) -> None:
    for words in (("run", cross_engine, "--trust"), ("settle", cross_engine, "-o", "settled.ridge")):
        code, _, stderr = ridge(*words)
        assert code == 1
        assert "there is no GPU to run on" in stderr
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "arch", "blocks", "limit"),
    [
        (32, 0, 4, "sm_90", 16, "registers"),
        (80, 98_304, 4, "sm_90", 2, "shared memory"),
        (255, 0, 8, "sm_90", 1, "registers"),
        (16, 0, 1, "sm_90", 32, "blocks"),
        (24, 0, 4, "sm_86", 12, "warps"),
        (64, 164_864, 4, "sm_80", 1, "shared memory"),
        # a warp's registers lie in one of four partitions: 19 warps of 104 registers would fit otherwise
        (104, 0, 1, "sm_90", 16, "registers"),
        (104, 0, 2, "sm_90", 8, "registers"),
        (104, 0, 9, "sm_90", 1, "registers"),
        (128, 0, 4, "sm_90", 4, "registers"),
        (168, 50_000, 12, "sm_90", 1, "registers"),
        (40, 75_500, 4, "sm_90", 3, "shared memory"),  # 3 x (75,500 + 1,024, rounded up to 128)
        (16, 0, 1, "sm_86", 16, "blocks"),
        (16, 0, 1, "sm_89", 24, "blocks"),
        (32, 0, 32, "sm_90", 2, "registers"),
        (-1, -1, 0, "sm_90", 32, "blocks"),  # a stranger's file
    ],
)
def test_how_many_blocks_a_processor_holds(
    registers: int, shared: int, warps: int, arch: str, blocks: int, limit: str
) -> None:
    made = Compiled("k", arch, b"", shared, warps, True, 0, (), registers, 0, 0.0, "")
    held = occupancy(made)
    assert (held.blocks, held.limited_by) == (blocks, limit)


def test_settle_says_what_was_never_timed(
    ridge: Ridge, tiny_engine: Path, tiny_model: Path, here: Path
) -> None:
    code, _, stderr = ridge("settle", tiny_engine, "-o", "same.ridge")
    assert code == 0
    assert "holds no predicted choice" in " ".join(stderr.split())
    assert "never timed" not in stderr
    ridge("build", tiny_model, "--level", "0", "--verify", "off", "-o", "quick.ridge")
    assert "never timed: build it at a level above 0" in ridge("settle", "quick.ridge")[2]


def test_a_report_lists_the_kernels(ridge: Ridge, cross_engine: Path, here: Path) -> None:
    """Built without its GPU: times are predicted, resources of kernels are the compiler's."""
    code, stdout, stderr = ridge("report", cross_engine, "--json")
    assert code == 0, stderr
    told = json.loads(stdout)
    wanted = {digest for step in told["steps"] for digest in step["kernels"]}
    assert {row["digest"] for row in told["kernels"]} == wanted != set()
    assert all(row["registers"] > 0 for row in told["kernels"])
    assert told["times"] == "predicted"
    assert told["roof"]["is_measured"] is False
    assert told["kernels"][0]["limited_by"] in (here / told["file"]).read_text(encoding="utf-8")
