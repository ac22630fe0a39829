"""Generated elementwise kernels in Triton: every op, moves, layouts, types, odd sizes, machine code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpp_cases import random
from product_cases import for_interpreter
from triton_cases import AMPERE, GPU, check, machine_code, make_site

from interpreted import interpret
from offers import offered, stages_of, why_not
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.driver import CudaError, _slot
from ridgeline.tactics.cuda.triton_codegen import GeneratedTriton, TritonPointwise, TritonRows

UNARY = [
    "Sqrt", "Reciprocal", "Neg", "Abs", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Relu", "LeakyRelu", "Sin",
    "Cos", "HardSigmoid", "HardSwish", "Gelu", "Swish", "Softplus", "Elu", "Selu", "Celu", "Mish", "Floor",
    "Ceil", "Round", "Sign", "Identity", "Softsign", "ThresholdedRelu",
]  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Sum", "Mean", "PRelu"]
COMPARE = ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"]
TACTIC = TritonPointwise()


def chain(names: list[str], start: str = "x") -> list[Op]:
    return [Op(name, (start,), (f"o_{name}",)) for name in names]


@pytest.mark.parametrize("is_positive", [True, False])
def test_unary_ops(is_positive: bool) -> None:
    x = random(301) * 3
    names = UNARY if is_positive else [n for n in UNARY if n not in ("Sqrt", "Log")]
    inputs = {"x": x.abs() + 0.01 if is_positive else x}
    check(TACTIC, make_site(chain(names), inputs, [f"o_{n}" for n in names]), inputs)


def test_large_arguments() -> None:
    """Nothing overflows on the way to a finite result, and sines are still good."""
    inputs = {"x": torch.tensor([-1e4, -104.0, -88.5, -20.0, 0.0, 20.0, 88.5, 88.9, 1e4, 3e38])}
    names = ["Tanh", "Sigmoid", "Softplus", "Gelu", "Mish", "Exp", "Elu", "Round"]
    check(TACTIC, make_site(chain(names), inputs, [f"o_{n}" for n in names]), inputs)
    sizes = torch.logspace(3, 38.5, 300)
    # the last is the float32 nearest to a multiple of pi/2
    nearest = torch.tensor([2.0**120, -(2.0**20), 3.4028235e38, 16367173.0 * 2**72])
    angles = {"x": torch.cat([random(50) * 1e3, sizes * (1.5 + random(300, seed=1)).clamp(-2, 2), nearest])}
    check(TACTIC, make_site(chain(["Sin", "Cos"]), angles, ["o_Sin", "o_Cos"]), angles)


def test_nan_and_inf_stay() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.5])
    inputs = {"x": x, "y": x.flip(0).contiguous()}
    names = ["Relu", "Exp", "Sigmoid", "Tanh", "Erf", "Softplus", "Abs", "Elu", "IsNaN", "IsInf", "Log"]
    ops = chain(names) + [Op(n, ("x", "y"), (f"o_{n}",)) for n in ("Max", "Min")]
    ops.append(Op("Clip", ("x", "l", "h"), ("o_Clip",)))
    bounds = {"l": np.float32(-1.0).reshape(()), "h": np.float32(6.0).reshape(())}
    check(TACTIC, make_site(ops, inputs, [op.outputs[0] for op in ops], constants=bounds), inputs)


def test_binary_ops() -> None:
    inputs = {"x": random(7, 17).abs() + 0.1, "y": random(17, seed=1)}
    ops = [Op(n, ("x", "y"), (f"o_{n}",)) for n in BINARY + COMPARE]
    check(TACTIC, make_site(ops, inputs, [op.outputs[0] for op in ops]), inputs)


def test_half_precision_is_computed_in_single() -> None:
    names = ["Exp", "Tanh", "Gelu", "Relu", "Softplus", "Erf"]
    inputs = {"x": random(17, 3, dtype=torch.float16), "b": random(3, seed=1, dtype=torch.float16)}
    ops = [Op("Add", ("x", "b"), ("s",)), *chain(names, "s")]
    check(TACTIC, make_site(ops, inputs, [f"o_{n}" for n in names]), inputs)


def test_logic_and_choice() -> None:
    inputs = {"x": random(3, 17), "y": random(3, 1, seed=1)}
    ops = [
        Op("Greater", ("x", "y"), ("a",)), Op("Not", ("a",), ("b",)), Op("And", ("a", "b"), ("c",)),
        Op("Or", ("a", "c"), ("d",)), Op("Xor", ("b", "d"), ("e",)), Op("Where", ("a", "x", "y"), ("f",)),
        Op("IsNaN", ("x",), ("g",)), Op("Cast", ("x",), ("h",), {"to": 7}),
        Op("Cast", ("a",), ("i",), {"to": 1}), Op("Cast", ("x",), ("j",), {"to": 9}),
    ]  # fmt: skip
    check(TACTIC, make_site(ops, inputs, list("cdefghij")), inputs)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers(dtype: torch.dtype) -> None:
    x, y = (random(100) * 100).to(dtype), (random(100, seed=1) * 9).to(dtype)
    inputs = {"x": x, "y": torch.where(y == 0, 1, y)}
    ops = [Op(n, ("x", "y"), (f"o_{n}",)) for n in ("Add", "Mul", "Div", "Max", "Less", "Mod")]
    ops.append(Op("Mod", ("x", "y"), ("o_fmod",), {"fmod": 1}))
    check(TACTIC, make_site(ops, inputs, [op.outputs[0] for op in ops]), inputs)


@pytest.mark.parametrize("shapes", [
    ((1,), (1,)), ((3,), ()), ((7, 1), (1, 17)), ((2, 3, 1, 5), (3, 4, 1)), ((0, 4), (4,)),
    ((3, 300), (300,)),
])  # fmt: skip
def test_broadcasting(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    inputs = {"x": random(*shapes[0]), "y": random(*shapes[1], seed=1)}
    ops = [Op("Mul", ("x", "y"), ("a",)), Op("Add", ("a", "x"), ("z",))]
    check(TACTIC, make_site(ops, inputs, ["z", "a"]), inputs)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_channels_last(is_mixed: bool) -> None:
    form = torch.channels_last
    inputs = {
        "x": random(2, 17, 7, 5).contiguous(memory_format=form), "s": random(1, 17, 1, 1, seed=1),
        "r": random(2, 17, 7, 5, seed=3),
    }  # fmt: skip
    last = ["x", "z"]
    if not is_mixed:
        inputs["r"] = inputs["r"].contiguous(memory_format=form)
        last.append("r")
    ops = [Op("Mul", ("x", "s"), ("a",)), Op("Add", ("a", "r"), ("d",)), Op("Relu", ("d",), ("z",))]
    site = make_site(ops, inputs, ["z"], last=last, weights=["s"])
    assert any(config["height"] for config in offered(TACTIC, site).configs) == is_mixed
    check(TACTIC, site, inputs)


@pytest.mark.parametrize("perm", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_transposes(perm: tuple[int, ...]) -> None:
    inputs = {"x": random(5, 40, 37), "y": random(*(random(5, 40, 37).permute(perm).shape), seed=1)}
    ops = [Op("Transpose", ("x",), ("t",), {"perm": perm}), Op("Add", ("t", "y"), ("z",))]
    check(TACTIC, make_site(ops, inputs, ["z"]), inputs)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


MOVES = {
    "split of a product": (
        {"x": (3, 20)}, {},
        [Op("Sigmoid", ("x",), ("s",)), Op("Mul", ("x", "s"), ("m",)),
         Op("Split", ("m",), ("a", "b"), {"axis": -1, "num_outputs": 2}), Op("Mul", ("a", "b"), ("z",))],
    ),
    "rotary halves": (
        {"x": (2, 3, 4, 16), "c": (1, 3, 1, 16), "s": (1, 3, 1, 16)},
        {"b": ints(0), "m": ints(8), "e": ints(16), "d": ints(3)},
        [Op("Slice", ("x", "b", "m", "d"), ("l",)), Op("Slice", ("x", "m", "e", "d"), ("h",)),
         Op("Neg", ("h",), ("n",)), Op("Concat", ("n", "l"), ("r",), {"axis": -1}),
         Op("Mul", ("x", "c"), ("p",)), Op("Mul", ("r", "s"), ("q",)), Op("Add", ("p", "q"), ("z",))],
    ),
    "slice with steps": (
        {"x": (7, 11)}, {"b": ints(-1, 1), "e": ints(-8, 9), "d": ints(1, 0), "s": ints(-3, 2)},
        [Op("Slice", ("x", "b", "e", "d", "s"), ("y",)), Op("Exp", ("y",), ("z",))],
    ),
    "one column": (
        {"x": (5, 9), "y": (5, 9)}, {"b": ints(4), "e": ints(5), "d": ints(1)},
        [Op("Slice", ("x", "b", "e", "d"), ("c",)), Op("Mul", ("c", "y"), ("z",))],
    ),
    "concat of three": (
        {"x": (3, 4), "y": (3, 1), "w": (3, 5)}, {},
        [Op("Exp", ("y",), ("e",)), Op("Concat", ("x", "e", "w"), ("c",), {"axis": 1}),
         Op("Relu", ("c",), ("z",))],
    ),
    "pad": (
        {"x": (3, 5, 4)}, {"p": ints(0, 2, 1, 0, 1, 3), "f": np.float32(7.0).reshape(())},
        [Op("Exp", ("x",), ("e",)), Op("Pad", ("e", "p", "f"), ("z",))],
    ),
    "heads": (
        {"x": (2, 5, 12), "b": (12,)}, {"s": ints(2, 5, 3, 4)},
        [Op("Add", ("x", "b"), ("y",)), Op("Reshape", ("y", "s"), ("h",)),
         Op("Transpose", ("h",), ("z",), {"perm": (0, 2, 1, 3)})],
    ),
    "heads joined": (
        {"x": (2, 3, 5, 4), "r": (2, 5, 12)}, {"s": ints(2, 5, 12)},
        [Op("Transpose", ("x",), ("t",), {"perm": (0, 2, 1, 3)}), Op("Reshape", ("t", "s"), ("j",)),
         Op("Add", ("j", "r"), ("z",))],
    ),
    "reshape across": (
        {"x": (4, 6), "y": (8, 3)}, {"s": ints(8, 3)},
        [Op("Reshape", ("x", "s"), ("t",)), Op("Mul", ("t", "y"), ("z",))],
    ),
    "tile": (
        {"x": (2, 1, 3)}, {"r": ints(2, 4, 3)}, [Op("Tile", ("x", "r"), ("t",)), Op("Neg", ("t",), ("z",))],
    ),
    "expand": (
        {"x": (3, 1)}, {"s": ints(2, 3, 5)}, [Op("Expand", ("x", "s"), ("t",)), Op("Neg", ("t",), ("z",))],
    ),
    "depth to space": ({"x": (1, 8, 2, 3)}, {}, [Op("DepthToSpace", ("x",), ("z",), {"blocksize": 2})]),
    "space to depth": ({"x": (1, 2, 4, 6)}, {}, [Op("SpaceToDepth", ("x",), ("z",), {"blocksize": 2})]),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    shapes, constants, ops = MOVES[name]
    inputs = {n: random(*shape, seed=i) for i, (n, shape) in enumerate(shapes.items())}
    check(TACTIC, make_site(ops, inputs, ["z"], constants=constants), inputs)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gather(axis: int, dtype: torch.dtype) -> None:
    inputs = {
        "t": random(9, 7),
        "i": torch.tensor([[0, -1, 3], [6, -7, 2]], dtype=dtype),
        "p": random(3, 1, seed=1),
    }
    ops = [Op("Gather", ("t", "i"), ("g",), {"axis": axis}), Op("Exp", ("g",), ("z",))]
    if axis == 0:
        ops[1] = Op("Add", ("g", "p"), ("z",))
    check(TACTIC, make_site(ops, inputs, ["z"]), inputs)


def test_an_index_outside_stays_inside() -> None:
    """The floor refuses it; on a GPU a wild read would end the process."""
    inputs = {"t": random(4, 3), "i": torch.tensor([1, 3])}
    site = make_site([Op("Gather", ("t", "i"), ("z",))], inputs, ["z"])
    text = stages_of(TACTIC, site, offered(TACTIC, site).configs[0]).launches[0].kernel.text
    assert "rl_place(" in text


def test_other_batch_is_the_same_kernel() -> None:
    def kernels(batch: int) -> list[str]:
        inputs = {"x": random(batch, 197, 64), "b": random(64)}
        ops = [Op("Add", ("x", "b"), ("y",)), Op("Gelu", ("y",), ("z",))]
        site = make_site(ops, inputs, ["z"])
        return [stages_of(TACTIC, site, {"width": 512, "warps": 4, "height": 0}).launches[0].kernel.digest]

    assert kernels(2) == kernels(3)


@pytest.mark.parametrize(
    ("tactic", "node", "shape"),
    [
        (TritonPointwise(), Op("Neg", ("x",), ("y",)), (1 << 20, 4096)),
        (TritonRows(), Op("Softmax", ("x",), ("y",), {"axis": -1}), (1 << 31, 2)),
    ],
    ids=["elements", "rows"],
)
def test_more_than_32_bits_count(tactic: GeneratedTriton, node: Op, shape: tuple[int, int]) -> None:
    """The first program alone, over the little that it touches: what there is in all must not wrap around."""
    specs = {name: TensorSpec("float16", shape) for name in ("x", "y")}
    site = Site(Body(("x",), ("y",), (node,)), specs, frozenset(), {}, GPU)
    assert why_not(tactic, site) is None
    (stage,) = stages_of(tactic, site, offered(tactic, site).configs[0]).launches
    x, y = torch.ones(1024, shape[1]).half(), torch.zeros(1024, shape[1]).half()
    interpret(for_interpreter(stage.kernel), (1,), [x, y, *stage.numbers])
    assert y.flatten()[:1024].all()


def test_a_size_that_no_argument_holds_is_refused() -> None:
    specs = {name: TensorSpec("float16", ((1 << 31) + 1,)) for name in ("x", "y")}
    site = Site(Body(("x",), ("y",), (Op("Neg", ("x",), ("y",)),)), specs, frozenset(), {}, GPU)
    assert "32 bits do not hold it" in str(why_not(TritonPointwise(), site))
    with pytest.raises(CudaError, match="2147483649 of a kernel does not fit"):
        _slot("i32", (1 << 31) + 1)
    assert _slot("i32", -(1 << 31)).value == -(1 << 31)


def test_refusals() -> None:
    x = {"x": torch.zeros(4, 6)}
    site = make_site([Op("Exp", ("x",), ("z",))], x, ["z"], target=Target())
    assert why_not(TACTIC, site) == "target is cpu, want cuda"
    assert (
        why_not(TACTIC, make_site([Op("Softmax", ("x",), ("z",))], x, ["z"])) == "op Softmax is not pointwise"
    )
    cumulative = make_site([Op("CumSum", ("x", "a"), ("z",))], x, ["z"], constants={"a": np.array(0)})
    assert why_not(TACTIC, cumulative) == "op CumSum is neither pointwise nor a reduction known here"
    twice = [Op("Transpose", ("x",), ("t",), {"perm": (1, 0)}), Op("Add", ("x", "t"), ("z",))]
    assert (
        why_not(TACTIC, make_site(twice, {"x": torch.zeros(4, 4)}, ["z"]))
        == "a value meets its own transpose"
    )


@pytest.mark.parametrize("target", [GPU, AMPERE], ids=str)
def test_machine_code_is_wide_and_does_not_spill(target: Target) -> None:
    half = torch.float16
    inputs = {
        "x": random(64, 768, dtype=half),
        "r": random(64, 768, dtype=half),
        "b": random(768, dtype=half),
    }
    ops = [Op("Add", ("x", "b"), ("y",)), Op("Gelu", ("y",), ("g",)), Op("Add", ("g", "r"), ("z",))]
    site = make_site(ops, inputs, ["z"], weights=["b"], target=target)
    stages = stages_of(TACTIC, site, {"width": 1024, "warps": 4, "height": 0})
    ((compiled, code),) = machine_code(stages, target.arch)
    assert compiled.spills == 0
    assert code.count("LDG.E.128") == 3
    assert code.count("STG.E.128") == 1
    assert ("griddepcontrol" in code or "ACQBULK" in code) == (target is GPU)


def test_machine_code_of_a_transpose_is_wide_on_both_sides() -> None:
    inputs = {"x": random(2, 64, 16, 16, dtype=torch.float16)}
    site = make_site([Op("Relu", ("x",), ("z",))], inputs, ["z"], last=["z"])
    ((compiled, code),) = machine_code(stages_of(TACTIC, site, {"width": 64, "warps": 4, "height": 64}))
    assert compiled.spills == 0
    assert "LDG.E.128" in code
    assert "STG.E.128" in code


def test_machine_code_of_sines_and_powers_does_not_spill() -> None:
    inputs = {"x": random(4096, dtype=torch.float16), "y": random(4096, dtype=torch.float16)}
    ops = [
        Op("Sin", ("x",), ("a",)), Op("Cos", ("y",), ("b",)), Op("Pow", ("a", "b"), ("p",)),
        Op("Mish", ("p",), ("z",)),
    ]  # fmt: skip
    site = make_site(ops, inputs, ["z"])
    for compiled, _ in machine_code(stages_of(TACTIC, site, {"width": 512, "warps": 4, "height": 0})):
        assert compiled.spills == 0
