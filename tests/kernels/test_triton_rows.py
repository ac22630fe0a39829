"""Generated row kernels in Triton: whole rows, loops, split rows; norms, means, layouts; machine code."""

from __future__ import annotations

import pytest
import torch
from cpp_cases import random
from triton_cases import check, machine_code, make_site

from offers import offered, stages_of, why_not
from ridgeline.base.spec import Config, Op
from ridgeline.tactics.cuda.triton_codegen import TritonRows

REDUCES = ["Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp", "Prod", "LogSum"]
TACTIC = TritonRows()


def cut(rows: int, cols: int, splits: int = 1, *, whole: bool = False) -> Config:
    return {"rows": rows, "cols": cols, "warps": 4, "whole": whole, "splits": splits, "stages": 2}


WHOLE, LOOP, SPLIT = cut(2, 64, whole=True), cut(2, 16), cut(1, 8, 3)
CUTS = [WHOLE, LOOP, SPLIT]


@pytest.mark.parametrize("cols", [1, 40, 48])
def test_layer_norm_with_its_residual(cols: int) -> None:
    inputs = {
        "x": random(5, cols) + 3,
        "r": random(5, cols, seed=1),
        "g": random(cols, seed=2),
        "b": random(cols, seed=3),
    }
    ops = [
        Op("Add", ("x", "r"), ("s",)),
        Op("LayerNormalization", ("s", "g", "b"), ("y",), {"axis": -1, "epsilon": 1e-6}),
    ]
    site = make_site(ops, inputs, ["s", "y"], weights=["g", "b"])
    if cols > 1:
        check(TACTIC, site, inputs, CUTS)


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", [(3, 17), (2, 3, 4, 40)])
def test_masked_softmax(name: str, shape: tuple[int, ...]) -> None:
    mask = torch.where(random(shape[-1], seed=1) < 1, 0.0, -1e4)
    inputs = {"x": random(*shape) * 5, "m": mask, "d": torch.tensor(8.0)}
    ops = [
        Op("Div", ("x", "d"), ("a",)), Op("Add", ("a", "m"), ("b",)), Op(name, ("b",), ("y",), {"axis": -1}),
    ]  # fmt: skip
    check(TACTIC, make_site(ops, inputs, ["y"]), inputs, CUTS)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5, 17), [-1]), ((3, 4, 3, 7), [2, 3]), ((3, 5, 4), [0]), ((4, 3, 5), [0, 2]), ((30,), [0])],
)
def test_every_reduction(shape: tuple[int, ...], axes: list[int], keepdims: int) -> None:
    inputs = {"x": random(*shape).abs() + 0.1, "a": torch.tensor(axes)}
    ops = [Op(f"Reduce{n}", ("x", "a"), (f"o_{n}",), {"keepdims": keepdims}) for n in REDUCES]
    constants = {"a": inputs.pop("a").numpy()}
    site = make_site(ops, inputs, [op.outputs[0] for op in ops], constants=constants)
    check(TACTIC, site, inputs, [cut(8, 64, whole=True), cut(8, 4)])
    single = make_site(ops[:2], inputs, ["o_Sum", "o_Mean"], constants=constants)
    check(TACTIC, single, inputs, [cut(8, 2, 3)])


def test_offered_cuts_are_right() -> None:
    """Whatever the tactic would time, over sizes that lead to different cuts."""
    for shape in ((300, 40), (3, 1030), (2, 17000)):
        inputs = {"x": random(*shape), "g": random(shape[-1], seed=1)}
        ops = [Op("RMSNormalization", ("x", "g"), ("y",), {"axis": -1})]
        check(TACTIC, make_site(ops, inputs, ["y"], weights=["g"]), inputs)


def test_rms_norm_spelt_out() -> None:
    inputs = {"x": random(3, 40), "w": random(40, seed=1), "eps": torch.tensor(1e-6)}
    ops = [
        Op("Mul", ("x", "x"), ("a",)), Op("ReduceMean", ("a", "axes"), ("m",), {"keepdims": 1}),
        Op("Add", ("m", "eps"), ("v",)), Op("Sqrt", ("v",), ("d",)), Op("Div", ("x", "d"), ("n",)),
        Op("Mul", ("n", "w"), ("y",)), Op("Sigmoid", ("y",), ("z",)),
    ]  # fmt: skip
    axes = {"axes": torch.tensor([-1]).numpy()}
    check(TACTIC, make_site(ops, inputs, ["z", "y"], constants=axes), inputs, CUTS)


@pytest.mark.parametrize("is_last", [False, True])
def test_spatial_mean_and_max(is_last: bool) -> None:
    x = random(2, 18, 3, 5)
    inputs = {"x": x.contiguous(memory_format=torch.channels_last) if is_last else x}
    ops = [
        Op("Relu", ("x",), ("a",)), Op("GlobalAveragePool", ("a",), ("m",)), Op("Sigmoid", ("m",), ("y",)),
        Op("GlobalMaxPool", ("a",), ("t",)),
    ]  # fmt: skip
    site = make_site(ops, inputs, ["m", "y", "t"], last=["x"] if is_last else [])
    check(TACTIC, site, inputs)
    check(TACTIC, site, inputs, [cut(8, 4), cut(16, 4, 3)])


@pytest.mark.parametrize("axis", [1, 2])
def test_softmax_over_a_middle_axis(axis: int) -> None:
    inputs = {"x": random(2, 5, 6, 7), "s": random(7, seed=1)}
    ops = [Op("Mul", ("x", "s"), ("a",)), Op("Softmax", ("a",), ("y",), {"axis": axis})]
    check(TACTIC, make_site(ops, inputs, ["y"]), inputs, [cut(16, 8, whole=True), cut(16, 2), cut(16, 2, 2)])


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("name", ["GroupNormalization", "InstanceNormalization"])
def test_image_norms(name: str, is_last: bool) -> None:
    form = torch.channels_last if is_last else torch.contiguous_format
    inputs = {
        "x": random(2, 12, 3, 5).contiguous(memory_format=form),
        "s": random(12, seed=1),
        "b": random(12, seed=2),
    }
    attrs = {"num_groups": 3} if name == "GroupNormalization" else {}
    ops = [Op(name, ("x", "s", "b"), ("n",), attrs), Op("Swish", ("n",), ("y",))]
    site = make_site(ops, inputs, ["y"], last=["x", "y"] if is_last else [], weights=["s", "b"])
    check(TACTIC, site, inputs, [cut(2, 64, whole=True), cut(2, 16), cut(1, 8, 2)])


def test_lp_norm() -> None:
    x = random(4, 17)
    x[2] = 0
    for p in (1, 2):
        ops = [Op("LpNormalization", ("x",), ("y",), {"p": p, "axis": -1})]
        check(TACTIC, make_site(ops, {"x": x}, ["y"]), {"x": x}, CUTS)


def test_half_precision() -> None:
    half = torch.float16
    inputs = {"x": random(5, 60, dtype=half), "g": random(60, seed=1, dtype=half)}
    ops = [Op("LayerNormalization", ("x", "g"), ("n",)), Op("Softmax", ("n",), ("y",))]
    check(TACTIC, make_site(ops, inputs, ["n", "y"]), inputs, [WHOLE, LOOP])


def test_integers() -> None:
    inputs = {"x": (random(4, 30) * 9).long()}
    axes = {"a": torch.tensor([1]).numpy()}
    ops = [Op(f"Reduce{n}", ("x", "a"), (f"o_{n}",)) for n in ("Sum", "Max", "Min")]
    check(
        TACTIC, make_site(ops, inputs, [op.outputs[0] for op in ops], constants=axes), inputs, [WHOLE, LOOP]
    )


def test_nan_inf_and_nothing() -> None:
    x = random(4, 40)
    x[0, 3], x[1, 5], x[2] = torch.nan, torch.inf, -torch.inf
    axes = {"a": torch.tensor([1]).numpy()}
    ops = [Op(f"Reduce{n}", ("x", "a"), (f"o_{n}",)) for n in ("Max", "Min", "Sum")]
    check(TACTIC, make_site(ops, {"x": x}, [op.outputs[0] for op in ops], constants=axes), {"x": x}, CUTS)
    softmax = [Op("Softmax", ("x",), ("y",))]
    check(TACTIC, make_site(softmax, {"x": x}, ["y"]), {"x": x}, CUTS)
    nothing = {"x": torch.empty(0, 40)}
    check(TACTIC, make_site(softmax, nothing, ["y"]), nothing)
    no_columns = {"x": torch.empty(3, 0)}
    check(TACTIC, make_site([ops[2]], no_columns, ["o_Sum"], constants=axes), no_columns)


def test_mean_of_large_numbers_keeps_its_spread() -> None:
    """One pass over the row must not find the variance as a difference of squares."""
    inputs = {"x": random(2, 60) + 1e4, "g": torch.ones(60)}
    ops = [Op("LayerNormalization", ("x", "g"), ("y",), {"epsilon": 1e-5})]
    check(TACTIC, make_site(ops, inputs, ["y"]), inputs, CUTS)


def test_refusals() -> None:
    def why(shape: tuple[int, ...], *ops: Op) -> str | None:
        return why_not(TACTIC, make_site(ops, {"x": torch.zeros(shape)}, [ops[-1].outputs[0]]))

    assert why((4, 4), Op("Exp", ("x",), ("y",))) == "nothing is reduced"
    twice = Op("Softmax", ("x",), ("a",)), Op("Softmax", ("a",), ("y",), {"axis": 0})
    assert why((4, 4), *twice) == "two reductions run over different axes"


@pytest.mark.parametrize(
    ("name", "cols"), [("Softmax", 1024), ("LayerNormalization", 768), ("Softmax", 32768)]
)
def test_machine_code_of_whole_rows(name: str, cols: int) -> None:
    half = torch.float16
    inputs = {
        "x": torch.zeros(256, cols, dtype=half),
        "g": torch.ones(cols, dtype=half),
        "b": torch.ones(cols, dtype=half),
    }
    operands = ("x", "g", "b") if name == "LayerNormalization" else ("x",)
    inputs = {n: t for n, t in inputs.items() if n in operands}
    site = make_site([Op(name, operands, ("y",))], inputs, ["y"], weights=operands[1:])
    whole = next(config for config in offered(TACTIC, site).configs if config["whole"])
    ((compiled, code),) = machine_code(stages_of(TACTIC, site, whole))
    assert compiled.spills == 0
    assert "LDG.E.128" in code
    assert "STG.E.128" in code


def test_machine_code_of_loops_and_split_rows() -> None:
    inputs = {"x": random(4, 70000, dtype=torch.float16)}
    site = make_site([Op("Softmax", ("x",), ("y",))], inputs, ["y"])
    configs = [config for config in offered(TACTIC, site).configs if not config["held"]]
    for config in configs:
        for compiled, code in machine_code(stages_of(TACTIC, site, config)):
            assert compiled.spills == 0
            assert "LDG.E.128" in code
    assert len({config["splits"] for config in configs}) == 2
